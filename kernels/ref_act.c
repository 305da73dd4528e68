/* SPDX-License-Identifier: Apache-2.0 */
/* Reference activations: SiLU, and GELU in its tanh and erf forms (Hendrycks and Gimpel, 2016),
 * plain or gated (Shazeer, "GLU Variants", 2020). */
#include <math.h>

#include "kernels/ref.h"

static const double sqrt_2_over_pi = 0.79788456080286535588;
static const double sqrt_half = 0.70710678118654752440;
static const double gelu_cubic = 0.044715;

/* act(x), and its derivative. */
static double activate(ndm_activation activation, double x, double *slope)
{
    if (activation == NDM_SILU) {
        double sigmoid = 1.0 / (1.0 + exp(-x));
        *slope = sigmoid * (1.0 + x * (1.0 - sigmoid));
        return x * sigmoid;
    }
    if (activation == NDM_GELU_TANH) {
        double t = tanh(sqrt_2_over_pi * (x + gelu_cubic * x * x * x));
        double inner = sqrt_2_over_pi * (1.0 + 3.0 * gelu_cubic * x * x);
        *slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * inner;
        return 0.5 * x * (1.0 + t);
    }
    double cdf = 0.5 * erfc(-x * sqrt_half);
    *slope = cdf + x * 0.5 * sqrt_2_over_pi * exp(-0.5 * x * x);
    return x * cdf;
}

ndm_status ndm_ref_act(const void *args)
{
    const ndm_act_args *a = args;

    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->width; j++) {
            ref_row x = ref_row_of(a->x, a->x_dtype, i * a->x_stride + j);
            double slope, y = activate(a->activation, ref_get(x, 0), &slope);
            ref_put(ref_row_of(a->y, a->x_dtype, i * a->y_stride), j,
                    a->gated ? y * ref_get(x, a->width) : y);
        }
    return NDM_OK;
}

/* Gated, y = act(g) u: dg = dy u act'(g), du = dy act(g). All of a pair is read before its dx is
 * written: dx may be x. */
ndm_status ndm_ref_act_backward(const void *args)
{
    const ndm_act_backward_args *a = args;

    for (int64_t i = 0; i < a->n; i++)
        for (int64_t j = 0; j < a->width; j++) {
            ref_row x = ref_row_of(a->x, a->x_dtype, i * a->x_stride + j);
            ref_row dx = ref_row_of(a->dx, a->x_dtype, i * a->dx_stride + j);
            double dy = ref_load(a->dy, a->x_dtype, i * a->dy_stride + j);
            double up = a->gated ? ref_get(x, a->width) : 1.0;
            double slope, value = activate(a->activation, ref_get(x, 0), &slope);
            ref_put(dx, 0, dy * up * slope);
            if (a->gated)
                ref_put(dx, a->width, dy * value);
            if (a->y)
                ref_put(ref_row_of(a->y, a->x_dtype, i * a->y_stride), j, value * up);
        }
    return NDM_OK;
}
