/* SPDX-License-Identifier: Apache-2.0 */
/* Order, progress and deadline of collectives in flight. */
#include "collectives/run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comms.h"
#include "collectives/stall.h"
#include "core/clock.h"
#include "device/wait.h"

static const int64_t SECOND_NS = 1000000000;
/* Time between two checks counts up to this much: a host that computes does not wait. */
static const int64_t LONGEST_STEP_NS = 250000000;

static bool ready(ndm_task *task)
{
    ndm_run *run = (ndm_run *)task;
    ndm_comm *comm = run->comm;

    if (comm->broken)
        return true; /* start fails */
    if (comm->started + 1 != run->signature.sequence)
        return false;
    if (run->ops->ready && !run->ops->ready(run))
        return false;
    if (run->delay > 0) {
        run->delay--;
        return false;
    }
    return true;
}

static ndm_status start(ndm_task *task)
{
    ndm_run *run = (ndm_run *)task;
    ndm_comm *comm = run->comm;

    if (comm->broken)
        NDM_FAIL(NDM_ERR_COMM, "comm: %s #%llu on %s: an earlier collective of %s did not complete",
                 ndm_collective_name(run->args.kind), (unsigned long long)run->signature.sequence,
                 comm->name, comm->name);
    comm->started++;
    ndm_flight_set(&comm->world->flight, run->flight, NDM_FLIGHT_STARTED);
    return run->ops->start(run);
}

/* No progress at this poll: adds up the time, looks for the reason from time to time. */
static ndm_status idle(ndm_run *run)
{
    int64_t now, step;

    if (run->ops->awaits)
        run->ops->awaits(run);
    else
        ndm_wait_for_other();
    if (++run->idle_polls % NDM_RUN_POLLS_BETWEEN_CHECKS)
        return NDM_OK;
    now = ndm_clock_ns();
    step = run->checked_ns ? now - run->checked_ns : 0;
    run->checked_ns = now;
    run->idle_ns += step < LONGEST_STEP_NS ? step : LONGEST_STEP_NS;
    /* A little before the stream's own deadline, whose message knows less. */
    if (run->idle_ns >= run->comm->world->timeout_ns / 50 * 49)
        return ndm_stall_deadline(run);
    if (run->idle_ns < SECOND_NS)
        return NDM_OK;
    if (run->idle_ns >= run->next_probe_ns) {
        run->next_probe_ns = 2 * run->idle_ns;
        NDM_TRY(ndm_stall_probe(run));
    }
    return ndm_stall_listen(run->comm->world);
}

static ndm_status poll(ndm_task *task, bool *done)
{
    ndm_run *run = (ndm_run *)task;
    bool progressed = false;

    NDM_TRY(run->ops->poll(run, &progressed, done));
    if (*done) {
        run->done = true;
        ndm_flight_set(&run->comm->world->flight, run->flight, NDM_FLIGHT_DONE);
        return NDM_OK;
    }
    if (!progressed)
        return idle(run);
    run->idle_polls = run->idle_ns = run->checked_ns = run->next_probe_ns = 0;
    return NDM_OK;
}

static void describe(const ndm_task *task, char *text, size_t text_bytes)
{
    const ndm_run *run = (const ndm_run *)task;

    if (task->started)
        ndm_stall_describe(run, text, text_bytes);
    else
        snprintf(text, text_bytes, "%s #%llu on %s has not started: #%llu is next",
                 ndm_collective_name(run->args.kind), (unsigned long long)run->signature.sequence,
                 run->comm->name, (unsigned long long)run->comm->started + 1);
}

static void release(ndm_task *task)
{
    ndm_run *run = (ndm_run *)task;

    if (!run->done) {
        run->comm->broken = run->comm->world->failed = true;
        ndm_flight_set(&run->comm->world->flight, run->flight, NDM_FLIGHT_FAILED);
    }
    run->ops->finish(run);
    free(run);
}

static ndm_signature make_signature(const ndm_comm *comm, const ndm_collective_args *args)
{
    ndm_signature s = {.comm_id = comm->id,
                       .generation = comm->owner ? comm->owner->generation : 0,
                       .sequence = comm->sequence,
                       .count = args->count,
                       .kind = args->kind,
                       .dtype = args->dtype,
                       .recv_dtype = args->recv_dtype,
                       .op = args->op};

    if (args->kind == NDM_BROADCAST)
        s.root = args->peer_src;
    memcpy(s.comm_name, comm->name, sizeof s.comm_name);
    return s;
}

void ndm_comm_note(ndm_comm *comm, const ndm_collective_args *args)
{
    ndm_signature signature = make_signature(comm, args);

    (void)ndm_flight_add(&comm->world->flight, comm, &signature);
}

void ndm_run_init(ndm_run *run, const ndm_run_ops *ops, ndm_comm *comm,
                  const ndm_collective_args *args)
{
    run->task = (ndm_task){
        .ready = ready, .start = start, .poll = poll, .describe = describe, .release = release};
    run->ops = ops;
    run->comm = comm;
    run->args = *args;
    run->signature = make_signature(comm, args);
    run->flight = ndm_flight_add(&comm->world->flight, comm, &run->signature);
    if (comm->owner)
        run->delay = ndm_comms_draw_delay(comm->owner);
}

ndm_status ndm_run_submit(ndm_run *run, ndm_stream *stream)
{
    return ndm_host_submit(stream, &run->task);
}

ndm_status ndm_run_execute(ndm_run *run)
{
    ndm_status status = NDM_OK;
    bool done = false;
    ndm_wait wait;

    for (ndm_wait_begin(&wait);; ndm_wait_pause(&wait)) {
        if (!run->task.started && ready(&run->task)) {
            run->task.started = true;
            status = start(&run->task);
        }
        if (status == NDM_OK && run->task.started)
            status = poll(&run->task, &done);
        if (done || status != NDM_OK)
            break;
        ndm_world_progress(run->comm->world);
    }
    ndm_wait_end(&wait);
    release(&run->task);
    return status;
}
