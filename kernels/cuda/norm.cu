/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm and LayerNorm on CUDA, with the sum of a residual before. A row belongs to a warp or,
 * when wide, to a block, and is read again for each pass: it stays in the cache. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

/* x + residual is rounded to the element type as it is stored; the norm is of what was stored. Each
 * thread reads later what it wrote itself. */
template <class T, int LANES>
static __device__ const T *add_residual(const ndm_norm_args &a, int64_t row, int lane, bool vector)
{
    const T *x = (const T *)a.x + row * a.x_stride;
    if (!a.residual)
        return x;
    const T *residual = (const T *)a.residual + row * a.width;
    T *sum = (T *)a.sum + row * a.width;
    for_row<LANES>(a.width, lane, [&](int64_t j, int count) {
        float v[WIDE], r[WIDE];
        whole_or_part(count, vector, [&](int n, bool aligned) {
            load_wide(x + j, n, aligned, v);
            load_wide(residual + j, n, aligned, r);
        });
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            v[i] += r[i];
        store_wide(sum + j, count, vector, v);
    });
    return sum;
}

template <class T, int LANES>
static __device__ float mean_of(const T *x, int64_t width, int lane, bool vector)
{
    float sum = 0.0f;
    for_row<LANES>(width, lane, [&](int64_t j, int count) {
        float v[WIDE];
        load_wide(x + j, count, vector, v);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            sum += v[i];
    });
    return row_sum<LANES>(sum) / (float)width;
}

template <class T, int LANES>
static __device__ float variance_of(const T *x, int64_t width, float mean, int lane, bool vector)
{
    float sum = 0.0f;
    for_row<LANES>(width, lane, [&](int64_t j, int count) {
        float v[WIDE];
        load_wide(x + j, count, vector, v);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            sum += i < count ? (v[i] - mean) * (v[i] - mean) : 0.0f;
    });
    return row_sum<LANES>(sum) / (float)width;
}

/* The normed row, by the same instructions in the forward and in the backward. */
template <class T, int LANES, class ARGS>
static __device__ void write_normed(const ARGS &a, const T *x, float mean, float rstd, T *y,
                                    int lane, bool vector)
{
    for_row<LANES>(a.width, lane, [&](int64_t j, int count) {
        float v[WIDE], w[WIDE], b[WIDE] = {};
        load_wide(x + j, count, vector, v);
        load_wide_any(a.weight, a.dtype, j, count, vector, w);
        if (a.layer_norm && a.bias)
            load_wide_any(a.bias, a.dtype, j, count, vector, b);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            v[i] = (v[i] - mean) * rstd * (w[i] + a.weight_offset) + b[i];
        store_wide(y + j, count, vector, v);
    });
}

template <class T, int LANES>
__global__ void __launch_bounds__(ROW_BLOCK, 4) norm_rows(ndm_norm_args a, bool vector)
{
    int64_t row = (int64_t)blockIdx.x * (ROW_BLOCK / LANES) + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;

    if (row >= a.n)
        return;
    const T *x = add_residual<T, LANES>(a, row, lane, vector);
    T *y = (T *)a.y + row * a.y_stride;
    float mean = a.layer_norm ? mean_of<T, LANES>(x, a.width, lane, vector) : 0.0f;
    float rstd = 1.0f / sqrtf(variance_of<T, LANES>(x, a.width, mean, lane, vector) + a.eps);
    write_normed<T, LANES>(a, x, mean, rstd, y, lane, vector);
    if (lane != 0)
        return;
    if (a.layer_norm)
        a.mean[row] = mean;
    a.rstd[row] = rstd;
}

ndm_status ndm_cuda_norm(ndm_stream *stream, const void *args)
{
    const ndm_norm_args *a = (const ndm_norm_args *)args;
    bool vector = ndm_cuda_aligned(a->x, a->x_stride) && ndm_cuda_aligned(a->y, a->y_stride) &&
                  ndm_cuda_aligned(a->residual, 0) && ndm_cuda_aligned(a->sum, 0) &&
                  ndm_cuda_aligned(a->weight, 0) && ndm_cuda_aligned(a->bias, 0);
    bool warp = row_takes_warp(a->width);
    dim3 grid(ndm_cuda_blocks(a->n, warp ? ROW_BLOCK / WARP : 1));

    return ndm_cuda_typed("norm", "x_dtype", a->x_dtype, [&](auto type) {
        using T = decltype(type);
        return ndm_cuda_launch(stream, "norm", warp ? norm_rows<T, WARP> : norm_rows<T, ROW_BLOCK>,
                               grid, ROW_BLOCK, 0, *a, vector);
    });
}

