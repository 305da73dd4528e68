/* SPDX-License-Identifier: Apache-2.0 */
/* Backend over NCCL: communicators of the mesh.
 *
 * The world's communicator is made from an id that rank 0 tells all others; every other one is
 * split from it, in the order of the program, which is the same on all ranks. NCCL takes one rank a
 * device, so worlds whose ranks share one are refused (backend staged serves them). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/nccl_comm.h"
#include "collectives/world.h"

typedef struct rank_device {
    char bus_id[32];
} rank_device;

/* ---- the world ------------------------------------------------------------------------------ */

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    int version = 0;
    bool cuda = strcmp(ndm_device_name(device), "cuda") == 0;

    (void)ncclGetVersion(&version);
    if (cuda)
        snprintf(why, why_bytes, "NCCL %d.%d.%d, %lld rank(s)", version / 10000,
                 version / 100 % 100, version % 100, (long long)ndm_world_size(world));
    else
        snprintf(why, why_bytes, "device %s is not NCCL's", ndm_device_name(device));
    return cuda;
}

static ndm_status check_devices(const ndm_world *world, const rank_device *devices)
{
    int64_t n = ndm_world_size(world);

    for (int64_t i = 0; i < n; i++)
        for (int64_t j = i + 1; j < n; j++)
            if (ndm_world_node(world, i) == ndm_world_node(world, j) &&
                strcmp(devices[i].bus_id, devices[j].bus_id) == 0)
                NDM_FAIL(
                    NDM_ERR_UNSUPPORTED,
                    "comm: nccl: ranks %lld and %lld share the device %s of %s, and NCCL takes "
                    "one rank a device; collectives staged serve such a world",
                    (long long)i, (long long)j, devices[i].bus_id, ndm_world_host(world, i));
    return NDM_OK;
}

/* Refuses worlds whose ranks share devices, on all ranks alike. Collective over: world. */
static ndm_status exchange_devices(ndm_world *world, const ndm_device *device)
{
    rank_device mine = {{0}}, *all = calloc((size_t)ndm_world_size(world), sizeof *all);

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for the devices of %lld ranks",
                 (long long)ndm_world_size(world));
    snprintf(mine.bus_id, sizeof mine.bus_id, "%s", ndm_cuda_bus_id(device));
    ndm_status status = ndm_world_exchange(world, &mine, sizeof mine, all);
    if (status == NDM_OK)
        status = check_devices(world, all);
    free(all);
    return status;
}

/* Rank 0's id, on all ranks. Collective over: world. */
static ndm_status exchange_id(ndm_world *world, ncclUniqueId *id)
{
    ncclUniqueId mine, *all = calloc((size_t)ndm_world_size(world), sizeof *all);
    ndm_status status = NDM_OK;

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for ids of %lld ranks",
                 (long long)ndm_world_size(world));
    memset(&mine, 0, sizeof mine);
    if (ndm_world_rank(world) == 0)
        status = ndm_nccl_check(ncclGetUniqueId(&mine), "id", "world", __FILE__, __LINE__);
    status = ndm_world_agree(world, status);
    if (status == NDM_OK)
        status = ndm_world_exchange(world, &mine, sizeof mine, all);
    if (status == NDM_OK)
        *id = all[0];
    free(all);
    return status;
}

/* Communicators share nothing: those that do (splitShare) have one stream of NCCL's between them,
 * on which a collective of one begins when those of all others have ended. */
static ncclConfig_t make_config(const char *name)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0; /* so that every wait has a deadline */
    config.splitShare = 0;
    config.commName = name;
    return config;
}

static ndm_status connect_world(ndm_nccl_world *w)
{
    ndm_world *world = w->comms->world;
    ncclConfig_t config = make_config("world");
    ncclUniqueId id;

    NDM_TRY(exchange_id(world, &id));
    ncclResult_t result = ncclCommInitRankConfig(&w->handle, (int)ndm_world_size(world), id,
                                                 (int)ndm_world_rank(world), &config);
    return ndm_world_agree(world, ndm_nccl_settle(w->handle, result, "connecting", "world",
                                                  ndm_world_timeout_ns(world)));
}

static void free_world(ndm_nccl_world *w)
{
    while (w->unmade) {
        ndm_nccl_comm *next = w->unmade->next;
        free(w->unmade);
        w->unmade = next;
    }
    free(w);
}

static void comms_finish(ndm_comms *comms, void *state)
{
    ndm_nccl_world *w = state;

    ndm_cuda_watch_remove(comms->device, &w->watch);
    if (comms->world->failed)
        ndm_nccl_abort(w);
    ndm_nccl_end(w, &w->handle, "world");
    if (!w->at_work)
        free_world(w);
}

