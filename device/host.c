/* SPDX-License-Identifier: Apache-2.0 */
/* Host streams: an inline compute stream, queues for communication, and events that are places in a
 * queue.
 *
 * A queue holds tasks in program order. An event remembers how many tasks its stream had when it
 * was recorded, and is done when that many have completed. Program order is one order over all
 * streams of a rank, and the same on all ranks, so the earliest unfinished task can always run:
 * queues cannot deadlock each other. */
#include "device/host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"
#include "device/turn.h"
#include "device/wait.h"

struct ndm_host_stream {
    ndm_stream base;
    ndm_task *head, *tail;
    uint64_t submitted, completed;
    ndm_status failed; /* sticky: once a task has failed, so has everything behind it */
    ndm_error error;   /* its message, for whoever asks later, in any thread */
    ndm_host_stream *next;
};

typedef struct host_event {
    ndm_event base;
    ndm_host_stream *stream;
    uint64_t at; /* done when stream->completed reaches it */
} host_event;

static ndm_host_device *host_device(ndm_device *device)
{
    return (ndm_host_device *)device;
}

static void enter(ndm_device *device)
{
    if (host_device(device)->enter)
        host_device(device)->enter(device);
}

static void leave(ndm_device *device)
{
    if (host_device(device)->leave)
        host_device(device)->leave(device);
}

/* The stream's sticky failure, with its message in this thread. */
static ndm_status failure_of(const ndm_host_stream *s)
{
    if (s->failed)
        ndm_error_restore(&s->error);
    return s->failed;
}

static void fail(ndm_host_stream *s, ndm_status status)
{
    s->failed = status;
    ndm_error_keep(&s->error);
}

ndm_status ndm_host_stream_create(ndm_device *device, ndm_stream_kind kind, ndm_stream **stream)
{
    ndm_host_stream *s = calloc(1, sizeof *s);
    if (!s)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a stream");
    s->base.device = device;
    s->base.kind = kind;
    ndm_turn_take();
    s->next = host_device(device)->streams;
    host_device(device)->streams = s;
    ndm_turn_give();
    *stream = &s->base;
    return NDM_OK;
}

static void drop_head(ndm_host_stream *s)
{
    ndm_task *task = s->head;
    s->head = task->next;
    if (!s->head)
        s->tail = NULL;
    s->completed++;
    host_device(s->base.device)->queued--;
    task->release(task);
}

void ndm_host_stream_destroy(ndm_stream *stream)
{
    ndm_host_stream *s = (ndm_host_stream *)stream, **link = &host_device(stream->device)->streams;

    ndm_turn_take();
    while (s->head)
        drop_head(s);
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    ndm_turn_give();
    free(s);
}

/* One step of the task at the head. */
static ndm_status advance_head(ndm_host_stream *s, bool *done)
{
    ndm_task *task = s->head;

    *done = false;
    if (!task->started) {
        if (task->ready && !task->ready(task))
            return NDM_OK;
        task->started = true;
        if (task->start)
            NDM_TRY(task->start(task));
    }
    if (!task->poll) {
        *done = true;
        return NDM_OK;
    }
    return task->poll(task, done);
}

/* Runs the queue as far as it goes. */
static ndm_status advance(ndm_host_stream *s)
{
    bool done = true;

    if (s->failed || !s->head)
        return failure_of(s);
    enter(s->base.device);
    while (done && s->head && !s->failed) {
        ndm_status status = advance_head(s, &done);
        if (status != NDM_OK)
            fail(s, status);
        if (done || s->failed)
            drop_head(s);
    }
    leave(s->base.device);
    return s->failed;
}

ndm_status ndm_host_progress(ndm_device *device, bool *busy)
{
    ndm_host_device *d = host_device(device);
    ndm_status status = NDM_OK;

    ndm_turn_take();
    if (d->queued > 0)
        for (ndm_host_stream *s = d->streams; s && status == NDM_OK; s = s->next)
            status = advance(s);
    if (busy)
        *busy = d->queued > 0;
    ndm_turn_give();
    return status;
}

static ndm_status submit(ndm_stream *stream, ndm_task *task)
{
    ndm_host_stream *s = (ndm_host_stream *)stream;

    if (s->failed) {
        task->release(task);
        return failure_of(s);
    }
    task->next = NULL;
    if (s->tail)
        s->tail->next = task;
    else
        s->head = task;
    s->tail = task;
    s->submitted++;
    host_device(stream->device)->queued++;
    ndm_host_helper_wake(host_device(stream->device));
    if (stream->kind != NDM_STREAM_COMPUTE)
        return ndm_host_progress(stream->device, NULL);
    int64_t begin = ndm_clock_ns();
    ndm_status status = ndm_host_stream_synchronize(stream);
    stream->waited_ns += ndm_clock_ns() - begin;
    return status;
}

