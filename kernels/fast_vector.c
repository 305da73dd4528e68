/* SPDX-License-Identifier: Apache-2.0 */
/* Ops on plain vectors and rows, at the speed of memory: scale, add, cast, copies, initial values.
 */
#include "core/rng.h"
#include "kernels/fast.h"
#include "kernels/simd.h"

ndm_status NDM_FAST(scale)(const void *args)
{
    const ndm_scale_args *a = args;
    float *x = a->x;
    int threads = ndm_fast_threads(a->n / 4);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_scale, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < a->n; i += VL)
        vf_store_n(x + i, vf_load_n(x + i, a->n - i) * vf_set(a->factor), a->n - i);
    return NDM_OK;
}

ndm_status NDM_FAST(add)(const void *args)
{
    const ndm_add_args *a = args;
    const float *x = a->x;
    float *y = a->y;
    int threads = ndm_fast_threads(a->n / 4);

    if (a->x_dtype != NDM_F32 || a->y_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_add, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < a->n; i += VL) {
        vf sum = vf_fma(vf_set(a->factor), vf_load_n(x + i, a->n - i), vf_load_n(y + i, a->n - i));
        vf_store_n(y + i, sum, a->n - i);
    }
    return NDM_OK;
}

SIMD void cast_as(const ndm_cast_args *a, ndm_dtype src, ndm_dtype dst, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i += VL) {
        int64_t lanes = end - i < VL ? end - i : VL;
        vf_store_as(a->dst, dst, i, vf_load_as(a->src, src, i, lanes), lanes);
    }
}

static void cast_range(const ndm_cast_args *a, int64_t first, int64_t end)
{
    if (a->src_dtype == NDM_F32 && a->dst_dtype == NDM_BF16)
        cast_as(a, NDM_F32, NDM_BF16, first, end);
    else if (a->src_dtype == NDM_BF16 && a->dst_dtype == NDM_F32)
        cast_as(a, NDM_BF16, NDM_F32, first, end);
    else
        cast_as(a, a->src_dtype, a->dst_dtype, first, end);
}

/* fp64 is rare, and equal types are left to a plain copy that keeps every bit. */
ndm_status NDM_FAST(cast)(const void *args)
{
    const ndm_cast_args *a = args;
    int threads = ndm_fast_threads(a->n / 4);

    if (a->src_dtype == NDM_F64 || a->dst_dtype == NDM_F64 || a->src_dtype == a->dst_dtype)
        return ndm_kernels_call_ref(NDM_OP_cast, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int part = 0; part < threads; part++) {
        int64_t first, end;
        ndm_fast_part(a->n, VL, part, threads, &first, &end);
        cast_range(a, first, end);
    }
    return NDM_OK;
}

/* Bytes first .. end of every row, in order of the rows: the last of two rows for one place wins.
 */
static void copy_columns(const ndm_copy2d_args *a, int64_t first, int64_t end)
{
    for (int64_t i = 0; i < a->m; i++) {
        int64_t from = a->index && a->gather ? a->index[i] : i,
                to = a->index && !a->gather ? a->index[i] : i;
        memcpy((char *)a->dst + to * a->dst_stride_bytes + first,
               (const char *)a->src + from * a->src_stride_bytes + first, (size_t)(end - first));
    }
}

static void copy_rows(const ndm_copy2d_args *a, int64_t first, int64_t end)
{
    bool packed = !a->index && a->src_stride_bytes == a->row_bytes &&
                  a->dst_stride_bytes == a->row_bytes;

    if (packed) {
        memcpy((char *)a->dst + first * a->row_bytes, (const char *)a->src + first * a->row_bytes,
               (size_t)((end - first) * a->row_bytes));
        return;
    }
    for (int64_t i = first; i < end; i++) {
        int64_t from = a->index ? a->index[i] : i;
        memcpy((char *)a->dst + i * a->dst_stride_bytes,
               (const char *)a->src + from * a->src_stride_bytes, (size_t)a->row_bytes);
    }
}

/* Products of 8-bit numbers are there to be compared with: the reference makes all of their parts.
 */
ndm_status NDM_FAST(amax)(const void *args)
{
    return ndm_kernels_call_ref(NDM_OP_amax, args);
}

ndm_status NDM_FAST(dequantize)(const void *args)
{
    return ndm_kernels_call_ref(NDM_OP_dequantize, args);
}

ndm_status NDM_FAST(quantize)(const void *args)
{
    return ndm_kernels_call_ref(NDM_OP_quantize, args);
}

ndm_status NDM_FAST(copy2d)(const void *args)
{
    enum { LINE = 64 };
    const ndm_copy2d_args *a = args;
    bool scatter = a->index && !a->gather;
    int threads = ndm_fast_threads(a->m * a->row_bytes / 16);

#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int part = 0; part < threads; part++) {
        int64_t first, end;
        ndm_fast_part(scatter ? a->row_bytes : a->m, scatter ? LINE : 1, part, threads, &first,
                      &end);
        if (first < end && scatter)
            copy_columns(a, first, end);
        else if (first < end)
            copy_rows(a, first, end);
    }
    return NDM_OK;
}

ndm_status NDM_FAST(init)(const void *args)
{
    enum { BLOCK = 4096 };
    const ndm_init_args *a = args;
    int threads = ndm_fast_threads(a->n * 20);

#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t first = 0; first < a->n; first += BLOCK) {
        int64_t count = a->n - first < BLOCK ? a->n - first : BLOCK;
        float *out = a->out + first;
        if (a->std != 0.0f)
            ndm_rng_normal_fill(a->seed, a->stream, (uint64_t)(a->first + first), count, out);
        SIMD_FOR (i, lanes, count) {
            vf value = vf_set(a->mean);
            if (a->std != 0.0f)
                value += vf_set(a->std) * vf_load_n(out + i, lanes);
            vf_store_n(out + i, value, lanes);
        }
    }
    return NDM_OK;
}
