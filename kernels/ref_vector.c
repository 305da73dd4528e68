/* SPDX-License-Identifier: Apache-2.0 */
/* Reference ops on plain vectors and rows: sums, casts, scaling, copies, initial values. */
#include <math.h>
#include <string.h>

#include "core/rng.h"
#include "kernels/ref.h"

enum { SUM_BLOCK = 1024 };

/* A sum a block, then the sum of these: the error grows with the number of blocks, not of elements.
 */
ndm_status ndm_ref_sumsq(const void *args)
{
    const ndm_sumsq_args *a = args;
    double total = 0.0, max = a->out_max ? *a->out_max : 0.0;

    for (int64_t first = 0; first < a->n; first += SUM_BLOCK) {
        int64_t end = first + SUM_BLOCK < a->n ? first + SUM_BLOCK : a->n;
        double sum = 0.0;
        for (int64_t i = first; i < end; i++) {
            double x = fabs((double)a->x[i]);
            sum += x * x;
            if (x > max || isnan(x))
                max = x;
        }
        total += sum;
    }
    *a->out += a->weight * total;
    if (a->out_max)
        *a->out_max = max;
    return NDM_OK;
}

ndm_status ndm_ref_cast(const void *args)
{
    const ndm_cast_args *a = args;
    ndm_convert(a->src, a->src_dtype, a->dst, a->dst_dtype, a->n);
    return NDM_OK;
}

ndm_status ndm_ref_scale(const void *args)
{
    const ndm_scale_args *a = args;
    for (int64_t i = 0; i < a->n; i++)
        ref_store(a->x, a->x_dtype, i, ref_load(a->x, a->x_dtype, i) * a->factor);
    return NDM_OK;
}

ndm_status ndm_ref_add(const void *args)
{
    const ndm_add_args *a = args;
    for (int64_t i = 0; i < a->n; i++)
        ref_store(a->y, a->y_dtype, i,
                  ref_load(a->y, a->y_dtype, i) + a->factor * ref_load(a->x, a->x_dtype, i));
    return NDM_OK;
}

ndm_status ndm_ref_colsum(const void *args)
{
    const ndm_colsum_args *a = args;

    for (int64_t j = 0; j < a->n; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < a->m; i++)
            sum += ref_load(a->x, a->x_dtype, i * a->stride + j);
        a->out[j] = (float)(a->out[j] + sum);
    }
    return NDM_OK;
}

ndm_status ndm_ref_copy2d(const void *args)
{
    const ndm_copy2d_args *a = args;

    for (int64_t i = 0; i < a->m; i++) {
        int64_t from = a->index && a->gather ? a->index[i] : i;
        int64_t to = a->index && !a->gather ? a->index[i] : i;
        memcpy((char *)a->dst + to * a->dst_stride_bytes,
               (const char *)a->src + from * a->src_stride_bytes, (size_t)a->row_bytes);
    }
    return NDM_OK;
}

ndm_status ndm_ref_init(const void *args)
{
    const ndm_init_args *a = args;

    for (int64_t i = 0; i < a->n; i++) {
        a->out[i] = a->mean;
        if (a->std != 0.0f)
            a->out[i] += a->std * ndm_rng_normal(a->seed, a->stream, (uint64_t)(a->first + i));
    }
    return NDM_OK;
}
