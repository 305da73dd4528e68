/* SPDX-License-Identifier: Apache-2.0 */
/* A collective in shared memory in flight: its phases, one look at the counters a poll. */
#include <stdlib.h>
#include <string.h>

#include "collectives/shm.h"
#include "collectives/stall.h"
#include "core/dtype.h"

enum { OWN_BYTES = 8 * 1024 }; /* more is not there in time */

static ndm_shm_comm *state_of(const ndm_shm_run *r)
{
    return ndm_shm_state(r->run.comm);
}

/* Number of a phase among all of the communicator. */
static uint64_t number(const ndm_shm_run *r, int64_t phase)
{
    return state_of(r)->phase + (uint64_t)phase;
}

static const ndm_shm_post *post_of(const ndm_shm_run *r, int64_t phase, int64_t member)
{
    return &state_of(r)->members[member].area->posts[number(r, phase) % NDM_SHM_SLOTS];
}

static uint64_t posted_by(const ndm_shm_run *r, int64_t member)
{
    return atomic_load_explicit(&state_of(r)->members[member].area->posted, memory_order_acquire);
}

static uint64_t consumed_by(const ndm_shm_run *r, int64_t member)
{
    return atomic_load_explicit(&state_of(r)->members[member].area->consumed, memory_order_acquire);
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

bool ndm_shm_in_window(const ndm_shm_run *r, int64_t phase, int64_t member)
{
    return post_of(r, phase, member)->window >= 0;
}

const char *ndm_shm_source(const ndm_shm_run *r, int64_t phase, int64_t member)
{
    const ndm_shm_post *post = post_of(r, phase, member);

    for (const ndm_shm_window *w = state_of(r)->windows; w; w = w->next)
        if (w->id == post->window)
            return w->map.base + post->offset;
    return state_of(r)->members[member].area->staging[number(r, phase) % NDM_SHM_SLOTS];
}

/* ---- what a run waits for -------------------------------------------------------------------- */

/* A slot still holds what member has not read. */
static bool holds_back_write(const ndm_shm_run *r, int64_t member)
{
    return consumed_by(r, member) + NDM_SHM_SLOTS <= number(r, r->written);
}

static bool holds_back_read(const ndm_shm_run *r, int64_t member)
{
    return posted_by(r, member) <= number(r, r->read) &&
           (!r->algo->needs || r->algo->needs(r, member));
}

/* A window is the caller's again when everybody has read it. */
static bool holds_back_end(const ndm_shm_run *r, int64_t member)
{
    return r->direct && consumed_by(r, member) < number(r, r->n_phases);
}

typedef bool (*hold)(const ndm_shm_run *r, int64_t member);

static bool any(const ndm_shm_run *r, hold holds_back)
{
    for (int64_t m = 0; m < r->run.comm->size; m++)
        if (m != r->run.comm->index && holds_back(r, m))
            return true;
    return false;
}

static bool waits_for(const ndm_run *run, int64_t member)
{
    const ndm_shm_run *r = (const ndm_shm_run *)run;

    if (member == run->comm->index)
        return false;
    if (r->read == r->n_phases)
        return holds_back_end(r, member);
    return r->read < r->written ? holds_back_read(r, member) : holds_back_write(r, member);
}

/* The next of those missing after this rank: not all members wait for the same one then. */
static void awaits(const ndm_run *run)
{
    const ndm_shm_comm *s = ndm_shm_state(run->comm);
    int64_t size = run->comm->size, index = run->comm->index;

    for (int64_t i = 1; i < size; i++) {
        int64_t m = (index + i) % size;
        if (waits_for(run, m)) {
            ndm_wait_for(s->members[index].bell, s->members[m].local);
            return;
        }
    }
}

static bool can_read(const ndm_shm_run *r)
{
    return r->read < r->written && !any(r, holds_back_read);
}

static bool can_write(const ndm_shm_run *r)
{
    return r->written < r->n_phases && r->written < r->read + NDM_SHM_SLOTS &&
           (!r->algo->writable || r->algo->writable(r, r->written)) && !any(r, holds_back_write);
}

/* ---- a phase --------------------------------------------------------------------------------- */

#if defined(__x86_64__)
/* Not __builtin_prefetch(): that reads only, but where the target is a processor of today. */
#define OWN_LINE(at) __asm__ volatile("prefetchw %0" : : "m"(*(at)))
#else
#define OWN_LINE(at) __builtin_prefetch(at, 1, 3)
#endif

/* While this rank waits for what others put out: fetches the lines that the next small call will
 * write, which the others have in their caches since they read them. */
static void prepare_next(const ndm_shm_run *r, const ndm_shm_area *area, uint64_t n)
{
    int64_t bytes = r->run.args.count * (int64_t)ndm_dtype_bytes(r->run.args.dtype);
    const char *slot = area->staging[(n + 1) % NDM_SHM_SLOTS];

    if (r->n_phases > 1 || bytes > OWN_BYTES)
        return;
    for (int64_t i = 0; i < bytes; i += NDM_SHM_LINE)
        OWN_LINE(slot + i);
}

/* What this rank has just put out, or taken, is what others wait for. */
static void ring_others(const ndm_shm_run *r)
{
    const ndm_shm_comm *s = state_of(r);
    int64_t index = r->run.comm->index;

    if (!s->rings)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    for (int64_t m = 0; m < r->run.comm->size; m++)
        if (m != index)
            ndm_bell_ring(s->members[m].bell, s->members[index].local);
}

static void write_phase(ndm_shm_run *r)
{
    ndm_shm_comm *s = state_of(r);
    ndm_shm_area *area = s->members[r->run.comm->index].area;
    uint64_t n = number(r, r->written);
    ndm_shm_post *post = &area->posts[n % NDM_SHM_SLOTS];
    const char *data = s->windows && r->algo->locate ? r->algo->locate(r, r->written) : NULL;
    const ndm_shm_window *window = data ? ndm_shm_find_window(r->run.comm, data, 1) : NULL;

    post->signature = r->run.signature;
    post->window = window ? window->id : -1;
    post->offset = window ? data - window->map.base : 0;
    r->direct |= window != NULL;
    if (!window && r->algo->write)
        r->algo->write(r, r->written, area->staging[n % NDM_SHM_SLOTS]);
    r->written++;
    atomic_store_explicit(&area->posted, n + 1, memory_order_release);
    ring_others(r);
    if (!window)
        prepare_next(r, area, n);
}

static void read_phase(ndm_shm_run *r)
{
    ndm_shm_area *area = state_of(r)->members[r->run.comm->index].area;

    if (r->algo->read)
        r->algo->read(r, r->read);
    r->read++;
    atomic_store_explicit(&area->consumed, number(r, r->read), memory_order_release);
    ring_others(r);
}

/* Members must have called the same. Looked at in the first phase; later ones follow from it. */
static ndm_status check_calls(const ndm_shm_run *r)
{
    const ndm_comm *comm = r->run.comm;

    for (int64_t m = 0; m < comm->size; m++) {
        if (m == comm->index || posted_by(r, m) <= number(r, 0))
            continue;
        const ndm_signature *theirs = &post_of(r, 0, m)->signature;
        if (theirs->sequence != r->run.signature.sequence ||
            !ndm_signature_equal(theirs, &r->run.signature))
            return ndm_stall_mismatch(comm, comm->ranks[m], theirs, &r->run.signature);
    }
    return NDM_OK;
}

/* Reads before it writes: what others have just put out is still in a near cache. */
static ndm_status poll(ndm_run *run, bool *progressed, bool *done)
{
    ndm_shm_run *r = (ndm_shm_run *)run;

    for (;;) {
        bool readable = can_read(r); /* before the check: what is read has then been checked */

        if (r->read == 0 && r->written > 0)
            NDM_TRY(check_calls(r));
        if (readable)
            read_phase(r);
        else if (can_write(r))
            write_phase(r);
        else
            break;
        *progressed = true;
    }
    *done = r->read == r->n_phases && !any(r, holds_back_end);
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

static const ndm_run_ops shm_ops = {.ready = ready,
                                    .start = start,
                                    .poll = poll,
                                    .waits_for = waits_for,
                                    .awaits = awaits,
                                    .finish = finish};

ndm_status ndm_shm_submit(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    ndm_shm_run *r = malloc(sizeof *r); /* calloc would not take what the last one gave back */

    if (!r)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for %s on %s", ndm_collective_name(args->kind),
                 comm->name);
    memset(r, 0, sizeof *r);
    ndm_run_init(&r->run, &shm_ops, comm, args);
    r->algo = &ndm_shm_algos[args->kind];
    return ndm_run_submit(&r->run, stream);
}
