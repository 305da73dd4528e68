/* SPDX-License-Identifier: Apache-2.0 */
/* Notices between ranks that wait, and the messages of late, lost and mistaken ranks. */
#include "collectives/stall.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comms.h"
#include "core/clock.h"
#include "core/text.h"

enum { NOTICES_IN_FLIGHT = 64, NAMED_RANKS = 8 };

static const int64_t PATIENCE_NS = 3000000000;

/* Fits an eager message: sending it needs nobody who receives. */
typedef struct notice {
    ndm_signature signature;
    int64_t denied; /* 0: the sender waits in it, or called it; 1: it has not called it */
} notice;

typedef struct outgoing {
    notice message;
    MPI_Request request;
} outgoing;

/* The last notices of a rank: what it waits in, and what this rank waits in but it has not called.
 */
typedef struct heard {
    ndm_signature waits_in, denied;
    int64_t waits_ns, denied_ns; /* when; 0 = never */
    bool unissued;               /* this rank has not called waits_in */
} heard;

struct ndm_stall {
    outgoing out[NOTICES_IN_FLIGHT];
    int next;
    heard *heard; /* [world size] */
};

ndm_status ndm_stall_create(ndm_world *world)
{
    ndm_stall *stall = calloc(1, sizeof *stall);

    if (stall)
        stall->heard = calloc((size_t)world->size, sizeof *stall->heard);
    if (!stall || !stall->heard) {
        free(stall);
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a world of %lld ranks",
                 (long long)world->size);
    }
    for (int i = 0; i < NOTICES_IN_FLIGHT; i++)
        stall->out[i].request = MPI_REQUEST_NULL;
    world->stall = stall;
    return NDM_OK;
}

void ndm_stall_destroy(ndm_world *world)
{
    if (world->stall)
        free(world->stall->heard);
    free(world->stall);
    world->stall = NULL;
}

/* ---- text ------------------------------------------------------------------------------------ */

static void append_ranks(ndm_buffer *text, const ndm_comm *comm)
{
    ndm_buffer_puts(text, " {");
    for (int64_t i = 0; i < comm->size && i < 2 * NAMED_RANKS; i++)
        ndm_buffer_printf(text, "%s%lld", i ? "," : "", (long long)comm->ranks[i]);
    ndm_buffer_puts(text, comm->size > 2 * NAMED_RANKS ? ",...}" : "}");
}

/* "; it waits in all_gather #3 on tp" or "; it last finished all_gather #411 on dp_shard_cp". */
static void append_last_deed(ndm_buffer *text, const ndm_run *run, int64_t rank)
{
    const ndm_world *world = run->comm->world;
    const ndm_flight_record *last = ndm_flight_last_done(&world->flight, run->comm);
    const heard *h = &world->stall->heard[rank];

    if (h->waits_ns > ndm_clock_ns() - run->idle_ns)
        ndm_buffer_printf(text, "; it waits in %s #%llu on %s",
                          ndm_collective_name((ndm_collective)h->waits_in.kind),
                          (unsigned long long)h->waits_in.sequence, h->waits_in.comm_name);
    else if (last)
        ndm_buffer_printf(text, "; it last took part in %s #%llu on %s",
                          ndm_collective_name((ndm_collective)last->signature.kind),
                          (unsigned long long)last->signature.sequence, last->signature.comm_name);
}

static void describe_after(const ndm_run *run, double seconds, ndm_buffer *text)
{
    const ndm_comm *comm = run->comm;
    int64_t late = 0, first = -1;
    char who[160];

    ndm_buffer_printf(text, "comm: %s #%llu on %s", ndm_collective_name(run->args.kind),
                      (unsigned long long)run->signature.sequence, comm->name);
    append_ranks(text, comm);
    for (int64_t i = 0; i < comm->size; i++) {
        if (i == comm->index || !run->ops->waits_for(run, i) || ++late > NAMED_RANKS)
            continue;
        first = first < 0 ? comm->ranks[i] : first;
        ndm_buffer_printf(text, "%s%s", late > 1 ? ", " : ": ",
                          ndm_world_rank_text(comm->world, comm->ranks[i], who, sizeof who));
    }
    if (late > NAMED_RANKS)
        ndm_buffer_printf(text, " and %lld more", (long long)(late - NAMED_RANKS));
    ndm_buffer_printf(text, "%s",
                      late == 0  ? ": not complete"
                      : late > 1 ? " have not arrived"
                                 : " has not arrived");
    if (seconds > 0)
        ndm_buffer_printf(text, " after %.3g s", seconds);
    if (late == 1)
        append_last_deed(text, run, first);
}

