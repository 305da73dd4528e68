/* SPDX-License-Identifier: Apache-2.0 */
/* Backend shm: the segment of a node, and the areas of a communicator in it. */
#include "collectives/shm.h"

#include <stdio.h>
#include <stdlib.h>

/* What all communicators of one ndm_comms share. */
typedef struct segment {
    ndm_shm_map map; /* the areas; then, from a page's start on, the bells */
    int64_t *local;  /* [world size] place of a rank among those of its node */
} segment;

static bool some_node_has_two(const ndm_world *world)
{
    return world->nodes < world->size;
}

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    if (!device->ops->host_accessible)
        snprintf(why, why_bytes, "memory of device %s is out of the host's reach",
                 device->ops->name);
    else if (!world->p2p || !some_node_has_two(world))
        snprintf(why, why_bytes, "no two ranks share a node");
    else if (world->nodes == 1)
        snprintf(why, why_bytes, "%lld ranks on node %s", (long long)world->size,
                 world->ranks[0].host);
    else
        snprintf(why, why_bytes, "groups inside one of %lld nodes; the world spans %s, %s%s",
                 (long long)world->nodes, world->ranks[0].host, world->ranks[world->size - 1].host,
                 world->nodes > 2 ? ", ..." : "");
    return device->ops->host_accessible && world->p2p && some_node_has_two(world);
}

/* ---- the segment of a node ------------------------------------------------------------------- */

static int64_t area_bytes(const ndm_comms *comms)
{
    return comms->world->local_size * comms->n_slots * (int64_t)sizeof(ndm_shm_area);
}

static int64_t segment_bytes(const ndm_comms *comms)
{
    return area_bytes(comms) + comms->world->local_size * (int64_t)sizeof(ndm_bell);
}

static void number_locals(const ndm_world *world, int64_t *local)
{
    for (int64_t r = 0; r < world->size; r++) {
        int64_t other = r - 1;
        while (other >= 0 && world->ranks[other].node != world->ranks[r].node)
            other--;
        local[r] = other < 0 ? 0 : local[other] + 1;
    }
}

/* The first rank of each node makes its segment; the others find it in the exchange. */
static ndm_status share_segment(ndm_comms *comms, segment *s, ndm_shm_handle *handles)
{
    ndm_world *world = comms->world;
    ndm_shm_handle mine = {0};
    ndm_status status;
    int64_t owner = 0;

    if (world->local_rank == 0)
        mine = ndm_shm_create(segment_bytes(comms));
    NDM_TRY(ndm_world_exchange(world, &mine, sizeof mine, handles));
    while (world->ranks[owner].node != world->ranks[world->rank].node)
        owner++;
    status = ndm_shm_attach(&handles[owner], segment_bytes(comms), &s->map);
    status = ndm_world_agree(world, status);
    if (world->local_rank == 0)
        ndm_shm_close_handle(&mine);
    return status;
}

static void comms_finish(ndm_comms *comms, void *state)
{
    segment *s = state;

    (void)comms;
    if (!s)
        return;
    ndm_shm_detach(&s->map);
    free(s->local);
    free(s);
}

static ndm_status comms_init(ndm_comms *comms, void **state)
{
    size_t size = (size_t)comms->world->size;
    ndm_shm_handle *handles = calloc(size, sizeof *handles);
    segment *s = calloc(1, sizeof *s);
    ndm_status status = NDM_ERR_MEMORY;

    if (s)
        s->local = calloc(size, sizeof *s->local);
    if (!handles || !s || !s->local) {
        (void)ndm_error_set(status, __FILE__, __LINE__, "comm: no memory for %zu ranks", size);
        goto fail;
    }
    number_locals(comms->world, s->local);
    NDM_TRY_OR(status, share_segment(comms, s, handles), fail);
    *state = s;
    free(handles);
    return NDM_OK;
fail:
    free(handles);
    comms_finish(comms, s);
    return status;
}

/* ---- communicators --------------------------------------------------------------------------- */

static ndm_status check_group(const ndm_comm *comm)
{
    const ndm_rank_facts *ranks = comm->world->ranks;

    for (int64_t i = 1; i < comm->size; i++)
        if (ranks[comm->ranks[i]].node != ranks[comm->ranks[0]].node)
            NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: %s spans hosts %s, %s: it has no shared memory",
                     comm->name, ranks[comm->ranks[0]].host, ranks[comm->ranks[i]].host);
    if (comm->size > NDM_SHM_MAX_MEMBERS)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: %s has %lld ranks, shared memory takes %d", comm->name,
                 (long long)comm->size, NDM_SHM_MAX_MEMBERS);
    return NDM_OK;
}

static void find_member(const ndm_comm *comm, int64_t rank, ndm_shm_member *member)
{
    const ndm_comms *comms = comm->owner;
    const segment *seg = ndm_comms_backend_state(comm);
    int64_t local = seg->local[rank], area = local * comms->n_slots + comm->id;

    member->local = local;
    member->area = (ndm_shm_area *)(seg->map.base + area * (int64_t)sizeof(ndm_shm_area));
    member->bell = (ndm_bell *)(seg->map.base + area_bytes(comms)) + local;
}

static ndm_status comm_init(ndm_comm *comm)
{
    ndm_shm_comm *s;

    NDM_TRY(check_group(comm));
    s = calloc(1, sizeof *s);
    if (s)
        s->members = calloc((size_t)comm->size, sizeof *s->members);
    if (!s || !s->members) {
        free(s);
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    }
    for (int64_t i = 0; i < comm->size; i++) {
        find_member(comm, comm->ranks[i], &s->members[i]);
        s->rings |= ndm_world_shares_cores(comm->world, comm->ranks[i]);
    }
    comm->state = s;
    ndm_device_account(comm->owner->device, NDM_MEMORY_COMM, sizeof(ndm_shm_area));
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    ndm_shm_comm *s = comm->state;

    while (s->windows)
        ndm_shm_window_free(comm, s->windows->map.base);
    ndm_device_account(comm->owner->device, NDM_MEMORY_COMM, -(int64_t)sizeof(ndm_shm_area));
    ndm_staging_finish(comm, &s->staging);
    free(s->members);
    free(s);
    comm->state = NULL;
}

ndm_shm_comm *ndm_shm_state(const ndm_comm *comm)
{
    return comm->state;
}

const ndm_comm_backend ndm_comm_backend_shm = {
    .name = "shm",
    .summary = "shared memory between ranks of one node",
    .priority = 20,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = ndm_shm_submit,
    .window_alloc = ndm_shm_window_alloc,
    .window_free = ndm_shm_window_free,
    .comms_init = comms_init,
    .comms_finish = comms_finish,
};
