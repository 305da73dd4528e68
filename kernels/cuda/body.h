/* SPDX-License-Identifier: Apache-2.0 */
/* The bodies of all ops in the cuda world, one a name of NDM_KERNEL_LIST, and what they share with
 * the device. C and C++ include this the same way. */
#ifndef NDM_KERNELS_CUDA_BODY_H
#define NDM_KERNELS_CUDA_BODY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cublas_v2.h>
#include <cublasLt.h>
#include <cuda_runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "device/cuda/cuda.h"
#include "kernels/kernels.h"

#define NDM_CUDA_PROTOTYPE(name, doc) \
    ndm_status ndm_cuda_##name(ndm_stream *stream, const void *args);
NDM_KERNEL_LIST(NDM_CUDA_PROTOTYPE)
#undef NDM_CUDA_PROTOTYPE

/* Helpers of the matrix product, in gemm_epilogue.cu. */

/* c = beta * c + bias; bias may be NULL. */
ndm_status ndm_cuda_gemm_finish(ndm_stream *stream, const ndm_gemm_args *args, float beta);

/* `rows` packed rows of `width` elements from rows of `stride`, changed to fp32. */
ndm_status ndm_cuda_gemm_widen(ndm_stream *stream, const void *src, ndm_dtype dtype, int64_t rows,
                               int64_t width, int64_t stride, float *dst);

/* args->c from the packed fp32 rows of `src`. */
ndm_status ndm_cuda_gemm_narrow(ndm_stream *stream, const float *src, const ndm_gemm_args *args);

NDM_API extern const ndm_kernel_table ndm_cuda_kernels;

#ifdef __cplusplus
}
#endif
#endif
