/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors reader: finds tensors and reads ranges and blocks of them, converting on the way. */
#include "model/safetensors_reader.h"

#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/text.h"

/* Below this, reading whole rows and dropping columns costs less than a system call a row. */
#define SMALL_RUN_BYTES 8192

int64_t ndm_safetensors_count(const ndm_safetensors *r)
{
    return r->count;
}

const ndm_tensor_info *ndm_safetensors_at(const ndm_safetensors *r, int64_t index)
{
    return &r->infos[index];
}

const ndm_tensor_info *ndm_safetensors_find(const ndm_safetensors *r, const char *name)
{
    return ndm_tensor_find(r->infos, r->count, name);
}

int64_t ndm_safetensors_files(const ndm_safetensors *r)
{
    return r->file_count;
}

const char *ndm_safetensors_path(const ndm_safetensors *r, int64_t file)
{
    return r->files[file].path;
}

const char *ndm_safetensors_metadata(const ndm_safetensors *r, const char *key)
{
    return json_string_value(json_object_get(r->metadata, key));
}

void ndm_safetensors_set_source(ndm_safetensors *r, ndm_safetensors_source source, void *user)
{
    r->source = source;
    r->source_user = user;
}

ndm_status ndm_safetensors_read_bytes(const ndm_safetensors *r, int64_t file, void *dst, int64_t n,
                                      int64_t offset)
{
    const struct ndm_safetensors_file *f = &r->files[file];

    if (r->source)
        return r->source(r->source_user, f->fd, f->path, dst, n, offset);
    return ndm_safetensors_pread(f->fd, f->path, dst, n, offset);
}

static const char *nearest_name(const ndm_safetensors *r, const char *name)
{
    const char **names = malloc((size_t)(r->count + 1) * sizeof *names);
    const char *near;

    if (names == NULL)
        return NULL;
    for (int64_t i = 0; i < r->count; i++)
        names[i] = r->infos[i].name;
    near = ndm_text_nearest(name, names, (size_t)r->count);
    free(names);
    return near;
}

ndm_status ndm_safetensors_lookup(const ndm_safetensors *r, const char *name,
                                  const ndm_tensor_info **info)
{
    const char *near;

    *info = ndm_safetensors_find(r, name);
    if (*info != NULL)
        return NDM_OK;
    near = nearest_name(r, name);
    NDM_FAIL(NDM_ERR_FORMAT, "%s%s: has no tensor '%s'%s%s%s", r->files[0].path,
             r->file_count > 1 ? " and its other shards" : "", name,
             near ? "; the nearest is '" : "", near ? near : "", near ? "'" : "");
}

ndm_status ndm_safetensors_require(const ndm_safetensors *r, const char *name, int ndim,
                                   const int64_t *shape, const ndm_tensor_info **info)
{
    const ndm_tensor_info *found;
    char got[200], want[200];

    NDM_TRY(ndm_safetensors_lookup(r, name, &found));
    if (found->ndim != ndim || memcmp(found->shape, shape, (size_t)ndim * sizeof *shape) != 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' has shape %s, the model wants %s",
                 r->files[found->file].path, name,
                 ndm_tensor_shape_text(found->ndim, found->shape, got, sizeof got),
                 ndm_tensor_shape_text(ndim, shape, want, sizeof want));
    *info = found;
    return NDM_OK;
}

/* Reads n elements of a tensor's file at a byte offset and converts them through stage,
 * NDM_SAFETENSORS_CHUNK_BYTES long. */
static ndm_status read_run(const ndm_safetensors *r, const ndm_tensor_info *info, int64_t offset,
                           int64_t n, void *dst, ndm_dtype dtype, void *stage)
{
    ndm_dtype src_dtype = info->dtype;
    int64_t width = (int64_t)ndm_dtype_bytes(src_dtype);
    int64_t step = NDM_SAFETENSORS_CHUNK_BYTES / width;
    char *out = dst;

    if (src_dtype == dtype)
        return ndm_safetensors_read_bytes(r, info->file, dst, n * width, offset);
    for (int64_t done = 0; done < n; done += step) {
        int64_t m = n - done < step ? n - done : step;

        NDM_TRY(ndm_safetensors_read_bytes(r, info->file, stage, m * width, offset + done * width));
        ndm_tensor_convert(stage, src_dtype, out + done * (int64_t)ndm_dtype_bytes(dtype), dtype,
                           m);
    }
    return NDM_OK;
}

