/* SPDX-License-Identifier: Apache-2.0 */
/* Attention on tensor cores, bf16. A block has 64 queries of one head, 16 a warp; tiles of keys and
 * values stream through shared memory, the next one on its way while one is multiplied. */
#include "kernels/cuda/attention_tile.cuh"

enum { QUERIES = 64 };

/* Shared memory of a block. */
template <int DIM, int KEYS, int STAGES> struct forward_shared {
    __nv_bfloat16 q[QUERIES * tile_shape<DIM>::PITCH];
    __nv_bfloat16 k[STAGES][KEYS * tile_shape<DIM>::PITCH];
    __nv_bfloat16 v[STAGES][KEYS * tile_shape<DIM>::PITCH];
    int index[STAGES][KEYS];
};

/* What a block does. */
typedef struct forward_place {
    int b, head, kv_head, row; /* first query */
    extent queries;
    int tiles; /* of keys */
    bool vector;
} forward_place;

/* Both rows of a lane. */
typedef struct forward_rows {
    int index[2], first[2];
    float max[2], sum[2]; /* in powers of 2; sums over the lane's own columns */
} forward_rows;

template <int KEYS>
static __device__ __forceinline__ extent keys_of(const ndm_attention_args &a,
                                                 attention_extents extents, int b, int tile)
{
    return extent_of(extents.keys, b, tile * KEYS, KEYS, (int)a.tk);
}

/* The first tile from `tile` on in which anything is seen. */
template <int KEYS>
static __device__ __forceinline__ int
next_tile(const ndm_attention_args &a, attention_extents extents, const forward_place &p, int tile)
{
    while (tile < p.tiles &&
           !extents_meet(a.causal, p.queries, keys_of<KEYS>(a, extents, p.b, tile)))
        tile++;
    return tile;
}

template <int DIM, int KEYS, int STAGES>
static __device__ __forceinline__ void start_tile(const ndm_attention_args &a,
                                                  const forward_place &p, int tile, int stage,
                                                  forward_shared<DIM, KEYS, STAGES> *s)
{
    int row = tile * KEYS;
    tile_load<DIM, KEYS>(s->k[stage], key_rows(a, p.b, p.kv_head), row, (int)a.head_dim, p.vector);
    tile_load<DIM, KEYS>(s->v[stage], value_rows(a, p.b, p.kv_head), row, (int)a.head_dim,
                         p.vector);
    if (threadIdx.x < KEYS)
        s->index[stage][threadIdx.x] = row + (int)threadIdx.x < a.tk
                                           ? key_index(a, p.b, row + threadIdx.x)
                                           : (int)NO_KEY;
}

/* Scores become exp2(score - maximum); what the rows had so far shrinks to the new maximum. */
template <int DIM, int KEYS>
static __device__ __forceinline__ void softmax_tile(forward_rows *rows, float score[KEYS / 8][4],
                                                    float out[DIM / 8][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = rows->max[half], sum = 0.0f;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            max = fmaxf(max, fmaxf(score[n][2 * half], score[n][2 * half + 1]));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 1));
        max = fmaxf(max, __shfl_xor_sync(0xffffffffu, max, 2));
        float base = max == -INFINITY ? 0.0f : max; /* nothing seen so far */
        float shrink = exp2f(rows->max[half] - base);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++) {
                score[n][e] = exp2f(score[n][e] - base);
                sum += score[n][e];
            }
        rows->max[half] = max;
        rows->sum[half] = rows->sum[half] * shrink + sum;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++) {
            out[n][2 * half] *= shrink;
            out[n][2 * half + 1] *= shrink;
        }
    }
}

/* Scales scores to powers of 2; those that are not seen become -inf. */
template <int KEYS>
static __device__ __forceinline__ void mask_tile(const ndm_attention_args &a,
                                                 const forward_rows &rows, const int *index,
                                                 bool open, float score[KEYS / 8][4])
{
#pragma unroll
    for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float x = score[n][i] * (a.scale * LOG2_E);
            bool seen = open || sees(a.causal, rows.index[i / 2], rows.first[i / 2],
                                     index[lane_column(n, i % 2)]);
            score[n][i] = seen ? x : -INFINITY;
        }
}

template <int DIM, int KEYS, int STAGES>
static __device__ __forceinline__ void
add_tile(const ndm_attention_args &a, forward_shared<DIM, KEYS, STAGES> *s, int stage, bool open,
         forward_rows *rows, float out[DIM / 8][4])
{
    float score[KEYS / 8][4] = {};
    int warp = threadIdx.x / 32;

    product_of_rows<DIM, KEYS>(score, s->q + warp * MMA * tile_shape<DIM>::PITCH, s->k[stage]);
    mask_tile<KEYS>(a, *rows, s->index[stage], open, score);
    softmax_tile<DIM, KEYS>(rows, score, out);
    product_of_columns<DIM, KEYS>(out, score, s->v[stage]);
}

