/* SPDX-License-Identifier: Apache-2.0 */
/* Reference of the way to 8 bits: the largest magnitude of a tensor, then its elements over a power
 * of two that brings this magnitude below the largest number of the format. Dividing by a power of
 * two rounds nothing, so the scale changes no digit of what stays normal. */
#include <math.h>

#include "kernels/ref.h"

ndm_status ndm_ref_amax(const void *args)
{
    const ndm_amax_args *a = args;
    float max = *a->out;

    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->width; j++) {
            float x = fabsf(ref_load(a->src, a->src_dtype, i * a->stride + j));
            if (x > max || isnan(x))
                max = x;
        }
    *a->out = max;
    return NDM_OK;
}

/* The least power of two that amax is at most `most` of; 1 for a tensor without a finite size. */
static float scale_of(float amax, float most)
{
    int exponent;

    if (!(amax > 0.0f) || isinf(amax))
        return 1.0f;
    float share = frexpf(amax / most, &exponent);
    exponent -= share == 0.5f; /* amax is most times 2^(exponent - 1) */
    return ldexpf(1.0f, exponent < -126 ? -126 : exponent);
}

ndm_status ndm_ref_quantize(const void *args)
{
    const ndm_quantize_args *a = args;
    float scale = scale_of(*a->amax, ndm_f8_most(a->dst_dtype));

    for (int64_t i = 0; i < a->m; i++)
        for (int64_t j = 0; j < a->width; j++)
            a->dst[i * a->width + j] = ndm_f32_to_f8(
                ref_load(a->src, a->src_dtype, i * a->stride + j) / scale, a->dst_dtype);
    *a->scale = scale;
    return NDM_OK;
}

ndm_status ndm_ref_dequantize(const void *args)
{
    const ndm_dequantize_args *a = args;

    for (int64_t i = 0; i < a->n; i++)
        ref_store(a->dst, a->dst_dtype, i, *a->scale * ndm_f8_to_f32(a->src[i], a->src_dtype));
    return NDM_OK;
}
