/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors writer, first half: which tensor goes into which file at which offset. Pure
 * arithmetic, so that every process comes to the same plan without asking. */
#include "model/safetensors_writer.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/json.h"

static int64_t info_bytes(const ndm_tensor_info *info)
{
    return info->count * (int64_t)ndm_dtype_bytes(info->dtype);
}

static ndm_status copy_spec(const ndm_tensor_spec *spec, ndm_tensor_info *info)
{
    int64_t bytes;

    if (spec->ndim < 0 || spec->ndim > NDM_TENSOR_MAX_DIMS)
        NDM_FAIL(NDM_ERR_USAGE, "tensor '%s' has %d dimensions, more than %d", spec->name,
                 spec->ndim, NDM_TENSOR_MAX_DIMS);
    *info = (ndm_tensor_info){.dtype = spec->dtype, .ndim = spec->ndim};
    memcpy(info->shape, spec->shape, sizeof info->shape);
    if (!ndm_tensor_measure(spec->dtype, spec->ndim, spec->shape, &info->count, &bytes))
        NDM_FAIL(NDM_ERR_USAGE, "tensor '%s': the size of its shape overflows", spec->name);
    info->name = strdup(spec->name);
    if (info->name == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for tensor '%s'", spec->name);
    return NDM_OK;
}

static ndm_status copy_specs(ndm_safetensors_writer *w, const ndm_tensor_spec *specs, int64_t n)
{
    w->infos = calloc((size_t)n + 1, sizeof *w->infos);
    if (w->infos == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " tensors", n);
    for (int64_t i = 0; i < n; i++) {
        NDM_TRY(copy_spec(&specs[i], &w->infos[i]));
        w->count++;
    }
    return NDM_OK;
}

/* Assigns files in the order given: a file is closed before it would pass the limit. Returns the
 * number of files. */
static int64_t assign_files(ndm_safetensors_writer *w, int64_t shard_bytes)
{
    int64_t file = 0, used = 0;

    for (int64_t i = 0; i < w->count; i++) {
        int64_t bytes = info_bytes(&w->infos[i]);

        if (shard_bytes > 0 && used > 0 && bytes > shard_bytes - used)
            file++, used = 0;
        w->infos[i].file = file;
        w->infos[i].offset = i; /* until there are offsets */
        used += bytes;
    }
    return file + 1;
}

/* By file, then wide elements first so that every tensor is aligned to its own type, then as given:
 * the order in the file. What the caller has next to each other, a rank's slice of a unit, is read
 * and written in one stretch. */
static int compare_places(const void *a, const void *b)
{
    const ndm_tensor_info *x = a, *y = b;
    size_t xb = ndm_dtype_bytes(x->dtype), yb = ndm_dtype_bytes(y->dtype);

    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (xb != yb)
        return xb > yb ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void write_metadata(ndm_json *json, const char *const *metadata)
{
    ndm_json_key(json, "__metadata__");
    ndm_json_begin_object(json);
    ndm_json_key_string(json, "format", "pt");
    for (; metadata != NULL && metadata[0] != NULL; metadata += 2)
        ndm_json_key_string(json, metadata[0], metadata[1]);
    ndm_json_end_object(json);
}

static void write_entry(ndm_json *json, const ndm_tensor_info *info, int64_t begin)
{
    ndm_json_key(json, info->name);
    ndm_json_begin_object(json);
    ndm_json_key_string(json, "dtype", ndm_dtype_safetensors(info->dtype));
    ndm_json_key(json, "shape");
    ndm_json_begin_array(json);
    for (int d = 0; d < info->ndim; d++)
        ndm_json_int(json, info->shape[d]);
    ndm_json_end_array(json);
    ndm_json_key(json, "data_offsets");
    ndm_json_begin_array(json);
    ndm_json_int(json, begin);
    ndm_json_int(json, begin + info_bytes(info));
    ndm_json_end_array(json);
    ndm_json_end_object(json);
}

/* Header of one file whose tensors are infos, [n], in file order. Leaves offsets relative to the
 * data in infos. */
static ndm_status make_header(struct ndm_safetensors_out *out, ndm_tensor_info *infos, int64_t n,
                              const char *const *metadata)
{
    int64_t at = 0;
    ndm_json json;

    ndm_json_init_buffer(&json, &out->header, false);
    ndm_json_begin_object(&json);
    write_metadata(&json, metadata);
    for (int64_t i = 0; i < n; i++) {
        write_entry(&json, &infos[i], at);
        infos[i].offset = at;
        at += info_bytes(&infos[i]);
    }
    ndm_json_end_object(&json);
    NDM_TRY(ndm_buffer_status(&out->header));
    while (out->header.length % 8 !=
           0) /* as the format's own writer: data starts at a multiple of 8 */
        ndm_buffer_puts(&out->header, " ");
    if (out->header.length > NDM_SAFETENSORS_MAX_HEADER)
        NDM_FAIL(NDM_ERR_USAGE, "%s: its header would have %zu bytes, more than %d", out->path,
                 out->header.length, NDM_SAFETENSORS_MAX_HEADER);
    for (int64_t i = 0; i < n; i++)
        infos[i].offset += 8 + (int64_t)out->header.length;
    out->bytes = 8 + (int64_t)out->header.length + at;
    return ndm_buffer_status(&out->header);
}

static char *file_name(const ndm_safetensors_writer *w, int64_t file)
{
    if (w->file_count == 1)
        return ndm_text_printf("%s.safetensors", w->stem);
    return ndm_text_printf("%s-%05" PRId64 "-of-%05" PRId64 ".safetensors", w->stem, file + 1,
                           w->file_count);
}

static ndm_status make_files(ndm_safetensors_writer *w, const char *const *metadata)
{
    int64_t first = 0;

    w->files = calloc((size_t)w->file_count, sizeof *w->files);
    if (w->files == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for %" PRId64 " files", w->folder, w->file_count);
    for (int64_t f = 0; f < w->file_count; f++)
        w->files[f].fd = -1;
    if (w->count > 0)
        qsort(w->infos, (size_t)w->count, sizeof *w->infos, compare_places);
    for (int64_t f = 0; f < w->file_count; f++) {
        int64_t end = first;

        while (end < w->count && w->infos[end].file == f)
            end++;
        w->files[f].name = file_name(w, f);
        if (w->files[f].name != NULL)
            w->files[f].path = ndm_text_printf("%s/%s", w->folder, w->files[f].name);
        if (w->files[f].path == NULL)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a file's name", w->folder);
        NDM_TRY(make_header(&w->files[f], w->infos + first, end - first, metadata));
        first = end;
    }
    return NDM_OK;
}

static ndm_status plan(ndm_safetensors_writer *w, const char *folder, const char *stem,
                       const ndm_tensor_spec *specs, int64_t n, int64_t shard_bytes,
                       const char *const *metadata)
{
    w->folder = strdup(folder), w->stem = strdup(stem);
    if (w->folder == NULL || w->stem == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to plan files", folder);
    NDM_TRY(copy_specs(w, specs, n));
    w->file_count = assign_files(w, shard_bytes);
    NDM_TRY(make_files(w, metadata));
    if (n > 0)
        qsort(w->infos, (size_t)n, sizeof *w->infos, ndm_tensor_compare_names);
    for (int64_t i = 1; i < n; i++) {
        if (strcmp(w->infos[i - 1].name, w->infos[i].name) == 0)
            NDM_FAIL(NDM_ERR_USAGE, "%s: tensor '%s' is given twice", folder, w->infos[i].name);
    }
    return NDM_OK;
}

ndm_status ndm_safetensors_writer_create(const char *folder, const char *stem,
                                         const ndm_tensor_spec *specs, int64_t n,
                                         int64_t shard_bytes, const char *const *metadata,
                                         ndm_safetensors_writer **writer)
{
    ndm_safetensors_writer *w = calloc(1, sizeof *w);
    ndm_status status;

    if (w == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to plan files", folder);
    status = plan(w, folder, stem, specs, n, shard_bytes, metadata);
    if (status != NDM_OK) {
        ndm_safetensors_writer_destroy(w);
        return status;
    }
    *writer = w;
    return NDM_OK;
}

void ndm_safetensors_writer_destroy(ndm_safetensors_writer *w)
{
    if (w == NULL)
        return;
    ndm_safetensors_writer_abandon(w);
    for (int64_t i = 0; i < w->count; i++)
        free((char *)w->infos[i].name);
    for (int64_t f = 0; w->files != NULL && f < w->file_count; f++) {
        if (w->files[f].fd >= 0)
            close(w->files[f].fd);
        free(w->files[f].path);
        free(w->files[f].final);
        free(w->files[f].name);
        ndm_buffer_finish(&w->files[f].header);
    }
    free(w->infos);
    free(w->files);
    free(w->folder);
    free(w->stem);
    free(w);
}

int64_t ndm_safetensors_writer_files(const ndm_safetensors_writer *w)
{
    return w->file_count;
}

const char *ndm_safetensors_writer_path(const ndm_safetensors_writer *w, int64_t file)
{
    return w->files[file].final != NULL ? w->files[file].final : w->files[file].path;
}

int64_t ndm_safetensors_writer_bytes(const ndm_safetensors_writer *w, int64_t file)
{
    return w->files[file].bytes;
}

const ndm_tensor_info *ndm_safetensors_writer_find(const ndm_safetensors_writer *w,
                                                   const char *name)
{
    return ndm_tensor_find(w->infos, w->count, name);
}
