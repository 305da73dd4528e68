/* SPDX-License-Identifier: Apache-2.0 */
/* Large reads of a file: from the page cache what is there, past it what is not. The copy through
 * the cache costs more than a checksum, and would push out what others have there. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/safetensors_gather_internal.h"
#include "model/safetensors_reader.h"

/* By the descriptor, not by the path, which may have become another file. */
static int open_direct(int fd)
{
    char name[64];

    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return open(name, O_RDONLY | O_CLOEXEC | O_DIRECT);
}

ndm_status ndm_gather_file_open(int fd, const char *path, bool ahead, ndm_gather_file *file)
{
    struct stat st;

    if (fstat(fd, &st) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    *file = (ndm_gather_file){fd, open_direct(fd), path, (int64_t)st.st_size, NULL};
    (void)posix_fadvise(fd, 0, 0, ahead ? POSIX_FADV_SEQUENTIAL : POSIX_FADV_RANDOM);
    if (st.st_size > 0 && sysconf(_SC_PAGESIZE) == NDM_GATHER_ALIGN) {
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        file->map = map == MAP_FAILED ? NULL : map;
    }
    return NDM_OK;
}

void ndm_gather_file_close(ndm_gather_file *file)
{
    if (file->direct >= 0)
        close(file->direct);
    if (file->map)
        munmap(file->map, (size_t)file->bytes);
    file->direct = -1, file->map = NULL;
}

static int64_t aligned_up(int64_t n)
{
    return (n + NDM_GATHER_ALIGN - 1) / NDM_GATHER_ALIGN * NDM_GATHER_ALIGN;
}

/* Whether all of it is in memory anyway. A read that would not wait (RWF_NOWAIT) cannot tell: it
 * starts to read ahead, and the disk gives everything twice. */
static bool is_cached(const ndm_gather_file *f, int64_t begin, int64_t end)
{
    unsigned char pages[256];
    int64_t step = (int64_t)sizeof pages * NDM_GATHER_ALIGN;

    if (!f->map || end > f->bytes)
        return false;
    for (; begin < end; begin += step) {
        int64_t n = aligned_up(end - begin < step ? end - begin : step);
        if (mincore(f->map + begin, (size_t)n, pages) != 0)
            return false;
        for (int64_t i = 0; i < n / NDM_GATHER_ALIGN; i++)
            if (!(pages[i] & 1))
                return false;
    }
    return true;
}

/* Bytes that were read; fewer than asked for at the end of the file, or where it does not work. */
static int64_t read_direct(const ndm_gather_file *f, char *data, int64_t begin, int64_t end)
{
    int64_t done = 0;

    while (begin + done < end) {
        ssize_t got = pread(f->direct, data + done, (size_t)aligned_up(end - begin - done),
                            begin + done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        done += got;
        if (got % NDM_GATHER_ALIGN != 0) /* the end */
            break;
    }
    return done < end - begin ? done : end - begin;
}

ndm_status ndm_gather_file_read(const ndm_gather_file *file, char *data, int64_t begin, int64_t end,
                                bool past_cache)
{
    int64_t done = 0;

    if (past_cache && file->direct >= 0 && !is_cached(file, begin, end))
        done = read_direct(file, data, begin, end);
    return ndm_safetensors_pread(file->fd, file->path, data + done, end - begin - done,
                                 begin + done);
}
