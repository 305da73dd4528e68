/* SPDX-License-Identifier: Apache-2.0 */
/* Streams and events: each stream is a ring of records with a lock of its own. */
#include "cuemu_host.h"

#include <stdio.h>
#include <string.h>

static struct CUstream_st streams[CUEMU_STREAMS]; /* [0] is the emulator's own */
static struct CUevent_st events[CUEMU_EVENTS];
static int made_streams, made_events, free_events[CUEMU_EVENTS], n_free_events;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void make_own_stream(void)
{
    cuemu_init();
    pthread_mutex_init(&streams[0].lock, NULL);
    streams[0].live = true;
    made_streams = 1;
}

cudaStream_t cuemu_own_stream(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_own_stream);
    return &streams[0];
}

bool cuemu_stream_valid(cudaStream_t s)
{
    if (!s)
        fprintf(
            stderr,
            "cuemu: the default stream is not emulated; create one with cudaStreamNonBlocking\n");
    return s >= streams && s < streams + CUEMU_STREAMS && s->live;
}

bool cuemu_event_valid(cudaEvent_t e)
{
    return e >= events && e < events + CUEMU_EVENTS && e->live;
}

void cuemu_events_move(const cuemu_capture *from, cuemu_capture *to)
{
    pthread_mutex_lock(&lock);
    for (int i = 0; i < made_events; i++)
        if (events[i].capture == from)
            events[i].capture = to;
    pthread_mutex_unlock(&lock);
}

static cudaError_t wait_tail(cuemu_ring *ring, uint32_t upto)
{
    for (uint32_t tail; (int32_t)((tail = ring->tail) - upto) < 0;) {
        if (cuemu_health())
            break;
        cuemu_futex_wait(&ring->tail, tail, 20);
    }
    return cuemu_health();
}

static cudaError_t put_locked(cudaStream_t s, const cuemu_record *record)
{
    cuemu_ring *ring = &CUEMU_CONTROL->ring[s->slot];
    cudaError_t error = wait_tail(ring, ring->head - CUEMU_SLOTS + 1);
    if (error)
        return error;
    cuemu_record *to = &ring->slot[ring->head % CUEMU_SLOTS];
    *to = *record;
    if (record->kind >= CUEMU_COLLECTIVE && record->kind <= CUEMU_DRAIN)
        to->u.call.order = cuemu_comm_order(record->u.call.queue);
    ring->head++;
    cuemu_futex_wake(&ring->head);
    return cudaSuccess;
}

cudaError_t cuemu_put(cudaStream_t s, const cuemu_record *record)
{
    pthread_mutex_lock(&s->lock);
    cudaError_t error = put_locked(s, record);
    pthread_mutex_unlock(&s->lock);
    return error;
}

cudaError_t cuemu_push(cudaStream_t s, const cuemu_record *record)
{
    if (!cuemu_stream_valid(s))
        return cudaErrorInvalidResourceHandle;
    pthread_mutex_lock(&s->lock);
    cudaError_t error = s->capture ? cuemu_capture_append(s, record) : put_locked(s, record);
    pthread_mutex_unlock(&s->lock);
    return error;
}

void cuemu_mark_take(cuemu_mark *mark, cudaStream_t s)
{
    mark->slot = s->slot;
    mark->upto = CUEMU_CONTROL->ring[s->slot].head;
}

bool cuemu_mark_passed(const cuemu_mark *mark)
{
    return (int32_t)(CUEMU_CONTROL->ring[mark->slot].tail - mark->upto) >= 0;
}

cudaError_t cuemu_drain(cudaStream_t s)
{
    cuemu_ring *ring = &CUEMU_CONTROL->ring[s->slot];
    return wait_tail(ring, ring->head);
}

cudaError_t cuemu_drain_all(void)
{
    cuemu_own_stream();
    for (int i = 0; i < CUEMU_STREAMS; i++)
        if (CUEMU_CONTROL->ring[i].head)
            wait_tail(&CUEMU_CONTROL->ring[i], CUEMU_CONTROL->ring[i].head);
    return cuemu_health();
}

cudaError_t cudaDeviceSynchronize(void)
{
    if (cuemu_capture_strict())
        return cuemu_result(cudaErrorStreamCaptureUnsupported);
    return cuemu_result(cuemu_drain_all());
}

/* ---- streams ---- */

