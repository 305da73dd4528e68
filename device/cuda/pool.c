/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory kept for reuse: cudaMalloc() and cudaFree() wait for the whole device.
 *
 * Memory comes in segments, cut into blocks; neighbours that are free are one block again. Small
 * requests have segments of their own, so that they do not cut up large ones. A block that is given
 * back while a stream still works is marked with an event of each such stream, and is nobody's
 * until they have passed; the host never waits for that, unless there is no other memory left. */
#include <stdlib.h>
#include <string.h>

#include "device/cuda/internal.h"

static const int64_t UNIT = 512;      /* blocks are multiples of this */
static const int64_t SMALL = 1 << 20; /* requests up to this come from small segments */
static const int64_t SMALL_SEGMENT = 2 << 20;
static const int64_t LARGE_SEGMENT = 32 << 20; /* of requests up to half of it */
static const int64_t ROUND = 2 << 20;          /* larger segments are multiples of this */

struct ndm_cuda_block {
    ndm_cuda_block *previous, *next; /* neighbours in the segment */
    char *memory;
    int64_t bytes;
    bool free;
    bool held, retired; /* a graph uses it; and it was given back meanwhile */
    int n_fences;       /* > 0: given back, and not free yet */
    cudaEvent_t fences[NDM_CUDA_STREAMS_MAX];
};

struct ndm_cuda_segment {
    ndm_cuda_segment *next;
    ndm_cuda_block *first;
    char *memory;
    int64_t bytes;
    bool small;
};