/* Walks over the tiles of keys. With one stage a load is waited for at once. */
template <int DIM, int KEYS, int STAGES>
static __device__ __forceinline__ void
walk_tiles(const ndm_attention_args &a, attention_extents extents, const forward_place &p,
           forward_shared<DIM, KEYS, STAGES> *s, forward_rows *rows, float out[DIM / 8][4])
{
    int tile = next_tile<KEYS>(a, extents, p, 0);
    int stage = 0;

    if (tile < p.tiles)
        start_tile(a, p, tile, 0, s);
    ndm_cp_async_commit();
    while (tile < p.tiles) {
        int next = next_tile<KEYS>(a, extents, p, tile + 1);
        if (STAGES > 1 && next < p.tiles)
            start_tile(a, p, next, 1 - stage, s);
        if (STAGES > 1)
            ndm_cp_async_commit();
        ndm_cp_async_wait<STAGES - 1>();
        __syncthreads();
        bool open = (tile + 1) * KEYS <= a.tk &&
                    extents_open(a.causal, p.queries, keys_of<KEYS>(a, extents, p.b, tile));
        add_tile(a, s, stage, open, rows, out);
        __syncthreads();
        if (STAGES == 1 && next < p.tiles)
            start_tile(a, p, next, 0, s);
        if (STAGES == 1)
            ndm_cp_async_commit();
        stage = STAGES > 1 ? 1 - stage : 0;
        tile = next;
    }
    ndm_cp_async_wait<0>(); /* queries that see nothing: no copy outlives its thread */
}

template <int DIM>
static __device__ __forceinline__ void finish_rows(const ndm_attention_args &a,
                                                   const forward_place &p, forward_rows *rows,
                                                   const float out[DIM / 8][4])
{
    int row = p.row + (int)threadIdx.x / 32 * MMA;
    float factor[2];

#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = rows->sum[half];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        factor[half] = sum == 0.0f ? 0.0f : 1.0f / sum;
        int i = row + lane_row(half);
        if (threadIdx.x % QUAD == 0 && i < a.tq)
            a.lse[((int64_t)p.b * a.heads + p.head) * a.tq + i] = sum == 0.0f
                                                                      ? -INFINITY
                                                                      : rows->max[half] * LN_2 +
                                                                            logf(sum);
    }
    tile_place to = {a.out,
                     a.out_dtype,
                     ((int64_t)p.b * a.tq + row) * a.out_stride + p.head * a.head_dim,
                     a.out_stride,
                     at_most(a.tq - row, MMA),
                     (int)a.head_dim,
                     false};
    tile_store<DIM>(to, factor, out);
}

template <int DIM, int KEYS, int STAGES>
__global__ void __launch_bounds__(ATTENTION_BLOCK, 2)
    attention_forward_tiles(ndm_attention_args a, attention_extents extents, bool vector)
{
    typedef forward_shared<DIM, KEYS, STAGES> shared;
    shared *s = reinterpret_cast<shared *>(ndm_smem);
    forward_place p;
    forward_rows rows;
    float out[DIM / 8][4] = {};

    p.b = blockIdx.z;
    p.head = blockIdx.y;
    p.kv_head = p.head / (int)(a.heads / a.kv_heads);
    p.row = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES; /* the longest ones start first */
    p.queries = extent_of(extents.queries, p.b, p.row, QUERIES, (int)a.tq);
    p.tiles = ((int)a.tk + KEYS - 1) / KEYS;
    p.vector = vector;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = p.row + (int)threadIdx.x / 32 * MMA + lane_row(half);
        rows.index[half] = i < a.tq ? query_index(a, p.b, i) : 0;
        rows.first[half] = i < a.tq ? query_first(a, p.b, i) : 0;
        rows.max[half] = -INFINITY;
        rows.sum[half] = 0.0f;
    }
    tile_load<DIM, QUERIES>(s->q, query_rows(a, p.b, p.head), p.row, (int)a.head_dim, vector);
    walk_tiles(a, extents, p, s, &rows, out);
    finish_rows<DIM>(a, p, &rows, out);
}

template <int DIM, int KEYS, int STAGES>
static ndm_status launch_forward(ndm_stream *stream, const ndm_attention_args *a,
                                 attention_extents extents)
{
    dim3 grid(ndm_cuda_blocks(a->tq, QUERIES), (unsigned)a->heads, (unsigned)a->batch);

    return ndm_cuda_launch(stream, "attention", attention_forward_tiles<DIM, KEYS, STAGES>, grid,
                           ATTENTION_BLOCK, sizeof(forward_shared<DIM, KEYS, STAGES>), *a, extents,
                           attention_aligned(a));
}

/* On a multiprocessor, which keeps 1 KiB a block for itself and has so much more than a block may
 * take. */
static bool two_blocks_fit(ndm_stream *stream, size_t bytes)
{
    return 2 * (int64_t)bytes + 1024 <= ndm_cuda_shared_bytes(stream);
}

/* A block alone leaves its multiprocessor idle at its barriers: where two with 64 keys do not fit
 * (A100), two with 48 do. */
ndm_status attention_mma(ndm_stream *stream, const ndm_attention_args *a, attention_extents extents)
{
    if (a->head_dim <= 32)
        return launch_forward<32, 64, 2>(stream, a, extents);
    if (a->head_dim <= 64)
        return launch_forward<64, 64, 2>(stream, a, extents);
    if (a->head_dim <= 128)
        return two_blocks_fit(stream, sizeof(forward_shared<128, 64, 2>)) ||
                       !two_blocks_fit(stream, sizeof(forward_shared<128, 48, 2>))
                   ? launch_forward<128, 64, 2>(stream, a, extents)
                   : launch_forward<128, 48, 2>(stream, a, extents);
    return launch_forward<256, 32, 1>(stream, a, extents);
}