static ndm_status make_stage(const char *path, int64_t bytes, void **stage)
{
    *stage = malloc((size_t)bytes);
    if (*stage == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to stage %lld bytes", path, (long long)bytes);
    return NDM_OK;
}

ndm_status ndm_safetensors_read(const ndm_safetensors *r, const char *name, int64_t first,
                                int64_t n, void *dst, ndm_dtype dtype)
{
    const struct ndm_safetensors_file *f;
    const ndm_tensor_info *info;
    int64_t width, stage_bytes;
    ndm_status status;
    void *stage;

    NDM_TRY(ndm_safetensors_lookup(r, name, &info));
    f = &r->files[info->file];
    NDM_TRY(ndm_tensor_check_range(info, f->path, first, n, dtype));
    width = (int64_t)ndm_dtype_bytes(info->dtype);
    stage_bytes = n < NDM_SAFETENSORS_CHUNK_BYTES / width ? n * width : NDM_SAFETENSORS_CHUNK_BYTES;
    NDM_TRY(make_stage(f->path, stage_bytes + 1, &stage));
    status = read_run(r, info, info->offset + first * width, n, dst, dtype, stage);
    free(stage);
    return status;
}

struct block {
    const ndm_safetensors *reader;
    const ndm_tensor_info *info;
    int64_t r0, r1, c0, c1;
    char *dst;
    ndm_dtype dtype;
};

static char *block_row(const struct block *b, int64_t row)
{
    return b->dst + (row - b->r0) * (b->c1 - b->c0) * (int64_t)ndm_dtype_bytes(b->dtype);
}

/* One read a row. */
static ndm_status read_runs(const struct block *b, void *stage)
{
    int64_t width = (int64_t)ndm_dtype_bytes(b->info->dtype), columns = b->info->shape[1];

    for (int64_t row = b->r0; row < b->r1; row++)
        NDM_TRY(read_run(b->reader, b->info, b->info->offset + (row * columns + b->c0) * width,
                         b->c1 - b->c0, block_row(b, row), b->dtype, stage));
    return NDM_OK;
}

/* Reads as many whole rows as the stage holds, and keeps the columns. */
static ndm_status read_rows(const struct block *b, char *stage, int64_t stage_bytes)
{
    int64_t width = (int64_t)ndm_dtype_bytes(b->info->dtype);
    int64_t row_bytes = b->info->shape[1] * width, step = stage_bytes / row_bytes;

    for (int64_t row = b->r0; row < b->r1; row += step) {
        int64_t m = b->r1 - row < step ? b->r1 - row : step;

        NDM_TRY(ndm_safetensors_read_bytes(b->reader, b->info->file, stage, m * row_bytes,
                                           b->info->offset + row * row_bytes));
        for (int64_t i = 0; i < m; i++)
            ndm_tensor_convert(stage + i * row_bytes + b->c0 * width, b->info->dtype,
                               block_row(b, row + i), b->dtype, b->c1 - b->c0);
    }
    return NDM_OK;
}

ndm_status ndm_safetensors_read_block(const ndm_safetensors *r, const char *name, int64_t r0,
                                      int64_t r1, int64_t c0, int64_t c1, void *dst,
                                      ndm_dtype dtype)
{
    struct block b = {
        .reader = r, .r0 = r0, .r1 = r1, .c0 = c0, .c1 = c1, .dst = dst, .dtype = dtype};
    int64_t width, row_bytes, stage_bytes = NDM_SAFETENSORS_CHUNK_BYTES;
    const char *path;
    ndm_status status;
    void *stage;

    NDM_TRY(ndm_safetensors_lookup(r, name, &b.info));
    path = r->files[b.info->file].path;
    NDM_TRY(ndm_tensor_check_block(b.info, path, r0, r1, c0, c1, dtype));
    if (r0 == r1 || c0 == c1)
        return NDM_OK;
    width = (int64_t)ndm_dtype_bytes(b.info->dtype), row_bytes = b.info->shape[1] * width;
    if (c0 == 0 && c1 == b.info->shape[1])
        return ndm_safetensors_read(r, name, r0 * c1, (r1 - r0) * c1, dst, dtype);
    NDM_TRY(make_stage(path, stage_bytes, &stage));
    if ((c1 - c0) * width >= SMALL_RUN_BYTES || row_bytes > stage_bytes)
        status = read_runs(&b, stage);
    else
        status = read_rows(&b, stage, stage_bytes);
    free(stage);
    return status;
}
