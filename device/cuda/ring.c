/* SPDX-License-Identifier: Apache-2.0 */
/* Copies between host and device through a ring of pinned memory: the host's own memory may be
 * reused at once, and the device copies while both go on.
 *
 * An upload is copied into the ring now, and to the device on the stream. A download is copied into
 * the ring on the stream, and to its target when the host learns that this has been done: by the
 * next wait for the stream. The ring makes the host wait only when it is full. */
#include <stdlib.h>
#include <string.h>

#include "device/cuda/internal.h"

static const int64_t RING_BYTES = 16 << 20;
static const int64_t PIECE_BYTES = 4 << 20; /* larger copies are cut */
static const int64_t ALIGN = 256;

ndm_status ndm_cuda_pin(int64_t bytes, void **memory)
{
    cudaError_t error = cudaMallocHost(memory, (size_t)bytes);

    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        NDM_FAIL(NDM_ERR_MEMORY, "device: cuda: no %lld bytes of pinned host memory",
                 (long long)bytes);
    }
    NDM_CUDA_TRY("pinned host memory", error); /* of what was launched before */
    return NDM_OK;
}

void ndm_cuda_unpin(void *memory)
{
    if (memory)
        (void)cudaFreeHost(memory);
}

static ndm_cuda_piece *piece_at(ndm_cuda_ring *ring, int64_t i)
{
    return &ring->pieces[(ring->first + i) % NDM_CUDA_PIECES];
}

static void deliver(const ndm_cuda_ring *ring, ndm_cuda_piece *piece)
{
    if (piece->target)
        memcpy(piece->target, ring->memory + piece->begin % RING_BYTES, (size_t)piece->bytes);
    piece->target = NULL;
}

void ndm_cuda_deliver(ndm_cuda_dev *device)
{
    ndm_cuda_ring *ring = &device->ring;
    bool all = true;

    for (int64_t i = 0, n = ring->count; i < n; i++) {
        ndm_cuda_piece *piece = piece_at(ring, all ? 0 : i - (n - ring->count));
        if (cudaEventQuery(piece->done) != cudaSuccess) {
            all = false;
            continue;
        }
        deliver(ring, piece);
        if (all) {
            ring->first = (ring->first + 1) % NDM_CUDA_PIECES;
            ring->count--;
        }
    }
}

static ndm_status drop_first(ndm_cuda_dev *device)
{
    ndm_cuda_ring *ring = &device->ring;
    ndm_cuda_piece *piece = piece_at(ring, 0);

    if (cudaEventQuery(piece->done) != cudaSuccess)
        NDM_TRY(ndm_cuda_wait_event(device, piece->done, "a copy between host and device"));
    deliver(ring, piece);
    ring->first = (ring->first + 1) % NDM_CUDA_PIECES;
    ring->count--;
    return NDM_OK;
}

static ndm_status open_ring(ndm_cuda_ring *ring)
{
    void *memory = NULL;

    NDM_TRY(ndm_cuda_pin(RING_BYTES, &memory));
    ring->memory = memory;
    for (int i = 0; i < NDM_CUDA_PIECES; i++)
        NDM_CUDA_TRY("event",
                     cudaEventCreateWithFlags(&ring->pieces[i].done, cudaEventDisableTiming));
    return NDM_OK;
}

/* The next piece, which does not cross the ring's end. Its `done` is to be recorded before anything
 * else happens to the ring. */
static ndm_status take(ndm_cuda_dev *device, int64_t bytes, ndm_cuda_piece **piece)
{
    ndm_cuda_ring *ring = &device->ring;
    int64_t begin, end;

    if (!ring->memory)
        NDM_TRY(open_ring(ring));
    begin = ring->end;
    if (begin % RING_BYTES + bytes > RING_BYTES)
        begin += RING_BYTES - begin % RING_BYTES;
    end = begin + (bytes + ALIGN - 1) / ALIGN * ALIGN;
    while (ring->count > 0 &&
           (ring->count == NDM_CUDA_PIECES || end - piece_at(ring, 0)->begin > RING_BYTES))
        NDM_TRY(drop_first(device));
    ring->end = end;
    *piece = piece_at(ring, ring->count);
    (*piece)->begin = begin;
    (*piece)->end = end;
    (*piece)->bytes = bytes;
    (*piece)->target = NULL;
    return NDM_OK;
}

static ndm_status finish(ndm_cuda_ring *ring, ndm_cuda_piece *piece, cudaStream_t stream)
{
    NDM_CUDA_TRY("copy", cudaEventRecord(piece->done, stream));
    ring->count++;
    return NDM_OK;
}

static ndm_status copy_piece(ndm_cuda_dev *device, cudaStream_t stream, char *dst, const char *src,
                             int64_t bytes, ndm_copy_kind kind)
{
    ndm_cuda_ring *ring = &device->ring;
    ndm_cuda_piece *piece;

    NDM_TRY(take(device, bytes, &piece));
    char *pinned = ring->memory + piece->begin % RING_BYTES;
    if (kind == NDM_HOST_TO_DEVICE) {
        memcpy(pinned, src, (size_t)bytes);
        NDM_CUDA_TRY("copy",
                     cudaMemcpyAsync(dst, pinned, (size_t)bytes, cudaMemcpyHostToDevice, stream));
        return finish(ring, piece, stream);
    }
    NDM_CUDA_TRY("copy",
                 cudaMemcpyAsync(pinned, src, (size_t)bytes, cudaMemcpyDeviceToHost, stream));
    piece->target = dst;
    return finish(ring, piece, stream);
}

ndm_status ndm_cuda_copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                         ndm_copy_kind kind)
{
    cudaStream_t handle = ndm_cuda_stream_handle(stream);

    if (kind == NDM_DEVICE_TO_DEVICE) {
        NDM_CUDA_TRY("copy",
                     cudaMemcpyAsync(dst, src, (size_t)bytes, cudaMemcpyDeviceToDevice, handle));
        return NDM_OK;
    }
    if (ndm_cuda_spoil(ndm_cuda_of(stream->device), "a copy between host and device"))
        return NDM_OK;
    for (int64_t at = 0; at < bytes; at += PIECE_BYTES)
        NDM_TRY(copy_piece(ndm_cuda_of(stream->device), handle, (char *)dst + at,
                           (const char *)src + at,
                           bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES, kind));
    return NDM_OK;
}

void ndm_cuda_ring_finish(ndm_cuda_dev *device)
{
    ndm_cuda_ring *ring = &device->ring;

    for (int i = 0; ring->memory && i < NDM_CUDA_PIECES; i++)
        if (ring->pieces[i].done)
            (void)cudaEventDestroy(ring->pieces[i].done);
    ndm_cuda_unpin(ring->memory);
    ring->memory = NULL;
}
