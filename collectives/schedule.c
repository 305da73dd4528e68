/* SPDX-License-Identifier: Apache-2.0 */
/* Runs schedules: transfers, staging memory, and rounds. */
#include "collectives/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/algo.h"
#include "collectives/comms.h"
#include "collectives/stall.h"

static ndm_status add_transfer(ndm_schedule *s, ndm_transfer **transfer)
{
    if (s->n_transfers == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 16;
        void *p = realloc(s->transfers, (size_t)capacity * sizeof *s->transfers);
        if (!p)
            NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for %lld messages", (long long)capacity);
        s->transfers = p;
        s->capacity = capacity;
    }
    *transfer = &s->transfers[s->n_transfers];
    **transfer = (ndm_transfer){.request = MPI_REQUEST_NULL};
    return NDM_OK;
}

ndm_status ndm_schedule_send(ndm_schedule *s, int64_t member, const void *data, int64_t bytes)
{
    ndm_p2p *p2p = s->run.comm->world->p2p;
    const char *p = data;

    for (int64_t at = 0; at < bytes; at += p2p->message_limit) {
        int64_t part = bytes - at < p2p->message_limit ? bytes - at : p2p->message_limit;
        ndm_transfer *t;
        NDM_TRY(add_transfer(s, &t));
        NDM_TRY(ndm_p2p_send(p2p, p + at, part, s->run.comm->ranks[member], s->tag, &t->request));
        t->member = member, t->bytes = part, t->receive = false;
        s->n_transfers++;
    }
    return NDM_OK;
}

ndm_status ndm_schedule_recv(ndm_schedule *s, int64_t member, void *data, int64_t bytes)
{
    ndm_p2p *p2p = s->run.comm->world->p2p;
    char *p = data;

    for (int64_t at = 0; at < bytes; at += p2p->message_limit) {
        int64_t part = bytes - at < p2p->message_limit ? bytes - at : p2p->message_limit;
        ndm_transfer *t;
        NDM_TRY(add_transfer(s, &t));
        NDM_TRY(ndm_p2p_recv(p2p, p + at, part, s->run.comm->ranks[member], s->tag, &t->request));
        t->member = member, t->bytes = part, t->receive = true;
        s->n_transfers++;
    }
    return NDM_OK;
}

/* ---- staging --------------------------------------------------------------------------------- */

static ndm_status stage_alloc(ndm_comm *comm, int64_t bytes, void **memory)
{
    ndm_device *device = comm->owner->device;

    if (device->ops->host_accessible)
        return ndm_device_alloc(device, bytes, NDM_MEMORY_COMM, memory);
    *memory = malloc(bytes > 0 ? (size_t)bytes : 1);
    if (!*memory)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no %lld bytes of host memory for staging on %s",
                 (long long)bytes, comm->name);
    return NDM_OK;
}

static void stage_free(ndm_comm *comm, void *memory)
{
    if (comm->owner->device->ops->host_accessible)
        ndm_device_free(comm->owner->device, memory);
    else
        free(memory);
}

/* World collectives have no device; theirs need no staging. */
ndm_status ndm_schedule_stage(ndm_schedule *s, int64_t bytes)
{
    ndm_comm *comm = s->run.comm;
    ndm_staging *kept = comm->state;

    if (!kept->taken && kept->bytes < bytes) {
        stage_free(comm, kept->memory);
        *kept = (ndm_staging){0};
        NDM_TRY(stage_alloc(comm, bytes, &kept->memory));
        kept->bytes = bytes;
    }
    if (!kept->taken) {
        kept->taken = true;
        s->staging = kept->memory;
        return NDM_OK;
    }
    return stage_alloc(comm, bytes, (void **)&s->staging);
}

static void give_back_staging(ndm_schedule *s)
{
    ndm_comm *comm = s->run.comm;
    ndm_staging *kept = comm->state;

    if (!s->staging)
        return;
    if (s->staging == kept->memory)
        kept->taken = false;
    else
        stage_free(comm, s->staging);
}

void ndm_staging_finish(ndm_comm *comm, ndm_staging *staging)
{
    stage_free(comm, staging->memory);
    *staging = (ndm_staging){0};
}

/* ---- running --------------------------------------------------------------------------------- */

