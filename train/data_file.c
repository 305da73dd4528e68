/* SPDX-License-Identifier: Apache-2.0 */
/* Maps files and finds out what kind of token file one is. */
#include "train/data_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "core/text.h"

static ndm_status map_open_file(int fd, const char *path, bool random, ndm_mapped *file)
{
    struct stat st;
    void *bytes;

    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode))
        NDM_FAIL(NDM_ERR_IO, "%s: not a regular file", path);
    if (st.st_size == 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: is empty", path);
    bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (bytes == MAP_FAILED)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot map %lld bytes: %s", path, (long long)st.st_size,
                 strerror(errno));
    madvise(bytes, (size_t)st.st_size, random ? MADV_RANDOM : MADV_SEQUENTIAL);
    file->bytes = bytes;
    file->size = st.st_size;
    return NDM_OK;
}

ndm_status ndm_mapped_open(const char *path, bool random, ndm_mapped *file)
{
    ndm_status status;
    int fd;

    *file = (ndm_mapped){.path = ndm_text_duplicate(path)};
    if (file->path == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to open it", path);
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    status = map_open_file(fd, path, random, file);
    close(fd);
    return status;
}

void ndm_mapped_close(ndm_mapped *file)
{
    if (file->bytes != NULL)
        munmap((void *)file->bytes, (size_t)file->size);
    free(file->path);
    *file = (ndm_mapped){0};
}

void ndm_mapped_advise(const unsigned char *bytes, int64_t n)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)bytes / page * page;

    madvise((void *)at, (size_t)((uintptr_t)bytes + (uintptr_t)n - at), MADV_WILLNEED);
}

ndm_status ndm_mapped_copy(const char *path, const unsigned char *bytes, int64_t n, void *to)
{
    const struct iovec from = {(void *)bytes, (size_t)n}, into = {to, (size_t)n};
    ssize_t got = process_vm_readv(getpid(), &into, 1, &from, 1, 0);

    if (got < 0 && errno != EFAULT) /* the call is not allowed here */
        memcpy(to, bytes, (size_t)n);
    else if (got != n)
        NDM_FAIL(NDM_ERR_IO, "%s: can be read no more: it was cut short, or its disk failed", path);
    return NDM_OK;
}

static uint32_t word(const unsigned char *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static ndm_status set_tokens(ndm_token_file *f, const char *format, int64_t start, int width)
{
    f->format = format;
    f->tokens = f->map.bytes + start;
    f->width = width;
    f->count = (f->map.size - start) / width;
    if ((f->map.size - start) % width != 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %lld bytes are no whole number of %s tokens", f->map.path,
                 (long long)f->map.size, format);
    return NDM_OK;
}

/* llm.c: 256 int32 of header: magic, version, tokens. GPT-2 files have uint16 tokens, Llama-3 files
 * uint32. */
enum { LLMC_HEADER = 1024, LLMC_GPT2 = 20240520, LLMC_LLAMA3 = 20240801 };

static bool is_llmc(const ndm_token_file *f)
{
    return f->map.size >= LLMC_HEADER &&
           (word(f->map.bytes) == LLMC_GPT2 || word(f->map.bytes) == LLMC_LLAMA3) &&
           word(f->map.bytes + 4) < 100;
}

static ndm_status open_llmc(ndm_token_file *f)
{
    int width = word(f->map.bytes) == LLMC_GPT2 ? 2 : 4;
    int64_t says = word(f->map.bytes + 8);

    NDM_TRY(set_tokens(f, "llm.c", LLMC_HEADER, width));
    if (f->count != says)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: its llm.c header says %lld tokens, the file has %lld",
                 f->map.path, (long long)says, (long long)f->count);
    return NDM_OK;
}

/* Megatron: X.idx starts with a magic, a version (8 bytes) and the code of the tokens' type in
 * X.bin. Width 0: there is none. */
static ndm_status megatron_width(const char *path, int *width)
{
    static const char magic[9] = "MMIDIDX\0";
    size_t stem = strlen(path) - strlen(".bin");
    char *index = ndm_text_printf("%.*s.idx", (int)stem, path);
    unsigned char head[18] = {0};
    int fd = index != NULL ? open(index, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    ssize_t got = fd >= 0 ? read(fd, head, sizeof head) : 0;

    if (fd >= 0)
        close(fd);
    free(index);
    *width = 0;
    if (got < (ssize_t)sizeof head || memcmp(head, magic, sizeof magic) != 0)
        return NDM_OK;
    if (head[17] == 8)
        *width = 2;
    else if (head[17] == 4)
        *width = 4;
    else if (head[17] == 1)
        *width = 1;
    else
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: its .idx says type %d; known: 1 (uint8), 4 (int32), 8 (uint16)", path,
                 head[17]);
    return NDM_OK;
}

/* uint16 tokens, read two at a time, are ids below the vocabulary only if every second one is zero
 * (or very small): nothing that means something. So if that holds for a stretch, the file is
 * uint32. */
static bool looks_like_uint32(const ndm_token_file *f, int64_t vocab)
{
    int64_t n = f->map.size / 4 < 4096 ? f->map.size / 4 : 4096;
    bool any = false;

    if (f->map.size % 4 != 0 || n < 32)
        return false;
    for (int64_t i = 0; i < n; i++) {
        uint32_t id = word(f->map.bytes + 4 * i);

        if (id >= vocab)
            return false;
        any |= id != 0;
    }
    return any;
}

static bool ends_in(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);

    return n >= m && strcmp(path + n - m, end) == 0;
}

static ndm_status find_format(ndm_token_file *f, int64_t vocab)
{
    int width;

    if (ends_in(f->map.path, ".uint16.bin"))
        return set_tokens(f, "uint16", 0, 2);
    if (ends_in(f->map.path, ".uint32.bin"))
        return set_tokens(f, "uint32", 0, 4);
    if (is_llmc(f))
        return open_llmc(f);
    if (!ends_in(f->map.path, ".bin"))
        return set_tokens(f, "text", 0, 1);
    NDM_TRY(megatron_width(f->map.path, &width));
    if (width > 0)
        return set_tokens(f, "megatron", 0, width);
    if (looks_like_uint32(f, vocab))
        return set_tokens(f, "uint32", 0, 4);
    return set_tokens(f, "uint16", 0, 2);
}

ndm_status ndm_token_file_open(const char *path, int64_t vocab, bool random, ndm_token_file *file)
{
    *file = (ndm_token_file){0};
    NDM_TRY(ndm_mapped_open(path, random, &file->map));
    return find_format(file, vocab);
}