ndm_status ndm_host_submit(ndm_stream *stream, ndm_task *task)
{
    ndm_turn_take();
    ndm_status status = submit(stream, task);
    ndm_turn_give();
    return status;
}

/* What the head of a queue waits for, for the message of a deadline. */
static void describe_wait(const ndm_host_stream *s, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s", "work that has not finished");
    if (s->head && s->head->describe)
        s->head->describe(s->head, text, text_bytes);
}

static ndm_status fail_deadline(ndm_host_stream *s)
{
    char text[512];

    describe_wait(s, text, sizeof text);
    fail(s, ndm_error_set(NDM_ERR_TIMEOUT, __FILE__, __LINE__, "stream %s: %s (after %.3g s)",
                          s->base.name, text, (double)s->base.device->options.timeout_ns * 1e-9));
    return s->failed;
}

/* Advances all queues until `s` has completed `at` tasks, or a queue or the deadline fails it. */
static ndm_status look_until(ndm_host_stream *s, uint64_t at, ndm_wait *wait)
{
    int64_t start = 0, timeout = s->base.device->options.timeout_ns;

    for (;;) {
        NDM_TRY(ndm_host_progress(s->base.device, NULL));
        if (s->completed >= at)
            return failure_of(s);
        ndm_wait_pause(wait);
        if (!ndm_wait_yields(wait))
            continue;
        start = start ? start : ndm_clock_ns();
        if (ndm_clock_ns() - start >= timeout)
            return fail_deadline(s);
    }
}

static ndm_status wait_until(ndm_host_stream *s, uint64_t at)
{
    ndm_wait wait;

    if (s->completed >= at)
        return failure_of(s);
    ndm_wait_begin(&wait);
    ndm_status status = look_until(s, at, &wait);
    ndm_wait_end(&wait);
    return status;
}

ndm_status ndm_host_stream_synchronize(ndm_stream *stream)
{
    ndm_host_stream *s = (ndm_host_stream *)stream;

    ndm_turn_take();
    ndm_status status = wait_until(s, s->submitted);
    ndm_turn_give();
    return status;
}

static bool event_done(const host_event *e)
{
    return !e->stream || e->stream->completed >= e->at;
}

typedef struct wait_task {
    ndm_task base;
    host_event event; /* a copy: the event may be recorded again before this wait is reached */
} wait_task;

static bool wait_ready(ndm_task *task)
{
    return event_done(&((wait_task *)task)->event);
}

static void release_task(ndm_task *task)
{
    free(task);
}

static void wait_describe(const ndm_task *task, char *text, size_t text_bytes)
{
    describe_wait(((const wait_task *)task)->event.stream, text, text_bytes);
}

static ndm_status wait_for(ndm_stream *stream, ndm_event *event)
{
    host_event *e = (host_event *)event;

    NDM_TRY(ndm_host_progress(stream->device, NULL));
    if (event_done(e) || e->stream == (ndm_host_stream *)stream)
        return e->stream ? failure_of(e->stream) : NDM_OK;
    if (stream->kind == NDM_STREAM_COMPUTE) {
        int64_t start = ndm_clock_ns();
        ndm_status status = wait_until(e->stream, e->at);
        stream->waited_ns += ndm_clock_ns() - start;
        return status;
    }
    wait_task *task = calloc(1, sizeof *task);
    if (!task)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to wait for an event");
    task->base = (ndm_task){
        .ready = wait_ready, .describe = wait_describe, .release = release_task};
    task->event = *e;
    return ndm_host_submit(stream, &task->base);
}

ndm_status ndm_host_stream_wait(ndm_stream *stream, ndm_event *event)
{
    ndm_turn_take();
    ndm_status status = wait_for(stream, event);
    ndm_turn_give();
    return status;
}

ndm_status ndm_host_event_create(ndm_device *device, ndm_event **event)
{
    host_event *e = calloc(1, sizeof *e);
    if (!e)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an event");
    e->base.device = device;
    *event = &e->base;
    return NDM_OK;
}

void ndm_host_event_destroy(ndm_event *event)
{
    free(event);
}

ndm_status ndm_host_event_record(ndm_event *event, ndm_stream *stream)
{
    host_event *e = (host_event *)event;

    ndm_turn_take();
    e->stream = (ndm_host_stream *)stream;
    e->at = e->stream->submitted;
    ndm_turn_give();
    return NDM_OK;
}

