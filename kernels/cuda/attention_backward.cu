/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of attention on tensor cores, bf16: attention_sides.cuh says how it is cut. A block
 * has 64 rows of its own, 16 a warp; tiles of the other side stream through shared memory. */
#include "kernels/cuda/attention_sides.cuh"
#include "kernels/cuda/attention_tile.cuh"

enum { OWN = 64 };

/* Shared memory of a block; `row` or `index` is used, by side. */
template <int DIM, int OTHER, int STAGES> struct backward_shared {
    __nv_bfloat16 own[2][OWN * tile_shape<DIM>::PITCH];
    __nv_bfloat16 other[STAGES][2][OTHER * tile_shape<DIM>::PITCH];
    query_row row[STAGES][OTHER];
    int index[STAGES][OTHER];
};

/* A lane's two own rows, of either kind. */
typedef struct own_pair {
    query_row query[2];
    int key[2];
} own_pair;

template <int WANT>
static __device__ __forceinline__ own_pair own_pair_at(const ndm_attention_backward_args &a,
                                                       const backward_place &p)
{
    own_pair own = {};
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int64_t row = p.row + threadIdx.x / 32 * MMA + lane_row(half);
        if (owns_keys(WANT))
            own.key[half] = key_at(a.forward, p.b, row);
        else
            own.query[half] = query_ready(query_at(a, p.b, p.head, row));
    }
    return own;
}

template <int DIM, int OTHER, int STAGES, int WANT>
static __device__ __forceinline__ void
start_step(const ndm_attention_backward_args &a, const backward_place &p, int step, int stage,
           bool vector, backward_shared<DIM, OTHER, STAGES> *s)
{
    int head = p.head + step / p.tiles, row = step % p.tiles * OTHER;
    int width = (int)a.forward.head_dim;
    head_rows first, second;

    other_rows<WANT>(a, p, head, &first, &second);
    tile_load<DIM, OTHER>(s->other[stage][0], first, row, width, vector);
    tile_load<DIM, OTHER>(s->other[stage][1], second, row, width, vector);
}

/* What goes with a thread's row of the other side, of either kind. */
typedef struct other_row {
    query_row query;
    int key;
} other_row;

/* Asks for a step's rows. They are kept a product later: stored at once, every step would wait for
 * memory. */
template <int OTHER, int WANT>
static __device__ __forceinline__ other_row ask_row(const ndm_attention_backward_args &a,
                                                    const backward_place &p, int step)
{
    other_row other = {};

    if (step >= p.steps || threadIdx.x >= OTHER)
        return other;
    int row = step % p.tiles * OTHER + (int)threadIdx.x;
    if (owns_keys(WANT))
        other.query = query_at(a, p.b, p.head + step / p.tiles, row);
    else
        other.key = key_at(a.forward, p.b, row);
    return other;
}

template <int DIM, int OTHER, int STAGES, int WANT>
static __device__ __forceinline__ void keep_row(const other_row &other, int stage,
                                                backward_shared<DIM, OTHER, STAGES> *s)
{
    if (threadIdx.x >= OTHER)
        return;
    if (owns_keys(WANT))
        s->row[stage][threadIdx.x] = query_ready(other.query);
    else
        s->index[stage][threadIdx.x] = other.key;
}

/* p in place of scores, ds in place of dp. */
template <int DIM, int OTHER, int STAGES, int WANT>
static __device__ __forceinline__ void
find_gradients(const ndm_attention_args &f, const backward_shared<DIM, OTHER, STAGES> *s, int stage,
               const own_pair &own, bool open, float score[OTHER / 8][4], float dp[OTHER / 8][4])
{
#pragma unroll
    for (int n = 0; n < OTHER / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = lane_column(n, i % 2);
            query_row q = owns_keys(WANT) ? s->row[stage][column] : own.query[i / 2];
            int key = owns_keys(WANT) ? own.key[i / 2] : s->index[stage][column];
            float x = exp2f(score[n][i] * (f.scale * LOG2_E) - q.lse);
            score[n][i] = open || sees(f.causal, q.index, q.first, key) ? x : 0.0f;
            dp[n][i] = score[n][i] * (dp[n][i] - q.delta);
        }
}

