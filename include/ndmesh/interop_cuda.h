/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * For programs that have CUDA already: a context works on their device and in order with their
 * stream. Include it beside ndmesh.h; it needs CUDA's runtime header.
 */
#ifndef NDMESH_INTEROP_CUDA_H
#define NDMESH_INTEROP_CUDA_H

#include <cuda_runtime_api.h>
#include <ndmesh/context.h>
#include <ndmesh/device.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Lets ndm_context_create() work on a device and a stream of the program.
 *
 * @param options  its device becomes "cuda"
 * @param device   as cudaSetDevice() takes it; the thread that creates the context is left on it.
 * -1: by the rank's place on its host
 * @param compute  the stream that kernels of ndmesh run on, in order with the program's own work on
 *                 it; made on `device`, not the legacy default stream. Not owned: destroy it after
 *                 ndm_context_destroy(). NULL: a stream of the context's own, which
 *                 ndm_stream_cuda(ndm_context_stream()) gives
 *
 * Gathers and reductions run on streams of the context's own, ordered with it by events. Steps are
 * launched as graphs (cuda_graphs) on this stream too: other work must not be given to it by
 * another thread meanwhile.
 */
static inline void ndm_context_options_take_cuda(ndm_context_options *options, int device,
                                                 cudaStream_t compute)
{
    options->device = "cuda";
    options->device_index = device;
    options->compute_stream = compute;
}

/** CUDA's handle of a stream of device cuda, owned by the stream; NULL on other devices. */
static inline cudaStream_t ndm_stream_cuda(const ndm_stream *stream)
{
    return (cudaStream_t)ndm_stream_native(stream);
}

#ifdef __cplusplus
}
#endif
#endif
