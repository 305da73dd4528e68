/* SPDX-License-Identifier: Apache-2.0 */
/* Sums on CUDA: of squares, in double, and of columns. Both first sum parts whose number depends on
 * the sizes alone, then the parts, in order. */
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/reduce.cuh"

/* ---- squares --------------------------------------------------------------------------------- */

enum { SUMSQ_BLOCK = 256, SUMSQ_PARTS = 1024, SUMSQ_LEAST = SUMSQ_BLOCK * WIDE };

typedef struct square_sums {
    double sum, max;
} square_sums;

static __device__ __forceinline__ double double_max_or_nan(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* In the first thread. */
static __device__ square_sums squares_of_block(square_sums s)
{
    __shared__ square_sums parts[SUMSQ_BLOCK / WARP];

    for (int step = WARP / 2; step > 0; step /= 2) {
        s.sum += __shfl_xor_sync(0xffffffffu, s.sum, step);
        s.max = double_max_or_nan(s.max, __shfl_xor_sync(0xffffffffu, s.max, step));
    }
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = s;
    __syncthreads();
    for (int i = 1; i < SUMSQ_BLOCK / WARP && threadIdx.x == 0; i++) {
        s.sum += parts[i].sum;
        s.max = double_max_or_nan(s.max, parts[i].max);
    }
    return s;
}

__global__ void __launch_bounds__(SUMSQ_BLOCK)
    sumsq_parts(const float *x, int64_t n, square_sums *part, bool vector)
{
    int64_t step = (int64_t)gridDim.x * SUMSQ_BLOCK * WIDE;
    square_sums s = {0.0, 0.0};

    for (int64_t at = ((int64_t)blockIdx.x * SUMSQ_BLOCK + threadIdx.x) * WIDE; at < n;
         at += step) {
        float v[WIDE];
        load_wide(x + at, at_most(n - at, WIDE), vector, v);
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            s.sum += (double)v[i] * (double)v[i];
            s.max = double_max_or_nan(s.max, fabs((double)v[i]));
        }
    }
    s = squares_of_block(s);
    if (threadIdx.x == 0)
        part[blockIdx.x] = s;
}

__global__ void __launch_bounds__(SUMSQ_BLOCK)
    sumsq_total(ndm_sumsq_args a, const square_sums *part, int parts)
{
    square_sums s = {0.0, 0.0};

    for (int i = threadIdx.x; i < parts; i += SUMSQ_BLOCK) {
        s.sum += part[i].sum;
        s.max = double_max_or_nan(s.max, part[i].max);
    }
    s = squares_of_block(s);
    if (threadIdx.x != 0)
        return;
    *a.out += a.weight * s.sum;
    if (a.out_max)
        *a.out_max = double_max_or_nan(*a.out_max, s.max);
}

ndm_status ndm_cuda_sumsq(ndm_stream *stream, const void *args)
{
    const ndm_sumsq_args *a = (const ndm_sumsq_args *)args;
    int64_t blocks = (a->n + SUMSQ_LEAST - 1) / SUMSQ_LEAST;
    int parts = (int)(blocks < SUMSQ_PARTS ? blocks : (int64_t)SUMSQ_PARTS);
    void *memory;

    NDM_TRY(ndm_cuda_scratch(stream, parts * (int64_t)sizeof(square_sums), &memory));
    NDM_TRY(ndm_cuda_launch(stream, "sumsq", sumsq_parts, dim3((unsigned)parts), SUMSQ_BLOCK, 0,
                            a->x, a->n, (square_sums *)memory, ndm_cuda_aligned(a->x, 0)));
    return ndm_cuda_launch(stream, "sumsq", sumsq_total, dim3(1), SUMSQ_BLOCK, 0, *a,
                           (const square_sums *)memory, parts);
}

/* ---- columns --------------------------------------------------------------------------------- */

enum { COLSUM_PARTS = 64, COLSUM_ROWS = 64 }; /* parts at most; rows of one at least */

/* Into part blockIdx.y of `partial`, or straight onto the result when there is one part. */
template <class T>
__global__ void __launch_bounds__(COLUMN_BLOCK)
    colsum_parts(ndm_colsum_args a, float *partial, int64_t parts, bool vector)
{
    int64_t first = part_begin(a.m, parts, blockIdx.y),
            end = part_begin(a.m, parts, blockIdx.y + 1);
    int64_t column = (int64_t)blockIdx.x * COLUMN_TILE + threadIdx.x % WARP * WIDE;
    int count = at_most(a.n - column, WIDE);
    float total[1][WIDE], old[WIDE];
    auto term = [&](int64_t row, int n, bool aligned, float sum[1][WIDE]) {
        float x[WIDE];
        load_wide((const T *)a.x + row * a.stride + column, n, aligned, x);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            sum[0][i] += x[i];
    };

    if (!column_sums<1>(first, end, count, vector, term, total) || count <= 0)
        return;
    if (parts == 1) {
        load_wide(a.out + column, count, false, old);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            total[0][i] += old[i];
    }
    store_wide(parts == 1 ? a.out + column : partial + blockIdx.y * a.n + column, count, false,
               total[0]);
}

__global__ void __launch_bounds__(ROW_BLOCK)
    colsum_total(ndm_colsum_args a, const float *partial, int64_t parts)
{
    int64_t j = (int64_t)blockIdx.x * ROW_BLOCK + threadIdx.x;
    float sum = 0.0f;

    if (j >= a.n)
        return;
    for (int64_t part = 0; part < parts; part++)
        sum += partial[part * a.n + j];
    a.out[j] += sum;
}

ndm_status ndm_cuda_colsum(ndm_stream *stream, const void *args)
{
    const ndm_colsum_args *a = (const ndm_colsum_args *)args;
    bool vector = ndm_cuda_aligned(a->x, a->stride);
    int64_t parts = (a->m + COLSUM_ROWS - 1) / COLSUM_ROWS;
    void *memory = NULL;

    if (parts > COLSUM_PARTS)
        parts = COLSUM_PARTS;
    if (parts > 1)
        NDM_TRY(ndm_cuda_scratch(stream, parts * a->n * (int64_t)sizeof(float), &memory));
    NDM_TRY(ndm_cuda_typed("colsum", "x_dtype", a->x_dtype, [&](auto type) {
        return ndm_cuda_launch(stream, "colsum", colsum_parts<decltype(type)>,
                               dim3(ndm_cuda_blocks(a->n, COLUMN_TILE), (unsigned)parts),
                               COLUMN_BLOCK, 0, *a, (float *)memory, parts, vector);
    }));
    if (parts == 1)
        return NDM_OK;
    return ndm_cuda_launch(stream, "colsum", colsum_total, dim3(ndm_cuda_blocks(a->n, ROW_BLOCK)),
                           ROW_BLOCK, 0, *a, (const float *)memory, parts);
}
