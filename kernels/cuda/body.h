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

NDM_API extern const ndm_kernel_table ndm_cuda_kernels;

#ifdef __cplusplus
}
#endif
#endif
