/* SPDX-License-Identifier: Apache-2.0 */
/* Memory: device and pinned heaps (first fit, neighbours merged), stream-ordered frees, copies and
 * fills. */
#include "cuemu_host.h"

#include <fcntl.h>
#include <stdlib.h>

enum { GRAIN = 512, RED_ZONE = 512, FENCE_BYTES = 64 << 10, FILL_BYTES = 16 << 20 };

typedef struct block {
    uintptr_t at;
    size_t bytes, asked; /* asked: 0 for a hole */
    struct block *next;  /* by address */
} block;

typedef struct {
    block *first;
    size_t used, peak;
} heap;

typedef struct later { /* freed in stream order: usable once the event is done */
    void *at;
    cudaEvent_t event;
    struct later *next;
} later;

static heap device_heap, pinned_heap;
static later *freed_later;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void init(void)
{
    cuemu_own_stream();
    pthread_mutex_lock(&lock);
    if (!device_heap.first) {
        device_heap.first = calloc(1, sizeof(block));
        pinned_heap.first = calloc(1, sizeof(block));
        if (!device_heap.first || !pinned_heap.first)
            abort();
        *device_heap.first = (block){CUEMU_DEVICE_BASE, CUEMU_CONTROL->device_bytes, 0, NULL};
        *pinned_heap.first = (block){CUEMU_SHARED_BASE + CUEMU_CONTROL_BYTES,
                                     CUEMU_CONTROL->shared_bytes - CUEMU_CONTROL_BYTES, 0, NULL};
    }
    pthread_mutex_unlock(&lock);
}

static void *heap_take(heap *h, size_t asked)
{
    size_t bytes = (asked + RED_ZONE + GRAIN - 1) / GRAIN * GRAIN;
    block *b = h->first;
    while (b && (b->asked || b->bytes < bytes))
        b = b->next;
    if (!b)
        return NULL;
    if (b->bytes > bytes) {
        block *rest = malloc(sizeof *rest);
        if (!rest)
            abort();
        *rest = (block){b->at + bytes, b->bytes - bytes, 0, b->next};
        b->next = rest;
        b->bytes = bytes;
    }
    b->asked = asked;
    h->used += bytes;
    h->peak = h->used > h->peak ? h->used : h->peak;
    return (void *)b->at;
}

static void absorb_next(block *b)
{
    block *n = b->next;
    if (!n || n->asked || b->asked)
        return;
    b->bytes += n->bytes;
    b->next = n->next;
    free(n);
}

static size_t heap_give(heap *h, const void *at) /* the bytes that were asked, or 0: not ours */
{
    block *before = NULL, *b = h->first;
    while (b && b->at != (uintptr_t)at) {
        before = b;
        b = b->next;
    }
    if (!b || !b->asked)
        return 0;
    size_t asked = b->asked;
    h->used -= b->bytes;
    b->asked = 0;
    absorb_next(b);
    if (before)
        absorb_next(before);
    return asked;
}

bool cuemu_is_device(const void *at, size_t bytes)
{
    uintptr_t p = (uintptr_t)at;
    cuemu_init();
    return p >= CUEMU_DEVICE_BASE && p + bytes <= CUEMU_DEVICE_BASE + CUEMU_CONTROL->device_bytes;
}

/* What lies behind a block and belongs to nobody, up to a limit: the sanitizer shall forbid it. */
static size_t fence_bytes(const heap *h, const void *at)
{
    const block *b = h->first;
    while (b->at != (uintptr_t)at)
        b = b->next;
    size_t hole = b->next && !b->next->asked ? b->next->bytes : 0;
    return b->bytes - b->asked + (hole < FENCE_BYTES ? hole : FENCE_BYTES);
}

static cudaError_t put_fill(cuemu_kind kind, uintptr_t at, size_t bytes, int value)
{
    cuemu_record r = {.kind = kind, .u.fill = {at, bytes, value}};
    return cuemu_put(cuemu_own_stream(), &r);
}

/* Opens a block for the sanitizer and fills it with NaN: nothing may count on zeros. */
static cudaError_t open_block(void *start, size_t bytes, size_t fence)
{
    uintptr_t at = (uintptr_t)start;
    cudaError_t error = put_fill(CUEMU_POISON, at, bytes, 0);
    if (!error)
        error = put_fill(CUEMU_POISON, at + bytes, fence, 1);
    if (!error)
        error = put_fill(CUEMU_FILL, at, bytes < FILL_BYTES ? bytes : FILL_BYTES, 0xff);
    return error ? error : cuemu_drain(cuemu_own_stream());
}

static void close_block(const void *at, size_t bytes)
{
    if (!put_fill(CUEMU_POISON, (uintptr_t)at, bytes, 1))
        cuemu_drain(cuemu_own_stream());
    if (bytes >= 1 << 20) /* the pages go back to the system */
        fallocate(cuemu_device_fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  (off_t)((uintptr_t)at - CUEMU_DEVICE_BASE), (off_t)bytes);
}

static void reap(void) /* lock held */
{
    for (later **p = &freed_later; *p;) {
        later *l = *p;
        if (cudaEventQuery(l->event) == cudaErrorNotReady) {
            p = &l->next;
            continue;
        }
        close_block(l->at, heap_give(&device_heap, l->at));
        cudaEventDestroy(l->event);
        *p = l->next;
        free(l);
    }
}

