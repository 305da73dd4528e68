/* SPDX-License-Identifier: Apache-2.0 */
/* A collective in shared memory in flight: its phases, one look at the counters a poll. */
#include <stdlib.h>

#include "collectives/shm.h"
#include "collectives/stall.h"

static ndm_shm_comm *state_of(const ndm_shm_run *r)
{
    return ndm_shm_state(r->run.comm);
}

/* Number of the current phase among all of the communicator. */
static uint64_t global_phase(const ndm_shm_run *r)
{
    return state_of(r)->phase + (uint64_t)r->phase;
}

static uint64_t posted_by(const ndm_shm_run *r, int64_t member)
{
    return atomic_load_explicit(&state_of(r)->areas[member]->posted, memory_order_acquire);
}

static uint64_t consumed_by(const ndm_shm_run *r, int64_t member)
{
    return atomic_load_explicit(&state_of(r)->areas[member]->consumed, memory_order_acquire);
}

static bool ready(const ndm_run *run)
{
    return !ndm_shm_state(run->comm)->busy;
}

static ndm_status start(ndm_run *run)
{
    ndm_shm_run *r = (ndm_shm_run *)run;

    state_of(r)->busy = true;
    r->n_phases = r->algo->phases(r);
    return NDM_OK;
}

const char *ndm_shm_source(const ndm_shm_run *r, int64_t member)
{
    const ndm_shm_area *area = state_of(r)->areas[member];
    uint64_t half = global_phase(r) % 2;
    const ndm_shm_post *post = &area->posts[half];

    if (post->window < 0)
        return area->staging[half];
    for (const ndm_shm_window *w = state_of(r)->windows; w; w = w->next)
        if (w->id == post->window)
            return w->map.base + post->offset;
    return area->staging[half];
}

/* ---- what a run waits for -------------------------------------------------------------------- */

/* Phase k writes over what phase k-2 left, or a run that ends lets go of a window. */
static bool holds_back_write(const ndm_shm_run *r, int64_t member)
{
    return consumed_by(r, member) + 1 < global_phase(r);
}

static bool holds_back_read(const ndm_shm_run *r, int64_t member)
{
    return posted_by(r, member) <= global_phase(r) &&
           (!r->algo->needs || r->algo->needs(r, member));
}

/* A window is the caller's again when everybody has read it. */
static bool holds_back_end(const ndm_shm_run *r, int64_t member)
{
    return r->direct && consumed_by(r, member) < global_phase(r);
}

static bool waits_for(const ndm_run *run, int64_t member)
{
    const ndm_shm_run *r = (const ndm_shm_run *)run;

    if (member == run->comm->index)
        return false;
    if (r->phase == r->n_phases)
        return holds_back_end(r, member);
    return r->written ? holds_back_read(r, member) : holds_back_write(r, member);
}

static bool waits(const ndm_shm_run *r)
{
    for (int64_t m = 0; m < r->run.comm->size; m++)
        if (waits_for(&r->run, m))
            return true;
    return false;
}

/* ---- a phase --------------------------------------------------------------------------------- */

static void write_phase(ndm_shm_run *r)
{
    ndm_shm_comm *s = state_of(r);
    ndm_shm_area *area = s->areas[r->run.comm->index];
    uint64_t phase = global_phase(r);
    ndm_shm_post *post = &area->posts[phase % 2];
    const char *data = s->windows && r->algo->locate ? r->algo->locate(r) : NULL;
    const ndm_shm_window *window = data ? ndm_shm_find_window(r->run.comm, data, 1) : NULL;

    post->signature = r->run.signature;
    post->window = window ? window->id : -1;
    post->offset = window ? data - window->map.base : 0;
    r->direct |= window != NULL;
    if (!window && r->algo->write)
        r->algo->write(r, area->staging[phase % 2]);
    atomic_store_explicit(&area->posted, phase + 1, memory_order_release);
    r->written = true;
}

/* Those whose data this phase reads must have called the same; later phases follow from the first.
 */
static ndm_status check_calls(const ndm_shm_run *r)
{
    const ndm_comm *comm = r->run.comm;

    for (int64_t m = 0; m < comm->size; m++) {
        const ndm_signature *theirs = &state_of(r)->areas[m]->posts[global_phase(r) % 2].signature;
        if (m == comm->index || posted_by(r, m) <= global_phase(r))
            continue;
        if (theirs->sequence != r->run.signature.sequence ||
            !ndm_signature_equal(theirs, &r->run.signature))
            return ndm_stall_mismatch(comm, comm->ranks[m], theirs, &r->run.signature);
    }
    return NDM_OK;
}

static void read_phase(ndm_shm_run *r)
{
    ndm_shm_area *area = state_of(r)->areas[r->run.comm->index];

    if (r->algo->read)
        r->algo->read(r);
    r->phase++;
    r->written = false;
    atomic_store_explicit(&area->consumed, global_phase(r), memory_order_release);
}

static ndm_status poll(ndm_run *run, bool *progressed, bool *done)
{
    ndm_shm_run *r = (ndm_shm_run *)run;

    *done = false;
    if (r->written && r->phase == 0)
        NDM_TRY(check_calls(r));
    while (!waits(r)) {
        *progressed = true;
        if (r->phase == r->n_phases) {
            *done = true;
            break;
        }
        if (!r->written) {
            write_phase(r);
            continue;
        }
        if (r->phase == 0)
            NDM_TRY(check_calls(r));
        read_phase(r);
    }
    return NDM_OK;
}

static void finish(ndm_run *run)
{
    ndm_shm_run *r = (ndm_shm_run *)run;

    if (!run->done)
        return;
    state_of(r)->phase += (uint64_t)r->n_phases;
    state_of(r)->busy = false;
}

static const ndm_run_ops shm_ops = {
    .ready = ready, .start = start, .poll = poll, .waits_for = waits_for, .finish = finish};

ndm_status ndm_shm_submit(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    ndm_shm_run *r = calloc(1, sizeof *r);

    if (!r)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for %s on %s", ndm_collective_name(args->kind),
                 comm->name);
    ndm_run_init(&r->run, &shm_ops, comm, args);
    r->algo = &ndm_shm_algos[args->kind];
    return ndm_run_submit(&r->run, stream);
}
