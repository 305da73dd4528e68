/* SPDX-License-Identifier: Apache-2.0 */
/* What cuBLAS leaves over of the matrix product: a bias on every row, a product without terms, and
 * operands widened to fp32 where the two sides differ in type. */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/launch.cuh"

enum { EPILOGUE_BLOCK = 256 };

__global__ void __launch_bounds__(EPILOGUE_BLOCK)
    gemm_finish(ndm_gemm_args a, float beta, bool vector)
{
    int64_t row, j;
    float c[WIDE] = {}, bias[WIDE] = {};

    if (!place_of_thread(a.m, a.n, &row, &j))
        return;
    int64_t at = row * a.ldc + j;
    int count = at_most(a.n - j, WIDE);
    if (beta != 0.0f)
        load_wide_any(a.c, a.c_dtype, at, count, vector, c);
    if (a.bias)
        load_wide_any(a.bias, a.b_dtype, j, count, vector, bias);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        c[i] = beta != 0.0f ? beta * c[i] + bias[i] : bias[i];
    store_wide_any(a.c, a.c_dtype, at, count, vector, c);
}

ndm_status ndm_cuda_gemm_finish(ndm_stream *stream, const ndm_gemm_args *args, float beta)
{
    bool vector = ndm_cuda_aligned(args->c, args->ldc) && ndm_cuda_aligned(args->bias, 0);
    int64_t eights = (args->n + WIDE - 1) / WIDE;

    return ndm_cuda_launch(stream, "gemm", gemm_finish,
                           dim3(ndm_cuda_blocks(args->m * eights, EPILOGUE_BLOCK)), EPILOGUE_BLOCK,
                           0, *args, beta, vector);
}

__global__ void __launch_bounds__(EPILOGUE_BLOCK)
    gemm_widen(const void *src, ndm_dtype dtype, int64_t rows, int64_t width, int64_t stride,
               float *dst, bool vector)
{
    int64_t row, j;
    float x[WIDE];

    if (!place_of_thread(rows, width, &row, &j))
        return;
    int count = at_most(width - j, WIDE);
    load_wide_any(src, dtype, row * stride + j, count, vector, x);
    store_wide(dst + row * width + j, count, width % WIDE == 0, x);
}

ndm_status ndm_cuda_gemm_widen(ndm_stream *stream, const void *src, ndm_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, float *dst)
{
    int64_t eights = (width + WIDE - 1) / WIDE;

    return ndm_cuda_launch(stream, "gemm", gemm_widen,
                           dim3(ndm_cuda_blocks(rows * eights, EPILOGUE_BLOCK)), EPILOGUE_BLOCK, 0,
                           src, dtype, rows, width, stride, dst, ndm_cuda_aligned(src, stride));
}

__global__ void __launch_bounds__(EPILOGUE_BLOCK)
    gemm_narrow(const float *src, ndm_gemm_args a, bool vector)
{
    int64_t row, j;
    float x[WIDE];

    if (!place_of_thread(a.m, a.n, &row, &j))
        return;
    int count = at_most(a.n - j, WIDE);
    load_wide(src + row * a.n + j, count, a.n % WIDE == 0, x);
    store_wide_any(a.c, a.c_dtype, row * a.ldc + j, count, vector, x);
}

ndm_status ndm_cuda_gemm_narrow(ndm_stream *stream, const float *src, const ndm_gemm_args *args)
{
    int64_t eights = (args->n + WIDE - 1) / WIDE;

    return ndm_cuda_launch(stream, "gemm", gemm_narrow,
                           dim3(ndm_cuda_blocks(args->m * eights, EPILOGUE_BLOCK)), EPILOGUE_BLOCK,
                           0, src, *args, ndm_cuda_aligned(args->c, args->ldc));
}
