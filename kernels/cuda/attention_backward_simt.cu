/* SPDX-License-Identifier: Apache-2.0 */
/* The backward of attention in fp32, without tensor cores: attention_sides.cuh says how it is cut.
 * Own rows and a tile of the other side, as many rows each, stand in shared memory as fp32. */
#include "kernels/cuda/attention_sides.cuh"
#include "kernels/cuda/attention_simt.cuh"

enum { WARPS = ATTENTION_BLOCK / 32 };

template <int DIM, int ROWS> struct backward_shared {
    float own[2][ROWS][DIM + 1], other[2][ROWS][DIM + 1];
    float p[ROWS][ROWS + 1], ds[ROWS][ROWS + 1]; /* [own][other] */
    query_row query[ROWS];
    int key[ROWS];
};

/* Queries' numbers and keys' indices, whichever side they are on. */
template <int DIM, int ROWS>
static __device__ void load_queries(const ndm_attention_backward_args &a, int64_t b, int64_t head,
                                    int64_t row, backward_shared<DIM, ROWS> *s)
{
    if (threadIdx.x < ROWS)
        s->query[threadIdx.x] = query_ready(query_at(a, b, head, row + threadIdx.x));
}

template <int DIM, int ROWS>
static __device__ void load_keys(const ndm_attention_backward_args &a, int64_t b, int64_t row,
                                 backward_shared<DIM, ROWS> *s)
{
    if (threadIdx.x < ROWS)
        s->key[threadIdx.x] = key_at(a.forward, b, row + threadIdx.x);
}

template <int DIM, int ROWS, int WANT>
static __device__ void load_own(const ndm_attention_backward_args &a, const backward_place &p,
                                bool vector, backward_shared<DIM, ROWS> *s)
{
    head_rows first, second;
    own_rows<WANT>(a, p, &first, &second);
    simt_load<DIM, ROWS>(s->own[0], first, p.row, (int)a.forward.head_dim, vector);
    simt_load<DIM, ROWS>(s->own[1], second, p.row, (int)a.forward.head_dim, vector);
    if (owns_keys(WANT))
        load_keys(a, p.b, p.row, s);
    else
        load_queries(a, p.b, p.head, p.row, s);
}

template <int DIM, int ROWS, int WANT>
static __device__ void load_step(const ndm_attention_backward_args &a, const backward_place &p,
                                 int64_t step, bool vector, backward_shared<DIM, ROWS> *s)
{
    int head = p.head + step / p.tiles, row = step % p.tiles * ROWS;
    head_rows first, second;
    other_rows<WANT>(a, p, head, &first, &second);
    simt_load<DIM, ROWS>(s->other[0], first, row, (int)a.forward.head_dim, vector);
    simt_load<DIM, ROWS>(s->other[1], second, row, (int)a.forward.head_dim, vector);
    if (owns_keys(WANT))
        load_queries(a, p.b, head, row, s);
    else
        load_keys(a, p.b, row, s);
}

/* p and ds of all pairs; a thread has one column and some rows. */
template <int DIM, int ROWS, int WANT>
static __device__ void find_gradients(const ndm_attention_args &f, backward_shared<DIM, ROWS> *s)
{
    enum { STEP = ATTENTION_BLOCK / ROWS, EACH = ROWS / STEP };
    int column = threadIdx.x % ROWS, row = threadIdx.x / ROWS, width = (int)f.head_dim;
    float score[EACH] = {}, dp[EACH] = {};

    for (int d = 0; d < width; d++) {
        float x = s->other[0][column][d], y = s->other[1][column][d];
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            score[i] += s->own[0][row + STEP * i][d] * x;
            dp[i] += s->own[1][row + STEP * i][d] * y;
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int r = row + STEP * i;
        query_row q = s->query[owns_keys(WANT) ? column : r];
        int key = s->key[owns_keys(WANT) ? r : column];
        bool seen = q.lse != INFINITY && sees(f.causal, q.index, q.first, key);
        float p = seen ? exp2f(score[i] * f.scale * LOG2_E - q.lse) : 0.0f;
        s->p[r][column] = p;
        s->ds[r][column] = p * (dp[i] - q.delta);
    }
}

/* sum[own][d] += weight[own][other] rows[other][d]; a lane has columns lane, lane + 32, ... */
template <int DIM, int ROWS>
static __device__ void add_rows(const float weight[ROWS][ROWS + 1], const float rows[ROWS][DIM + 1],
                                float sum[ROWS / WARPS][DIM / 32])
{
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    for (int other = 0; other < ROWS; other++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            float x = rows[other][lane + 32 * c];
#pragma unroll
            for (int i = 0; i < ROWS / WARPS; i++)
                sum[i][c] += weight[warp + WARPS * i][other] * x;
        }
}

