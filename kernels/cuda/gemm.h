/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the matrix product: cuBLASLt's (gemm_lt.c), and kernels for what cuBLAS leaves over
 * (gemm_epilogue.cu). */
#ifndef NDM_KERNELS_CUDA_GEMM_H
#define NDM_KERNELS_CUDA_GEMM_H

#include "kernels/cuda/body.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c = beta * c + bias; bias may be NULL. */
ndm_status ndm_cuda_gemm_finish(ndm_stream *stream, const ndm_gemm_args *args, float beta);

/* `rows` packed rows of `width` elements from rows of `stride`, changed to fp32. */
ndm_status ndm_cuda_gemm_widen(ndm_stream *stream, const void *src, ndm_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, float *dst);

/* `rows` packed rows of `width` 8-bit numbers from rows of `stride`, times *scale (NULL: 1), in
 * bf16 (fp8.cu). */
ndm_status ndm_cuda_gemm_widen_eight(ndm_stream *stream, const void *src, ndm_dtype dtype,
                                     int64_t rows, int64_t width, int64_t stride,
                                     const float *scale, void *dst);

/* Packed [width, rows] from `rows` rows of `width` bytes (fp8.cu). */
ndm_status ndm_cuda_gemm_turn_eight(ndm_stream *stream, const void *src, int64_t rows,
                                    int64_t width, int64_t stride, void *dst);

/* The product of 8-bit numbers as such, without its bias (gemm_eight.c). done: false where the
 * device or cuBLASLt has none for it. */
ndm_status ndm_cuda_gemm_eight(ndm_stream *stream, const ndm_gemm_args *args, bool *done);

/* args->c from the packed fp32 rows of `src`. */
ndm_status ndm_cuda_gemm_narrow(ndm_stream *stream, const float *src, const ndm_gemm_args *args);

/* The whole product with its bias, which is of C's type, and its scales, if there are any. done:
 * false if cuBLASLt has no algorithm for it; then nothing was launched. */
typedef struct ndm_cuda_gemm_types {
    cudaDataType_t a, b, c;
    cublasComputeType_t compute;
} ndm_cuda_gemm_types;
ndm_status ndm_cuda_gemm_lt(ndm_stream *stream, const ndm_gemm_args *args,
                            const ndm_cuda_gemm_types *types, bool *done);

#ifdef __cplusplus
}
#endif
#endif
