/* SPDX-License-Identifier: Apache-2.0 */
/* The way to 8 bits and back: the largest magnitude, elements over a power of two, columns as rows,
 * and packed copies in bf16. An 8-bit number has at most four significant bits and its scale is a
 * power of two, so bf16 holds their product as it is. */
#include <cuda_fp8.h>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.cuh"

enum { FP8_BLOCK = 256, AMAX_PARTS = 256 };

static __device__ __forceinline__ float larger_or_nan(float x, float y)
{
    return x > y || x != x ? x : y;
}

/* Of the block's values, in its first thread. A maximum has no order. */
static __device__ __forceinline__ float largest_of_block(float x)
{
    __shared__ float values[FP8_BLOCK];

    values[threadIdx.x] = x;
    __syncthreads();
    for (int step = FP8_BLOCK / 2; step > 0; step /= 2) {
        if (threadIdx.x < step)
            values[threadIdx.x] = larger_or_nan(values[threadIdx.x], values[threadIdx.x + step]);
        __syncthreads();
    }
    return values[0];
}

__global__ void __launch_bounds__(FP8_BLOCK) amax_parts(ndm_amax_args a, float *part, bool vector)
{
    int64_t eights = (a.width + WIDE - 1) / WIDE, all = a.m * eights;
    float max = 0.0f, x[WIDE];

    for (int64_t i = (int64_t)blockIdx.x * FP8_BLOCK + threadIdx.x; i < all;
         i += (int64_t)gridDim.x * FP8_BLOCK) {
        int64_t j = i % eights * WIDE;
        load_wide_any(a.src, a.src_dtype, i / eights * a.stride + j, at_most(a.width - j, WIDE),
                      vector, x);
#pragma unroll
        for (int e = 0; e < WIDE; e++)
            max = larger_or_nan(fabsf(x[e]), max);
    }
    max = largest_of_block(max);
    if (threadIdx.x == 0)
        part[blockIdx.x] = max;
}

__global__ void __launch_bounds__(FP8_BLOCK) amax_total(float *out, const float *part, int parts)
{
    float max = largest_of_block((int)threadIdx.x < parts ? part[threadIdx.x] : 0.0f);

    if (threadIdx.x == 0)
        *out = larger_or_nan(max, *out);
}

extern "C" ndm_status ndm_cuda_amax(ndm_stream *stream, const void *args)
{
    const ndm_amax_args *a = (const ndm_amax_args *)args;
    unsigned blocks = ndm_cuda_blocks(a->m * ((a->width + WIDE - 1) / WIDE), FP8_BLOCK);
    int parts = blocks < AMAX_PARTS ? (int)blocks : (int)AMAX_PARTS;
    void *memory;

    NDM_TRY(ndm_cuda_scratch(stream, parts * (int64_t)sizeof(float), &memory));
    NDM_TRY(ndm_cuda_launch(stream, "amax", amax_parts, dim3((unsigned)parts), FP8_BLOCK, 0, *a,
                            (float *)memory, ndm_cuda_aligned(a->src, a->stride)));
    return ndm_cuda_launch(stream, "amax", amax_total, dim3(1), FP8_BLOCK, 0, a->out,
                           (const float *)memory, parts);
}

/* As the reference: the least power of two that amax is at most `most` of. */
static __device__ __forceinline__ float scale_of(float amax, float most)
{
    int exponent;

    if (!(amax > 0.0f) || isinf(amax))
        return 1.0f;
    float share = frexpf(amax / most, &exponent);
    exponent -= share == 0.5f;
    return ldexpf(1.0f, exponent < -126 ? -126 : exponent);
}

