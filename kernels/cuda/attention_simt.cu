/* SPDX-License-Identifier: Apache-2.0 */
/* Attention in fp32, without tensor cores: every type, every head width up to 256. A block has 32
 * queries; a tile of keys, then one of values, stands in shared memory as fp32, an odd number of
 * words to a row so that lanes on neighbouring rows use different banks. */
#include "kernels/cuda/attention_simt.cuh"

enum { QUERIES = 32, KEYS = 32, WARPS = ATTENTION_BLOCK / 32 };
enum { THREAD_ROWS = QUERIES / WARPS }; /* rows warp, warp + 4, ... are a thread's */

template <int DIM> struct forward_shared {
    float q[QUERIES][DIM + 1];
    float kv[KEYS][DIM + 1];
    float score[QUERIES][KEYS + 1]; /* then exp(score - max) */
    float max[QUERIES], sum[QUERIES], shrink[QUERIES];
    int index[KEYS];
};

/* score = scale q.k, -inf where not seen. A lane has one key and eight queries. */
template <int DIM>
static __device__ void find_scores(const ndm_attention_args &a, int64_t b, int64_t row,
                                   forward_shared<DIM> *s)
{
    int warp = threadIdx.x / 32, key = threadIdx.x % 32, width = (int)a.head_dim;
    float sum[THREAD_ROWS] = {};

    for (int d = 0; d < width; d++) {
        float k = s->kv[key][d];
#pragma unroll
        for (int i = 0; i < THREAD_ROWS; i++)
            sum[i] += s->q[warp + WARPS * i][d] * k;
    }
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++) {
        int r = warp + WARPS * i;
        bool seen = row + r < a.tq && sees(a.causal, query_index(a, b, row + r),
                                           query_first(a, b, row + r), s->index[key]);
        s->score[r][key] = seen ? a.scale * sum[i] : -INFINITY;
    }
}

/* A thread has a row: new maximum, numbers in place of scores. */
template <int DIM> static __device__ void softmax_row(forward_shared<DIM> *s, int r)
{
    float max = s->max[r], sum = 0.0f;

    for (int key = 0; key < KEYS; key++)
        max = fmaxf(max, s->score[r][key]);
    float base = max == -INFINITY ? 0.0f : max; /* nothing seen so far */
    for (int key = 0; key < KEYS; key++) {
        s->score[r][key] = expf(s->score[r][key] - base);
        sum += s->score[r][key];
    }
    s->shrink[r] = expf(s->max[r] - base);
    s->sum[r] = s->sum[r] * s->shrink[r] + sum;
    s->max[r] = max;
}

/* out = shrink * out + score v; a lane has columns lane, lane + 32, ... */
template <int DIM>
static __device__ void add_values(const forward_shared<DIM> *s, float out[THREAD_ROWS][DIM / 32])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++)
            out[i][c] *= s->shrink[warp + WARPS * i];
    for (int key = 0; key < KEYS; key++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            float v = s->kv[key][lane + 32 * c];
#pragma unroll
            for (int i = 0; i < THREAD_ROWS; i++)
                out[i][c] += s->score[warp + WARPS * i][key] * v;
        }
}

template <int DIM>
static __device__ void store_rows(const ndm_attention_args &a, int64_t b, int64_t head, int64_t row,
                                  const forward_shared<DIM> *s,
                                  const float out[THREAD_ROWS][DIM / 32])
{
#pragma unroll
    for (int i = 0; i < THREAD_ROWS; i++) {
        int r = threadIdx.x / 32 + WARPS * i;
        float factor = s->sum[r] == 0.0f ? 0.0f : 1.0f / s->sum[r];
        int64_t at = (b * a.tq + row + r) * a.out_stride + head * a.head_dim;
        if (row + r >= a.tq)
            continue;
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            int d = threadIdx.x % 32 + 32 * c;
            if (d < a.head_dim)
                store_any(a.out, a.out_dtype, at + d, factor * out[i][c]);
        }
    }
    int r = threadIdx.x;
    if (r < QUERIES && row + r < a.tq)
        a.lse[(b * a.heads + head) * a.tq + row + r] = s->sum[r] == 0.0f
                                                           ? -INFINITY
                                                           : s->max[r] + logf(s->sum[r]);
}

template <int DIM>
__global__ void __launch_bounds__(ATTENTION_BLOCK, 2)
    attention_forward_simt(ndm_attention_args a, attention_extents extents, bool vector)
{
    forward_shared<DIM> *s = reinterpret_cast<forward_shared<DIM> *>(ndm_smem);
    int64_t b = blockIdx.z, head = blockIdx.y, kv_head = head / (a.heads / a.kv_heads);
    int64_t row = (int64_t)(gridDim.x - 1 - blockIdx.x) * QUERIES;
    extent queries = extent_of(extents.queries, (int)b, (int)row, QUERIES, (int)a.tq);
    float out[THREAD_ROWS][DIM / 32] = {};

    simt_load<DIM, QUERIES>(s->q, query_rows(a, b, head), row, (int)a.head_dim, vector);
    if (threadIdx.x < QUERIES) {
        s->max[threadIdx.x] = -INFINITY;
        s->sum[threadIdx.x] = 0.0f;
    }
    for (int64_t key = 0; key < a.tk; key += KEYS) {
        if (!extents_meet(a.causal, queries,
                          extent_of(extents.keys, (int)b, (int)key, KEYS, (int)a.tk)))
            continue;
        simt_load<DIM, KEYS>(s->kv, key_rows(a, b, kv_head), key, (int)a.head_dim, vector);
        if (threadIdx.x < KEYS)
            s->index[threadIdx.x] = key + threadIdx.x < a.tk ? key_index(a, b, key + threadIdx.x)
                                                             : (int)NO_KEY;
        __syncthreads();
        find_scores(a, b, row, s);
        __syncthreads();
        simt_load<DIM, KEYS>(s->kv, value_rows(a, b, kv_head), key, (int)a.head_dim, vector);
        if (threadIdx.x < QUERIES)
            softmax_row(s, threadIdx.x);
        __syncthreads();
        add_values<DIM>(s, out);
        __syncthreads();
    }
    __syncthreads();
    store_rows<DIM>(a, b, head, row, s, out);
}

template <int DIM>
static ndm_status launch_forward(ndm_stream *stream, const ndm_attention_args *a,
                                 attention_extents extents)
{
    dim3 grid(ndm_cuda_blocks(a->tq, QUERIES), (unsigned)a->heads, (unsigned)a->batch);

    return ndm_cuda_launch(stream, "attention", attention_forward_simt<DIM>, grid, ATTENTION_BLOCK,
                           sizeof(forward_shared<DIM>), *a, extents, attention_aligned(a));
}

ndm_status attention_simt(ndm_stream *stream, const ndm_attention_args *a,
                          attention_extents extents)
{
    if (a->head_dim <= 64)
        return launch_forward<64>(stream, a, extents);
    if (a->head_dim <= 128)
        return launch_forward<128>(stream, a, extents);
    return launch_forward<256>(stream, a, extents);
}
