/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW in one pass over w, g, m, v, and the copy of the working type if there is one. */
#include "kernels/fast.h"
#include "kernels/simd.h"

enum { AHEAD = 384 }; /* elements: of four arrays at once, a core's own prefetching lags behind */

/* A few numbers. */
ndm_status NDM_FAST(clip)(const void *args)
{
    return ndm_kernels_call_ref(NDM_OP_clip, args);
}

/* The step's coefficients, rounded once. */
typedef struct coefficients {
    float clip, keep, beta1, beta2, rest1, rest2, rate, over_root_bias2, eps;
} coefficients;

SIMD void fetch_ahead(const ndm_adamw_args *a, int64_t i)
{
    __builtin_prefetch(a->g + i);
    __builtin_prefetch(a->m + i);
    __builtin_prefetch(a->v + i);
    __builtin_prefetch(a->w + i);
}

SIMD void step_lanes(const ndm_adamw_args *a, const coefficients *c, int64_t i, int64_t lanes)
{
    vf g = vf_load_n(a->g + i, lanes) * vf_set(c->clip);
    vf m = vf_fma(vf_set(c->beta1), vf_load_n(a->m + i, lanes), vf_set(c->rest1) * g);
    vf v = vf_fma(vf_set(c->beta2), vf_load_n(a->v + i, lanes), vf_set(c->rest2) * g * g);
    vf root = vf_fma(vf_sqrt(v), vf_set(c->over_root_bias2), vf_set(c->eps));
    vf step = vf_where_nonzero(root, m / root); /* eps 0 and no gradient ever: no step */
    vf w = vf_fnma(vf_set(c->rate), step, vf_load_n(a->w + i, lanes) * vf_set(c->keep));

    vf_store_n(a->m + i, m, lanes);
    vf_store_n(a->v + i, v, lanes);
    vf_store_n(a->w + i, w, lanes);
    if (a->copy)
        vf_store_as(a->copy, a->copy_dtype, i, w, lanes);
}

static coefficients coefficients_of(const ndm_adamw_args *a)
{
    return (coefficients){
        .clip = (float)a->grad_scale,
        .keep = (float)(1.0 - a->lr * a->weight_decay),
        .beta1 = (float)a->beta1,
        .beta2 = (float)a->beta2,
        .rest1 = (float)(1.0 - a->beta1),
        .rest2 = (float)(1.0 - a->beta2),
        .rate = (float)(a->lr / a->bias1),
        .over_root_bias2 = (float)(1.0 / sqrt(a->bias2)),
        .eps = (float)a->eps,
    };
}

ndm_status NDM_FAST(adamw)(const void *args)
{
    ndm_adamw_args a = *(const ndm_adamw_args *)args;
    int threads = ndm_fast_threads(a.n);

    if (!ndm_adamw_take_step(&a))
        return NDM_OK;
    const coefficients c = coefficients_of(&a);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int part = 0; part < threads; part++) {
        int64_t first, end;
        ndm_fast_part(a.n, VL, part, threads, &first, &end);
        for (int64_t i = first; i < end; i += VL) {
            fetch_ahead(&a, i + AHEAD);
            step_lanes(&a, &c, i, end - i < VL ? end - i : VL);
        }
    }
    return NDM_OK;
}
