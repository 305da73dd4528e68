/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of the cuda world: what device.c puts in its table. */
#ifndef NDM_DEVICE_CUDA_OPS_H
#define NDM_DEVICE_CUDA_OPS_H

#include "device/cuda/internal.h"

#ifdef __cplusplus
extern "C" {
#endif

ndm_status ndm_cuda_stream_create(ndm_device *device, ndm_stream_kind kind, ndm_stream **stream);
void *ndm_cuda_stream_native(const ndm_stream *stream);
void ndm_cuda_stream_destroy(ndm_stream *stream);
ndm_status ndm_cuda_stream_wait(ndm_stream *stream, ndm_event *event);
ndm_status ndm_cuda_stream_synchronize(ndm_stream *stream);
ndm_status ndm_cuda_event_create(ndm_device *device, ndm_event **event);
void ndm_cuda_event_destroy(ndm_event *event);
ndm_status ndm_cuda_event_record(ndm_event *event, ndm_stream *stream);
ndm_status ndm_cuda_event_query(ndm_event *event, bool *done);
ndm_status ndm_cuda_stream_launch(ndm_stream *stream, const ndm_launch *launch);
ndm_status ndm_cuda_zero(ndm_stream *stream, void *memory, int64_t bytes);
ndm_status ndm_cuda_graph_begin(ndm_stream *stream);
ndm_status ndm_cuda_graph_end(ndm_stream *stream, ndm_graph **graph);
ndm_status ndm_cuda_graph_launch(ndm_graph *graph, ndm_stream *stream);
void ndm_cuda_graph_destroy(ndm_graph *graph);
ndm_status ndm_cuda_widen(ndm_stream *stream, float *dst, const void *src, ndm_dtype dtype,
                          int64_t n);

#ifdef __cplusplus
}
#endif
#endif