void ndm_stall_describe(const ndm_run *run, char *text, size_t text_bytes)
{
    ndm_buffer buffer = {0};

    describe_after(run, 0, &buffer);
    snprintf(text, text_bytes, "%s", ndm_buffer_text(&buffer));
    ndm_buffer_finish(&buffer);
}

ndm_status ndm_stall_deadline(const ndm_run *run)
{
    ndm_buffer text = {0};
    ndm_status status;

    describe_after(run, (double)run->comm->world->timeout_ns * 1e-9, &text);
    status = ndm_error_set(NDM_ERR_TIMEOUT, __FILE__, __LINE__, "%s", ndm_buffer_text(&text));
    ndm_buffer_finish(&text);
    return status;
}

ndm_status ndm_stall_mismatch(const ndm_comm *comm, int64_t rank, const ndm_signature *theirs,
                              const ndm_signature *mine)
{
    char a[96], b[96], who[160];
    ndm_buffer text = {0};
    ndm_status status;

    ndm_buffer_printf(&text, "comm: %s called %s on %s",
                      ndm_world_rank_text(comm->world, rank, who, sizeof who),
                      ndm_signature_text(theirs, a, sizeof a), theirs->comm_name);
    append_ranks(&text, comm);
    ndm_buffer_printf(&text, ", rank %lld called %s", (long long)comm->world->rank,
                      ndm_signature_text(mine, b, sizeof b));
    if (theirs->root != mine->root)
        ndm_buffer_printf(&text, " (roots %lld and %lld)", (long long)theirs->root,
                          (long long)mine->root);
    status = ndm_error_set(NDM_ERR_MISMATCH, __FILE__, __LINE__, "%s", ndm_buffer_text(&text));
    ndm_buffer_finish(&text);
    return status;
}

/* ---- notices --------------------------------------------------------------------------------- */

/* If all slots are still on their way, this notice is left out: another follows. */
static ndm_status send_notice(ndm_world *world, int64_t rank, const ndm_signature *signature,
                              bool denied)
{
    outgoing *out = &world->stall->out[world->stall->next];
    bool done = true;

    if (out->request != MPI_REQUEST_NULL)
        NDM_TRY(ndm_p2p_test(&out->request, &done, NULL));
    if (!done)
        return NDM_OK;
    world->stall->next = (world->stall->next + 1) % NOTICES_IN_FLIGHT;
    out->message = (notice){*signature, denied};
    return ndm_p2p_send(world->p2p, &out->message, sizeof out->message, rank, NDM_P2P_TAG_NOTICE,
                        &out->request);
}

/* The communicator that a signature speaks of, or NULL. */
static const ndm_comm *find_comm(const ndm_world *world, const ndm_signature *signature)
{
    if (signature->generation == 0)
        return world->comm;
    for (const ndm_comms *c = world->comms; c; c = c->next)
        if (c->generation == signature->generation && signature->comm_id < c->n_slots)
            return c->slots[signature->comm_id].comm;
    return NULL;
}

/* What rank waits in has not been called here: it is told so, and this rank remembers. */
static ndm_status deny(ndm_world *world, int64_t rank, const ndm_signature *theirs)
{
    world->stall->heard[rank].unissued = true;
    return send_notice(world, rank, theirs, true);
}

static ndm_status take_notice(ndm_world *world, int64_t rank, const notice *message)
{
    const ndm_signature *theirs = &message->signature;
    const ndm_comm *comm = find_comm(world, theirs);
    const ndm_flight_record *mine = ndm_flight_find(&world->flight, theirs->comm_id,
                                                    theirs->generation, theirs->sequence);
    heard *h = &world->stall->heard[rank];

    if (message->denied) {
        h->denied = *theirs;
        h->denied_ns = ndm_clock_ns();
        return NDM_OK;
    }
    h->waits_in = *theirs;
    h->waits_ns = ndm_clock_ns();
    h->unissued = false;
    if (!mine && (!comm || comm->sequence < theirs->sequence))
        return deny(world, rank, theirs);
    if (!comm || !mine || ndm_signature_equal(theirs, &mine->signature))
        return NDM_OK;
    NDM_TRY(send_notice(world, rank, &mine->signature, false));
    if (comm->broken) /* this rank has failed already, and has gone on */
        return NDM_OK;
    return ndm_stall_mismatch(comm, rank, theirs, &mine->signature);
}

