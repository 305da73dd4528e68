/* SPDX-License-Identifier: Apache-2.0 */
/* Backend over NCCL: communicators of the mesh, their errors and their end.
 *
 * The world's communicator is made from an id that rank 0 tells all others; every other one is
 * split from it, in the order of the program, which is the same on all ranks. NCCL takes one rank a
 * device, so worlds whose ranks share one are refused (backend staged serves them). While the host
 * waits for the device, all communicators are asked for errors; after one, or after the deadline,
 * they are aborted, which ends what they have on the device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collectives/nccl_comm.h"
#include "collectives/world.h"
#include "core/clock.h"

typedef struct nccl_world {
    ndm_cuda_watch watch; /* first */
    ndm_comms *comms;
    ncclComm_t handle;
} nccl_world;

typedef struct rank_device {
    char bus_id[32];
} rank_device;

enum { SPINS = 1000, SLEEP_NS = 20000 };

/* ---- errors --------------------------------------------------------------------------------- */

static ndm_status status_of(ncclResult_t result)
{
    if (result == ncclInvalidUsage || result == ncclInvalidArgument)
        return NDM_ERR_MISMATCH; /* ranks called different things */
    return result == ncclUnhandledCudaError ? NDM_ERR_DEVICE : NDM_ERR_COMM;
}

ndm_status ndm_nccl_check(ncclResult_t result, const char *what, const char *name, const char *file,
                          int line)
{
    if (result == ncclSuccess || result == ncclInProgress)
        return NDM_OK;
    return ndm_error_set(status_of(result), file, line, "comm: nccl: %s on %s: %s", what, name,
                         ncclGetErrorString(result));
}

ndm_status ndm_nccl_settle(ncclComm_t handle, ncclResult_t result, const char *what,
                           const char *name, int64_t timeout_ns)
{
    int64_t end = 0;

    for (int64_t polls = 0; result == ncclInProgress; polls++) {
        NDM_NCCL_TRY(what, name, ncclCommGetAsyncError(handle, &result));
        if (result != ncclInProgress || polls < SPINS)
            continue;
        end = end ? end : ndm_clock_ns() + timeout_ns;
        if (ndm_clock_ns() > end)
            NDM_FAIL(NDM_ERR_TIMEOUT, "comm: nccl: %s on %s: not all ranks came within %.0f s",
                     what, name, (double)timeout_ns * 1e-9);
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    NDM_NCCL_TRY(what, name, result);
    return NDM_OK;
}

static ndm_nccl_comm *next_of(nccl_world *w, int64_t *i, ndm_comm **comm)
{
    while ((*comm = ndm_comms_at(w->comms, (*i)++)) != NULL)
        if ((*comm)->backend == &ndm_cuda_nccl && (*comm)->state)
            return (*comm)->state;
    return NULL;
}

/* Ends everything of NCCL's on the device. Nothing can be issued any more. */
static void abort_all(nccl_world *w)
{
    ndm_comm *comm;
    ndm_nccl_comm *n;

    for (int64_t i = 0; (n = next_of(w, &i, &comm)) != NULL;) {
        comm->broken = true;
        if (n->handle)
            (void)ncclCommAbort(n->handle);
        n->handle = NULL;
    }
    if (w->handle)
        (void)ncclCommAbort(w->handle);
    w->handle = NULL;
}

static ndm_status poll(ndm_cuda_watch *watch)
{
    nccl_world *w = (nccl_world *)watch;
    ndm_comm *comm;
    ndm_nccl_comm *n;

    for (int64_t i = 0; (n = next_of(w, &i, &comm)) != NULL;) {
        ncclResult_t state = ncclSuccess;
        if (!n->handle)
            NDM_FAIL(NDM_ERR_COMM, "comm: nccl: %s was aborted after a failure", comm->name);
        if (ncclCommGetAsyncError(n->handle, &state) != ncclSuccess)
            state = ncclSystemError;
        if (state == ncclSuccess || state == ncclInProgress)
            continue;
        ndm_status status = ndm_error_set(
            status_of(state), __FILE__, __LINE__,
            "comm: nccl: %s failed after %llu collectives were issued: %s", comm->name,
            (unsigned long long)comm->sequence, ncclGetErrorString(state));
        abort_all(w);
        return status;
    }
    return NDM_OK;
}

/* Which collective stands still is not known; what was issued last on each communicator is. */
static ndm_status expire(ndm_cuda_watch *watch)
{
    nccl_world *w = (nccl_world *)watch;
    char text[256] = "none";
    size_t used = 0;
    ndm_comm *comm;

    for (int64_t i = 0; next_of(w, &i, &comm) != NULL && used < sizeof text;)
        if (comm->sequence > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s#%llu on %s",
                                     used > 0 ? ", " : "", (unsigned long long)comm->sequence,
                                     comm->name);
    abort_all(w);
    if (used == 0)
        return NDM_OK;
    NDM_FAIL(
        NDM_ERR_TIMEOUT,
        "comm: nccl: the device did not come to its end within %.0f s: a rank is late or gone; "
        "issued last: %s",
        (double)ndm_world_timeout_ns(w->comms->world) * 1e-9, text);
}

static void release(ndm_cuda_watch *watch, void *base)
{
    ndm_comm *comm;
    ndm_nccl_comm *n;

    for (int64_t i = 0; (n = next_of((nccl_world *)watch, &i, &comm)) != NULL;)
        ndm_nccl_forget(n, base);
}

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

static ncclConfig_t make_config(const char *name)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;

    config.blocking = 0;   /* so that every wait has a deadline */
    config.splitShare = 1; /* communicators of a mesh take turns, and need no buffers each */
    config.commName = name;
    return config;
}

