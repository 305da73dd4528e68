/* SPDX-License-Identifier: Apache-2.0 */
/* Activations: both forms of GELU and SiLU are x times a sigmoid or a normal distribution function.
 */
#include "kernels/fast.h"
#include "kernels/simd.h"

/* 0.5 erfc(|x| / sqrt 2), the chance beyond |x|: a fit by Chebyshev (Press et al., "Numerical
 * Recipes", 6.2), whose fractional error is below 1.2e-7 everywhere. */
SIMD vf tail_chance(vf x)
{
    vf z = vf_abs(x) * vf_set(0.70710678f);
    vf t = vf_set(1.0f) / vf_fma(vf_set(0.5f), z, vf_set(1.0f));
    vf p = vf_set(0.17087277f);

    p = vf_fma(p, t, vf_set(-0.82215223f));
    p = vf_fma(p, t, vf_set(1.48851587f));
    p = vf_fma(p, t, vf_set(-1.13520398f));
    p = vf_fma(p, t, vf_set(0.27886807f));
    p = vf_fma(p, t, vf_set(-0.18628806f));
    p = vf_fma(p, t, vf_set(0.09678418f));
    p = vf_fma(p, t, vf_set(0.37409196f));
    p = vf_fma(p, t, vf_set(1.00002368f));
    p = vf_fma(p, t, vf_set(-1.26551223f));
    return vf_set(0.5f) * t * vf_exp(vf_fnma(z, z, p));
}

SIMD vf gelu_erf(vf x, vf *slope)
{
    vf q = tail_chance(x), sign = vf_max(vf_set(-1.0f), vf_min(vf_set(1.0f), x * vf_set(1e30f)));
    vf density = vf_set(0.39894228f) * vf_exp(vf_set(-0.5f) * x * x);

    *slope = vf_fma(x, density, vf_fma(sign, vf_set(0.5f) - q, vf_set(0.5f)));
    return vf_fnma(vf_abs(x), q, vf_max(vf_zero(), x));
}

/* 0.5 (1 + tanh u) is the sigmoid of 2u. */
SIMD vf gelu_tanh(vf x, vf *slope)
{
    const float twice_root = 1.5957691216f, cubic = 0.044715f; /* 2 sqrt(2 / pi) */
    vf square = x * x;
    vf s = vf_sigmoid(vf_set(twice_root) * x * vf_fma(vf_set(cubic), square, vf_set(1.0f)));
    vf inner = vf_set(twice_root) * vf_fma(vf_set(3.0f * cubic), square, vf_set(1.0f));

    *slope = vf_fma(x * s * (vf_set(1.0f) - s), inner, s);
    return x * s;
}

SIMD vf silu(vf x, vf *slope)
{
    vf s = vf_sigmoid(x);

    *slope = s * vf_fma(x, vf_set(1.0f) - s, vf_set(1.0f));
    return x * s;
}

SIMD vf activate(ndm_activation activation, vf x, vf *slope)
{
    if (activation == NDM_SILU)
        return silu(x, slope);
    return activation == NDM_GELU_TANH ? gelu_tanh(x, slope) : gelu_erf(x, slope);
}

SIMD void act_row_as(const ndm_act_args *a, ndm_activation activation, int64_t row)
{
    const float *x = ndm_fast_in(a->x) + row * a->x_stride;
    float *y = ndm_fast_out(a->y) + row * a->y_stride;

    SIMD_FOR (j, lanes, a->width) {
        vf slope, value = activate(activation, vf_load_n(x + j, lanes), &slope);
        ndm_fast_fetch(x + j);
        ndm_fast_fetch(y + j);
        if (a->gated) {
            ndm_fast_fetch(x + a->width + j);
            value *= vf_load_n(x + a->width + j, lanes);
        }
        vf_store_n(y + j, value, lanes);
    }
}

/* All of a pair is read before its dx is written: dx may be x. */
SIMD void backward_row_as(const ndm_act_backward_args *a, ndm_activation activation, int64_t row)
{
    const float *x = ndm_fast_in(a->x) + row * a->x_stride,
                *dy = ndm_fast_in(a->dy) + row * a->dy_stride;
    float *dx = ndm_fast_out(a->dx) + row * a->dx_stride,
          *y = a->y ? ndm_fast_out(a->y) + row * a->y_stride : NULL;

    SIMD_FOR (j, lanes, a->width) {
        vf slope, value = activate(activation, vf_load_n(x + j, lanes), &slope);
        vf d = vf_load_n(dy + j, lanes), up = vf_set(1.0f);
        ndm_fast_fetch(x + j);
        ndm_fast_fetch(dy + j);
        ndm_fast_fetch(dx + j);
        if (a->gated) {
            ndm_fast_fetch(x + a->width + j);
            ndm_fast_fetch(dx + a->width + j);
            up = vf_load_n(x + a->width + j, lanes);
            vf_store_n(dx + a->width + j, d * value, lanes);
        }
        vf_store_n(dx + j, d * up * slope, lanes);
        if (y)
            vf_store_n(y + j, value * up, lanes);
    }
}

static void act_row(const ndm_act_args *a, int64_t row)
{
    switch (a->activation) {
    case NDM_SILU:
        act_row_as(a, NDM_SILU, row);
        break;
    case NDM_GELU_TANH:
        act_row_as(a, NDM_GELU_TANH, row);
        break;
    case NDM_GELU_ERF:
        act_row_as(a, NDM_GELU_ERF, row);
        break;
    }
}

static void backward_row(const ndm_act_backward_args *a, int64_t row)
{
    switch (a->activation) {
    case NDM_SILU:
        backward_row_as(a, NDM_SILU, row);
        break;
    case NDM_GELU_TANH:
        backward_row_as(a, NDM_GELU_TANH, row);
        break;
    case NDM_GELU_ERF:
        backward_row_as(a, NDM_GELU_ERF, row);
        break;
    }
}

ndm_status NDM_FAST(act)(const void *args)
{
    const ndm_act_args *a = args;
    int threads = ndm_fast_threads(a->n * a->width / 2);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_act, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < a->n; row++)
        act_row(a, row);
    return NDM_OK;
}

ndm_status NDM_FAST(act_backward)(const void *args)
{
    const ndm_act_backward_args *a = args;
    int threads = ndm_fast_threads(a->n * a->width);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_act_backward, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < a->n; row++)
        backward_row(a, row);
    return NDM_OK;
}
