/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy on CUDA: statistics in one pass over the logits (Milakov and Gimelshein, "Online
 * normalizer calculation for softmax", 2018), a row to a warp or, when wide, to a block;
 * then loss and gradient. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

/* Maximum that a NaN on either side wins. */
static __device__ __forceinline__ float max_or_nan(float a, float b)
{
    return isnan(a) || a > b ? a : b;
}

/* max, sum of exp(x - max), sum of x. */
typedef struct row_stats {
    float max, sum, total;
} row_stats;

/* exp(x - max) of two maxima; of -inf, 0. */
static __device__ __forceinline__ float rescale(float x, float max)
{
    return x == -INFINITY ? 0.0f : expf(x - max);
}

static __device__ __forceinline__ row_stats stats_merge(row_stats a, row_stats b)
{
    row_stats m = {max_or_nan(a.max, b.max), 0.0f, a.total + b.total};
    m.sum = a.sum * rescale(a.max, m.max) + b.sum * rescale(b.max, m.max);
    return m;
}

static __device__ __forceinline__ row_stats stats_wide(row_stats s, const float x[WIDE], int count)
{
    float max = s.max;
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        max = i < count ? max_or_nan(max, x[i]) : max;
    s.sum *= rescale(s.max, max);
    s.max = max;
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (i < count) {
            s.sum += rescale(x[i], max);
            s.total += x[i];
        }
    return s;
}

/* Over the LANES threads of a row; the result is in the first. */
template <int LANES> static __device__ row_stats stats_of_row(row_stats s)
{
    __shared__ row_stats parts[ROW_BLOCK / WARP];

    for (int step = WARP / 2; step > 0; step /= 2) {
        row_stats other = {__shfl_xor_sync(0xffffffffu, s.max, step),
                           __shfl_xor_sync(0xffffffffu, s.sum, step),
                           __shfl_xor_sync(0xffffffffu, s.total, step)};
        s = stats_merge(s, other);
    }
    if (LANES == WARP)
        return s;
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = s;
    __syncthreads();
    for (int i = 1; i < ROW_BLOCK / WARP && threadIdx.x == 0; i++)
        s = stats_merge(s, parts[i]);
    return s;
}

template <class T, int LANES>
__global__ void __launch_bounds__(ROW_BLOCK) ce_row_stats(ndm_ce_stats_args a, bool vector)
{
    int64_t row = (int64_t)blockIdx.x * (ROW_BLOCK / LANES) + threadIdx.x / LANES;
    const T *x = (const T *)a.logits + row * a.stride;
    row_stats s = {-INFINITY, 0.0f, 0.0f};
    int lane = threadIdx.x % LANES;

    if (row >= a.n)
        return;
    for_row<LANES>(a.valid_width, lane, [&](int64_t j, int count) {
        float v[WIDE];
        load_wide(x + j, count, vector, v);
        s = stats_wide(s, v, count);
    });
    s = stats_of_row<LANES>(s);
    if (lane != 0)
        return;
    int64_t target = a.targets[row] - a.first;
    bool here = a.targets[row] >= 0 && target >= 0 && target < a.valid_width;
    a.stats[4 * row] = s.max;
    a.stats[4 * row + 1] = s.sum;
    a.stats[4 * row + 2] = here ? to_float(x[target]) : 0.0f;
    a.stats[4 * row + 3] = s.total;
}

ndm_status ndm_cuda_ce_stats(ndm_stream *stream, const void *args)
{
    const ndm_ce_stats_args *a = (const ndm_ce_stats_args *)args;
    bool vector = ndm_cuda_aligned(a->logits, a->stride);
    bool warp = row_takes_warp(a->valid_width);
    dim3 grid(ndm_cuda_blocks(a->n, warp ? ROW_BLOCK / WARP : 1));

    return ndm_cuda_typed("ce_stats", "x_dtype", a->x_dtype, [&](auto type) {
        using T = decltype(type);
        return ndm_cuda_launch(stream, "ce_stats",
                               warp ? ce_row_stats<T, WARP> : ce_row_stats<T, ROW_BLOCK>, grid,
                               ROW_BLOCK, 0, *a, vector);
    });
}

__global__ void __launch_bounds__(ROW_BLOCK) ce_merge_rows(ndm_ce_merge_args a)
{
    int64_t i = (int64_t)blockIdx.x * ROW_BLOCK + threadIdx.x;
    float max = -INFINITY, sum = 0.0f, target = 0.0f, total = 0.0f;

    if (i >= a.n)
        return;
    for (int64_t part = 0; part < a.parts; part++)
        max = max_or_nan(max, a.all[(part * a.n + i) * 4]);
    for (int64_t part = 0; part < a.parts; part++) {
        const float *s = a.all + (part * a.n + i) * 4;
        if (s[0] != -INFINITY)
            sum += s[1] * expf(s[0] - max);
        target += s[2];
        total += s[3];
    }
    a.stats[4 * i] = max;
    a.stats[4 * i + 1] = sum;
    a.stats[4 * i + 2] = target;
    a.stats[4 * i + 3] = total;
}

ndm_status ndm_cuda_ce_merge(ndm_stream *stream, const void *args)
{
    const ndm_ce_merge_args *a = (const ndm_ce_merge_args *)args;

    return ndm_cuda_launch(stream, "ce_merge", ce_merge_rows,
                           dim3(ndm_cuda_blocks(a->n, ROW_BLOCK)), ROW_BLOCK, 0, *a);
}

/* ---- loss and gradient ----------------------------------------------------------------------- */

/* loss = log sum exp(x) - (1 - s) x[target] - s / V sum(x) */
static __device__ double row_loss(const ndm_ce_apply_args &a, int64_t row)
{
    const float *s = a.stats + 4 * row;
    double smoothing = a.label_smoothing;
    double loss = s[0] + log((double)s[1]) - (1.0 - smoothing) * s[2];

    if (a.targets[row] < 0)
        return 0.0;
    return smoothing == 0.0 ? loss : loss - smoothing / (double)a.vocabulary * s[3];
}

/* One block: each thread sums a run of rows, the first thread these sums, all in row order. */
__global__ void __launch_bounds__(ROW_BLOCK) ce_losses(ndm_ce_apply_args a)
{
    __shared__ double sums[ROW_BLOCK];
    int64_t begin = part_begin(a.n, ROW_BLOCK, threadIdx.x);
    int64_t end = part_begin(a.n, ROW_BLOCK, threadIdx.x + 1);
    double sum = 0.0;

    for (int64_t row = begin; row < end; row++) {
        double loss = row_loss(a, row);
        sum += loss;
        if (a.loss_rows)
            a.loss_rows[row] = (float)loss;
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x != 0 || !a.count_loss)
        return;
    for (int i = 1; i < ROW_BLOCK; i++)
        sum += sums[i];
    *a.loss_sum += sum;
}

/* As ndm_ce_scale(). */
static __device__ __forceinline__ float gradient_scale(const ndm_ce_apply_args &a)
{
    if (!a.tokens)
        return a.grad_scale;
    return *a.tokens > 0 ? (float)((double)a.grad_scale / (double)*a.tokens) : 0.0f;
}

template <class T>
__global__ void __launch_bounds__(ROW_BLOCK) ce_gradient(ndm_ce_apply_args a, bool vector)
{
    int64_t row = blockIdx.x, target = a.targets[row] - a.first;
    T *x = (T *)a.logits + row * a.stride;
    float all = gradient_scale(a), max = a.stats[4 * row], scale = all / a.stats[4 * row + 1];
    float share = (float)((double)a.label_smoothing / (double)a.vocabulary) * all;
    float hit = (1.0f - a.label_smoothing) * all;
    bool ignored = a.targets[row] < 0;

    for_row<ROW_BLOCK>(a.width, threadIdx.x, [&](int64_t j, int count) {
        float v[WIDE] = {};
        if (!ignored)
            load_wide(x + j, count, vector, v);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            float gradient = expf(v[i] - max) * scale - share - (j + i == target ? hit : 0.0f);
            v[i] = ignored || j + i >= a.valid_width ? 0.0f : gradient;
        }
        store_wide(x + j, count, vector, v);
    });
}

ndm_status ndm_cuda_ce_apply(ndm_stream *stream, const void *args)
{
    const ndm_ce_apply_args *a = (const ndm_ce_apply_args *)args;
    bool vector = ndm_cuda_aligned(a->logits, a->stride);

    if (a->count_loss || a->loss_rows)
        NDM_TRY(ndm_cuda_launch(stream, "ce_apply", ce_losses, dim3(1), ROW_BLOCK, 0, *a));
    if (!a->grad || a->width == 0)
        return NDM_OK;
    return ndm_cuda_typed("ce_apply", "x_dtype", a->x_dtype, [&](auto type) {
        return ndm_cuda_launch(stream, "ce_apply", ce_gradient<decltype(type)>,
                               dim3((unsigned)a->n), ROW_BLOCK, 0, *a, vector);
    });
}