template <int DIM, int ROWS>
static __device__ void store_rows(void *data, ndm_dtype dtype, int64_t at, int64_t stride,
                                  int64_t rows, int64_t head_dim, float factor, bool accumulate,
                                  const float sum[ROWS / WARPS][DIM / 32])
{
#pragma unroll
    for (int i = 0; i < ROWS / WARPS; i++)
#pragma unroll
        for (int c = 0; c < DIM / 32; c++) {
            int r = threadIdx.x / 32 + WARPS * i, d = threadIdx.x % 32 + 32 * c;
            int64_t to = at + r * stride + d;
            if (r >= rows || d >= head_dim)
                continue;
            float x = factor * sum[i][c];
            store_any(data, dtype, to, accumulate ? x + load_any(data, dtype, to) : x);
        }
}

template <int DIM, int ROWS, int WANT>
static __device__ void store_own(const ndm_attention_backward_args &a, const backward_place &p,
                                 const float dv[ROWS / WARPS][DIM / 32],
                                 const float dx[ROWS / WARPS][DIM / 32])
{
    const ndm_attention_args &f = a.forward;
    int64_t key = p.b * f.tk + p.row, query = p.b * f.tq + p.row, width = f.head_dim;

    if (!owns_keys(WANT)) {
        store_rows<DIM, ROWS>(a.dq, a.d_dtype, query * a.dq_stride + p.head * width, a.dq_stride,
                              f.tq - p.row, width, f.scale, a.accumulate_dq, dx);
        return;
    }
    store_rows<DIM, ROWS>(a.dv, a.d_dtype, key * a.dv_stride + p.kv_head * width, a.dv_stride,
                          f.tk - p.row, width, 1.0f, a.accumulate_dkv, dv);
    store_rows<DIM, ROWS>(a.dk, a.d_dtype, key * a.dk_stride + p.kv_head * width, a.dk_stride,
                          f.tk - p.row, width, f.scale, a.accumulate_dkv, dx);
}

template <int DIM, int ROWS, int WANT>
__global__ void __launch_bounds__(ATTENTION_BLOCK, 2)
    attention_backward_simt_tiles(ndm_attention_backward_args a, attention_extents extents,
                                  bool vector)
{
    typedef backward_shared<DIM, ROWS> shared;
    shared *s = reinterpret_cast<shared *>(ndm_smem);
    const ndm_attention_args &f = a.forward;
    backward_place p = place_of_block<WANT, ROWS, ROWS>(f, extents);
    float dv[ROWS / WARPS][DIM / 32] = {}, dx[ROWS / WARPS][DIM / 32] = {};

    load_own<DIM, ROWS, WANT>(a, p, vector, s);
    for (int step = next_step<WANT, ROWS>(f, extents, p, 0); step < p.steps;
         step = next_step<WANT, ROWS>(f, extents, p, step + 1)) {
        load_step<DIM, ROWS, WANT>(a, p, step, vector, s);
        __syncthreads();
        find_gradients<DIM, ROWS, WANT>(f, s);
        __syncthreads();
        if (owns_keys(WANT))
            add_rows<DIM, ROWS>(s->p, s->other[1], dv);
        add_rows<DIM, ROWS>(s->ds, s->other[0], dx);
        __syncthreads();
    }
    store_own<DIM, ROWS, WANT>(a, p, dv, dx);
}

template <int DIM, int ROWS, int WANT>
static ndm_status launch_side(ndm_stream *stream, const ndm_attention_backward_args *a,
                              attention_extents extents)
{
    const ndm_attention_args *f = &a->forward;
    if ((owns_keys(WANT) ? f->tk : f->tq) == 0)
        return NDM_OK;
    return ndm_cuda_launch(
        stream, "attention_backward", attention_backward_simt_tiles<DIM, ROWS, WANT>,
        backward_grid(f, owns_keys(WANT), ROWS), ATTENTION_BLOCK,
        sizeof(backward_shared<DIM, ROWS>), *a, extents, attention_backward_aligned(a));
}

template <int DIM, int ROWS>
static ndm_status launch_both(ndm_stream *stream, const ndm_attention_backward_args *a,
                              attention_extents extents)
{
    NDM_TRY((launch_side<DIM, ROWS, WANT_DQ>(stream, a, extents)));
    return launch_side<DIM, ROWS, WANT_DKV>(stream, a, extents);
}

ndm_status attention_backward_simt(ndm_stream *stream, const ndm_attention_backward_args *a,
                                   attention_extents extents)
{
    if (a->forward.head_dim <= 64)
        return launch_both<64, 32>(stream, a, extents);
    if (a->forward.head_dim <= 128)
        return launch_both<128, 32>(stream, a, extents);
    return launch_both<256, 16>(stream, a, extents);
}
