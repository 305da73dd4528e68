/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that units take in turn. A buffer given back may still be read by queued kernels: whoever
 * takes it next waits, on its own stream, for the event recorded then. So memory is reused without
 * the host waiting. */
#include <stdlib.h>

#include "strategies/internal.h"

enum { SLACK = 64 }; /* a buffer may be larger by one part in so many */

ndm_status ndm_window_alloc(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                            void **window)
{
    *window = NULL;
    if (ndm_comm_size(comm) == 1 || !comm->backend->window_alloc)
        return NDM_OK;
    ndm_status status = comm->backend->window_alloc(comm, bytes_per_rank, kind, window);
    return status == NDM_ERR_UNSUPPORTED ? NDM_OK : status;
}

void ndm_window_free(ndm_comm *comm, void *window)
{
    if (window)
        comm->backend->window_free(comm, window);
}

/* In a window of `comm` if there can be one, else this rank's own. */
static ndm_status buffer_allocate(ndm_context *context, ndm_comm *comm, ndm_pool_buffer *b)
{
    if (comm)
        NDM_TRY(ndm_window_alloc(comm, b->bytes, b->kind, &b->window));
    b->shared = comm;
    if (!b->window)
        return ndm_device_alloc(context->device, b->bytes, b->kind, &b->memory);
    b->memory = (char *)b->window + ndm_comm_index(comm) * b->bytes;
    return NDM_OK;
}

static ndm_status buffer_create(ndm_context *context, ndm_comm *comm, int64_t bytes,
                                ndm_memory_kind kind, ndm_pool_buffer **buffer)
{
    ndm_pool_buffer *b = calloc(1, sizeof *b);
    ndm_status status = NDM_OK;

    if (!b)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a buffer's record");
    b->bytes = bytes;
    b->kind = kind;
    NDM_TRY_OR(status, ndm_event_create(context->device, &b->last_use), free_buffer);
    NDM_TRY_OR(status, buffer_allocate(context, comm, b), destroy_event);
    b->next = context->pool;
    context->pool = b;
    *buffer = b;
    return NDM_OK;

destroy_event:
    ndm_event_destroy(b->last_use);
free_buffer:
    free(b);
    return status;
}

bool ndm_pool_fits(int64_t have, int64_t want)
{
    return have >= want && have - want <= want / SLACK;
}

/* A free one of nearly the size, or of more, that is not `busy`. Ranks take and give in the same
 * order, so they find the same. */
static ndm_pool_buffer *find(const ndm_context *context, const ndm_pool_buffer *wanted, bool more,
                             const ndm_pool_buffer *busy)
{
    ndm_pool_buffer *b = context->pool;

    while (b && (b->taken || b == busy || b->kind != wanted->kind || b->shared != wanted->shared ||
                 (more ? b->bytes <= wanted->bytes : !ndm_pool_fits(b->bytes, wanted->bytes))))
        b = b->next;
    return b;
}

static ndm_status use(ndm_pool_buffer *b, int64_t bytes, ndm_stream *stream,
                      ndm_pool_buffer **buffer)
{
    NDM_TRY(ndm_stream_wait(stream, b->last_use));
    b->taken = true;
    b->lent = !ndm_pool_fits(b->bytes, bytes);
    *buffer = b;
    return NDM_OK;
}

static ndm_status make(ndm_context *context, const ndm_pool_buffer *wanted,
                       ndm_pool_buffer **buffer)
{
    NDM_TRY(buffer_create(context, wanted->shared, wanted->bytes, wanted->kind, buffer));
    (*buffer)->taken = true;
    return NDM_OK;
}

/* Where the head's gradient is made whole, its buffer lies idle until the embedding's: a layer that
 * would need one more takes it. When its owner comes next, that one waits, since another would be
 * made for nothing. */
ndm_status ndm_pool_take_shared(ndm_context *context, ndm_comm *comm, int64_t bytes,
                                ndm_memory_kind kind, ndm_stream *stream, ndm_pool_buffer **buffer)
{
    const ndm_pool_buffer wanted = {.bytes = bytes, .kind = kind, .shared = comm};
    const ndm_pool_buffer *latest = context->latest;
    ndm_pool_buffer *b = find(context, &wanted, false, latest && latest->lent ? NULL : latest);

    if (!b && !context->device->others_schedule)
        b = find(context, &wanted, true, latest);
    NDM_TRY(b ? use(b, bytes, stream, buffer) : make(context, &wanted, buffer));
    context->latest = *buffer;
    return NDM_OK;
}

ndm_status ndm_pool_take(ndm_context *context, int64_t bytes, ndm_memory_kind kind,
                         ndm_stream *stream, ndm_pool_buffer **buffer)
{
    const ndm_pool_buffer wanted = {.bytes = bytes, .kind = kind};
    ndm_pool_buffer *b = find(context, &wanted, false, NULL);

    return b ? use(b, bytes, stream, buffer) : make(context, &wanted, buffer);
}

ndm_status ndm_pool_give(ndm_pool_buffer *buffer, ndm_stream *stream)
{
    NDM_TRY(ndm_event_record(buffer->last_use, stream));
    buffer->taken = false;
    return NDM_OK;
}

void ndm_pool_finish(ndm_context *context)
{
    context->latest = NULL;
    while (context->pool) {
        ndm_pool_buffer *b = context->pool;
        context->pool = b->next;
        if (b->window)
            ndm_window_free(b->shared, b->window);
        else
            ndm_device_free(context->device, b->memory);
        ndm_event_destroy(b->last_use);
        free(b);
    }
}