/* What NCCL reads of the environment, unless the user has set it. Kernels of different
 * communicators start in the order of the program: no rank can wait in one for a rank that waits in
 * another. And sums are not left to the switches (NVLS), which add in the order in which numbers
 * arrive. */
static void set_environment(void)
{
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    (void)setenv("NCCL_NVLS_ENABLE", "0", 0);
}

static ndm_status comms_init(ndm_comms *comms, void **state)
{
    ndm_nccl_world *w;

    bool connects = ndm_world_size(comms->world) > 1 || comms->forced == &ndm_cuda_nccl;

    if (ndm_world_size(comms->world) > 1)
        NDM_TRY(exchange_devices(comms->world, comms->device));
    set_environment();
    w = calloc(1, sizeof *w);
    if (!w)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for the nccl backend");
    w->comms = comms;
    ndm_status status = connects ? connect_world(w) : NDM_OK;
    if (status != NDM_OK) {
        ndm_nccl_abort(w);
        if (!w->at_work)
            free_world(w);
        return status;
    }
    ndm_nccl_watch(w);
    *state = w;
    return NDM_OK;
}

/* ---- communicators -------------------------------------------------------------------------- */

/* Members have one colour: their lowest rank. All ranks of the world come, in groups of their own.
 * NCCL answers with success while its thread is still at it, and no handle until it is done; until
 * then the world's communicator is in progress. Collective over: world. */
static ndm_status split(ndm_comm *comm, ndm_nccl_world *w, ndm_nccl_comm *n)
{
    int64_t timeout_ns = ndm_world_timeout_ns(comm->world);
    ncclConfig_t config = make_config(comm->name);

    NDM_NCCL_TRY(
        "splitting the world", comm->name,
        ncclCommSplit(w->handle, (int)comm->ranks[0], (int)comm->index, &n->handle, &config));
    NDM_TRY(ndm_nccl_await(w->handle, &n->handle, "splitting the world", comm->name, timeout_ns));
    return ndm_nccl_settle(n->handle, ncclInProgress, "connecting", comm->name, timeout_ns);
}

/* After a split that failed the world's communicator may stay in progress: nothing can be made of
 * it any more, and its thread may yet fill in the handle, so `n` stays as long as the world. */
static ndm_status make(ndm_comm *comm, ndm_nccl_world *w, ndm_nccl_comm *n)
{
    ndm_status status = split(comm, w, n);

    if (status == NDM_OK)
        return NDM_OK;
    n->next = w->unmade;
    w->unmade = n;
    ndm_nccl_abort(w);
    return status;
}

static ndm_status comm_init(ndm_comm *comm)
{
    ndm_nccl_world *w = ndm_comms_backend_state(comm);
    ndm_device *device = comm->owner->device;
    void *token = NULL;

    if (!w->handle)
        NDM_FAIL(NDM_ERR_COMM, "comm: nccl: %s: the world's communicator is gone", comm->name);
    NDM_TRY(ndm_device_alloc(device, sizeof(float), NDM_MEMORY_COMM, &token));
    ndm_nccl_comm *n = calloc(1, sizeof *n);
    ndm_status status = n ? make(comm, w, n) : NDM_ERR_MEMORY;
    if (status != NDM_OK) {
        ndm_device_free(device, token);
        if (n)
            return status;
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    }
    n->token = token;
    n->registers = ndm_nccl_registers();
    comm->state = n;
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    ndm_nccl_world *w = ndm_comms_backend_state(comm);
    ndm_nccl_comm *n = comm->state;

    if (!n)
        return;
    if (comm->broken || comm->world->failed)
        ndm_nccl_abort(w);
    ndm_nccl_forget_all(n);
    ndm_nccl_end(w, &n->handle, comm->name);
    ndm_device_free(comm->owner->device, n->token);
    free(n);
    comm->state = NULL;
}

static void version(char *text, size_t bytes)
{
    int v = 0;

    (void)ncclGetVersion(&v);
    (void)snprintf(text, bytes, "%d.%d.%d", v / 10000, v % 10000 / 100, v % 100);
}

const ndm_comm_backend ndm_cuda_nccl = {
    .name = "nccl",
    .summary = "NCCL between devices, one rank each",
    .priority = 30,
    .probe = probe,
    .version = version,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = ndm_nccl_run,
    .takes_one = true,
    .launches = true,
    .comms_init = comms_init,
    .comms_finish = comms_finish,
};
