/* SPDX-License-Identifier: Apache-2.0 */
/* Reference AdamW (Loshchilov and Hutter, "Decoupled Weight Decay Regularization", 2019), in
 * double, state kept in fp32. */
#include <math.h>

#include "kernels/ref.h"

static void step_one(const ndm_adamw_args *a, int64_t i)
{
    double g = a->g[i] * a->grad_scale;
    double m = a->beta1 * a->m[i] + (1.0 - a->beta1) * g;
    double v = a->beta2 * a->v[i] + (1.0 - a->beta2) * g * g;
    double w = a->w[i] * (1.0 - a->lr * a->weight_decay);
    double root = sqrt(v / a->bias2) + a->eps;

    /* eps 0 and an element that never had a gradient: 0/0 in the formula, no step here */
    if (root != 0.0)
        w -= a->lr * (m / a->bias1) / root;
    a->m[i] = (float)m;
    a->v[i] = (float)v;
    a->w[i] = (float)w;
    if (a->copy)
        ref_store(a->copy, a->copy_dtype, i, a->w[i]);
}

ndm_status ndm_ref_adamw(const void *args)
{
    ndm_adamw_args a = *(const ndm_adamw_args *)args;

    if (!ndm_adamw_take_step(&a))
        return NDM_OK;
    for (int64_t i = 0; i < a.n; i++)
        step_one(&a, i);
    return NDM_OK;
}

ndm_status ndm_ref_clip(const void *args)
{
    const ndm_clip_args *a = args;
    double norm = a->largest && !isnan(a->sums[0]) ? *a->largest : sqrt(a->sums[0]);
    bool finite = isfinite(norm);

    for (int64_t i = 1; i < a->n; i++)
        finite = finite && isfinite(a->sums[i]);
    double scale = a->max_norm > 0.0 ? fmin(1.0, a->max_norm / (norm + 1e-6)) : 1.0;
    a->step->grad_scale = finite ? scale : NAN;
    return NDM_OK;
}
