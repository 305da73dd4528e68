/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over the threads of a row and over the rows of a column, always in the same order. */
#ifndef NDM_KERNELS_CUDA_REDUCE_CUH
#define NDM_KERNELS_CUDA_REDUCE_CUH

#include "kernels/cuda/element.cuh"

enum { WARP = 32, ROW_BLOCK = 256 };

/* Pairs exchange and add: every lane ends with the same bits. */
template <class T> static __device__ __forceinline__ T warp_sum(T x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* Sum over the LANES threads that share a row: a warp, or the whole block of ROW_BLOCK. */
template <int LANES> static __device__ __forceinline__ float row_sum(float x)
{
    static_assert(LANES == WARP || LANES == ROW_BLOCK, "a row has a warp or the block");
    x = warp_sum(x);
    if (LANES == WARP)
        return x;
    __shared__ float parts[ROW_BLOCK / WARP];
    if (threadIdx.x % WARP == 0)
        parts[threadIdx.x / WARP] = x;
    __syncthreads();
    x = 0.0f;
    for (int i = 0; i < ROW_BLOCK / WARP; i++)
        x += parts[i];
    __syncthreads();
    return x;
}

/* f(column, count) for the eights of a row that belong to a lane. */
template <int LANES, class F>
static __device__ __forceinline__ void for_row(int64_t width, int lane, F f)
{
    for (int64_t j = (int64_t)lane * WIDE; j < width; j += LANES * WIDE)
        f(j, at_most(width - j, WIDE));
}

/* Threads of a row so wide. */
static inline bool row_takes_warp(int64_t width)
{
    return width <= 1024;
}

/* A block of COLUMN_BLOCK threads sums rows [first, end) of COLUMN_TILE columns: lanes hold eight
 * columns each, warps take rows in turn. term(row, count, vector, sum) adds a row to
 * sum[SUMS][WIDE], count and vector as whole_or_part() has them. The totals end in the first warp:
 * true there. */
enum { COLUMN_BLOCK = 256, COLUMN_TILE = WARP * WIDE };

template <int SUMS, class F>
static __device__ __forceinline__ bool column_sums(int64_t first, int64_t end, int count,
                                                   bool vector, F term, float total[SUMS][WIDE])
{
    enum { AT_ONCE = 4 / SUMS }; /* rows whose loads are under way together */
    __shared__ float parts[COLUMN_BLOCK / WARP][SUMS][WIDE][WARP];
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    float sum[SUMS][WIDE] = {};

    whole_or_part(count, vector, [&](int n, bool aligned) {
#pragma unroll AT_ONCE
        for (int64_t row = first + warp; row < end; row += COLUMN_BLOCK / WARP)
            term(row, n, aligned, sum);
    });
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            parts[warp][s][i][lane] = sum[s][i];
    __syncthreads();
    if (warp != 0)
        return false;
#pragma unroll
    for (int s = 0; s < SUMS; s++)
#pragma unroll
        for (int i = 0; i < WIDE; i++) {
            total[s][i] = 0.0f;
            for (int w = 0; w < COLUMN_BLOCK / WARP; w++)
                total[s][i] += parts[w][s][i][lane];
        }
    return true;
}

/* Rows [first, end) of part `part` of `parts` equal ones. */
static __host__ __device__ __forceinline__ int64_t part_begin(int64_t rows, int64_t parts,
                                                              int64_t part)
{
    int64_t each = (rows + parts - 1) / parts, begin = part * each;
    return begin < rows ? begin : rows;
}

#endif
