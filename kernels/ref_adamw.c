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
    const ndm_adamw_args *a = args;

    for (int64_t i = 0; i < a->n; i++)
        step_one(a, i);
    return NDM_OK;
}