__global__ void __launch_bounds__(FP8_BLOCK) quantize_wide(ndm_quantize_args a, bool vector)
{
    bool e4m3 = a.dst_dtype == NDM_F8E4M3;
    float scale = scale_of(*a.amax, e4m3 ? 448.0f : 57344.0f), x[WIDE];
    int64_t row, j;

    if (blockIdx.x == 0 && threadIdx.x == 0)
        *a.scale = scale;
    if (a.width == 0 || !place_of_thread(a.m, a.width, &row, &j))
        return;
    int count = at_most(a.width - j, WIDE);
    load_wide_any(a.src, a.src_dtype, row * a.stride + j, count, vector, x);
    uint8_t *to = a.dst + row * a.width + j;
    uint2 bytes; /* in one store where they lie so */
    uint8_t *byte = reinterpret_cast<uint8_t *>(&bytes);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        byte[i] = __nv_cvt_float_to_fp8(x[i] / scale, __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
    if (count == WIDE && (uintptr_t)to % sizeof bytes == 0) {
        *reinterpret_cast<uint2 *>(to) = bytes;
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (i < count)
            to[i] = byte[i];
}

extern "C" ndm_status ndm_cuda_quantize(ndm_stream *stream, const void *args)
{
    const ndm_quantize_args *a = (const ndm_quantize_args *)args;
    int64_t eights = (a->width + WIDE - 1) / WIDE, work = a->m * eights;

    return ndm_cuda_launch(stream, "quantize", quantize_wide,
                           dim3(ndm_cuda_blocks(work > 0 ? work : 1, FP8_BLOCK)), FP8_BLOCK, 0, *a,
                           ndm_cuda_aligned(a->src, a->stride));
}

__global__ void __launch_bounds__(FP8_BLOCK) dequantize_wide(ndm_dequantize_args a, bool vector)
{
    __nv_fp8_interpretation_t kind = a.src_dtype == NDM_F8E4M3 ? __NV_E4M3 : __NV_E5M2;
    int64_t at = ((int64_t)blockIdx.x * FP8_BLOCK + threadIdx.x) * WIDE;
    int count = at_most(a.n - at, WIDE);
    float scale = *a.scale, x[WIDE];

    if (count <= 0)
        return;
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        __nv_fp8_storage_t byte = i < count ? a.src[at + i] : (__nv_fp8_storage_t)0;
        __half half = __nv_cvt_fp8_to_halfraw(byte, kind);
        x[i] = scale * to_float(half);
    }
    store_wide_any(a.dst, a.dst_dtype, at, count, vector, x);
}

extern "C" ndm_status ndm_cuda_dequantize(ndm_stream *stream, const void *args)
{
    const ndm_dequantize_args *a = (const ndm_dequantize_args *)args;

    return ndm_cuda_launch(stream, "dequantize", dequantize_wide,
                           dim3(ndm_cuda_blocks(a->n, FP8_BLOCK * WIDE)), FP8_BLOCK, 0, *a,
                           ndm_cuda_aligned(a->dst, 0));
}

__global__ void __launch_bounds__(FP8_BLOCK)
    gemm_widen_eight(const uint8_t *src, ndm_dtype dtype, int64_t rows, int64_t width,
                     int64_t stride, const float *scale, __nv_bfloat16 *dst)
{
    __nv_fp8_interpretation_t kind = dtype == NDM_F8E4M3 ? __NV_E4M3 : __NV_E5M2;
    float factor = scale ? *scale : 1.0f;
    int64_t row, j;

    if (!place_of_thread(rows, width, &row, &j))
        return;
    for (int i = 0; i < at_most(width - j, WIDE); i++) {
        __half x = __nv_cvt_fp8_to_halfraw(src[row * stride + j + i], kind);
        from_float(factor * to_float(x), &dst[row * width + j + i]);
    }
}

ndm_status ndm_cuda_gemm_widen_eight(ndm_stream *stream, const void *src, ndm_dtype dtype,
                                     int64_t rows, int64_t width, int64_t stride,
                                     const float *scale, void *dst)
{
    int64_t eights = (width + WIDE - 1) / WIDE;

    return ndm_cuda_launch(stream, "gemm", gemm_widen_eight,
                           dim3(ndm_cuda_blocks(rows * eights, FP8_BLOCK)), FP8_BLOCK, 0,
                           (const uint8_t *)src, dtype, rows, width, stride, scale,
                           (__nv_bfloat16 *)dst);
}

enum { TURN = 32 };

/* A square of bytes a block, by way of shared memory: rows are read and written along themselves.
 */
__global__ void __launch_bounds__(FP8_BLOCK)
    turn_eight(const uint8_t *src, int64_t rows, int64_t width, int64_t stride, uint8_t *dst)
{
    __shared__ uint8_t square[TURN][TURN + 1];
    int64_t across = (width + TURN - 1) / TURN;
    int64_t row = blockIdx.x / across * TURN, column = blockIdx.x % across * TURN;
    int x = threadIdx.x % TURN, y = threadIdx.x / TURN;

    for (int i = y; i < TURN; i += FP8_BLOCK / TURN)
        if (row + i < rows && column + x < width)
            square[i][x] = src[(row + i) * stride + column + x];
    __syncthreads();
    for (int i = y; i < TURN; i += FP8_BLOCK / TURN)
        if (column + i < width && row + x < rows)
            dst[(column + i) * rows + row + x] = square[x][i];
}

ndm_status ndm_cuda_gemm_turn_eight(ndm_stream *stream, const void *src, int64_t rows,
                                    int64_t width, int64_t stride, void *dst)
{
    int64_t squares = (rows + TURN - 1) / TURN * ((width + TURN - 1) / TURN);

    return ndm_cuda_launch(stream, "gemm", turn_eight, dim3((unsigned)squares), FP8_BLOCK, 0,
                           (const uint8_t *)src, rows, width, stride, (uint8_t *)dst);
}
