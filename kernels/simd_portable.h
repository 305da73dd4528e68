/* SPDX-License-Identifier: Apache-2.0 */
/* Any CPU: 4 floats in the compiler's vector types (SSE2, NEON, VSX, or scalars), multiply and add
 * apart. Include kernels/simd.h, not this. */
#ifndef NDM_KERNELS_SIMD_PORTABLE_H
#define NDM_KERNELS_SIMD_PORTABLE_H

enum { VL = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef uint32_t vu __attribute__((vector_size(16)));
typedef double vd __attribute__((vector_size(16))); /* half as many doubles */

SIMD vi mask_first(int n)
{
    return (vi){0, 1, 2, 3} < (vi){n, n, n, n};
}

/* a where the mask is set, else b */
SIMD vf select_lanes(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

SIMD vf vf_set(float x)
{
    return (vf){x, x, x, x};
}

SIMD vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

SIMD vf vf_load_first(const float *p, int n)
{
    return (vf){n > 0 ? p[0] : 0.0f, n > 1 ? p[1] : 0.0f, n > 2 ? p[2] : 0.0f, n > 3 ? p[3] : 0.0f};
}

SIMD void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}

SIMD void vf_store_first(float *p, vf v, int n)
{
    for (int i = 0; i < n; i++)
        p[i] = v[i];
}

/* Lanes below n from v, the others from other. */
SIMD vf vf_blend_first(vf other, vf v, int n)
{
    return select_lanes(mask_first(n), v, other);
}

SIMD vf vf_fma(vf a, vf b, vf c)
{
    return a * b + c;
}

/* c - a * b */
SIMD vf vf_fnma(vf a, vf b, vf c)
{
    return c - a * b;
}

/* b when either is NaN */
SIMD vf vf_max(vf a, vf b)
{
    return select_lanes(a > b, a, b);
}

SIMD vf vf_min(vf a, vf b)
{
    return select_lanes(a < b, a, b);
}

SIMD vf vf_abs(vf a)
{
    return (vf)((vi)a & (vi){0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff});
}

SIMD vf vf_sqrt(vf a)
{
    return (vf){sqrtf(a[0]), sqrtf(a[1]), sqrtf(a[2]), sqrtf(a[3])};
}

/* Adding 1.5 * 2^23 leaves no bits for a fraction; for |a| < 2^22. */
SIMD vf vf_round(vf a)
{
    vf magic = vf_set(12582912.0f);
    return (a + magic) - magic;
}

/* p * 2^n for whole n, gradual to 0 and to infinity: by halves, since 2^n itself may not be
 * representable */
SIMD vf vf_scale2(vf p, vf n)
{
    vi whole = __builtin_convertvector(n, vi), half = whole >> 1, rest = whole - half;
    vi bias = {127, 127, 127, 127};
    return p * (vf)((half + bias) << 23) * (vf)((rest + bias) << 23);
}

SIMD float vf_sum(vf v)
{
    return (v[0] + v[2]) + (v[1] + v[3]);
}

SIMD float vf_hmax(vf v)
{
    float a = v[0] > v[1] ? v[0] : v[1], b = v[2] > v[3] ? v[2] : v[3];
    return a > b ? a : b;
}

/* v where x != 0, else 0 */
SIMD vf vf_where_nonzero(vf x, vf v)
{
    return (vf)((x != vf_set(0.0f)) & (vi)v);
}

/* v where x >= low or x is NaN, else 0 */
SIMD vf vf_where_not_below(vf x, float low, vf v)
{
    return (vf)(~(x < vf_set(low)) & (vi)v);
}

/* v where low <= index <= high, else fill */
SIMD vf vf_where_between(vf v, vf fill, const int32_t *index, int32_t low, int32_t high)
{
    vi i;
    memcpy(&i, index, sizeof i);
    return select_lanes((i >= (vi){low, low, low, low}) & (i <= (vi){high, high, high, high}), v,
                        fill);
}

SIMD vf vf_load_bf16(const uint16_t *p)
{
    vu bits = {p[0], p[1], p[2], p[3]};
    return (vf)(bits << 16);
}

SIMD void vf_store_bf16(uint16_t *p, vf v)
{
    for (int i = 0; i < VL; i++)
        p[i] = ndm_f32_to_bf16(v[i]);
}

SIMD vf vf_load_f16(const uint16_t *p)
{
    return (vf){ndm_f16_to_f32(p[0]), ndm_f16_to_f32(p[1]), ndm_f16_to_f32(p[2]),
                ndm_f16_to_f32(p[3])};
}

SIMD void vf_store_f16(uint16_t *p, vf v)
{
    for (int i = 0; i < VL; i++)
        p[i] = ndm_f32_to_f16(v[i]);
}

SIMD vd vd_set(double x)
{
    return (vd){x, x};
}

/* The lower and the upper half of the lanes. */
SIMD vd vd_low(vf v)
{
    return (vd){v[0], v[1]};
}

SIMD vd vd_high(vf v)
{
    return (vd){v[2], v[3]};
}

SIMD double vd_sum(vd v)
{
    return v[0] + v[1];
}

SIMD void vf_transpose(vf r[VL])
{
    vf a = r[0], b = r[1], c = r[2], d = r[3];

    r[0] = (vf){a[0], b[0], c[0], d[0]};
    r[1] = (vf){a[1], b[1], c[1], d[1]};
    r[2] = (vf){a[2], b[2], c[2], d[2]};
    r[3] = (vf){a[3], b[3], c[3], d[3]};
}

#endif
