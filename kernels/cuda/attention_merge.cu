/* SPDX-License-Identifier: Apache-2.0 */
/* Merge of a partial attention into a running one on CUDA. MERGE_LANES threads share a row of a
 * head: all have read the running log-sum-exp before one of them replaces it. */
#include "kernels/cuda/attention.cuh"

enum { MERGE_LANES = 8 };

/* One side that saw nothing is left out by selection: what its rows hold is never read. */
static __device__ void merge_wide(const ndm_attention_merge_args &a, int64_t row, int64_t j,
                                  float lse, float part_lse, bool vector)
{
    int64_t head_at = j / a.head_dim * a.head_dim;
    int count = at_most(head_at + a.head_dim - j, WIDE);
    float max = fmaxf(lse, part_lse), old = expf(lse - max), more = expf(part_lse - max);
    float part[WIDE] = {}, out[WIDE] = {}, total = old + more;
    bool first = lse == -INFINITY;

    if (part_lse != -INFINITY)
        load_wide_any(a.part, a.part_dtype, row * a.part_stride + j, count, vector, part);
    if (!first)
        load_wide_any(a.out, a.out_dtype, row * a.out_stride + j, count, vector, out);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        out[i] = first ? part[i] : (old * out[i] + more * part[i]) / total;
    store_wide_any(a.out, a.out_dtype, row * a.out_stride + j, count, vector, out);
}

__global__ void __launch_bounds__(ATTENTION_BLOCK)
    merge_rows(ndm_attention_merge_args a, bool vector)
{
    int64_t at = (int64_t)blockIdx.x * (ATTENTION_BLOCK / MERGE_LANES) + threadIdx.x / MERGE_LANES;
    int lane = threadIdx.x % MERGE_LANES;
    int64_t row = at / a.heads, head = at % a.heads;
    int64_t stat = (row / a.t * a.heads + head) * a.t + row % a.t;
    bool inside = row < a.batch * a.t;
    float lse = inside ? a.lse[stat] : 0.0f, part_lse = inside ? a.part_lse[stat] : 0.0f;

    __syncthreads();
    if (!inside || (part_lse == -INFINITY && lse != -INFINITY))
        return;
    for (int64_t d = lane * WIDE; d < a.head_dim; d += MERGE_LANES * WIDE)
        merge_wide(a, row, head * a.head_dim + d, lse, part_lse, vector);
    if (lane != 0)
        return;
    float max = fmaxf(lse, part_lse);
    a.lse[stat] = lse == -INFINITY ? part_lse : max + logf(expf(lse - max) + expf(part_lse - max));
}

ndm_status ndm_cuda_attention_merge(ndm_stream *stream, const void *args)
{
    const ndm_attention_merge_args *a = (const ndm_attention_merge_args *)args;
    bool vector = a->head_dim % WIDE == 0 && ndm_cuda_aligned(a->out, a->out_stride) &&
                  ndm_cuda_aligned(a->part, a->part_stride);

    return ndm_cuda_launch(
        stream, "attention_merge", merge_rows,
        dim3(ndm_cuda_blocks(a->batch * a->t * a->heads, ATTENTION_BLOCK / MERGE_LANES)),
        ATTENTION_BLOCK, 0, *a, vector);
}
