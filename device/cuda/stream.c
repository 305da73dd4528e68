/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events and launches: the engine's calls are CUDA's. */
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/ops.h"

cudaStream_t ndm_cuda_stream_handle(const ndm_stream *stream)
{
    return ((const ndm_cuda_stream *)stream)->handle;
}

void *ndm_cuda_stream_native(const ndm_stream *stream)
{
    return ndm_cuda_stream_handle(stream);
}

int ndm_cuda_sm_count(const ndm_stream *stream)
{
    return ndm_cuda_of(stream->device)->sm_count;
}

int ndm_cuda_capability(const ndm_stream *stream)
{
    return ndm_cuda_of(stream->device)->capability;
}

int64_t ndm_cuda_shared_bytes(const ndm_stream *stream)
{
    return ndm_cuda_of(stream->device)->shared_bytes;
}

/* Collectives go first: they are short, and other ranks wait for them. */
static ndm_status make_handle(ndm_stream_kind kind, cudaStream_t *handle)
{
    int least = 0, greatest = 0;

    NDM_CUDA_TRY("stream priorities", cudaDeviceGetStreamPriorityRange(&least, &greatest));
    NDM_CUDA_TRY("stream",
                 cudaStreamCreateWithPriority(handle, cudaStreamNonBlocking,
                                              kind == NDM_STREAM_COMM ? greatest : least));
    return NDM_OK;
}

/* The embedding program's stream goes to the first that asks for one to compute on. */
static void *given_to(const ndm_cuda_dev *d, ndm_stream_kind kind)
{
    const ndm_cuda_stream *s = d->streams;

    while (s && !s->given)
        s = s->next;
    return s || kind != NDM_STREAM_COMPUTE ? NULL : d->base.options.given.compute_stream;
}

ndm_status ndm_cuda_stream_create(ndm_device *device, ndm_stream_kind kind, ndm_stream **stream)
{
    ndm_cuda_dev *d = ndm_cuda_of(device);
    ndm_cuda_stream *s;
    int n = 0;

    for (s = d->streams; s; s = s->next)
        n++;
    if (n == NDM_CUDA_STREAMS_MAX)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: cuda: more than %d streams", NDM_CUDA_STREAMS_MAX);
    s = calloc(1, sizeof *s);
    if (!s)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a stream");
    s->handle = given_to(d, kind);
    s->given = s->handle != NULL;
    ndm_status status = s->given ? NDM_OK : make_handle(kind, &s->handle);
    if (status != NDM_OK) {
        free(s);
        return status;
    }
    s->base.device = device;
    s->base.kind = kind;
    s->next = d->streams;
    d->streams = s;
    *stream = &s->base;
    return NDM_OK;
}

void ndm_cuda_stream_destroy(ndm_stream *stream)
{
    ndm_cuda_stream *s = (ndm_cuda_stream *)stream;
    ndm_cuda_stream **link = &ndm_cuda_of(stream->device)->streams;

    ndm_cuda_blas_finish(s);
    ndm_cuda_exposed_finish(s);
    if (s->joined)
        (void)cudaEventDestroy(s->joined);
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    if (!s->given)
        (void)cudaStreamDestroy(s->handle);
    free(s);
}

/* What stands for the event's last record. One of a graph is over when the graph's last launch is;
 * one from before a capture is over in it. */
static bool awaited(const ndm_event *event, cudaEvent_t *handle)
{
    const ndm_cuda_event *e = (const ndm_cuda_event *)event;
    const ndm_cuda_dev *d = ndm_cuda_of(event->device);

    *handle = e->capture && !d->capture ? d->graph_done : e->handle;
    return !d->capture || e->capture == d->capture;
}

ndm_status ndm_cuda_stream_wait(ndm_stream *stream, ndm_event *event)
{
    ndm_cuda_stream *s = (ndm_cuda_stream *)stream;
    cudaEvent_t handle;
    bool timed;

    if (!awaited(event, &handle))
        return NDM_OK;
    NDM_TRY(ndm_cuda_exposed_begin(s, handle, &timed));
    NDM_CUDA_TRY("wait for an event", cudaStreamWaitEvent(s->handle, handle, 0));
    return timed ? ndm_cuda_exposed_end(s) : NDM_OK;
}

ndm_status ndm_cuda_stream_synchronize(ndm_stream *stream)
{
    ndm_cuda_dev *d = ndm_cuda_of(stream->device);
    char what[64];

    if (ndm_cuda_spoil(d, "a wait of the host"))
        return NDM_OK;
    snprintf(what, sizeof what, "stream %s", stream->name);
    NDM_TRY(ndm_cuda_wait_stream(d, ndm_cuda_stream_handle(stream), what));
    ndm_cuda_deliver(d);
    ndm_cuda_exposed_read((ndm_cuda_stream *)stream);
    return NDM_OK;
}

ndm_status ndm_cuda_event_create(ndm_device *device, ndm_event **event)
{
    ndm_cuda_event *e = calloc(1, sizeof *e);

    if (!e)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an event");
    ndm_status status = ndm_cuda_check(cudaEventCreateWithFlags(&e->handle, cudaEventDisableTiming),
                                       "event", __FILE__, __LINE__);
    if (status != NDM_OK) {
        free(e);
        return status;
    }
    e->base.device = device;
    *event = &e->base;
    return NDM_OK;
}

void ndm_cuda_event_destroy(ndm_event *event)
{
    (void)cudaEventDestroy(((ndm_cuda_event *)event)->handle);
    free(event);
}

ndm_status ndm_cuda_event_record(ndm_event *event, ndm_stream *stream)
{
    ndm_cuda_event *e = (ndm_cuda_event *)event;

    NDM_CUDA_TRY("event", cudaEventRecord(e->handle, ndm_cuda_stream_handle(stream)));
    e->capture = ndm_cuda_of(event->device)->capture;
    return NDM_OK;
}

ndm_status ndm_cuda_event_query(ndm_event *event, bool *done)
{
    cudaEvent_t handle;
    cudaError_t error = awaited(event, &handle) ? cudaEventQuery(handle) : cudaSuccess;

    *done = error == cudaSuccess;
    if (error == cudaErrorNotReady)
        return NDM_OK;
    NDM_CUDA_TRY("event", error);
    ndm_cuda_deliver(ndm_cuda_of(event->device));
    return NDM_OK;
}

ndm_status ndm_cuda_stream_launch(ndm_stream *stream, const ndm_launch *launch)
{
    ndm_cuda_dev *d = ndm_cuda_of(stream->device);

    if (d->failed)
        return d->failed;
    NDM_TRY(((ndm_cuda_body)launch->body)(stream, launch->args));
    return d->blocking ? ndm_cuda_wait_stream(d, ndm_cuda_stream_handle(stream), launch->name)
                       : NDM_OK;
}

ndm_status ndm_cuda_zero(ndm_stream *stream, void *memory, int64_t bytes)
{
    NDM_CUDA_TRY("zero", cudaMemsetAsync(memory, 0, (size_t)bytes, ndm_cuda_stream_handle(stream)));
    return NDM_OK;
}
