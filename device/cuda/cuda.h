/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda world as its own files, kernels and collectives see it. Part of the module
 * libndm_cuda.so only: nothing else includes this. */
#ifndef NDM_DEVICE_CUDA_CUDA_H
#define NDM_DEVICE_CUDA_CUDA_H

#include <cublas_v2.h>
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include "device/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the cuda world's kernel tables hold. Called on the host; it launches on
 * ndm_cuda_stream_handle(stream) and does not wait. args are the op's struct. */
typedef ndm_status (*ndm_cuda_body)(ndm_stream *stream, const void *args);

/* Never the default stream. */
cudaStream_t ndm_cuda_stream_handle(const ndm_stream *stream);

/* Handles bound to the stream, with a workspace of their own; made on first use. */
NDM_MUST_USE ndm_status ndm_cuda_blas(ndm_stream *stream, cublasHandle_t *handle);

typedef struct ndm_cuda_blas_lt {
    cublasLtHandle_t handle;
    void *workspace; /* of the stream */
    size_t workspace_bytes;
} ndm_cuda_blas_lt;
NDM_MUST_USE ndm_status ndm_cuda_get_blas_lt(ndm_stream *stream, ndm_cuda_blas_lt *lt);

/* Scratch of the stream, 256-byte aligned, contents undefined. It belongs to what is launched on
 * the stream until the next call for the same stream; one call a body. */
NDM_MUST_USE ndm_status ndm_cuda_scratch(ndm_stream *stream, int64_t bytes, void **memory);

int ndm_cuda_sm_count(const ndm_stream *stream);
int ndm_cuda_capability(const ndm_stream *stream); /* 80, 90, 100, 120 */
int64_t
ndm_cuda_shared_bytes(const ndm_stream *stream); /* dynamic shared memory of a block at most */

/* NDM_OK, or NDM_ERR_DEVICE with the place and CUDA's words. `what` names the op or call. */
NDM_MUST_USE ndm_status ndm_cuda_check(cudaError_t error, const char *what, const char *file,
                                       int line);
NDM_MUST_USE ndm_status ndm_cuda_check_blas(cublasStatus_t error, const char *what,
                                            const char *file, int line);
#define NDM_CUDA_TRY(what, call) NDM_TRY(ndm_cuda_check((call), (what), __FILE__, __LINE__))
#define NDM_BLAS_TRY(what, call) NDM_TRY(ndm_cuda_check_blas((call), (what), __FILE__, __LINE__))

/* What the module exports. */
NDM_API extern const ndm_device_ops ndm_cuda_device;

#ifdef __cplusplus
}
#endif
#endif
