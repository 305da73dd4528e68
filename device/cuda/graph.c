/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: a stretch of work on all streams, noted once and launched as a whole.
 *
 * The streams fork from the one that begins and are joined at the end, and likewise around every
 * launch, so that before and after it all is in the order of the program. Memory that lies in the
 * pool when a graph is made stays the graph's until it is destroyed. */
#include <stdlib.h>

#include "device/cuda/ops.h"

struct ndm_graph {
    ndm_cuda_dev *device;
    cudaGraphExec_t exec; /* NULL: dropped */
    struct ndm_graph *next;
};

bool ndm_cuda_spoil(ndm_cuda_dev *device, const char *what)
{
    if (device->capture)
        device->spoiled = what;
    return device->capture != 0;
}

static ndm_status make_event(cudaEvent_t *event)
{
    if (!*event)
        NDM_CUDA_TRY("event", cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    return NDM_OK;
}

static ndm_status make_events(ndm_cuda_dev *d)
{
    NDM_TRY(make_event(&d->fork));
    NDM_TRY(make_event(&d->graph_done));
    for (ndm_cuda_stream *s = d->streams; s; s = s->next)
        NDM_TRY(make_event(&s->joined));
    return NDM_OK;
}

/* All others go on behind `stream`, by an event recorded there now. */
static ndm_status fork_from(ndm_cuda_dev *d, const ndm_cuda_stream *stream, cudaEvent_t event)
{
    NDM_CUDA_TRY("fork of streams", cudaEventRecord(event, stream->handle));
    for (ndm_cuda_stream *s = d->streams; s; s = s->next)
        if (s != stream)
            NDM_CUDA_TRY("fork of streams", cudaStreamWaitEvent(s->handle, event, 0));
    return NDM_OK;
}

static ndm_status join_into(ndm_cuda_dev *d, const ndm_cuda_stream *stream)
{
    for (ndm_cuda_stream *s = d->streams; s; s = s->next) {
        if (s == stream)
            continue;
        NDM_CUDA_TRY("join of streams", cudaEventRecord(s->joined, s->handle));
        NDM_CUDA_TRY("join of streams", cudaStreamWaitEvent(stream->handle, s->joined, 0));
    }
    return NDM_OK;
}

/* Relaxed: libraries may allocate on their way. */
ndm_status ndm_cuda_graph_begin(ndm_stream *stream)
{
    ndm_cuda_stream *from = (ndm_cuda_stream *)stream;
    ndm_cuda_dev *d = ndm_cuda_of(stream->device);

    if (d->blocking)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "device: cuda: NDM_CUDA_BLOCKING waits after every launch, a graph does not");
    NDM_TRY(make_events(d));
    for (ndm_cuda_stream *s = d->streams; s; s = s->next)
        NDM_TRY(ndm_cuda_wait_stream(d, s->handle, "work before a graph"));
    ndm_cuda_deliver(d);
    NDM_CUDA_TRY("begin of a graph",
                 cudaStreamBeginCapture(from->handle, cudaStreamCaptureModeRelaxed));
    d->capture = ++d->captures;
    d->spoiled = NULL;
    return fork_from(d, from, d->fork);
}

static ndm_status instantiate(ndm_cuda_dev *d, cudaGraph_t captured, ndm_graph **graph)
{
    ndm_graph *g = calloc(1, sizeof *g);

    if (!g)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a graph");
    g->device = d;
    /* By the priorities of the streams: collectives go first, as outside a graph. */
    ndm_status status = ndm_cuda_check(
        cudaGraphInstantiate(&g->exec, captured, cudaGraphInstantiateFlagUseNodePriority), "graph",
        __FILE__, __LINE__);
    if (status != NDM_OK) {
        free(g);
        return status;
    }
    g->next = d->graphs;
    d->graphs = g;
    ndm_cuda_pool_hold(d);
    *graph = g;
    return NDM_OK;
}

/* What the capture failed with says why the graph cannot be: the device is as before. */
static ndm_status take(ndm_cuda_dev *d, const ndm_cuda_stream *stream, cudaGraph_t *captured)
{
    ndm_status joined = join_into(d, stream);
    cudaError_t error = cudaStreamEndCapture(stream->handle, captured);

    d->capture = 0;
    (void)cudaGetLastError();
    if (d->spoiled)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: cuda: no graph holds %s", d->spoiled);
    if (error != cudaSuccess)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: cuda: a graph cannot be made: %s (%s)",
                 cudaGetErrorString(error), cudaGetErrorName(error));
    return joined;
}

ndm_status ndm_cuda_graph_end(ndm_stream *stream, ndm_graph **graph)
{
    ndm_cuda_dev *d = ndm_cuda_of(stream->device);
    cudaGraph_t captured = NULL;

    ndm_status status = take(d, (ndm_cuda_stream *)stream, &captured);
    if (status == NDM_OK)
        status = instantiate(d, captured, graph);
    if (captured)
        (void)cudaGraphDestroy(captured);
    if (!d->graphs)
        ndm_cuda_pool_release(d);
    return status;
}

ndm_status ndm_cuda_graph_launch(ndm_graph *graph, ndm_stream *stream)
{
    ndm_cuda_stream *on = (ndm_cuda_stream *)stream;
    ndm_cuda_dev *d = graph->device;

    if (d->failed)
        return d->failed;
    if (!graph->exec)
        NDM_FAIL(NDM_ERR_DEVICE, "device: cuda: the graph was dropped after a failure");
    NDM_TRY(make_events(d)); /* there may be more streams */
    NDM_TRY(join_into(d, on));
    NDM_CUDA_TRY("graph", cudaGraphLaunch(graph->exec, on->handle));
    return fork_from(d, on, d->graph_done);
}

void ndm_cuda_graph_destroy(ndm_graph *graph)
{
    ndm_cuda_dev *d = graph->device;
    ndm_graph **link = &d->graphs;

    while (*link != graph)
        link = &(*link)->next;
    *link = graph->next;
    if (graph->exec)
        (void)cudaGraphExecDestroy(graph->exec);
    free(graph);
    if (!d->graphs)
        ndm_cuda_pool_release(d);
}

void ndm_cuda_graphs_drop(ndm_device *device)
{
    for (ndm_graph *g = ndm_cuda_of(device)->graphs; g; g = g->next) {
        if (g->exec)
            (void)cudaGraphExecDestroy(g->exec);
        g->exec = NULL;
    }
}

void ndm_cuda_graph_finish(ndm_cuda_dev *device)
{
    if (device->fork)
        (void)cudaEventDestroy(device->fork);
    if (device->graph_done)
        (void)cudaEventDestroy(device->graph_done);
}