static cudaStream_t free_slot(void)
{
    for (int i = 1; i < made_streams; i++)
        if (!streams[i].live)
            return &streams[i]; /* with its thread, behind what the stream before still holds */
    if (made_streams == CUEMU_STREAMS)
        return NULL;
    cudaStream_t s = &streams[made_streams];
    pthread_mutex_init(&s->lock, NULL);
    s->slot = made_streams++;
    cuemu_new_ring(s->slot);
    return s;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    cuemu_own_stream();
    if (flags != cudaStreamNonBlocking) {
        fprintf(
            stderr,
            "cuemu: a stream without cudaStreamNonBlocking: its implicit waits are not emulated\n");
        return cuemu_result(cudaErrorNotSupported);
    }
    pthread_mutex_lock(&lock);
    cudaStream_t s = free_slot();
    if (s) {
        s->live = true;
        s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
        s->capture = NULL;
        cudaGetDevice(&s->device);
        *stream = s;
    }
    pthread_mutex_unlock(&lock);
    return cuemu_result(s ? cuemu_health() : cudaErrorMemoryAllocation);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    if (!cuemu_stream_valid(s) || s == streams)
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (s->capture)
        return cuemu_result(cuemu_capture_forbid(s));
    pthread_mutex_lock(&lock);
    s->live = false;
    pthread_mutex_unlock(&lock);
    return cuemu_result(cuemu_health());
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (!cuemu_stream_valid(s))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (s->capture)
        return cuemu_result(cuemu_capture_forbid(s));
    return cuemu_result(cuemu_drain(s));
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    if (!cuemu_stream_valid(s))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (s->capture)
        return cuemu_result(cuemu_capture_forbid(s));
    cuemu_ring *ring = &CUEMU_CONTROL->ring[s->slot];
    cudaError_t error = cuemu_health();
    return error ? cuemu_result(error) : ring->tail == ring->head ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamGetPriority(cudaStream_t s, int *priority)
{
    if (!cuemu_stream_valid(s))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    *priority = s->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamGetFlags(cudaStream_t s, unsigned *flags)
{
    if (!cuemu_stream_valid(s))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    *flags = cudaStreamNonBlocking;
    return cudaSuccess;
}

cudaError_t cudaStreamGetDevice(cudaStream_t s, int *device)
{
    if (!cuemu_stream_valid(s))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    *device = s->device;
    return cudaSuccess;
}

/* ---- events ---- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    cuemu_own_stream();
    pthread_mutex_lock(&lock);
    int i = n_free_events                ? free_events[--n_free_events]
            : made_events < CUEMU_EVENTS ? made_events++
                                         : -1;
    if (i >=
        0) { /* an id that was used before goes on counting: old records cannot satisfy new waits */
        events[i] = (struct CUevent_st){
            .live = true, .id = (uint32_t)i, .recorded = events[i].recorded};
        events[i].timed = !(flags & cudaEventDisableTiming);
        *event = &events[i];
    }
    pthread_mutex_unlock(&lock);
    return cuemu_result(i < 0 ? cudaErrorMemoryAllocation : cuemu_health());
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    if (!cuemu_event_valid(e))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&lock);
    e->live = false;
    free_events[n_free_events++] = (int)e->id;
    pthread_mutex_unlock(&lock);
    return cuemu_result(cuemu_health());
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (!cuemu_stream_valid(s) || !cuemu_event_valid(e))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&s->lock);
    cudaError_t error;
    if (s->capture)
        error = cuemu_capture_record(s, e);
    else {
        cuemu_record r = {.kind = CUEMU_RECORD, .u.event = {e->id, ++e->recorded}};
        e->capture = NULL;
        error = put_locked(s, &r);
    }
    pthread_mutex_unlock(&s->lock);
    return cuemu_result(error);
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags)
{
    return flags ? cuemu_result(cudaErrorNotSupported) : cudaEventRecord(e, s);
}

/* Waits for the last record made before this call, as CUDA does. */
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    if (!cuemu_stream_valid(s) || !cuemu_event_valid(e) || flags)
        return cuemu_result(cudaErrorInvalidResourceHandle);
    pthread_mutex_lock(&s->lock);
    cuemu_record r = {.kind = CUEMU_WAIT, .u.event = {e->id, e->recorded}};
    cudaError_t error = s->capture || e->capture ? cuemu_capture_wait(s, e) : put_locked(s, &r);
    pthread_mutex_unlock(&s->lock);
    return cuemu_result(error);
}

static bool event_done(cudaEvent_t e)
{
    return (int32_t)(CUEMU_CONTROL->event[e->id].done - e->recorded) >= 0;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (!cuemu_event_valid(e))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (e->capture)
        return cuemu_result(cudaErrorCapturedEvent);
    cudaError_t error = cuemu_health();
    return error ? cuemu_result(error) : event_done(e) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (!cuemu_event_valid(e))
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (e->capture)
        return cuemu_result(cudaErrorCapturedEvent);
    cuemu_event *state = &CUEMU_CONTROL->event[e->id];
    for (uint32_t done; !event_done(e) && !cuemu_health();)
        if (done = state->done, (int32_t)(done - e->recorded) < 0)
            cuemu_futex_wait(&state->done, done, 20);
    return cuemu_result(cuemu_health());
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    if (!cuemu_event_valid(start) || !cuemu_event_valid(end) || !start->timed || !end->timed)
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (!start->recorded || !end->recorded)
        return cuemu_result(cudaErrorInvalidResourceHandle);
    if (!event_done(start) || !event_done(end))
        return cuemu_result(cudaErrorNotReady);
    int64_t ns = CUEMU_CONTROL->event[end->id].time_ns - CUEMU_CONTROL->event[start->id].time_ns;
    *ms = (float)ns * 1e-6f;
    return cuemu_result(cuemu_health());
}