static ndm_status test_transfer(const ndm_schedule *s, ndm_transfer *t)
{
    int64_t bytes = t->bytes;

    if (t->done)
        return NDM_OK;
    NDM_TRY(ndm_p2p_test(&t->request, &t->done, t->receive ? &bytes : NULL));
    if (t->done && bytes != t->bytes)
        NDM_FAIL(NDM_ERR_MISMATCH, "comm: %s #%llu on %s: rank %lld sent %lld bytes, not %lld",
                 ndm_collective_name(s->run.args.kind),
                 (unsigned long long)s->run.signature.sequence, s->run.comm->name,
                 (long long)s->run.comm->ranks[t->member], (long long)bytes, (long long)t->bytes);
    return NDM_OK;
}

/* Tests in order of posting, up to the first that is not complete: one progress call of MPI a poll.
 * Now and then all the others, so that waits_for() names nobody who has done his part. */
static ndm_status test_transfers(ndm_schedule *s, bool *progressed)
{
    while (s->n_done < s->n_transfers) {
        NDM_TRY(test_transfer(s, &s->transfers[s->n_done]));
        if (!s->transfers[s->n_done].done)
            break;
        s->n_done++;
        *progressed = true;
    }
    if ((s->run.idle_polls + 1) % NDM_RUN_POLLS_BETWEEN_CHECKS == 0)
        for (int64_t i = s->n_done; i < s->n_transfers; i++)
            NDM_TRY(test_transfer(s, &s->transfers[i]));
    return NDM_OK;
}

static ndm_status poll(ndm_run *run, bool *progressed, bool *done)
{
    ndm_schedule *s = (ndm_schedule *)run;

    while (!s->finished) {
        NDM_TRY(test_transfers(s, progressed));
        if (s->n_done < s->n_transfers)
            break;
        s->n_done = s->n_transfers = 0;
        NDM_TRY(s->advance(s, &s->finished));
    }
    *done = s->finished;
    return NDM_OK;
}

/* Posts the first round at once, so that data moves while the host does something else. */
static ndm_status start(ndm_run *run)
{
    ndm_schedule *s = (ndm_schedule *)run;
    return s->advance(s, &s->finished);
}

static bool waits_for(const ndm_run *run, int64_t member)
{
    const ndm_schedule *s = (const ndm_schedule *)run;

    for (int64_t i = s->n_done; i < s->n_transfers; i++)
        if (s->transfers[i].member == member && !s->transfers[i].done)
            return true;
    return false;
}

static void finish(ndm_run *run)
{
    ndm_schedule *s = (ndm_schedule *)run;

    for (int64_t i = s->n_done; i < s->n_transfers; i++)
        ndm_p2p_cancel(&s->transfers[i].request, s->transfers[i].receive);
    give_back_staging(s);
    free(s->transfers);
}

static const ndm_run_ops schedule_ops = {
    .start = start, .poll = poll, .waits_for = waits_for, .finish = finish};

static ndm_status create(ndm_comm *comm, const ndm_collective_args *args, ndm_schedule **schedule)
{
    static const ndm_schedule_advance algorithms[NDM_COLLECTIVE_COUNT] = {
        [NDM_ALL_GATHER] = ndm_algo_all_gather, [NDM_REDUCE_SCATTER] = ndm_algo_reduce_scatter,
        [NDM_ALL_REDUCE] = ndm_algo_all_reduce, [NDM_ALL_TO_ALL] = ndm_algo_all_to_all,
        [NDM_BROADCAST] = ndm_algo_broadcast,   [NDM_SEND_RECV] = ndm_algo_send_recv,
        [NDM_BARRIER] = ndm_algo_barrier,
    };
    ndm_schedule *s = calloc(1, sizeof *s);

    if (!s)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for %s on %s", ndm_collective_name(args->kind),
                 comm->name);
    ndm_run_init(&s->run, &schedule_ops, comm, args);
    s->advance = algorithms[args->kind];
    s->tag = ndm_p2p_tag(&s->run.signature);
    *schedule = s;
    return NDM_OK;
}

ndm_status ndm_schedule_submit(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    ndm_schedule *s;

    NDM_TRY(create(comm, args, &s));
    return ndm_run_submit(&s->run, stream);
}

ndm_status ndm_schedule_execute(ndm_comm *comm, const ndm_collective_args *args)
{
    ndm_schedule *s;

    NDM_TRY(create(comm, args, &s));
    return ndm_run_execute(&s->run);
}