template <int DIM, int OTHER, int STAGES, int WANT>
static __device__ __forceinline__ void
add_step(const ndm_attention_args &f, const backward_shared<DIM, OTHER, STAGES> *s, int stage,
         const own_pair &own, bool open, float dv[DIM / 8][4], float dx[DIM / 8][4])
{
    int at = threadIdx.x / 32 * MMA * tile_shape<DIM>::PITCH;
    float score[OTHER / 8][4] = {}, dp[OTHER / 8][4] = {};

    product_of_rows<DIM, OTHER>(score, s->own[0] + at, s->other[stage][0]);
    if (WANT != WANT_DV)
        product_of_rows<DIM, OTHER>(dp, s->own[1] + at, s->other[stage][1]);
    find_gradients<DIM, OTHER, STAGES, WANT>(f, s, stage, own, open, score, dp);
    if (WANT & WANT_DV)
        product_of_columns<DIM, OTHER>(dv, score, s->other[stage][1]);
    if (WANT != WANT_DV)
        product_of_columns<DIM, OTHER>(dx, dp, s->other[stage][0]);
}

/* With one stage a load is waited for at once. */
template <int DIM, int OTHER, int STAGES, int WANT>
static __device__ __forceinline__ void
walk_steps(const ndm_attention_backward_args &a, attention_extents extents, const backward_place &p,
           bool vector, backward_shared<DIM, OTHER, STAGES> *s, float dv[DIM / 8][4],
           float dx[DIM / 8][4])
{
    const ndm_attention_args &f = a.forward;
    int step = next_step<WANT, OTHER>(f, extents, p, 0);
    own_pair own = own_pair_at<WANT>(a, p);
    int stage = 0;

    if (step < p.steps)
        start_step<DIM, OTHER, STAGES, WANT>(a, p, step, 0, vector, s);
    keep_row<DIM, OTHER, STAGES, WANT>(ask_row<OTHER, WANT>(a, p, step), 0, s);
    ndm_cp_async_commit();
    while (step < p.steps) {
        int next = next_step<WANT, OTHER>(f, extents, p, step + 1);
        other_row ahead = ask_row<OTHER, WANT>(a, p, next);
        if (STAGES > 1 && next < p.steps)
            start_step<DIM, OTHER, STAGES, WANT>(a, p, next, 1 - stage, vector, s);
        if (STAGES > 1)
            ndm_cp_async_commit();
        ndm_cp_async_wait<STAGES - 1>();
        __syncthreads();
        add_step<DIM, OTHER, STAGES, WANT>(
            f, s, stage, own, step_open<WANT, OWN, OTHER>(f, extents, p, step), dv, dx);
        __syncthreads();
        stage = STAGES > 1 ? 1 - stage : 0;
        keep_row<DIM, OTHER, STAGES, WANT>(ahead, stage, s);
        if (STAGES == 1 && next < p.steps)
            start_step<DIM, OTHER, STAGES, WANT>(a, p, next, 0, vector, s);
        if (STAGES == 1)
            ndm_cp_async_commit();
        step = next;
    }
    ndm_cp_async_wait<0>(); /* own rows of a block that has no step: no copy outlives its thread */
}

/* A warp's rows of the keys' or the queries' side. */
static __device__ __forceinline__ tile_place place_of_sums(const ndm_attention_backward_args &a,
                                                           const backward_place &p, void *data,
                                                           int64_t stride, bool keys)
{
    const ndm_attention_args &f = a.forward;
    int64_t row = p.row + (int)threadIdx.x / 32 * MMA, all = keys ? f.tk : f.tq;
    tile_place to = {data,
                     a.d_dtype,
                     (p.b * all + row) * stride + (keys ? p.kv_head : p.head) * f.head_dim,
                     stride,
                     at_most(all - row, MMA),
                     (int)f.head_dim,
                     keys ? a.accumulate_dkv : a.accumulate_dq};
    return to;
}