static ndm_status receive_notice(ndm_world *world, int64_t rank)
{
    notice message;
    MPI_Request request;
    bool done = false;

    NDM_TRY(ndm_p2p_recv(world->p2p, &message, sizeof message, rank, NDM_P2P_TAG_NOTICE, &request));
    while (!done) /* it has arrived: this does not wait */
        NDM_TRY(ndm_p2p_test(&request, &done, NULL));
    return take_notice(world, rank, &message);
}

ndm_status ndm_stall_listen(ndm_world *world)
{
    bool found = true;
    MPI_Status status;

    while (world->p2p && found) {
        NDM_TRY(ndm_p2p_probe(world->p2p, MPI_ANY_SOURCE, NDM_P2P_TAG_NOTICE, &found, &status));
        if (found)
            NDM_TRY(receive_notice(world, status.MPI_SOURCE));
    }
    return NDM_OK;
}

/* ---- probes ---------------------------------------------------------------------------------- */

static ndm_status check_alive(const ndm_run *run, int64_t rank)
{
    const ndm_world *world = run->comm->world;
    const ndm_rank_facts *facts = &world->ranks[rank];
    char who[160];

    if (facts->node != world->ranks[world->rank].node || kill((pid_t)facts->pid, 0) == 0 ||
        errno != ESRCH)
        return NDM_OK;
    NDM_FAIL(NDM_ERR_COMM, "comm: %s #%llu on %s: %s is gone", ndm_collective_name(run->args.kind),
             (unsigned long long)run->signature.sequence, run->comm->name,
             ndm_world_rank_text(world, rank, who, sizeof who));
}

/* A rank that called something else and then left the library (it computes, or sleeps) cannot
 * answer, but its message tells what it called. */
static ndm_status check_messages(const ndm_run *run, int64_t rank)
{
    int tag = ndm_p2p_tag(&run->signature);
    bool found = false;
    MPI_Status status;
    char who[160];

    NDM_TRY(ndm_p2p_probe(run->comm->world->p2p, rank, MPI_ANY_TAG, &found, &status));
    if (!found || status.MPI_TAG == tag || !ndm_p2p_tag_same_collective(status.MPI_TAG, tag))
        return NDM_OK;
    NDM_FAIL(NDM_ERR_MISMATCH,
             "comm: %s called %s #%llu on %s, rank %lld called %s (or another count or type)",
             ndm_world_rank_text(run->comm->world, rank, who, sizeof who),
             ndm_collective_name(ndm_p2p_tag_kind(status.MPI_TAG)),
             (unsigned long long)run->signature.sequence, run->comm->name,
             (long long)run->comm->world->rank, ndm_collective_name(run->args.kind));
}

/* Each waits for the other in a collective that the other has not called, and both have polled for
 * seconds: neither will. */
static ndm_status check_order(const ndm_run *run, int64_t rank)
{
    const ndm_world *world = run->comm->world;
    const heard *h = &world->stall->heard[rank];
    int64_t since = ndm_clock_ns() - run->idle_ns;
    const ndm_signature *mine = &run->signature;
    char who[160];

    if (h->waits_ns < since || h->denied_ns < since || !h->unissued ||
        h->denied.comm_id != mine->comm_id || h->denied.generation != mine->generation ||
        h->denied.sequence != mine->sequence)
        return NDM_OK;
    NDM_FAIL(NDM_ERR_MISMATCH,
             "comm: collectives are called in different orders: %s called %s #%llu on %s, rank "
             "%lld called %s #%llu on %s first",
             ndm_world_rank_text(world, rank, who, sizeof who),
             ndm_collective_name((ndm_collective)h->waits_in.kind),
             (unsigned long long)h->waits_in.sequence, h->waits_in.comm_name,
             (long long)world->rank, ndm_collective_name(run->args.kind),
             (unsigned long long)mine->sequence, mine->comm_name);
}

ndm_status ndm_stall_probe(const ndm_run *run)
{
    const ndm_comm *comm = run->comm;
    int told = 0;

    NDM_TRY(ndm_stall_listen(comm->world));
    for (int64_t i = 0; i < comm->size && told < NAMED_RANKS; i++) {
        if (i == comm->index || !run->ops->waits_for(run, i))
            continue;
        told++;
        NDM_TRY(check_alive(run, comm->ranks[i]));
        /* Those that can answer get the time to do so: their answer says more. */
        if (run->idle_ns > PATIENCE_NS) {
            NDM_TRY(check_order(run, comm->ranks[i]));
            NDM_TRY(check_messages(run, comm->ranks[i]));
        }
        NDM_TRY(send_notice(comm->world, comm->ranks[i], &run->signature, false));
    }
    return NDM_OK;
}