static cudaError_t device_take(void **at, size_t bytes)
{
    init();
    cudaError_t error = cuemu_health();
    if (error)
        return error;
    if (!bytes) {
        *at = NULL;
        return cudaSuccess;
    }
    pthread_mutex_lock(&lock);
    reap();
    void *p = heap_take(&device_heap, bytes);
    if (p)
        error = open_block(p, bytes, fence_bytes(&device_heap, p));
    pthread_mutex_unlock(&lock);
    if (p)
        *at = p;
    return p ? error : cudaErrorMemoryAllocation;
}

cudaError_t cudaMalloc(void **at, size_t bytes)
{
    if (cuemu_capture_strict())
        return cuemu_result(cudaErrorStreamCaptureUnsupported);
    return cuemu_result(device_take(at, bytes));
}

cudaError_t cudaFree(void *at)
{
    if (!at)
        return cudaSuccess;
    if (cuemu_capture_strict())
        return cuemu_result(cudaErrorStreamCaptureUnsupported);
    init();
    cudaError_t error = cuemu_drain_all(); /* as CUDA does */
    pthread_mutex_lock(&lock);
    size_t bytes = heap_give(&device_heap, at);
    if (bytes)
        close_block(at, bytes);
    pthread_mutex_unlock(&lock);
    return cuemu_result(bytes ? error : cudaErrorInvalidValue);
}

cudaError_t cudaMallocAsync(void **at, size_t bytes, cudaStream_t stream)
{
    if (!cuemu_stream_valid(stream) || stream->capture)
        return cuemu_result(stream ? cudaErrorStreamCaptureUnsupported
                                   : cudaErrorInvalidResourceHandle);
    cudaError_t error = device_take(at, bytes);
    for (int i = 0; error == cudaErrorMemoryAllocation && i < 2;
         i++) { /* what is freed later may do */
        cuemu_drain_all();
        error = device_take(at, bytes);
    }
    return cuemu_result(error);
}

cudaError_t cudaFreeAsync(void *at, cudaStream_t stream)
{
    if (!at)
        return cudaSuccess;
    if (!cuemu_stream_valid(stream) || stream->capture)
        return cuemu_result(stream ? cudaErrorStreamCaptureUnsupported
                                   : cudaErrorInvalidResourceHandle);
    later *l = calloc(1, sizeof *l);
    if (!l)
        abort();
    l->at = at;
    cudaError_t error = cudaEventCreateWithFlags(&l->event, cudaEventDisableTiming);
    if (!error)
        error = cudaEventRecord(l->event, stream);
    pthread_mutex_lock(&lock);
    l->next = freed_later;
    freed_later = l;
    pthread_mutex_unlock(&lock);
    return cuemu_result(error);
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    init();
    pthread_mutex_lock(&lock);
    reap();
    *total = CUEMU_CONTROL->device_bytes;
    *free_bytes = *total - device_heap.used;
    pthread_mutex_unlock(&lock);
    return cuemu_result(cuemu_health());
}

/* ---- pools: one, and it keeps nothing back ---- */

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device)
{
    (void)device;
    *pool = (cudaMemPool_t)&device_heap;
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    (void)value;
    if (pool != (cudaMemPool_t)&device_heap)
        return cuemu_result(cudaErrorInvalidValue);
    if (attribute == cudaMemPoolAttrUsedMemHigh || attribute == cudaMemPoolAttrReservedMemHigh)
        device_heap.peak = device_heap.used;
    return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value)
{
    if (pool != (cudaMemPool_t)&device_heap)
        return cuemu_result(cudaErrorInvalidValue);
    switch (attribute) {
    case cudaMemPoolAttrUsedMemCurrent:
    case cudaMemPoolAttrReservedMemCurrent:
        *(uint64_t *)value = device_heap.used;
        return cudaSuccess;
    case cudaMemPoolAttrUsedMemHigh:
    case cudaMemPoolAttrReservedMemHigh:
        *(uint64_t *)value = device_heap.peak;
        return cudaSuccess;
    case cudaMemPoolAttrReleaseThreshold:
        *(uint64_t *)value = 0;
        return cudaSuccess;
    default:
        return cuemu_result(cudaErrorNotSupported);
    }
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep)
{
    (void)keep;
    return cuemu_result(pool == (cudaMemPool_t)&device_heap ? cudaSuccess : cudaErrorInvalidValue);
}

/* ---- pinned host memory ---- */

cudaError_t cudaHostAlloc(void **at, size_t bytes, unsigned flags)
{
    (void)flags;
    init();
    pthread_mutex_lock(&lock);
    void *p = heap_take(&pinned_heap, bytes ? bytes : 1);
    pthread_mutex_unlock(&lock);
    if (p)
        *at = p;
    return cuemu_result(p ? cuemu_health() : cudaErrorMemoryAllocation);
}

cudaError_t cudaMallocHost(void **at, size_t bytes)
{
    return cudaHostAlloc(at, bytes, 0);
}

cudaError_t cudaFreeHost(void *at)
{
    if (!at)
        return cudaSuccess;
    init();
    cudaError_t error = cuemu_drain_all();
    pthread_mutex_lock(&lock);
    size_t bytes = heap_give(&pinned_heap, at);
    pthread_mutex_unlock(&lock);
    return cuemu_result(bytes ? error : cudaErrorInvalidValue);
}
