/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Device memory, streams and events: the three objects that all worlds (cpu, cuda, sim) share.
 *
 * Host code never dereferences device memory. It allocates, launches on a stream, orders streams by
 * events, and copies results to the host explicitly. On cpu the compute stream runs inline; a
 * communication stream holds a queue that advances whenever the host launches, waits or polls.
 */
#ifndef NDMESH_DEVICE_H
#define NDMESH_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ndmesh/status.h>
#include <ndmesh/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_device ndm_device;
typedef struct ndm_stream ndm_stream;
typedef struct ndm_event ndm_event;

/** What an allocation is for; peaks are reported by kind. */
typedef enum ndm_memory_kind {
    NDM_MEMORY_WEIGHTS = 0, /**< master slices */
    NDM_MEMORY_GATHERED,    /**< gathered units */
    NDM_MEMORY_GRADIENTS,   /**< unit gradients and gradient slices */
    NDM_MEMORY_OPTIMIZER,   /**< optimizer state */
    NDM_MEMORY_ACTIVATIONS, /**< activations and their gradients */
    NDM_MEMORY_WORKSPACE,   /**< scratch of kernels and ops */
    NDM_MEMORY_COMM,        /**< staging of collectives */
    NDM_MEMORY_KIND_COUNT
} ndm_memory_kind;

/** Live and peak bytes, by kind and in all. */
typedef struct ndm_memory_stats {
    int64_t live_bytes[NDM_MEMORY_KIND_COUNT];
    int64_t peak_bytes[NDM_MEMORY_KIND_COUNT];
    int64_t live_total_bytes;
    int64_t peak_total_bytes;
} ndm_memory_stats;

/** Name of a kind: "weights", "gathered", ... Static storage. */
NDM_API const char *ndm_memory_kind_name(ndm_memory_kind kind);

/**
 * Allocates device memory, 256-byte aligned, contents undefined.
 * @retval NDM_ERR_MEMORY  the message gives the kind, the bytes asked for, and those in use
 * @retval NDM_ERR_USAGE   bytes < 0
 */
NDM_API NDM_MUST_USE ndm_status ndm_device_alloc(ndm_device *device, int64_t bytes,
                                                 ndm_memory_kind kind, void **memory);
NDM_API void ndm_device_free(ndm_device *device, void *memory); /**< NULL is fine */
NDM_API ndm_memory_stats ndm_device_memory(const ndm_device *device);
NDM_API void ndm_device_reset_peak(ndm_device *device);
NDM_API const char *ndm_device_name(const ndm_device *device); /**< "cpu", "cuda", "sim" */

typedef enum ndm_copy_kind {
    NDM_HOST_TO_DEVICE,
    NDM_DEVICE_TO_HOST,
    NDM_DEVICE_TO_DEVICE
} ndm_copy_kind;

/** Copies bytes. Completes: on stream; a host source may be reused on return, a host target is
 * valid after the stream is. */
NDM_API NDM_MUST_USE ndm_status ndm_copy(ndm_stream *stream, void *dst, const void *src,
                                         int64_t bytes, ndm_copy_kind kind);

/** Sets bytes to zero. Completes: on stream. */
NDM_API NDM_MUST_USE ndm_status ndm_zero(ndm_stream *stream, void *memory, int64_t bytes);

typedef enum ndm_stream_kind {
    NDM_STREAM_COMPUTE, /**< kernels; on cpu they run inline, and waiting for an event blocks the
                           host */
    NDM_STREAM_COMM     /**< collectives and what follows them; on cpu a queue */
} ndm_stream_kind;

NDM_API NDM_MUST_USE ndm_status ndm_stream_create(ndm_device *device, ndm_stream_kind kind,
                                                  const char *name, ndm_stream **stream);
NDM_API void ndm_stream_destroy(ndm_stream *stream); /**< the stream must be idle; NULL is fine */
NDM_API ndm_device *ndm_stream_device(const ndm_stream *stream);

/** The stream as its world knows it: a cudaStream_t on cuda (interop_cuda.h has it typed); NULL
 * where there is none. Owned by the stream. */
NDM_API void *ndm_stream_native(const ndm_stream *stream);

/** Work enqueued on stream after this call runs after the event's last record. @retval
 * NDM_ERR_TIMEOUT, NDM_ERR_COMM */
NDM_API NDM_MUST_USE ndm_status ndm_stream_wait(ndm_stream *stream, ndm_event *event);

/** Blocks the host until all work of the stream is done, or the device's deadline has passed. */
NDM_API NDM_MUST_USE ndm_status ndm_stream_synchronize(ndm_stream *stream);

/** Nanoseconds the compute stream stood waiting for other streams since the stream was made
 * (exposed communication). */
NDM_API int64_t ndm_stream_waited_ns(const ndm_stream *stream);

NDM_API NDM_MUST_USE ndm_status ndm_event_create(ndm_device *device, ndm_event **event);
NDM_API void ndm_event_destroy(ndm_event *event); /**< NULL is fine */
NDM_API NDM_MUST_USE ndm_status ndm_event_record(ndm_event *event, ndm_stream *stream);

/** Whether the work before the last record is done. Advances queues. An event never recorded is
 * done. */
NDM_API NDM_MUST_USE ndm_status ndm_event_query(ndm_event *event, bool *done);

#ifdef __cplusplus
}
#endif
#endif
