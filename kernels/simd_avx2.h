/* SPDX-License-Identifier: Apache-2.0 */
/* AVX2, FMA, F16C: 8 floats, masks as vectors. Include kernels/simd.h, not this. */
#ifndef NDM_KERNELS_SIMD_AVX2_H
#define NDM_KERNELS_SIMD_AVX2_H

#include <immintrin.h>

enum { VL = 8 };
typedef float vf __attribute__((vector_size(32)));
typedef double vd __attribute__((vector_size(32))); /* half as many doubles */

SIMD __m256i mask_first(int n)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

SIMD vf vf_set(float x)
{
    return _mm256_set1_ps(x);
}

SIMD vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}

SIMD vf vf_load_first(const float *p, int n)
{
    return _mm256_maskload_ps(p, mask_first(n));
}

SIMD void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}

SIMD void vf_store_first(float *p, vf v, int n)
{
    _mm256_maskstore_ps(p, mask_first(n), v);
}

/* Lanes below n from v, the others from other. */
SIMD vf vf_blend_first(vf other, vf v, int n)
{
    return _mm256_blendv_ps(other, v, _mm256_castsi256_ps(mask_first(n)));
}

SIMD vf vf_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

/* c - a * b */
SIMD vf vf_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

/* b when either is NaN */
SIMD vf vf_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

SIMD vf vf_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

SIMD vf vf_abs(vf a)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

SIMD vf vf_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

SIMD vf vf_round(vf a)
{
    return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* p * 2^n for whole n, gradual to 0 and to infinity: by halves, since 2^n itself may not be
 * representable */
SIMD vf vf_scale2(vf p, vf n)
{
    __m256i whole = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(whole, 1);
    __m256i rest = _mm256_sub_epi32(whole, half), bias = _mm256_set1_epi32(127);
    vf a = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, bias), 23));
    vf b = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, bias), 23));
    return p * a * b;
}

SIMD float vf_sum(vf v)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

SIMD float vf_hmax(vf v)
{
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* v where x != 0, else 0 */
SIMD vf vf_where_nonzero(vf x, vf v)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_NEQ_UQ), v);
}

/* v where x >= low or x is NaN, else 0 */
SIMD vf vf_where_not_below(vf x, float low, vf v)
{
    return _mm256_and_ps(_mm256_cmp_ps(x, _mm256_set1_ps(low), _CMP_NLT_UQ), v);
}

/* v where low <= index <= high, else fill */
SIMD vf vf_where_between(vf v, vf fill, const int32_t *index, int32_t low, int32_t high)
{
    __m256i i = _mm256_loadu_si256((const __m256i *)(const void *)index);
    __m256i out = _mm256_or_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(low), i),
                                  _mm256_cmpgt_epi32(i, _mm256_set1_epi32(high)));
    return _mm256_blendv_ps(v, fill, _mm256_castsi256_ps(out));
}

SIMD vf vf_load_bf16(const uint16_t *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

SIMD void vf_store_bf16(uint16_t *p, vf v)
{
    __m256i bits = _mm256_castps_si256(v);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i up = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i nan = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    up = _mm256_blendv_epi8(up, nan, _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q)));
    up = _mm256_srli_epi32(up, 16);
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1)));
}

SIMD vf vf_load_f16(const uint16_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}

SIMD void vf_store_f16(uint16_t *p, vf v)
{
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

SIMD vd vd_set(double x)
{
    return _mm256_set1_pd(x);
}

/* The lower and the upper half of the lanes. */
SIMD vd vd_low(vf v)
{
    return _mm256_cvtps_pd(_mm256_castps256_ps128(v));
}

SIMD vd vd_high(vf v)
{
    return _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
}

SIMD double vd_sum(vd v)
{
    __m128d x = _mm_add_pd(_mm256_castpd256_pd128(v), _mm256_extractf128_pd(v, 1));
    return _mm_cvtsd_f64(_mm_add_sd(x, _mm_unpackhi_pd(x, x)));
}

/* Rows become columns, 8 by 8: pairs, fours, then halves. */
SIMD void vf_transpose(vf r[VL])
{
    vf t[VL];

    SIMD_UNROLL
    for (int i = 0; i < VL; i += 2) {
        t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    SIMD_UNROLL
    for (int i = 0; i < VL; i++) {
        __m256d a = _mm256_castps_pd(t[(i & ~3) + ((i >> 1) & 1)]);
        __m256d b = _mm256_castps_pd(t[(i & ~3) + ((i >> 1) & 1) + 2]);
        r[i] = _mm256_castpd_ps((i & 1) ? _mm256_unpackhi_pd(a, b) : _mm256_unpacklo_pd(a, b));
    }
    SIMD_UNROLL
    for (int j = 0; j < 4; j++) {
        vf low = _mm256_permute2f128_ps(r[j], r[4 + j], 0x20),
           high = _mm256_permute2f128_ps(r[j], r[4 + j], 0x31);
        r[j] = low;
        r[4 + j] = high;
    }
}

#endif
