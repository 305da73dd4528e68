/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers that units take in turn. A buffer given back may still be read by queued kernels: whoever
 * takes it next waits, on its own stream, for the event recorded then. So memory is reused without
 * the host waiting. */
#include <stdlib.h>

#include "strategies/internal.h"

static ndm_status buffer_create(ndm_context *context, int64_t bytes, ndm_memory_kind kind,
                                ndm_pool_buffer **buffer)
{
    ndm_pool_buffer *b = calloc(1, sizeof *b);
    ndm_status status = NDM_OK;

    if (!b)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a buffer's record");
    b->bytes = bytes;
    b->kind = kind;
    NDM_TRY_OR(status, ndm_event_create(context->device, &b->last_use), free_buffer);
    NDM_TRY_OR(status, ndm_device_alloc(context->device, bytes, kind, &b->memory), destroy_event);
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

ndm_status ndm_pool_take(ndm_context *context, int64_t bytes, ndm_memory_kind kind,
                         ndm_stream *stream, ndm_pool_buffer **buffer)
{
    ndm_pool_buffer *b = context->pool;

    while (b && (b->taken || b->bytes != bytes || b->kind != kind))
        b = b->next;
    if (b)
        NDM_TRY(ndm_stream_wait(stream, b->last_use));
    else
        NDM_TRY(buffer_create(context, bytes, kind, &b));
    b->taken = true;
    *buffer = b;
    return NDM_OK;
}

ndm_status ndm_pool_give(ndm_pool_buffer *buffer, ndm_stream *stream)
{
    NDM_TRY(ndm_event_record(buffer->last_use, stream));
    buffer->taken = false;
    return NDM_OK;
}

void ndm_pool_finish(ndm_context *context)
{
    while (context->pool) {
        ndm_pool_buffer *b = context->pool;
        context->pool = b->next;
        ndm_device_free(context->device, b->memory);
        ndm_event_destroy(b->last_use);
        free(b);
    }
}
