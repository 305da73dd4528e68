/* SPDX-License-Identifier: Apache-2.0 */
/* Backend of the simulated world: a collective takes its time on a link and moves nothing. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comms.h"
#include "collectives/shm.h"
#include "collectives/sim_cost.h"
#include "core/dtype.h"
#include "device/sim.h"

typedef struct sim_comm {
    ndm_sim_group group;
    unsigned axes;
    int64_t staging; /* bytes, accounted: what ranks of a host put before each other */
} sim_comm;

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    bool yes = ndm_world_is_simulated(world) && strcmp(device->ops->name, "sim") == 0;

    snprintf(why, why_bytes, "%s", yes ? "the world is simulated" : "for the simulated world only");
    return yes;
}

static bool is_further(const ndm_sim_group *a, const ndm_sim_group *b)
{
    if ((a->domains > 1) != (b->domains > 1))
        return a->domains > 1;
    return a->fewest != b->fewest ? a->fewest < b->fewest : a->domains > b->domains;
}

/* Of the groups that split the ranks as `comm` does: every step waits for it. Where hosts and sizes
 * repeat, the first thousands of ranks have all there are. */
static ndm_sim_group find_furthest(const ndm_comm *comm, int64_t per_domain)
{
    enum { RANKS_LOOKED_AT = 4096 };
    const ndm_comm_slot *slot = &comm->owner->slots[comm->id];
    const ndm_mesh *mesh = comm->owner->mesh;
    int64_t all = ndm_mesh_size(mesh, NDM_AXES_ALL), n = comm->size;
    ndm_sim_group furthest = ndm_sim_place(comm->ranks, n, per_domain);
    int64_t *ranks = n > 1 && n < all ? malloc((size_t)n * sizeof *ranks) : NULL;

    for (int64_t rank = 0; ranks && rank < all && rank < RANKS_LOOKED_AT; rank++) {
        int64_t first = ndm_mesh_group(mesh, slot->axes, rank).index;
        if (first % n != 0)
            continue;
        for (int64_t i = 0; i < n; i++)
            ranks[i] = ndm_mesh_member(mesh, slot->axes, rank, first + i);
        ndm_sim_group g = ndm_sim_place(ranks, n, per_domain);
        if (is_further(&g, &furthest))
            furthest = g;
    }
    free(ranks);
    return furthest;
}

static ndm_status comm_init(ndm_comm *comm)
{
    const ndm_sim_options *o = ndm_sim_options_of(comm->owner->device);
    sim_comm *s = calloc(1, sizeof *s);

    if (!s)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    s->group = find_furthest(comm, o->machine->ranks_per_domain);
    s->axes = comm->owner->slots[comm->id].axes;
    s->staging = o->machine->windows && s->group.domains == 1 && comm->size > 1
                     ? (int64_t)sizeof(ndm_shm_area)
                     : 0;
    ndm_device_account(comm->owner->device, NDM_MEMORY_COMM, s->staging);
    comm->state = s;
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    const sim_comm *s = comm->state;

    ndm_device_account(comm->owner->device, NDM_MEMORY_COMM, -s->staging);
    free(comm->state);
    comm->state = NULL;
}

static double element_bytes(const ndm_device *device, const ndm_collective_args *a)
{
    return a->dtype == NDM_F32 ? ndm_sim_element_bytes(device, a->send ? a->send : a->recv)
                               : (double)ndm_dtype_bytes(a->dtype);
}

/* Elements of the buffer that is whole. */
static double whole(const ndm_comm *comm, const ndm_collective_args *a)
{
    bool parts = a->kind == NDM_ALL_GATHER || a->kind == NDM_REDUCE_SCATTER ||
                 a->kind == NDM_ALL_TO_ALL;

    return (double)a->count * (parts ? (double)comm->size : 1.0);
}

/* Kernels that the stack runs around a collective, on the compute stream. */
static void charge_around(const ndm_comm *comm, const ndm_collective_args *a)
{
    ndm_device *device = comm->owner->device;
    const ndm_sim_options *o = ndm_sim_options_of(device);
    const ndm_sim_stack *k = o->stack;
    const sim_comm *s = comm->state;
    bool narrow = k->fp8_gather && a->kind == NDM_ALL_GATHER;
    double elements = whole(comm, a) * (narrow ? 0.5 : 1.0), bytes = 0.0;
    ndm_memory_kind kind = ndm_sim_kind_of(a->recv);

    if (s->axes == NDM_AXIS_TP && kind == NDM_MEMORY_ACTIVATIONS)
        bytes = k->tp_copy_bytes;
    else if (a->kind == NDM_ALL_GATHER && kind == NDM_MEMORY_GATHERED)
        bytes = k->gather_copy_bytes;
    else if (a->kind == NDM_REDUCE_SCATTER && kind == NDM_MEMORY_GRADIENTS)
        bytes = k->grad_bytes;
    ndm_sim_charge_compute(device, "copy around a collective",
                           bytes * elements / (o->machine->memory_bw * o->machine->memory_share) *
                               1e9);
}

static ndm_status run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    const ndm_device *device = comm->owner->device;
    const ndm_sim_options *o = ndm_sim_options_of(device);
    const sim_comm *s = comm->state;
    ndm_collective kind = args->kind;
    double bytes = whole(comm, args) * element_bytes(device, args);
    ndm_memory_kind memory = ndm_sim_kind_of(args->recv);
    bool tp = s->axes == NDM_AXIS_TP;

    comm->started++;
    if (ndm_sim_is_window(args->recv) && kind == NDM_ALL_GATHER)
        kind = NDM_BARRIER;
    if (o->stack->fp8_gather && kind == NDM_ALL_GATHER &&
        (memory == NDM_MEMORY_GATHERED || (tp && memory == NDM_MEMORY_ACTIVATIONS)))
        bytes /= 2.0;
    ndm_sim_work work = {
        .name = ndm_collective_name(args->kind),
        .ns = ndm_sim_collective_ns(o->machine, &s->group, kind, bytes),
        .host_ns = o->machine->launch_ns * o->machine->latency_scale,
        .link = s->group.domains > 1 ? NDM_SIM_LINK_NETWORK : NDM_SIM_LINK_NODE,
        .cause = s->axes,
        .overlap = tp && memory == NDM_MEMORY_ACTIVATIONS ? o->stack->overlap : 0.0,
    };
    charge_around(comm, args);
    return ndm_sim_collect(stream, &work);
}

static ndm_status window_alloc(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                               void **all)
{
    const ndm_sim_machine *m = ndm_sim_options_of(comm->owner->device)->machine;
    const sim_comm *s = comm->state;

    if (!m->windows || s->group.domains > 1)
        return NDM_ERR_UNSUPPORTED;
    return ndm_sim_alloc_window(comm->owner->device, bytes_per_rank, comm->size, kind, all);
}

static void window_free(ndm_comm *comm, void *all)
{
    ndm_device_free(comm->owner->device, all);
}

const ndm_comm_backend ndm_comm_backend_sim = {
    .name = "sim",
    .summary = "times of collectives without any: plans",
    .priority = 100,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = run,
    .window_alloc = window_alloc,
    .window_free = window_free,
};

ndm_sim_group ndm_sim_group_of(const ndm_comm *comm)
{
    const sim_comm *s = comm->state;

    if (comm->size == 1) /* no backend of this one's */
        return ndm_sim_place(comm->ranks, 1, 1);
    assert(comm->backend == &ndm_comm_backend_sim);
    return s->group;
}
