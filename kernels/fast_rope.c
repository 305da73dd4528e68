/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions in place: the angles of a row stay in L1 for all its heads. */
#include "kernels/fast.h"
#include "kernels/simd.h"

static void rotate_head(float *x, const float *cosine, const float *sine, float sign, int64_t half)
{
    SIMD_FOR (i, lanes, half) {
        vf c = vf_load_n(cosine + i, lanes), s = vf_load_n(sine + i, lanes) * vf_set(sign);
        vf x0 = vf_load_n(x + i, lanes), x1 = vf_load_n(x + half + i, lanes);
        vf_store_n(x + i, vf_fnma(x1, s, x0 * c), lanes);
        vf_store_n(x + half + i, vf_fma(x1, c, x0 * s), lanes);
    }
}

ndm_status NDM_FAST(rope)(const void *args)
{
    const ndm_rope_args *a = args;
    int64_t half = a->head_dim / 2;
    int threads = ndm_fast_threads(a->n * a->heads * a->head_dim / 4);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_rope, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < a->n; row++) {
        int64_t at = a->positions[row] * half;
        for (int64_t head = 0; head < a->heads; head++)
            rotate_head(ndm_fast_out(a->x) + row * a->stride + head * a->head_dim, a->cos + at,
                        a->sin + at, a->sign, half);
    }
    return NDM_OK;
}