static int64_t round_up(int64_t bytes, int64_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

/* ---- events that mark blocks --------------------------------------------------------------- */

static bool fence_take(ndm_cuda_pool *pool, cudaEvent_t *event)
{
    if (pool->n_spare > 0) {
        *event = pool->spare[--pool->n_spare];
        return true;
    }
    return cudaEventCreateWithFlags(event, cudaEventDisableTiming) == cudaSuccess;
}

static void fence_give(ndm_cuda_pool *pool, cudaEvent_t event)
{
    if (pool->n_spare == pool->spare_capacity) {
        int64_t capacity = pool->spare_capacity ? 2 * pool->spare_capacity : 64;
        cudaEvent_t *spare = realloc(pool->spare, (size_t)capacity * sizeof(cudaEvent_t));
        if (!spare) {
            (void)cudaEventDestroy(event);
            return;
        }
        pool->spare = spare;
        pool->spare_capacity = capacity;
    }
    pool->spare[pool->n_spare++] = event;
}

/* An event in every stream that is still at work. Where one cannot be had, the stream is waited
 * for: what it fails with is seen by the next call on it. */
static void fence_block(ndm_cuda_dev *device, ndm_cuda_block *block)
{
    for (ndm_cuda_stream *s = device->streams; s; s = s->next) {
        cudaEvent_t event;
        if (cudaStreamQuery(s->handle) == cudaSuccess)
            continue;
        if (fence_take(&device->pool, &event) && cudaEventRecord(event, s->handle) == cudaSuccess)
            block->fences[block->n_fences++] = event;
        else
            (void)!ndm_cuda_wait_stream(device, s->handle, "memory that is given back");
    }
    device->pool.pending += block->n_fences > 0;
}

/* Drops the events that have passed. */
static void fence_check(ndm_cuda_dev *device, ndm_cuda_block *block)
{
    int left = 0;

    for (int i = 0; i < block->n_fences; i++) {
        if (cudaEventQuery(block->fences[i]) == cudaErrorNotReady)
            block->fences[left++] = block->fences[i];
        else
            fence_give(&device->pool, block->fences[i]);
    }
    device->pool.pending -= left == 0;
    block->n_fences = left;
}

/* ---- blocks --------------------------------------------------------------------------------- */

static bool absorb_next(ndm_cuda_block *block)
{
    ndm_cuda_block *next = block->next;

    if (!next || !next->free)
        return false;
    block->bytes += next->bytes;
    block->next = next->next;
    if (block->next)
        block->next->previous = block;
    free(next);
    return true;
}

static void set_free(ndm_cuda_block *block)
{
    block->free = true;
    (void)absorb_next(block);
    if (block->previous && block->previous->free)
        (void)absorb_next(block->previous);
}

/* Leaves the rest as a free block, unless it is too little to be of use. */
static void split(ndm_cuda_block *block, int64_t bytes, bool small)
{
    int64_t least = small ? UNIT : SMALL;
    ndm_cuda_block *rest;

    if (block->bytes - bytes < least || !(rest = calloc(1, sizeof *rest)))
        return;
    *rest = (ndm_cuda_block){.previous = block,
                             .next = block->next,
                             .memory = block->memory + bytes,
                             .bytes = block->bytes - bytes,
                             .free = true};
    if (rest->next)
        rest->next->previous = rest;
    block->next = rest;
    block->bytes = bytes;
}

/* Looks after the blocks that wait for streams, in all segments. */
static void sweep(ndm_cuda_dev *device)
{
    for (ndm_cuda_segment *s = device->pool.segments; s && device->pool.pending > 0; s = s->next)
        for (ndm_cuda_block *b = s->first; b; b = b->next) {
            if (b->n_fences == 0)
                continue;
            fence_check(device, b);
            if (b->n_fences > 0)
                continue;
            set_free(b);
            b = s->first; /* it may be part of another by now */
        }
}

static ndm_cuda_block *best_fit(const ndm_cuda_pool *pool, int64_t bytes, bool small)
{
    ndm_cuda_block *best = NULL;

    for (ndm_cuda_segment *s = pool->segments; s; s = s->next)
        for (ndm_cuda_block *b = s->small == small ? s->first : NULL; b; b = b->next)
            if (b->free && b->bytes >= bytes && (!best || b->bytes < best->bytes))
                best = b;
    return best;
}

/* ---- segments ------------------------------------------------------------------------------- */

/* No memory is an answer, without a message; any other error is of what was launched before. */
static ndm_status segment_take(int64_t bytes, void **memory)
{
    cudaError_t error = cudaMalloc(memory, (size_t)bytes);

    if (error != cudaErrorMemoryAllocation)
        return ndm_cuda_check(error, "memory of the device", __FILE__, __LINE__);
    (void)cudaGetLastError();
    return NDM_ERR_MEMORY;
}

static ndm_status segment_add(ndm_cuda_pool *pool, int64_t bytes, bool small,
                              ndm_cuda_block **block)
{
    ndm_cuda_segment *s = calloc(1, sizeof *s);
    ndm_cuda_block *b = calloc(1, sizeof *b);
    void *memory = NULL;
    ndm_status status = s && b ? segment_take(bytes, &memory) : NDM_ERR_MEMORY;

    if (status != NDM_OK) {
        free(s);
        free(b);
        return status;
    }
    *b = (ndm_cuda_block){.memory = memory, .bytes = bytes, .free = true};
    *s = (ndm_cuda_segment){pool->segments, b, memory, bytes, small};
    pool->segments = s;
    pool->reserved_bytes += bytes;
    if (pool->reserved_bytes > pool->peak_reserved_bytes)
        pool->peak_reserved_bytes = pool->reserved_bytes;
    *block = b;
    return NDM_OK;
}

static void segment_drop(ndm_cuda_pool *pool, ndm_cuda_segment **link)
{
    ndm_cuda_segment *s = *link;

    *link = s->next;
    pool->reserved_bytes -= s->bytes;
    (void)cudaFree(s->memory);
    while (s->first) {
        ndm_cuda_block *next = s->first->next;
        free(s->first);
        s->first = next;
    }
    free(s);
}

static void drop_unused_segments(ndm_cuda_dev *device)
{
    ndm_cuda_segment **link = &device->pool.segments;

    while (*link) {
        if ((*link)->first->free && !(*link)->first->next) {
            for (ndm_cuda_watch *w = device->watches; w; w = w->next)
                if (w->release)
                    w->release(w, (*link)->memory);
            segment_drop(&device->pool, link);
        } else
            link = &(*link)->next;
    }
}

static ndm_status grow(ndm_cuda_pool *pool, int64_t bytes, bool small, ndm_cuda_block **block)
{
    int64_t segment = small                        ? SMALL_SEGMENT
                      : bytes <= LARGE_SEGMENT / 2 ? LARGE_SEGMENT
                                                   : round_up(bytes, ROUND);
    ndm_status status = segment_add(pool, segment, small, block);

    return status == NDM_ERR_MEMORY && segment > bytes
               ? segment_add(pool, round_up(bytes, ROUND), small, block)
               : status;
}

/* The last resort: what streams still use is waited for, what nobody uses goes back. */
static ndm_status collect(ndm_cuda_dev *device, int64_t bytes, bool small, ndm_cuda_block **block)
{
    ndm_cuda_pool *pool = &device->pool;

    if (device->capture)
        return NDM_ERR_MEMORY; /* nothing can be waited for */
    if (pool->pending > 0) {
        for (ndm_cuda_stream *s = device->streams; s; s = s->next)
            NDM_TRY(ndm_cuda_wait_stream(device, s->handle, "memory that is given back"));
        sweep(device);
        *block = best_fit(pool, bytes, small);
        if (*block)
            return NDM_OK;
    }
    drop_unused_segments(device);
    return grow(pool, bytes, small, block);
}

/* ---- the pool ------------------------------------------------------------------------------- */

ndm_status ndm_cuda_alloc(ndm_device *device, int64_t bytes, void **memory)
{
    ndm_cuda_dev *d = ndm_cuda_of(device);
    ndm_cuda_pool *pool = &d->pool;
    int64_t rounded = round_up(bytes > 0 ? bytes : 1, UNIT);
    bool small = rounded <= SMALL;

    sweep(d);
    ndm_cuda_block *b = best_fit(pool, rounded, small);
    ndm_status status = b ? NDM_OK : grow(pool, rounded, small, &b);
    if (status == NDM_ERR_MEMORY)
        status = collect(d, rounded, small, &b);
    if (status != NDM_OK)
        return status;
    split(b, rounded, small);
    b->free = false;
    pool->used_bytes += b->bytes;
    if (pool->used_bytes > pool->peak_used_bytes)
        pool->peak_used_bytes = pool->used_bytes;
    *memory = b->memory;
    return NDM_OK;
}

static ndm_cuda_block *find(const ndm_cuda_pool *pool, const char *memory)
{
    for (ndm_cuda_segment *s = pool->segments; s; s = s->next) {
        if (memory < s->memory || memory >= s->memory + s->bytes)
            continue;
        for (ndm_cuda_block *b = s->first; b; b = b->next)
            if (b->memory == memory)
                return b;
    }
    return NULL;
}

static void give(ndm_cuda_dev *device, ndm_cuda_block *block)
{
    device->pool.used_bytes -= block->bytes;
    fence_block(device, block);
    if (block->n_fences == 0)
        set_free(block);
}

void ndm_cuda_free(ndm_device *device, void *memory, int64_t bytes)
{
    ndm_cuda_dev *d = ndm_cuda_of(device);
    ndm_cuda_block *b = memory ? find(&d->pool, memory) : NULL;

    (void)bytes;
    if (!b)
        return;
    if (b->held || d->capture) {
        b->retired = true;
        d->pool.retired++;
        return;
    }
    give(d, b);
}

void ndm_cuda_pool_hold(ndm_cuda_dev *device)
{
    for (ndm_cuda_segment *s = device->pool.segments; s; s = s->next)
        for (ndm_cuda_block *b = s->first; b; b = b->next)
            b->held = !b->free && b->n_fences == 0;
}

/* Blocks that become free may be joined with the next ones: those are looked at again. */
static bool release_one(ndm_cuda_dev *device, ndm_cuda_segment *segment)
{
    for (ndm_cuda_block *b = segment->first; b; b = b->next) {
        b->held = false;
        if (!b->retired)
            continue;
        b->retired = false;
        device->pool.retired--;
        give(device, b);
        return true;
    }
    return false;
}

void ndm_cuda_pool_release(ndm_cuda_dev *device)
{
    for (ndm_cuda_segment *s = device->pool.segments; s; s = s->next)
        while (release_one(device, s))
            ;
}

bool ndm_cuda_segment_of(const ndm_device *device, const void *memory, void **base, int64_t *bytes)
{
    const char *at = memory;

    for (ndm_cuda_segment *s = ((const ndm_cuda_dev *)device)->pool.segments; s; s = s->next)
        if (at >= s->memory && at < s->memory + s->bytes) {
            *base = s->memory;
            *bytes = s->bytes;
            return true;
        }
    return false;
}

void ndm_cuda_pool_stats(const ndm_device *device, ndm_memory_pool *stats)
{
    const ndm_cuda_pool *pool = &((const ndm_cuda_dev *)device)->pool;

    *stats = (ndm_memory_pool){.reserved_bytes = pool->reserved_bytes,
                               .peak_reserved_bytes = pool->peak_reserved_bytes,
                               .used_bytes = pool->used_bytes,
                               .peak_used_bytes = pool->peak_used_bytes};
    for (const ndm_cuda_segment *s = pool->segments; s; s = s->next)
        for (const ndm_cuda_block *b = s->first; b; b = b->next)
            if (b->free && b->bytes > stats->largest_free_bytes)
                stats->largest_free_bytes = b->bytes;
}

void ndm_cuda_pool_finish(ndm_cuda_dev *device)
{
    ndm_cuda_pool *pool = &device->pool;

    for (ndm_cuda_segment *s = pool->segments; s; s = s->next)
        for (ndm_cuda_block *b = s->first; b; b = b->next)
            for (int i = 0; i < b->n_fences; i++)
                fence_give(pool, b->fences[i]);
    while (pool->segments)
        segment_drop(pool, &pool->segments);
    while (pool->n_spare > 0)
        (void)cudaEventDestroy(pool->spare[--pool->n_spare]);
    free(pool->spare);
    pool->spare = NULL;
}
