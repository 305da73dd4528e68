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

/* out[i] = slices[0][i] op slices[1][i] op ... in this order, [count] each, `stride` elements
 * apart. 16-bit types are computed in fp32 and rounded once, or not at all with out_dtype NDM_F32;
 * else both types are fp32. out may be one of the slices if the types are equal. */
NDM_MUST_USE ndm_status ndm_cuda_reduce_slices(ndm_stream *stream, void *out, ndm_dtype out_dtype,
                                               const void *slices, int64_t n_slices, int64_t stride,
                                               int64_t count, ndm_dtype dtype, ndm_reduce_op op);

/* Host memory that the device reads and writes by itself. */
NDM_MUST_USE ndm_status ndm_cuda_pin(int64_t bytes, void **memory);
void ndm_cuda_unpin(void *memory);

/* Which device of the machine: PCI bus address, "0000:17:00.0"; differs between devices. */
const char *ndm_cuda_bus_id(const ndm_device *device);

/* Times that the host has waited for the device: what a step should not do on its way. */
NDM_API int64_t ndm_cuda_host_waits(const ndm_device *device);

/* Somebody whose work on the device may never end by itself. While the host waits, poll() is called
 * now and then, and a failure ends the wait; expire() when the deadline has passed: it says more
 * about it (NDM_ERR_TIMEOUT or NDM_ERR_COMM), or NDM_OK if it has nothing to say. release() is told
 * of a segment of the pool before it goes back to the device; may be NULL. */
typedef struct ndm_cuda_watch {
    struct ndm_cuda_watch *next;
    ndm_status (*poll)(struct ndm_cuda_watch *watch);
    ndm_status (*expire)(struct ndm_cuda_watch *watch);
    void (*release)(struct ndm_cuda_watch *watch, void *base);
} ndm_cuda_watch;
void ndm_cuda_watch_add(ndm_device *device, ndm_cuda_watch *watch); /* borrowed */
void ndm_cuda_watch_remove(ndm_device *device, ndm_cuda_watch *watch);

/* The segment of the pool that an address lies in; false for memory of others. */
bool ndm_cuda_segment_of(const ndm_device *device, const void *memory, void **base, int64_t *bytes);

/* Destroys what CUDA has of all graphs; one in flight goes when it is over. None can be launched.
 */
void ndm_cuda_graphs_drop(ndm_device *device);

/* What the module exports. */
NDM_API extern const ndm_device_ops ndm_cuda_device;
NDM_API extern const char ndm_module_version[];

#ifdef __cplusplus
}
#endif
#endif