template <int DIM, int WANT>
static __device__ __forceinline__ void
store_sums(const ndm_attention_backward_args &a, const backward_place &p,
           const float dv[DIM / 8][4], const float dx[DIM / 8][4])
{
    const float one[2] = {1.0f, 1.0f}, scale[2] = {a.forward.scale, a.forward.scale};

    if (WANT & WANT_DV)
        tile_store<DIM>(place_of_sums(a, p, a.dv, a.dv_stride, true), one, dv);
    if (WANT & WANT_DK)
        tile_store<DIM>(place_of_sums(a, p, a.dk, a.dk_stride, true), scale, dx);
    if (WANT & WANT_DQ)
        tile_store<DIM>(place_of_sums(a, p, a.dq, a.dq_stride, false), scale, dx);
}

/* Blocks that registers leave room for on a multiprocessor. */
static constexpr int blocks_at_once(int dim, int want)
{
    return dim == 64 && owns_keys(want) ? 3 : 2;
}

template <int DIM, int OTHER, int STAGES, int WANT>
__global__ void __launch_bounds__(ATTENTION_BLOCK, blocks_at_once(DIM, WANT))
    attention_backward_tiles(ndm_attention_backward_args a, attention_extents extents, bool vector)
{
    typedef backward_shared<DIM, OTHER, STAGES> shared;
    shared *s = reinterpret_cast<shared *>(ndm_smem);
    const ndm_attention_args &f = a.forward;
    backward_place p = place_of_block<WANT, OWN, OTHER>(f, extents);
    int width = (int)f.head_dim;
    float dv[DIM / 8][4] = {}, dx[DIM / 8][4] = {};
    head_rows first, second;

    own_rows<WANT>(a, p, &first, &second);
    tile_load<DIM, OWN>(s->own[0], first, p.row, width, vector);
    if (WANT != WANT_DV)
        tile_load<DIM, OWN>(s->own[1], second, p.row, width, vector);
    walk_steps<DIM, OTHER, STAGES, WANT>(a, extents, p, vector, s, dv, dx);

    store_sums<DIM, WANT>(a, p, dv, dx);
}

template <int DIM, int OTHER, int STAGES, int WANT>
static ndm_status launch_side(ndm_stream *stream, const ndm_attention_backward_args *a,
                              attention_extents extents)
{
    const ndm_attention_args *f = &a->forward;
    if ((owns_keys(WANT) ? f->tk : f->tq) == 0)
        return NDM_OK;
    return ndm_cuda_launch(
        stream, "attention_backward", attention_backward_tiles<DIM, OTHER, STAGES, WANT>,
        backward_grid(f, owns_keys(WANT), OWN), ATTENTION_BLOCK,
        sizeof(backward_shared<DIM, OTHER, STAGES>), *a, extents, attention_backward_aligned(a));
}

template <int DIM, int OTHER, int STAGES>
static ndm_status launch_both(ndm_stream *stream, const ndm_attention_backward_args *a,
                              attention_extents extents)
{
    NDM_TRY((launch_side<DIM, OTHER, STAGES, WANT_DQ>(stream, a, extents)));
    return launch_side<DIM, OTHER, STAGES, WANT_DKV>(stream, a, extents);
}

/* The widest heads have too many sums for one pass over the queries. */
ndm_status attention_backward_mma(ndm_stream *stream, const ndm_attention_backward_args *a,
                                  attention_extents extents)
{
    int64_t width = a->forward.head_dim;

    if (width <= 32)
        return launch_both<32, 64, 2>(stream, a, extents);
    if (width <= 64) {
        NDM_TRY((launch_side<64, 64, 2, WANT_DQ>(stream, a, extents)));
        return launch_side<64, 32, 2, WANT_DKV>(stream, a, extents);
    }
    if (width <= 128) {
        NDM_TRY((launch_side<128, 32, 2, WANT_DQ>(stream, a, extents)));
        return launch_side<128, 16, 2, WANT_DKV>(stream, a, extents);
    }
    NDM_TRY((launch_side<256, 16, 1, WANT_DQ>(stream, a, extents)));
    NDM_TRY((launch_side<256, 16, 1, WANT_DV>(stream, a, extents)));
    return launch_side<256, 16, 1, WANT_DK>(stream, a, extents);
}