/* ---- backward -------------------------------------------------------------------------------- */

enum { BLOCKS_ENOUGH = 512, PARTS_LEAST = 32, PARTS_MOST = 256 };

/* Partial sums of dweight and dbias, [part][2][width], over part blockIdx.y of the rows. */
template <class T>
__global__ void __launch_bounds__(COLUMN_BLOCK, 4)
    norm_weight_partials(ndm_norm_backward_args a, float *partial, int64_t parts, bool vector)
{
    int64_t first = part_begin(a.n, parts, blockIdx.y),
            end = part_begin(a.n, parts, blockIdx.y + 1);
    int64_t column = (int64_t)blockIdx.x * COLUMN_TILE + threadIdx.x % WARP * WIDE;
    int count = at_most(a.width - column, WIDE);
    float total[2][WIDE];
    auto term = [&](int64_t row, int n, bool aligned, float sum[2][WIDE]) {
        float x[WIDE], dy[WIDE], mean = a.layer_norm ? a.mean[row] : 0.0f, rstd = a.rstd[row];
        load_wide((const T *)a.x + row * a.x_stride + column, n, aligned, x);
        load_wide((const T *)a.dy + row * a.dy_stride + column, n, aligned, dy);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            sum[0][i] += dy[i] * (x[i] - mean) * rstd;
            sum[1][i] += dy[i];
        }
    };

    if (!column_sums<2>(first, end, count, vector, term, total) || count <= 0)
        return;
    float *to = partial + (int64_t)blockIdx.y * 2 * a.width + column;
    store_wide(to, count, false, total[0]);
    store_wide(to + a.width, count, false, total[1]);
}

__global__ void __launch_bounds__(COLUMN_BLOCK)
    norm_weight_totals(ndm_norm_backward_args a, const float *partial, int64_t parts)
{
    int64_t column = (int64_t)blockIdx.x * COLUMN_TILE + threadIdx.x % WARP * WIDE;
    int count = at_most(a.width - column, WIDE);
    float total[2][WIDE];
    auto term = [&](int64_t part, int n, bool aligned, float sum[2][WIDE]) {
        float x[2][WIDE];
        load_wide(partial + part * 2 * a.width + column, n, aligned, x[0]);
        load_wide(partial + (part * 2 + 1) * a.width + column, n, aligned, x[1]);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            sum[0][i] += x[0][i];
            sum[1][i] += x[1][i];
        }
    };

    if (!column_sums<2>(0, parts, count, a.width % WIDE == 0, term, total) || count <= 0)
        return;
#pragma unroll
    for (int s = 0; s < 2; s++) {
        float *to = s == 0 ? a.dweight : a.layer_norm ? a.dbias : NULL;
        if (!to)
            continue;
        float old[WIDE];
        load_wide(to + column, count, false, old);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            old[i] += total[s][i];
        store_wide(to + column, count, false, old);
    }
}

/* Parts that the rows are summed in, by the sizes alone. Few columns (a norm of heads) are few
 * blocks: then more parts, so that all of a device has work. A part has a row a warp at least. */
static int64_t row_parts(int64_t n, int64_t width)
{
    int64_t most = BLOCKS_ENOUGH / (int64_t)ndm_cuda_blocks(width, COLUMN_TILE);
    int64_t parts = (n + COLUMN_BLOCK / WARP - 1) / (COLUMN_BLOCK / WARP);

    if (most < PARTS_LEAST)
        most = PARTS_LEAST;
    if (most > PARTS_MOST)
        most = PARTS_MOST;
    return parts < most ? parts : most;
}

