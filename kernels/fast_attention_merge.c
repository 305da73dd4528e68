/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of partial attentions. A side that saw nothing is left out by selection: what its rows hold
 * is never read. */
#include "kernels/fast.h"
#include "kernels/simd.h"

static void blend(float *out, const float *part, float keep, float add, int64_t width)
{
    SIMD_FOR (d, lanes, width)
        vf_store_n(out + d,
                   vf_fma(vf_set(add), vf_load_n(part + d, lanes),
                          vf_set(keep) * vf_load_n(out + d, lanes)),
                   lanes);
}

static void merge_row(float *out, float *lse, const float *part, float part_lse, int64_t width)
{
    float max = *lse > part_lse ? *lse : part_lse;

    if (part_lse == -INFINITY) {
        if (*lse == -INFINITY)
            memset(out, 0, (size_t)width * sizeof *out);
        return;
    }
    if (*lse == -INFINITY) {
        memcpy(out, part, (size_t)width * sizeof *out);
        *lse = part_lse;
        return;
    }
    float mine = expf(*lse - max), other = expf(part_lse - max), total = mine + other;
    blend(out, part, mine / total, other / total, width);
    *lse = max + logf(total);
}

ndm_status NDM_FAST(attention_merge)(const void *args)
{
    const ndm_attention_merge_args *a = args;
    int threads = ndm_fast_threads(a->batch * a->t * a->heads * (16 + a->head_dim / 4));

    if (a->out_dtype != NDM_F32 || a->part_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_attention_merge, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < a->batch * a->t; row++)
        for (int64_t head = 0; head < a->heads; head++) {
            int64_t at = (row / a->t * a->heads + head) * a->t + row % a->t,
                    column = head * a->head_dim;
            merge_row(ndm_fast_out(a->out) + row * a->out_stride + column, &a->lse[at],
                      ndm_fast_in(a->part) + row * a->part_stride + column, a->part_lse[at],
                      a->head_dim);
        }
    return NDM_OK;
}
