/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on CUDA: the way from the ops to the kernels of their types, and the small kernels
 * around them: extents of rows, and delta = sum of dout * out over a head. */
#include "kernels/cuda/attention.cuh"

__global__ void __launch_bounds__(ATTENTION_BLOCK)
    find_query_extents(ndm_attention_args a, extent *queries)
{
    int64_t groups = extent_groups(a.tq);
    int64_t at = (int64_t)blockIdx.x * ATTENTION_BLOCK + threadIdx.x, b = at / groups;
    extent e = {INT_MAX, INT_MIN, INT_MAX, INT_MIN};

    if (b >= a.batch)
        return;
    for (int64_t i = at % groups * EXTENT_ROWS; i < (at % groups + 1) * EXTENT_ROWS && i < a.tq;
         i++) {
        int index = query_index(a, b, i), first = query_first(a, b, i);
        e = extent_join(e, extent{index, index, first, first});
    }
    queries[at] = e;
}

__global__ void __launch_bounds__(ATTENTION_BLOCK)
    find_key_extents(ndm_attention_args a, extent *keys)
{
    int64_t groups = extent_groups(a.tk);
    int64_t at = (int64_t)blockIdx.x * ATTENTION_BLOCK + threadIdx.x, b = at / groups;
    extent e = {INT_MAX, INT_MIN, 0, 0};

    if (b >= a.batch)
        return;
    for (int64_t j = at % groups * EXTENT_ROWS; j < (at % groups + 1) * EXTENT_ROWS && j < a.tk;
         j++) {
        int index = key_index(a, b, j);
        e = extent_join(e, extent{index, index, 0, 0});
    }
    keys[at] = e;
}

int64_t attention_extents_bytes(const ndm_attention_args *a)
{
    return a->batch * (extent_groups(a->tq) + extent_groups(a->tk)) * (int64_t)sizeof(extent);
}

ndm_status attention_extents_find(ndm_stream *stream, const char *op, const ndm_attention_args *a,
                                  void *memory, attention_extents *extents)
{
    int64_t queries = a->batch * extent_groups(a->tq), keys = a->batch * extent_groups(a->tk);
    extent *query = (extent *)memory, *key = query + queries;

    extents->queries = extents->keys = NULL;
    if ((a->q_index || a->q_first) && queries > 0) {
        extents->queries = query;
        NDM_TRY(ndm_cuda_launch(stream, op, find_query_extents,
                                dim3(ndm_cuda_blocks(queries, ATTENTION_BLOCK)), ATTENTION_BLOCK, 0,
                                *a, query));
    }
    if (a->k_index && keys > 0) {
        extents->keys = key;
        NDM_TRY(ndm_cuda_launch(stream, op, find_key_extents,
                                dim3(ndm_cuda_blocks(keys, ATTENTION_BLOCK)), ATTENTION_BLOCK, 0,
                                *a, key));
    }
    return NDM_OK;
}

static ndm_status check_head(const char *op, const ndm_attention_args *a)
{
    if (a->head_dim > HEAD_DIM_MAX)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel %s: head_dim %lld is above %d on cuda", op,
                 (long long)a->head_dim, (int)HEAD_DIM_MAX);
    if (a->batch > 65535 || a->heads > 65535)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel %s: batch %lld or heads %lld is above 65535", op,
                 (long long)a->batch, (long long)a->heads);
    if (a->tq > INT32_MAX / 2 || a->tk > INT32_MAX / 2 ||
        a->tq * (a->heads / a->kv_heads) > INT32_MAX)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "kernel %s: tq %lld and tk %lld: rows of a group need 31 bits", op,
                 (long long)a->tq, (long long)a->tk);
    return NDM_OK;
}

ndm_status ndm_cuda_attention(ndm_stream *stream, const void *args)
{
    const ndm_attention_args *a = (const ndm_attention_args *)args;
    attention_extents extents;
    void *memory;

    NDM_TRY(check_head("attention", a));
    NDM_TRY(ndm_cuda_scratch(stream, attention_extents_bytes(a), &memory));
    NDM_TRY(attention_extents_find(stream, "attention", a, memory, &extents));
    if (a->x_dtype == NDM_BF16)
        return attention_mma(stream, a, extents);
    return attention_simt(stream, a, extents);
}

/* ---- backward -------------------------------------------------------------------------------- */

/* A thread has one row of one head. */
__global__ void __launch_bounds__(ATTENTION_BLOCK)
    find_delta(ndm_attention_backward_args a, bool vector)
{
    const ndm_attention_args &f = a.forward;
    int64_t at = (int64_t)blockIdx.x * ATTENTION_BLOCK + threadIdx.x;
    int64_t head = at % f.heads, row = at / f.heads;
    float sum = 0.0f;

    if (row >= f.batch * f.tq)
        return;
    for (int64_t d = 0; d < f.head_dim; d += WIDE) {
        float x[WIDE], y[WIDE];
        int count = at_most(f.head_dim - d, WIDE);
        load_wide_any(a.dout, f.out_dtype, row * a.dout_stride + head * f.head_dim + d, count,
                      vector, x);
        load_wide_any(f.out, f.out_dtype, row * f.out_stride + head * f.head_dim + d, count, vector,
                      y);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            sum += x[i] * y[i];
    }
    a.delta[(row / f.tq * f.heads + head) * f.tq + row % f.tq] = sum;
}

static ndm_status make_delta(ndm_stream *stream, const ndm_attention_backward_args *a)
{
    const ndm_attention_args *f = &a->forward;
    bool vector = f->head_dim % WIDE == 0 && ndm_cuda_aligned(a->dout, a->dout_stride) &&
                  ndm_cuda_aligned(f->out, f->out_stride);

    return ndm_cuda_launch(stream, "attention_backward", find_delta,
                           dim3(ndm_cuda_blocks(f->batch * f->tq * f->heads, ATTENTION_BLOCK)),
                           ATTENTION_BLOCK, 0, *a, vector);
}

ndm_status ndm_cuda_attention_backward(ndm_stream *stream, const void *args)
{
    const ndm_attention_backward_args *a = (const ndm_attention_backward_args *)args;
    attention_extents extents;
    void *memory;

    NDM_TRY(check_head("attention_backward", &a->forward));
    NDM_TRY(ndm_cuda_scratch(stream, attention_extents_bytes(&a->forward), &memory));
    NDM_TRY(attention_extents_find(stream, "attention_backward", &a->forward, memory, &extents));
    if (a->make_delta && a->forward.tq > 0)
        NDM_TRY(make_delta(stream, a));
    if (a->forward.x_dtype == NDM_BF16)
        return attention_backward_mma(stream, a, extents);
    return attention_backward_simt(stream, a, extents);
}
