/* SPDX-License-Identifier: Apache-2.0 */
/* Reads that verify: every block that a range touches is hashed and compared before any of it is
 * used; the last ones are kept for the next range. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "model/safetensors_reader.h"
#include "train/checkpoint_sums.h"

void ndm_verified_finish(ndm_verified *verified)
{
    for (int i = 0; i < NDM_VERIFIED_BLOCKS; i++) {
        free(verified->kept[i].data);
        verified->kept[i].data = NULL;
    }
}

/* "tensor 'x'", or "tensor 'x' and 3 more": those that share bytes with [begin, end) of the file.
 */
static void name_tensors(const ndm_safetensors *reader, const char *path, int64_t begin,
                         int64_t end, char *text, size_t bytes)
{
    const char *first = NULL;
    int64_t n = 0;

    for (int64_t i = 0; reader && i < ndm_safetensors_count(reader); i++) {
        const ndm_tensor_info *info = ndm_safetensors_at(reader, i);
        int64_t last = info->offset + info->count * (int64_t)ndm_dtype_bytes(info->dtype);
        if (strcmp(ndm_safetensors_path(reader, info->file), path) != 0 || info->offset >= end ||
            last <= begin)
            continue;
        first = n++ == 0 ? info->name : first;
    }
    text[0] = '\0';
    if (n == 1)
        snprintf(text, bytes, "tensor '%s', ", first);
    else if (n > 1)
        snprintf(text, bytes, "tensor '%s' and %lld more, ", first, (long long)n - 1);
}

ndm_status ndm_sums_compare(const ndm_sums *sums, int64_t file, int64_t block, const void *data,
                            const char *path, const ndm_safetensors *reader)
{
    int64_t bytes = ndm_sums_block_bytes(sums, file, block), begin = block * sums->block_bytes;
    ndm_hash128 hash = ndm_hash_128(data, (size_t)bytes), want = sums->files[file].blocks[block];
    char text[512];

    if (hash.low == want.low && hash.high == want.high)
        return NDM_OK;
    name_tensors(reader, path, begin, begin + bytes, text, sizeof text);
    NDM_FAIL(NDM_ERR_CHECK, "%s: %sbytes %lld to %lld: do not match their checksum", path, text,
             (long long)begin, (long long)(begin + bytes - 1));
}

/* ---- ranges ------------------------------------------------------------------------------- */

/* A block among those kept, read if it is not there. */
static ndm_status keep_block(ndm_verified *v, int fd, const char *path, int64_t file, int64_t block,
                             const char **data)
{
    for (int i = 0; i < NDM_VERIFIED_BLOCKS; i++)
        if (v->kept[i].data && v->kept[i].file == file && v->kept[i].block == block) {
            *data = v->kept[i].data;
            return NDM_OK;
        }
    int64_t slot = v->next++ % NDM_VERIFIED_BLOCKS;
    if (!v->kept[slot].data)
        v->kept[slot].data = malloc((size_t)v->sums->block_bytes);
    if (!v->kept[slot].data)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a block of %lld bytes", path,
                 (long long)v->sums->block_bytes);
    v->kept[slot].file = -1; /* until it has been verified */
    NDM_TRY(ndm_safetensors_pread(fd, path, v->kept[slot].data,
                                  ndm_sums_block_bytes(v->sums, file, block),
                                  block * v->sums->block_bytes));
    NDM_TRY(ndm_sums_compare(v->sums, file, block, v->kept[slot].data, path, v->reader));
    v->kept[slot].file = file;
    v->kept[slot].block = block;
    *data = v->kept[slot].data;
    return NDM_OK;
}

static ndm_status find_file(const ndm_verified *v, const char *path, int64_t end, int64_t *file)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

    *file = ndm_sums_find(v->sums, name);
    if (*file < 0)
        NDM_FAIL(NDM_ERR_CHECK, "%s: has no checksums", path);
    if (end > v->sums->files[*file].bytes)
        NDM_FAIL(NDM_ERR_CHECK, "%s: is larger than the %lld bytes that were saved", path,
                 (long long)v->sums->files[*file].bytes);
    return NDM_OK;
}

ndm_status ndm_verified_read(void *user, int fd, const char *path, void *dst, int64_t n,
                             int64_t offset)
{
    ndm_verified *v = user;
    int64_t end = offset + n, file;
    const char *data;
    char *out = dst;

    NDM_TRY(find_file(v, path, end, &file));
    while (offset < end) {
        int64_t block = offset / v->sums->block_bytes, begin = block * v->sums->block_bytes;
        int64_t last = begin + ndm_sums_block_bytes(v->sums, file, block);
        int64_t take = (last < end ? last : end) - offset;
        NDM_TRY(keep_block(v, fd, path, file, block, &data));
        memcpy(out, data + (offset - begin), (size_t)take);
        out += take;
        offset += take;
    }
    return NDM_OK;
}

ndm_status ndm_verified_check(const void *user, int64_t file, int64_t begin, const void *data,
                              int64_t bytes)
{
    const ndm_verified *v = user;
    const char *path = ndm_safetensors_path(v->reader, file);
    int64_t block = begin / v->sums->block_bytes, saved;

    NDM_TRY(find_file(v, path, begin + bytes, &saved));
    if (bytes < ndm_sums_block_bytes(v->sums, saved, block))
        NDM_FAIL(NDM_ERR_CHECK, "%s: is shorter than the %lld bytes that were saved", path,
                 (long long)v->sums->files[saved].bytes);
    return ndm_sums_compare(v->sums, saved, block, data, path, v->reader);
}
