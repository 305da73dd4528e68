/* SPDX-License-Identifier: Apache-2.0 */
/* How long a compute stream stands waiting for others: two events with times around each wait, read
 * when the host next finds the stream idle. A wait for what has happened already is not timed. */
#include <stdlib.h>

#include "device/cuda/internal.h"

struct ndm_cuda_span {
    cudaEvent_t begin, end;
};

static bool make(ndm_cuda_span *span)
{
    if (cudaEventCreate(&span->begin) != cudaSuccess)
        return false;
    if (cudaEventCreate(&span->end) == cudaSuccess)
        return true;
    (void)cudaEventDestroy(span->begin);
    return false;
}

ndm_status ndm_cuda_exposed_begin(ndm_cuda_stream *stream, cudaEvent_t event, bool *timed)
{
    *timed = false;
    if (stream->base.kind != NDM_STREAM_COMPUTE || stream->n_spans == NDM_CUDA_SPANS ||
        ndm_cuda_of(stream->base.device)->capture)
        return NDM_OK;
    if (cudaEventQuery(event) != cudaErrorNotReady)
        return NDM_OK;
    if (!stream->spans)
        stream->spans = calloc(NDM_CUDA_SPANS, sizeof *stream->spans);
    if (!stream->spans)
        return NDM_OK; /* without times, all else goes on */
    ndm_cuda_span *span = &stream->spans[stream->n_spans];
    if (!span->begin && !make(span)) {
        *span = (ndm_cuda_span){0};
        return NDM_OK;
    }
    NDM_CUDA_TRY("time of a wait", cudaEventRecord(span->begin, stream->handle));
    *timed = true;
    return NDM_OK;
}

ndm_status ndm_cuda_exposed_end(ndm_cuda_stream *stream)
{
    NDM_CUDA_TRY("time of a wait",
                 cudaEventRecord(stream->spans[stream->n_spans].end, stream->handle));
    stream->n_spans++;
    return NDM_OK;
}

void ndm_cuda_exposed_read(ndm_cuda_stream *stream)
{
    for (int i = 0; i < stream->n_spans; i++) {
        float ms = 0.0f;
        if (cudaEventElapsedTime(&ms, stream->spans[i].begin, stream->spans[i].end) == cudaSuccess)
            stream->base.waited_ns += (int64_t)(ms * 1e6f);
    }
    stream->n_spans = 0;
}

void ndm_cuda_exposed_finish(ndm_cuda_stream *stream)
{
    for (int i = 0; stream->spans && i < NDM_CUDA_SPANS; i++) {
        if (!stream->spans[i].begin)
            continue;
        (void)cudaEventDestroy(stream->spans[i].begin);
        (void)cudaEventDestroy(stream->spans[i].end);
    }
    free(stream->spans);
    stream->spans = NULL;
}