/* Eight elements of g = dy * weight and of xhat. */
template <class T>
static __device__ __forceinline__ void load_gradient(const ndm_norm_backward_args &a, int64_t row,
                                                     int64_t j, int count, bool vector,
                                                     float g[WIDE], float xhat[WIDE])
{
    float mean = a.layer_norm ? a.mean[row] : 0.0f, rstd = a.rstd[row], w[WIDE];

    whole_or_part(count, vector, [&](int n, bool aligned) {
        load_wide((const T *)a.dy + row * a.dy_stride + j, n, aligned, g);
        load_wide((const T *)a.x + row * a.x_stride + j, n, aligned, xhat);
        load_wide_any(a.weight, a.dtype, j, n, aligned, w);
    });
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        g[i] *= w[i] + a.weight_offset;
        xhat[i] = (xhat[i] - mean) * rstd;
    }
}

template <class T, int LANES>
__global__ void __launch_bounds__(ROW_BLOCK)
    norm_backward_rows(ndm_norm_backward_args a, bool vector)
{
    int64_t row = (int64_t)blockIdx.x * (ROW_BLOCK / LANES) + threadIdx.x / LANES;
    int lane = threadIdx.x % LANES;
    float sum_g = 0.0f, sum_gx = 0.0f;

    if (row >= a.n)
        return;
    T *dx = (T *)a.dx + row * a.dx_stride;
    for_row<LANES>(a.width, lane, [&](int64_t j, int count) {
        float g[WIDE], xhat[WIDE];
        load_gradient<T>(a, row, j, count, vector, g, xhat);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            sum_g += g[i];
            sum_gx += g[i] * xhat[i];
        }
    });
    float mean_gx = row_sum<LANES>(sum_gx) / (float)a.width;
    float mean_g = a.layer_norm ? row_sum<LANES>(sum_g) / (float)a.width : 0.0f;
    for_row<LANES>(a.width, lane, [&](int64_t j, int count) {
        float g[WIDE], xhat[WIDE], d[WIDE] = {};
        load_gradient<T>(a, row, j, count, vector, g, xhat);
        if (a.accumulate)
            load_wide(dx + j, count, vector, d);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            d[i] += a.rstd[row] * (g[i] - mean_g - xhat[i] * mean_gx);
        store_wide(dx + j, count, vector, d);
    });
    if (a.y)
        write_normed<T, LANES>(a, (const T *)a.x + row * a.x_stride,
                               a.layer_norm ? a.mean[row] : 0.0f, a.rstd[row],
                               (T *)a.y + row * a.y_stride, lane, vector);
}

/* The sums over rows come first, because dx or y may lie over dy. */
ndm_status ndm_cuda_norm_backward(ndm_stream *stream, const void *args)
{
    const ndm_norm_backward_args *a = (const ndm_norm_backward_args *)args;
    bool vector = ndm_cuda_aligned(a->x, a->x_stride) && ndm_cuda_aligned(a->dy, a->dy_stride) &&
                  ndm_cuda_aligned(a->dx, a->dx_stride) && ndm_cuda_aligned(a->weight, 0) &&
                  ndm_cuda_aligned(a->y, a->y ? a->y_stride : 0) && ndm_cuda_aligned(a->bias, 0);
    bool warp = row_takes_warp(a->width);
    int64_t parts = row_parts(a->n, a->width);
    dim3 columns(ndm_cuda_blocks(a->width, COLUMN_TILE), (unsigned)parts);
    dim3 rows(ndm_cuda_blocks(a->n, warp ? ROW_BLOCK / WARP : 1));
    void *memory;

    NDM_TRY(ndm_cuda_scratch(stream, parts * 2 * a->width * (int64_t)sizeof(float), &memory));
    return ndm_cuda_typed("norm_backward", "x_dtype", a->x_dtype, [&](auto type) -> ndm_status {
        using T = decltype(type);
        NDM_TRY(ndm_cuda_launch(stream, "norm_backward", norm_weight_partials<T>, columns,
                                COLUMN_BLOCK, 0, *a, (float *)memory, parts, vector));
        NDM_TRY(
            ndm_cuda_launch(stream, "norm_backward",
                            warp ? norm_backward_rows<T, WARP> : norm_backward_rows<T, ROW_BLOCK>,
                            rows, ROW_BLOCK, 0, *a, vector));
        return ndm_cuda_launch(stream, "norm_backward", norm_weight_totals,
                               dim3(ndm_cuda_blocks(a->width, COLUMN_TILE)), COLUMN_BLOCK, 0, *a,
                               (const float *)memory, parts);
    });
}
