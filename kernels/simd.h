/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of VL floats for the fast kernels, which are written once and compiled for each
 * instruction set.
 *
 * meson defines NDM_ISA (avx512, avx2 or portable) and NDM_ISA_<NAME> for a compilation; the header
 * of that set gives loads, stores, fused multiply-add, reductions, masks and transposes, and this
 * file what follows from them. Arithmetic (+ - * /) is the compiler's own on vector types.
 * Everything here is static: objects of different sets never share a symbol.
 *
 * "first n lanes" forms take any n >= 0; n >= VL is a whole vector. Reductions add lanes in a fixed
 * order. */
#ifndef NDM_KERNELS_SIMD_H
#define NDM_KERNELS_SIMD_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "core/dtype.h"

#define SIMD static inline __attribute__((always_inline, unused))

#if defined(__clang__)
#define SIMD_UNROLL _Pragma("clang loop unroll(full)")
#else
#define SIMD_UNROLL _Pragma("GCC unroll 16")
#endif

#if defined(NDM_ISA_AVX512)
#include "kernels/simd_avx512.h"
#elif defined(NDM_ISA_AVX2)
#include "kernels/simd_avx2.h"
#else
#include "kernels/simd_portable.h"
#endif

/* for i = 0, VL, 2 VL ... < n, with `lanes` of n left at i */
#define SIMD_FOR(i, lanes, n) for (int64_t i = 0, lanes = (n); lanes > 0; i += VL, lanes -= VL)

SIMD vf vf_load_n(const float *p, int64_t n)
{
    return n >= VL ? vf_load(p) : vf_load_first(p, (int)n);
}

SIMD void vf_store_n(float *p, vf v, int64_t n)
{
    if (n >= VL)
        vf_store(p, v);
    else
        vf_store_first(p, v, (int)n);
}

/* The first n lanes of v, `fill` in the others. */
SIMD vf vf_fill_n(vf v, vf fill, int64_t n)
{
    return n >= VL ? v : vf_blend_first(fill, v, (int)n);
}

SIMD vf vf_zero(void)
{
    return vf_set(0.0f);
}

/* exp(x): n = round(x log2 e), r = x - n ln 2 with ln 2 in two parts, a polynomial of degree 6
 * (Moshier, Cephes), 2^n put into the exponent. Relative error below 1.3e-7 on [-87, 88]; exactly 0
 * below -87.3 (results that are not normal numbers would cost a hundred cycles each), infinity
 * above 88.73, NaN for NaN. */
SIMD vf vf_exp(vf x)
{
    const float least = -87.3f;
    vf whole = x;

    x = vf_max(vf_set(least), vf_min(vf_set(89.0f), x)); /* a NaN in the second place stays */
    vf n = vf_round(x * vf_set(1.44269504088896341f));
    vf r = vf_fnma(n, vf_set(0.693359375f), x);
    r = vf_fnma(n, vf_set(-2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(r * r, p, r + vf_set(1.0f));
    return vf_where_not_below(whole, least, vf_scale2(p, n));
}

SIMD vf vf_sigmoid(vf x)
{
    return vf_set(1.0f) / (vf_set(1.0f) + vf_exp(-x));
}

/* n <= VL elements from element i on of an array of fp32, bf16 or fp16; 0 in the lanes beyond. */
SIMD vf vf_load_as(const void *array, ndm_dtype dtype, int64_t i, int64_t n)
{
    uint16_t tail[VL] = {0};
    const uint16_t *h = (const uint16_t *)array + i;

    if (dtype == NDM_F32)
        return vf_load_n((const float *)array + i, n);
    if (n < VL) {
        memcpy(tail, h, (size_t)n * sizeof *tail);
        h = tail;
    }
    return dtype == NDM_BF16 ? vf_load_bf16(h) : vf_load_f16(h);
}

SIMD void vf_store_as(void *array, ndm_dtype dtype, int64_t i, vf v, int64_t n)
{
    uint16_t tail[VL], *h = (uint16_t *)array + i, *to = n < VL ? tail : h;

    if (dtype == NDM_F32) {
        vf_store_n((float *)array + i, v, n);
        return;
    }
    if (dtype == NDM_BF16)
        vf_store_bf16(to, v);
    else
        vf_store_f16(to, v);
    if (n < VL)
        memcpy(h, tail, (size_t)n * sizeof *tail);
}

/* dst[c * ldd + r] = src[at + r * lds + c] for r < rows, c < columns, both at most VL and rows at
 * least 1. Whole vectors are stored, in order of c, with the last row again beyond the rows: dst
 * needs room for VL floats at each c, and ldd may be less than VL when columns follow one another.
 */
SIMD void vf_transpose_block(const void *src, ndm_dtype dtype, int64_t at, int64_t lds,
                             int64_t rows, int64_t columns, float *dst, int64_t ldd)
{
    vf r[VL];

    if (dtype == NDM_F32 && columns >= VL) {
        SIMD_UNROLL
        for (int i = 0; i < VL; i++)
            r[i] = vf_load((const float *)src + at + (i < rows ? i : rows - 1) * lds);
    } else {
        for (int i = 0; i < VL; i++)
            r[i] = vf_load_as(src, dtype, at + (i < rows ? i : rows - 1) * lds, columns);
    }
    vf_transpose(r);
    SIMD_UNROLL
    for (int c = 0; c < VL; c++)
        if (c < columns)
            vf_store(dst + c * ldd, r[c]);
}

#endif