ndm_status ndm_host_event_query(ndm_event *event, bool *done)
{
    ndm_turn_take();
    ndm_status status = ndm_host_progress(event->device, NULL);
    *done = event_done((host_event *)event);
    ndm_turn_give();
    return status;
}

/* ---- kernels and copies ------------------------------------------------------------------- */

void ndm_device_observe(ndm_device *device, ndm_device_observer observer, void *user)
{
    device->observer = observer;
    device->observer_user = user;
}

/* With the turn, as all observers are called. */
static void observe(const ndm_stream *stream, const char *name, int op, int64_t begin_ns,
                    int64_t end_ns)
{
    const ndm_device *device = stream->device;

    if (device->observer)
        device->observer(device->observer_user, stream, name, op, begin_ns, end_ns);
}

/* 0 where nobody wants to know. */
static int64_t observed_ns(const ndm_device *device)
{
    return device->observer ? ndm_clock_ns() : 0;
}

typedef struct call_task {
    ndm_task base;
    ndm_stream *stream;
    ndm_host_body body;
    int op;
    char name[32];
    _Alignas(16) unsigned char args[NDM_LAUNCH_ARGS_MAX];
} call_task;

static ndm_status call_start(ndm_task *task)
{
    call_task *call = (call_task *)task;
    int64_t begin = observed_ns(call->stream->device);
    ndm_status status = call->body(call->args);

    observe(call->stream, call->name, call->op, begin, observed_ns(call->stream->device));
    return status;
}

static void call_describe(const ndm_task *task, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "kernel %s has not run", ((const call_task *)task)->name);
}

static ndm_status queue_call(ndm_stream *stream, const ndm_launch *launch)
{
    call_task *call = calloc(1, sizeof *call);
    if (!call)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to queue kernel %s", launch->name);
    call->base = (ndm_task){
        .start = call_start, .describe = call_describe, .release = release_task};
    call->stream = stream;
    call->body = (ndm_host_body)launch->body;
    call->op = launch->op;
    snprintf(call->name, sizeof call->name, "%s", launch->name);
    memcpy(call->args, launch->args, launch->args_bytes);
    return ndm_host_submit(stream, &call->base);
}

/* While a kernel runs, a helper may advance the queues. */
static ndm_status run_inline(ndm_stream *stream, const ndm_launch *launch)
{
    ndm_host_body body = (ndm_host_body)launch->body;
    int64_t begin = observed_ns(stream->device);
    int turn = ndm_turn_suspend();

    enter(stream->device);
    ndm_status status = body(launch->args);
    leave(stream->device);
    int64_t end = observed_ns(stream->device); /* waiting for the turn is not the kernel's time */
    ndm_turn_resume(turn);
    observe(stream, launch->name, launch->op, begin, end);
    return status;
}

static ndm_status launch_or_queue(ndm_stream *stream, const ndm_launch *launch)
{
    ndm_host_stream *s = (ndm_host_stream *)stream;

    NDM_TRY(ndm_host_progress(stream->device, NULL));
    if (s->failed)
        return failure_of(s);
    return s->head ? queue_call(stream, launch) : run_inline(stream, launch);
}

ndm_status ndm_host_launch(ndm_stream *stream, const ndm_launch *launch)
{
    ndm_turn_take();
    ndm_status status = launch_or_queue(stream, launch);
    ndm_turn_give();
    return status;
}

typedef struct copy_args {
    void *dst;
    const void *src; /* NULL: zero */
    int64_t bytes;
} copy_args;

static ndm_status copy_body(const void *args)
{
    const copy_args *a = args;

    if (a->src)
        memmove(a->dst, a->src, (size_t)a->bytes);
    else
        memset(a->dst, 0, (size_t)a->bytes);
    return NDM_OK;
}

static ndm_status launch_copy(ndm_stream *stream, const char *name, const copy_args *args)
{
    ndm_launch launch = {.name = name,
                         .body = (void (*)(void))copy_body,
                         .args = args,
                         .args_bytes = sizeof *args,
                         .op = -1};
    return ndm_host_launch(stream, &launch);
}

ndm_status ndm_host_copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                         ndm_copy_kind kind)
{
    ndm_host_stream *s = (ndm_host_stream *)stream;

    ndm_status status = NDM_OK;

    ndm_turn_take();
    if (kind == NDM_HOST_TO_DEVICE && s->head)
        status = ndm_host_stream_synchronize(stream); /* the source may be reused on return */
    ndm_turn_give();
    NDM_TRY(status);
    return launch_copy(stream, "copy", &(copy_args){dst, src, bytes});
}

ndm_status ndm_host_zero(ndm_stream *stream, void *memory, int64_t bytes)
{
    return launch_copy(stream, "zero", &(copy_args){memory, NULL, bytes});
}
