/* SPDX-License-Identifier: Apache-2.0 */
/* Backend of the counting device: collectives are counted by the front end and move nothing, and
 * memory is taken as the real backend takes it. */
#include "collectives/count.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/shm.h"
#include "core/dtype.h"
#include "device/count.h"

extern const ndm_comm_backend ndm_comm_backend_shm;

/* As in algo_reduce_scatter.c and algo_all_reduce.c. */
enum { STAGING_HALF_BYTES = 2 << 20, CHUNK_ALIGN = 64, CHUNK_MIN = 1024, SMALL_BYTES = 32 << 10 };

static const char *mimicked = "auto";

typedef struct count_window {
    struct count_window *next;
    void *base;
    int64_t block; /* bytes of a rank */
    ndm_memory_kind kind;
} count_window;

/* comm->state */
typedef struct count_comm {
    ndm_staging staging; /* first: of schedules that the host runs on this communicator */
    bool shared;         /* as shm */
    int64_t bytes;       /* of staging, accounted */
    count_window *windows;
} count_comm;

void ndm_count_mimic(const char *backend)
{
    mimicked = backend;
}

static bool is_one_node(const ndm_comm *comm)
{
    const ndm_rank_facts *ranks = comm->world->ranks;

    for (int64_t i = 1; i < comm->size; i++)
        if (ranks[comm->ranks[i]].node != ranks[comm->ranks[0]].node)
            return false;
    return comm->size <= NDM_SHM_MAX_MEMBERS;
}

static bool would_share(const ndm_comm *comm)
{
    char why[256];

    if (comm->size == 1 || (strcmp(mimicked, "auto") != 0 && strcmp(mimicked, "shm") != 0))
        return false;
    return is_one_node(comm) &&
           ndm_comm_backend_shm.probe(comm->world, comm->owner->device, why, sizeof why);
}

const char *ndm_count_mimicked(const ndm_comm *comm)
{
    const count_comm *c = comm->state;

    if (comm->size == 1)
        return "self";
    return c->shared ? "shm" : strcmp(mimicked, "auto") == 0 ? "mpi" : mimicked;
}

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    bool counting = strcmp(device->ops->name, "count") == 0;

    (void)world;
    snprintf(why, why_bytes, "%s", counting ? "nothing is moved" : "for dry runs only");
    return counting;
}

/* Staging is kept, and only grows. */
static void grow(ndm_comm *comm, int64_t bytes)
{
    count_comm *c = comm->state;

    if (bytes <= c->bytes)
        return;
    ndm_device_account(comm->owner->device, NDM_MEMORY_COMM, bytes - c->bytes);
    c->bytes = bytes;
}

/* Staging to sum a block of elements over n ranks by messages. */
static int64_t reduction_bytes(int64_t block, int64_t size, int64_t n)
{
    int64_t chunk = STAGING_HALF_BYTES / size / (n - 1) / CHUNK_ALIGN * CHUNK_ALIGN;

    chunk = chunk < CHUNK_MIN ? CHUNK_MIN : chunk;
    chunk = chunk < block ? chunk : block;
    return (chunk < block ? 2 : 1) * (n - 1) * chunk * size;
}

static int64_t message_bytes(const ndm_comm *comm, const ndm_collective_args *a)
{
    int64_t n = comm->size, size = (int64_t)ndm_dtype_bytes(a->dtype);
    int64_t block = ((a->count + n - 1) / n + CHUNK_ALIGN - 1) / CHUNK_ALIGN * CHUNK_ALIGN;

    if (n == 1 || (a->kind != NDM_REDUCE_SCATTER && a->kind != NDM_ALL_REDUCE))
        return 0;
    if (a->kind == NDM_REDUCE_SCATTER)
        return reduction_bytes(a->count, size, n);
    return a->count * size <= SMALL_BYTES ? n * a->count * size : reduction_bytes(block, size, n);
}

static ndm_status comm_init(ndm_comm *comm)
{
    count_comm *c = calloc(1, sizeof *c);

    if (!c)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    c->shared = would_share(comm);
    comm->state = c;
    if (c->shared)
        grow(comm, (int64_t)sizeof(ndm_shm_area));
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    count_comm *c = comm->state;

    ndm_device_account(comm->owner->device, NDM_MEMORY_COMM, -c->bytes);
    ndm_staging_finish(comm, &c->staging);
    free(c);
    comm->state = NULL;
}

static ndm_status run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    const count_comm *c = comm->state;

    (void)stream;
    if (!c->shared)
        grow(comm, message_bytes(comm, args));
    comm->started++;
    return NDM_OK;
}

/* Address space for the parts of all ranks, of which this rank's is counted: where others' parts
 * would lie there must be nothing else, since kernels compare addresses. */
static ndm_status window_alloc(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                               void **all)
{
    count_comm *c = comm->state;
    count_window *w;

    if (!c->shared)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: %s has no shared memory", comm->name);
    w = calloc(1, sizeof *w);
    if (w)
        w->base = ndm_count_reserve(bytes_per_rank * comm->size);
    if (!w || !w->base) {
        free(w);
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no addresses for a window of %s", comm->name);
    }
    w->kind = kind;
    w->block = bytes_per_rank;
    w->next = c->windows;
    c->windows = w;
    ndm_device_account(comm->owner->device, kind, bytes_per_rank);
    *all = w->base;
    return NDM_OK;
}

static void window_free(ndm_comm *comm, void *all)
{
    count_comm *c = comm->state;

    for (count_window **link = &c->windows; *link; link = &(*link)->next) {
        count_window *w = *link;
        if (w->base != all)
            continue;
        *link = w->next;
        ndm_device_account(comm->owner->device, w->kind, -w->block);
        ndm_count_release(w->base, w->block * comm->size);
        free(w);
        return;
    }
}

const ndm_comm_backend ndm_comm_backend_count = {
    .name = "count",
    .summary = "moves nothing: dry runs",
    .priority = -1,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = run,
    .window_alloc = window_alloc,
    .window_free = window_free,
    .any_world = true,
};
