/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors writer, second half: creates the planned files and writes ranges into them, from any
 * number of processes. */
#include "model/safetensors_writer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"

/* Runs from here on are sent to the disk as soon as they are written: it works while the next one
 * is prepared, and not only when the file is synced. */
enum { SEND_BYTES = 1 << 20 };

static ndm_status write_all(const struct ndm_safetensors_out *out, const void *src, int64_t n,
                            int64_t offset)
{
    const char *p = src;
    int64_t begin = offset, whole = n;

    while (n > 0) {
        size_t want = (size_t)(n < (1 << 30) ? n : (1 << 30));
        ssize_t put = pwrite(out->fd, p, want, offset);

        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            NDM_FAIL(NDM_ERR_IO, "%s: cannot write %lld bytes at %lld: %s", out->path, (long long)n,
                     (long long)offset, put < 0 ? strerror(errno) : "nothing was written");
        p += put, offset += put, n -= put;
    }
    if (whole >= SEND_BYTES)
        sync_file_range(out->fd, begin, whole, SYNC_FILE_RANGE_WRITE); /* advice; fsync tells */
    return NDM_OK;
}

/* Of several threads that open it at once, one wins. */
static ndm_status open_out(struct ndm_safetensors_out *out, int flags)
{
    int none = -1, fd;

    if (out->fd >= 0)
        return NDM_OK;
    fd = open(out->path, O_WRONLY | O_CLOEXEC | flags, 0666);
    if (fd < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot open for writing: %s", out->path, strerror(errno));
    if (!atomic_compare_exchange_strong(&out->fd, &none, fd))
        close(fd);
    return NDM_OK;
}

/* Takes the file's blocks now, so that a full disk is an error here and not a hole later. Some file
 * systems cannot. */
static ndm_status reserve(const struct ndm_safetensors_out *out)
{
    if (ftruncate(out->fd, out->bytes) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot grow to %lld bytes: %s", out->path, (long long)out->bytes,
                 strerror(errno));
    if (fallocate(out->fd, 0, 0, out->bytes) != 0 && (errno == ENOSPC || errno == EDQUOT))
        NDM_FAIL(NDM_ERR_IO, "%s: no room for %lld bytes: %s", out->path, (long long)out->bytes,
                 strerror(errno));
    return NDM_OK;
}

static ndm_status begin_file(struct ndm_safetensors_out *out)
{
    unsigned char length[8];

    NDM_TRY(open_out(out, O_CREAT | O_TRUNC));
    NDM_TRY(reserve(out));
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)out->header.length >> (8 * i));
    NDM_TRY(write_all(out, length, 8, 0));
    return write_all(out, out->header.data, (int64_t)out->header.length, 8);
}

ndm_status ndm_safetensors_writer_begin(ndm_safetensors_writer *w)
{
    for (int64_t f = 0; f < w->file_count; f++)
        NDM_TRY(begin_file(&w->files[f]));
    w->begun = true;
    return w->staged ? NDM_OK : ndm_safetensors_write_index(w);
}

ndm_status ndm_safetensors_writer_sync(ndm_safetensors_writer *w)
{
    for (int64_t f = 0; f < w->file_count; f++) {
        if (w->files[f].fd >= 0 && fsync(w->files[f].fd) != 0)
            NDM_FAIL(NDM_ERR_IO, "%s: cannot sync: %s", w->files[f].path, strerror(errno));
    }
    return NDM_OK;
}

static ndm_status find_out(ndm_safetensors_writer *w, const char *name,
                           const ndm_tensor_info **info, struct ndm_safetensors_out **out)
{
    *info = ndm_tensor_find(w->infos, w->count, name);
    if (*info == NULL)
        NDM_FAIL(NDM_ERR_USAGE, "%s: tensor '%s' was not planned", w->folder, name);
    *out = &w->files[(*info)->file];
    return NDM_OK;
}

/* Writes n elements at a byte offset, converting chunks through a stage where the types differ. */
static ndm_status write_run(const struct ndm_safetensors_out *out, ndm_dtype dst_dtype,
                            int64_t offset, int64_t n, const void *src, ndm_dtype dtype)
{
    int64_t width = (int64_t)ndm_dtype_bytes(dst_dtype), step = NDM_SAFETENSORS_CHUNK_BYTES / width;
    ndm_status status = NDM_OK;
    const char *in = src;
    void *stage;

    if (dst_dtype == dtype)
        return write_all(out, src, n * width, offset);
    stage = malloc((size_t)(n < step ? n + 1 : step) * (size_t)width);
    if (stage == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to stage a write", out->path);
    for (int64_t done = 0; done < n && status == NDM_OK; done += step) {
        int64_t m = n - done < step ? n - done : step;

        ndm_tensor_convert(in + done * (int64_t)ndm_dtype_bytes(dtype), dtype, stage, dst_dtype, m);
        status = write_all(out, stage, m * width, offset + done * width);
    }
    free(stage);
    return status;
}

ndm_status ndm_safetensors_write(ndm_safetensors_writer *w, const char *name, int64_t first,
                                 int64_t n, const void *src, ndm_dtype dtype)
{
    struct ndm_safetensors_out *out;
    const ndm_tensor_info *info;

    NDM_TRY(find_out(w, name, &info, &out));
    NDM_TRY(ndm_tensor_check_range(info, out->path, first, n, dtype));
    NDM_TRY(open_out(out, 0));
    return write_run(out, info->dtype, info->offset + first * (int64_t)ndm_dtype_bytes(info->dtype),
                     n, src, dtype);
}

ndm_status ndm_safetensors_write_block(ndm_safetensors_writer *w, const char *name, int64_t r0,
                                       int64_t r1, int64_t c0, int64_t c1, const void *src,
                                       ndm_dtype dtype)
{
    struct ndm_safetensors_out *out;
    const ndm_tensor_info *info;
    const char *in = src;
    int64_t width, run;

    NDM_TRY(find_out(w, name, &info, &out));
    NDM_TRY(ndm_tensor_check_block(info, out->path, r0, r1, c0, c1, dtype));
    if (c0 == 0 && c1 == info->shape[1])
        return ndm_safetensors_write(w, name, r0 * c1, (r1 - r0) * c1, src, dtype);
    NDM_TRY(open_out(out, 0));
    width = (int64_t)ndm_dtype_bytes(info->dtype);
    run = (c1 - c0) * (int64_t)ndm_dtype_bytes(dtype);
    for (int64_t row = r0; row < r1; row++)
        NDM_TRY(write_run(out, info->dtype, info->offset + (row * info->shape[1] + c0) * width,
                          c1 - c0, in + (row - r0) * run, dtype));
    return NDM_OK;
}
