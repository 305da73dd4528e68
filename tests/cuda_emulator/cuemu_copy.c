/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills. Pinned memory copies asynchronously; pageable memory, which the device process
 * reads through the kernel, before the call returns: what CUDA allows, and what its users must
 * expect. */
#include "cuemu_host.h"

#include <stdlib.h>

enum { RANGES = 256 };

static struct {
    uintptr_t at;
    size_t bytes;
} registered[RANGES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static bool is_registered(const void *at, size_t bytes)
{
    uintptr_t p = (uintptr_t)at;
    bool found = false;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES && !found; i++)
        found = registered[i].bytes && p >= registered[i].at &&
                p + bytes <= registered[i].at + registered[i].bytes;
    pthread_mutex_unlock(&lock);
    return found;
}

static bool is_pinned(const void *at, size_t bytes)
{
    uintptr_t p = (uintptr_t)at;
    bool own = p >= CUEMU_SHARED_BASE &&
               p + bytes <= CUEMU_SHARED_BASE + CUEMU_CONTROL->shared_bytes;
    return own || is_registered(at, bytes);
}

cudaError_t cudaHostRegister(void *at, size_t bytes, unsigned flags)
{
    (void)flags;
    cuemu_init();
    cudaError_t error = cudaErrorMemoryAllocation;
    if (!at || !bytes)
        return cuemu_result(cudaErrorInvalidValue);
    if (is_pinned(at, bytes))
        return cuemu_result(cudaErrorHostMemoryAlreadyRegistered);
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES && error; i++)
        if (!registered[i].bytes) {
            registered[i].at = (uintptr_t)at;
            registered[i].bytes = bytes;
            error = cudaSuccess;
        }
    pthread_mutex_unlock(&lock);
    return cuemu_result(error);
}

cudaError_t cudaHostUnregister(void *at)
{
    cuemu_drain_all();
    cudaError_t error = cudaErrorHostMemoryNotRegistered;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < RANGES && error; i++)
        if (registered[i].bytes && registered[i].at == (uintptr_t)at) {
            registered[i].bytes = 0;
            error = cudaSuccess;
        }
    pthread_mutex_unlock(&lock);
    return cuemu_result(error);
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *at)
{
    cuemu_init();
    bool device = cuemu_is_device(at, 1), pinned = is_pinned(at, 1);
    *attributes = (struct cudaPointerAttributes){.type = device   ? cudaMemoryTypeDevice
                                                         : pinned ? cudaMemoryTypeHost
                                                                  : cudaMemoryTypeUnregistered};
    cudaGetDevice(&attributes->device);
    attributes->devicePointer = device || pinned ? (void *)(uintptr_t)at : NULL;
    attributes->hostPointer = device ? NULL : (void *)(uintptr_t)at;
    return cudaSuccess;
}

static bool kind_fits(enum cudaMemcpyKind kind, bool to_device, bool from_device)
{
    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    default:
        return kind == cudaMemcpyDefault;
    }
}

static cudaError_t copy(const cuemu_record *r, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (!r->u.copy.width || !r->u.copy.height)
        return cudaSuccess;
    size_t to_bytes = r->u.copy.dst_pitch * (r->u.copy.height - 1) + r->u.copy.width;
    size_t from_bytes = r->u.copy.src_pitch * (r->u.copy.height - 1) + r->u.copy.width;
    const void *to = (const void *)r->u.copy.dst, *from = (const void *)r->u.copy.src;
    bool to_device = cuemu_is_device(to, to_bytes), from_device = cuemu_is_device(from, from_bytes);
    if (!kind_fits(kind, to_device, from_device))
        return cudaErrorInvalidMemcpyDirection;
    bool pageable = (!to_device && !is_pinned(to, to_bytes)) ||
                    (!from_device && !is_pinned(from, from_bytes));
    if (pageable && stream->capture)
        return cuemu_capture_forbid(stream);
    cudaError_t error = cuemu_push(stream, r);
    return error || !pageable ? error : cuemu_drain(stream);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    cuemu_record r = {.kind = CUEMU_COPY,
                      .u.copy = {.dst = (uintptr_t)dst,
                                 .src = (uintptr_t)src,
                                 .dst_pitch = dst_pitch,
                                 .src_pitch = src_pitch,
                                 .width = width,
                                 .height = height}};
    if (!cuemu_stream_valid(stream))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (width > dst_pitch || width > src_pitch)
        return cuemu_result(cudaErrorInvalidPitchValue);
    return cuemu_result(copy(&r, kind, stream));
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(dst, bytes, src, bytes, bytes, 1, kind, stream);
}

static cudaError_t finish(cudaError_t error)
{
    return error ? error : cuemu_result(cuemu_drain(cuemu_own_stream()));
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return finish(cudaMemcpyAsync(dst, src, bytes, kind, cuemu_own_stream()));
}

cudaError_t cudaMemcpy2D(void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t height, enum cudaMemcpyKind kind)
{
    return finish(
        cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, height, kind, cuemu_own_stream()));
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream)
{
    if (!bytes)
        return cudaSuccess;
    if (!cuemu_is_device(at, bytes) && !is_pinned(at, bytes))
        return cuemu_result(cudaErrorInvalidValue);
    cuemu_record r = {.kind = CUEMU_FILL, .u.fill = {(uintptr_t)at, bytes, value}};
    return cuemu_result(cuemu_push(stream, &r));
}

cudaError_t cudaMemset(void *at, int value, size_t bytes)
{
    return finish(cudaMemsetAsync(at, value, bytes, cuemu_own_stream()));
}
