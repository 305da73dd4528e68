/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors reader: opens files, checks headers, finds tensors. Reading ranges is in
 * safetensors_read.c.
 *
 * A header must describe every byte after it: no holes, no overlaps, nothing beyond the end. That
 * is the format's own rule, and it makes a file that was cut or grown visible at open. */
#include "model/safetensors_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/json_read.h"

/* Reads exactly n bytes; a short file is NDM_ERR_FORMAT. */
ndm_status ndm_safetensors_pread(int fd, const char *path, void *dst, int64_t n, int64_t offset)
{
    char *p = dst;

    while (n > 0) {
        size_t want = (size_t)(n < (1 << 30) ? n : (1 << 30));
        ssize_t got = pread(fd, p, want, offset);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            NDM_FAIL(NDM_ERR_IO, "%s: cannot read %lld bytes at %lld: %s", path, (long long)n,
                     (long long)offset, strerror(errno));
        if (got == 0)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: ends at byte %lld, %lld bytes too early", path,
                     (long long)offset, (long long)n);
        p += got, offset += got, n -= got;
    }
    return NDM_OK;
}

static ndm_status parse_dtype(json_t *value, const char *path, const char *name, ndm_dtype *dtype)
{
    const char *text = json_string_value(value);

    if (text == NULL)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' has no dtype", path, name);
    for (int d = 0; d < NDM_DTYPE_COUNT; d++) {
        bool scaled = ndm_dtype_is_f8((ndm_dtype)d); /* by numbers that lie somewhere else */
        if (!scaled && strcmp(text, ndm_dtype_safetensors((ndm_dtype)d)) == 0) {
            *dtype = (ndm_dtype)d;
            return NDM_OK;
        }
    }
    if (strcmp(text, "BOOL") == 0) {
        *dtype = NDM_U8;
        return NDM_OK;
    }
    NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' has dtype '%.32s', which is not supported", path,
             name, text);
}

static ndm_status parse_shape(json_t *value, const char *path, ndm_tensor_info *info)
{
    if (!json_is_array(value))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' has no shape", path, info->name);
    if (json_array_size(value) > NDM_TENSOR_MAX_DIMS)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' has %zu dimensions, more than %d", path,
                 info->name, json_array_size(value), NDM_TENSOR_MAX_DIMS);
    info->ndim = (int)json_array_size(value);
    for (int d = 0; d < info->ndim; d++) {
        json_t *size = json_array_get(value, (size_t)d);

        if (!json_is_integer(size) || json_integer_value(size) < 0)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s': dimension %d of its shape is no size", path,
                     info->name, d);
        info->shape[d] = json_integer_value(size);
    }
    return NDM_OK;
}

/* data_bytes: bytes after the header, which starts at `base` in the file. */
static ndm_status parse_offsets(json_t *value, const char *path, int64_t base, int64_t data_bytes,
                                ndm_tensor_info *info)
{
    json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    int64_t bytes, b, e;

    if (json_array_size(value) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' has no data_offsets [begin, end]", path,
                 info->name);
    b = json_integer_value(begin), e = json_integer_value(end);
    if (b < 0 || e < b || e > data_bytes)
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: tensor '%s': data_offsets [%lld, %lld] are not within the %lld bytes of data",
                 path, info->name, (long long)b, (long long)e, (long long)data_bytes);
    if (!ndm_tensor_measure(info->dtype, info->ndim, info->shape, &info->count, &bytes))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s': the size of its shape overflows", path,
                 info->name);
    if (bytes != e - b) {
        char shape[200];

        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: tensor '%s' of %s %s has %lld bytes, but its data_offsets span %lld", path,
                 info->name, ndm_dtype_safetensors(info->dtype),
                 ndm_tensor_shape_text(info->ndim, info->shape, shape, sizeof shape),
                 (long long)bytes, (long long)(e - b));
    }
    info->offset = base + b;
    return NDM_OK;
}

/* Appends the tensor; its name is copied once everything else holds. */
static ndm_status add_tensor(ndm_safetensors *r, int64_t file, const char *name, json_t *value,
                             int64_t base, int64_t data_bytes)
{
    ndm_tensor_info info = {.name = name, .file = file};
    const char *path = r->files[file].path;

    if (!json_is_object(value))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' is not described by an object", path, name);
    NDM_TRY(parse_dtype(json_object_get(value, "dtype"), path, name, &info.dtype));
    NDM_TRY(parse_shape(json_object_get(value, "shape"), path, &info));
    NDM_TRY(parse_offsets(json_object_get(value, "data_offsets"), path, base, data_bytes, &info));
    info.name = strdup(name);
    if (info.name == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for tensor '%s'", path, name);
    r->infos[r->count++] = info;
    return NDM_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const ndm_tensor_info *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (x->count > 0) - (y->count > 0); /* empty tensors lie before the one that follows */
}

/* infos, [n] are of one file: they must fill [base, base + data_bytes) in some order. */
static ndm_status check_cover(const char *path, ndm_tensor_info *infos, int64_t n, int64_t base,
                              int64_t data_bytes)
{
    int64_t at = base;

    if (n > 0)
        qsort(infos, (size_t)n, sizeof *infos, compare_offsets);
    for (int64_t i = 0; i < n; i++) {
        if (infos[i].offset != at)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' %s (data byte %lld, expected %lld)", path,
                     infos[i].name,
                     infos[i].offset < at ? "overlaps the tensor before it" : "follows a hole",
                     (long long)(infos[i].offset - base), (long long)(at - base));
        at += infos[i].count * (int64_t)ndm_dtype_bytes(infos[i].dtype);
    }
    if (at != base + data_bytes)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %lld bytes at the end belong to no tensor", path,
                 (long long)(base + data_bytes - at));
    return NDM_OK;
}

