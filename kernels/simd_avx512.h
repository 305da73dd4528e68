/* SPDX-License-Identifier: Apache-2.0 */
/* AVX-512 F, BW, DQ, VL: 16 floats, masks in registers. Include kernels/simd.h, not this. */
#ifndef NDM_KERNELS_SIMD_AVX512_H
#define NDM_KERNELS_SIMD_AVX512_H

#include <immintrin.h>

enum { VL = 16 };
typedef float vf __attribute__((vector_size(64)));
typedef double vd __attribute__((vector_size(64))); /* half as many doubles */

SIMD __mmask16 mask_first(int n)
{
    return (__mmask16)((1u << n) - 1u);
}

SIMD vf vf_set(float x)
{
    return _mm512_set1_ps(x);
}

SIMD vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

SIMD vf vf_load_first(const float *p, int n)
{
    return _mm512_maskz_loadu_ps(mask_first(n), p);
}

SIMD void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}

SIMD void vf_store_first(float *p, vf v, int n)
{
    _mm512_mask_storeu_ps(p, mask_first(n), v);
}

/* Lanes below n from v, the others from other. */
SIMD vf vf_blend_first(vf other, vf v, int n)
{
    return _mm512_mask_mov_ps(other, mask_first(n), v);
}

SIMD vf vf_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/* c - a * b */
SIMD vf vf_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/* b when either is NaN */
SIMD vf vf_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

SIMD vf vf_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

SIMD vf vf_abs(vf a)
{
    return _mm512_abs_ps(a);
}

SIMD vf vf_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

SIMD vf vf_round(vf a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* p * 2^n for whole n, gradual to 0 and to infinity */
SIMD vf vf_scale2(vf p, vf n)
{
    return _mm512_scalef_ps(p, n);
}

SIMD float vf_sum(vf v)
{
    return _mm512_reduce_add_ps(v);
}

SIMD float vf_hmax(vf v)
{
    return _mm512_reduce_max_ps(v);
}

/* v where x != 0, else 0 */
SIMD vf vf_where_nonzero(vf x, vf v)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_NEQ_UQ), v);
}

/* v where x >= low or x is NaN, else 0 */
SIMD vf vf_where_not_below(vf x, float low, vf v)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(low), _CMP_NLT_UQ), v);
}

/* v where low <= index <= high, else fill */
SIMD vf vf_where_between(vf v, vf fill, const int32_t *index, int32_t low, int32_t high)
{
    __m512i i = _mm512_loadu_si512(index);
    __mmask16 in = _mm512_cmpge_epi32_mask(i, _mm512_set1_epi32(low));
    in = _mm512_mask_cmple_epi32_mask(in, i, _mm512_set1_epi32(high));
    return _mm512_mask_mov_ps(fill, in, v);
}

SIMD vf vf_load_bf16(const uint16_t *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

SIMD void vf_store_bf16(uint16_t *p, vf v)
{
    __m512i bits = _mm512_castps_si512(v);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i up = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i nan = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    up = _mm512_mask_mov_epi32(up, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), nan);
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}

SIMD vf vf_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

SIMD void vf_store_f16(uint16_t *p, vf v)
{
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SIMD vd vd_set(double x)
{
    return _mm512_set1_pd(x);
}

/* The lower and the upper half of the lanes. */
SIMD vd vd_low(vf v)
{
    return _mm512_cvtps_pd(_mm512_castps512_ps256(v));
}

SIMD vd vd_high(vf v)
{
    return _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
}

SIMD double vd_sum(vd v)
{
    return _mm512_reduce_add_pd(v);
}

/* Rows become columns, 16 by 16: pairs, fours, then 128-bit quarters. */
SIMD void vf_transpose(vf r[VL])
{
    vf t[VL];

    SIMD_UNROLL
    for (int i = 0; i < VL; i += 2) {
        t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
    }
    SIMD_UNROLL
    for (int i = 0; i < VL; i++) {
        __m512d a = _mm512_castps_pd(t[(i & ~3) + ((i >> 1) & 1)]);
        __m512d b = _mm512_castps_pd(t[(i & ~3) + ((i >> 1) & 1) + 2]);
        r[i] = _mm512_castpd_ps((i & 1) ? _mm512_unpackhi_pd(a, b) : _mm512_unpacklo_pd(a, b));
    }
    SIMD_UNROLL
    for (int j = 0; j < 4; j++) {
        vf a = _mm512_shuffle_f32x4(r[j], r[4 + j], 0x44),
           b = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0x44);
        vf c = _mm512_shuffle_f32x4(r[j], r[4 + j], 0xee),
           d = _mm512_shuffle_f32x4(r[8 + j], r[12 + j], 0xee);
        t[j] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[4 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[8 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
    SIMD_UNROLL
    for (int i = 0; i < VL; i++)
        r[i] = t[i];
}

#endif