static ndm_status connect_world(nccl_world *w)
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

static void comms_finish(ndm_comms *comms, void *state)
{
    nccl_world *w = state;

    ndm_cuda_watch_remove(comms->device, &w->watch);
    if (w->handle && comms->world->failed)
        (void)ncclCommAbort(w->handle);
    else if (w->handle)
        (void)ncclCommDestroy(w->handle);
    free(w);
}

static ndm_status comms_init(ndm_comms *comms, void **state)
{
    nccl_world *w;

    if (ndm_world_size(comms->world) > 1)
        NDM_TRY(exchange_devices(comms->world, comms->device));
    /* Kernels of different communicators run in the order of the program: no rank can wait in one
     * for a rank that waits in another. */
    (void)setenv("NCCL_LAUNCH_ORDER_IMPLICIT", "1", 0);
    w = calloc(1, sizeof *w);
    if (!w)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for the nccl backend");
    w->comms = comms;
    w->watch.poll = poll;
    w->watch.expire = expire;
    w->watch.release = release;
    if (ndm_world_size(comms->world) > 1) {
        ndm_status status = connect_world(w);
        if (status != NDM_OK) {
            free(w);
            return status;
        }
    }
    ndm_cuda_watch_add(comms->device, &w->watch);
    *state = w;
    return NDM_OK;
}

/* ---- communicators -------------------------------------------------------------------------- */

/* Members have one colour: their lowest rank. All ranks of the world come, in groups of their own.
 * Collective over: world. */
static ndm_status split(ndm_comm *comm, nccl_world *w, ndm_nccl_comm *n)
{
    int64_t timeout_ns = ndm_world_timeout_ns(comm->world);
    ncclConfig_t config = make_config(comm->name);
    ncclResult_t result = ncclCommSplit(w->handle, (int)comm->ranks[0], (int)comm->index,
                                        &n->handle, &config);

    NDM_TRY(ndm_nccl_settle(w->handle, result, "splitting the world", comm->name, timeout_ns));
    if (!n->handle)
        NDM_FAIL(NDM_ERR_INTERNAL, "comm: nccl: %s: the split gave nothing", comm->name);
    return ndm_nccl_settle(n->handle, ncclInProgress, "connecting", comm->name, timeout_ns);
}

static ndm_status comm_init(ndm_comm *comm)
{
    nccl_world *w = ndm_comms_backend_state(comm);
    ndm_nccl_comm *n;
    void *token = NULL;

    if (!w->handle)
        NDM_FAIL(NDM_ERR_COMM, "comm: nccl: %s: the world's communicator is gone", comm->name);
    n = calloc(1, sizeof *n);
    if (!n)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    ndm_status status = split(comm, w, n);
    if (status == NDM_OK)
        status = ndm_device_alloc(comm->owner->device, sizeof(float), NDM_MEMORY_COMM, &token);
    if (status != NDM_OK) {
        free(n);
        return status;
    }
    n->token = token;
    n->registers = ndm_nccl_registers();
    comm->state = n;
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    ndm_nccl_comm *n = comm->state;

    if (!n)
        return;
    ndm_nccl_forget_all(n);
    if (n->handle && (comm->broken || comm->world->failed))
        (void)ncclCommAbort(n->handle);
    else if (n->handle)
        (void)ncclCommDestroy(n->handle);
    ndm_device_free(comm->owner->device, n->token);
    free(n);
    comm->state = NULL;
}

const ndm_comm_backend ndm_cuda_nccl = {
    .name = "nccl",
    .summary = "NCCL between devices, one rank each",
    .priority = 30,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = ndm_nccl_run,
    .launches = true,
    .comms_init = comms_init,
    .comms_finish = comms_finish,
};