static ndm_status check_metadata(json_t *metadata, const char *path)
{
    const char *key;
    json_t *value;

    if (metadata != NULL && !json_is_object(metadata))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: __metadata__ is not an object", path);
    json_object_foreach(metadata, key, value)
    {
        if (!json_is_string(value))
            NDM_FAIL(NDM_ERR_FORMAT, "%s: __metadata__ '%s' is not a string", path, key);
    }
    return NDM_OK;
}

static ndm_status add_header(ndm_safetensors *r, int64_t file, json_t *root, int64_t base,
                             int64_t data_bytes)
{
    const char *path = r->files[file].path, *name;
    size_t members = json_object_size(root);
    int64_t first = r->count;
    ndm_tensor_info *grown;
    json_t *value;

    if (!json_is_object(root))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: the header is not a JSON object", path);
    NDM_TRY(check_metadata(json_object_get(root, "__metadata__"), path));
    grown = realloc(r->infos, ((size_t)first + members + 1) * sizeof *grown);
    if (grown == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for %zu tensors", path, members);
    r->infos = grown;
    json_object_foreach(root, name, value)
    {
        if (strcmp(name, "__metadata__") != 0)
            NDM_TRY(add_tensor(r, file, name, value, base, data_bytes));
    }
    if (file == 0)
        r->metadata = json_incref(json_object_get(root, "__metadata__"));
    return check_cover(path, r->infos + first, r->count - first, base, data_bytes);
}

/* Parses the header text, [n]; the rest of the file has data_bytes. */
static ndm_status parse_header(ndm_safetensors *r, int64_t file, const char *text, int64_t n,
                               int64_t data_bytes)
{
    const char *path = r->files[file].path;
    ndm_status status;
    json_t *root;

    if (n == 0 || text[0] != '{')
        NDM_FAIL(NDM_ERR_FORMAT, "%s: the header does not start with '{'", path);
    NDM_TRY(ndm_json_load_text(text, (size_t)n, path, &root));
    status = add_header(r, file, root, 8 + n, data_bytes);
    json_decref(root);
    return status;
}

static ndm_status read_header(ndm_safetensors *r, int64_t file)
{
    const struct ndm_safetensors_file *f = &r->files[file];
    unsigned char raw[8];
    uint64_t length = 0;
    struct stat st;
    ndm_status status;
    char *text;

    if (fstat(f->fd, &st) != 0 || !S_ISREG(st.st_mode))
        NDM_FAIL(NDM_ERR_IO, "%s: not a regular file", f->path);
    if (st.st_size < 8)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %lld bytes are too few for a safetensors file", f->path,
                 (long long)st.st_size);
    NDM_TRY(ndm_safetensors_pread(f->fd, f->path, raw, 8, 0));
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)raw[i] << (8 * i);
    if (length > NDM_SAFETENSORS_MAX_HEADER || (int64_t)length > st.st_size - 8)
        NDM_FAIL(NDM_ERR_FORMAT,
                 "%s: says its header has %llu bytes; the limit is %d, and the file has %lld",
                 f->path, (unsigned long long)length, NDM_SAFETENSORS_MAX_HEADER,
                 (long long)st.st_size);
    text = malloc((size_t)length + 1);
    if (text == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a header of %llu bytes", f->path,
                 (unsigned long long)length);
    status = ndm_safetensors_pread(f->fd, f->path, text, (int64_t)length, 8);
    if (status == NDM_OK)
        status = parse_header(r, file, text, (int64_t)length, st.st_size - 8 - (int64_t)length);
    free(text);
    return status;
}

ndm_status ndm_safetensors_add_file(ndm_safetensors *r, const char *path)
{
    struct ndm_safetensors_file *grown = realloc(r->files,
                                                 (size_t)(r->file_count + 1) * sizeof *grown);
    int64_t file = r->file_count;

    if (grown == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to open it", path);
    r->files = grown;
    r->files[file] = (struct ndm_safetensors_file){.fd = -1, .path = strdup(path)};
    r->file_count++;
    if (r->files[file].path == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to open it", path);
    r->files[file].fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (r->files[file].fd < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    return read_header(r, file);
}

ndm_status ndm_safetensors_finish_open(ndm_safetensors *r)
{
    if (r->count > 0)
        qsort(r->infos, (size_t)r->count, sizeof *r->infos, ndm_tensor_compare_names);
    for (int64_t i = 1; i < r->count; i++) {
        if (strcmp(r->infos[i - 1].name, r->infos[i].name) == 0)
            NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' is also in %s",
                     r->files[r->infos[i].file].path, r->infos[i].name,
                     r->files[r->infos[i - 1].file].path);
    }
    return NDM_OK;
}

void ndm_safetensors_close(ndm_safetensors *r)
{
    if (r == NULL)
        return;
    for (int64_t i = 0; i < r->count; i++)
        free((char *)r->infos[i].name);
    for (int64_t i = 0; i < r->file_count; i++) {
        if (r->files[i].fd >= 0)
            close(r->files[i].fd);
        free(r->files[i].path);
    }
    free(r->infos);
    free(r->files);
    json_decref(r->metadata);
    free(r);
}
