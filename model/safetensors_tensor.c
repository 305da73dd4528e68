/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic on tensors in files: sizes, ranges, conversion. All of it is checked against overflow.
 */
#include "model/safetensors_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"

bool ndm_tensor_measure(ndm_dtype dtype, int ndim, const int64_t *shape, int64_t *count,
                        int64_t *bytes)
{
    int64_t product = 1;
    bool zero = false;

    /* A zero dimension makes the product zero; the others must be in range all the same. */
    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return false;
        if (shape[d] == 0)
            zero = true;
        else if (__builtin_mul_overflow(product, shape[d], &product))
            return false;
    }
    *count = zero ? 0 : product;
    return !__builtin_mul_overflow(*count, (int64_t)ndm_dtype_bytes(dtype), bytes);
}

int ndm_tensor_compare_names(const void *a, const void *b)
{
    const ndm_tensor_info *x = a, *y = b;

    return strcmp(x->name, y->name);
}

const ndm_tensor_info *ndm_tensor_find(const ndm_tensor_info *infos, int64_t n, const char *name)
{
    ndm_tensor_info key = {.name = name};

    if (n == 0)
        return NULL;
    return bsearch(&key, infos, (size_t)n, sizeof *infos, ndm_tensor_compare_names);
}

static bool is_float(ndm_dtype dtype)
{
    return dtype == NDM_F32 || dtype == NDM_BF16 || dtype == NDM_F16 || dtype == NDM_F64;
}

static ndm_status check_type(const ndm_tensor_info *info, const char *path, ndm_dtype dtype)
{
    if (info->dtype != dtype && !(is_float(info->dtype) && is_float(dtype)))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor '%s' is %s, which does not convert to or from %s",
                 path, info->name, ndm_dtype_name(info->dtype), ndm_dtype_name(dtype));
    return NDM_OK;
}

ndm_status ndm_tensor_check_range(const ndm_tensor_info *info, const char *path, int64_t first,
                                  int64_t n, ndm_dtype dtype)
{
    if (first < 0 || n < 0 || first > info->count || n > info->count - first)
        NDM_FAIL(NDM_ERR_USAGE, "%s: tensor '%s' has %lld elements; asked for %lld from %lld on",
                 path, info->name, (long long)info->count, (long long)n, (long long)first);
    return check_type(info, path, dtype);
}

ndm_status ndm_tensor_check_block(const ndm_tensor_info *info, const char *path, int64_t r0,
                                  int64_t r1, int64_t c0, int64_t c1, ndm_dtype dtype)
{
    char shape[128];

    if (info->ndim != 2)
        NDM_FAIL(NDM_ERR_USAGE, "%s: tensor '%s' has shape %s, not two dimensions", path,
                 info->name, ndm_tensor_shape_text(info->ndim, info->shape, shape, sizeof shape));
    if (r0 < 0 || r1 < r0 || r1 > info->shape[0] || c0 < 0 || c1 < c0 || c1 > info->shape[1])
        NDM_FAIL(NDM_ERR_USAGE,
                 "%s: tensor '%s' has shape %s; asked for rows %lld..%lld, columns %lld..%lld",
                 path, info->name, ndm_tensor_shape_text(2, info->shape, shape, sizeof shape),
                 (long long)r0, (long long)r1, (long long)c0, (long long)c1);
    return check_type(info, path, dtype);
}

void ndm_tensor_convert(const void *src, ndm_dtype src_dtype, void *dst, ndm_dtype dst_dtype,
                        int64_t n)
{
    if (src_dtype == dst_dtype)
        memcpy(dst, src, (size_t)n * ndm_dtype_bytes(dst_dtype));
    else
        ndm_convert(src, src_dtype, dst, dst_dtype, n);
}

const char *ndm_tensor_shape_text(int ndim, const int64_t *shape, char *buffer,
                                  int64_t buffer_bytes)
{
    int64_t used = snprintf(buffer, (size_t)buffer_bytes, "[");

    for (int d = 0; d < ndim && used < buffer_bytes; d++)
        used += snprintf(buffer + used, (size_t)(buffer_bytes - used), "%s%lld", d ? ", " : "",
                         (long long)shape[d]);
    if (used < buffer_bytes)
        snprintf(buffer + used, (size_t)(buffer_bytes - used), "]");
    return buffer;
}
