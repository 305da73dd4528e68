/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's entry points. A communicator is a memory file of one host process, which the others and
 * all device processes map through /proc/PID/fd: no names in the file system, nothing left by a
 * killed rank. */
#include "cuemu_nccl.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef struct { /* in a ncclUniqueId */
    pid_t pid;
    int fd;
    uint64_t cookie;
} comm_name;

static _Atomic uint32_t issued[CUEMU_COMMS];
static bool in_use[CUEMU_COMMS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t cuemu_comm_order(int comm)
{
    return ++issued[comm];
}

static int64_t timeout_ms(void)
{
    return CUEMU_CONTROL->nccl_timeout_ms;
}

/* ---- communicators ---- */

static bool make_name(comm_name *name)
{
    name->pid = getpid();
    name->cookie = (uint64_t)cuemu_now_ns();
    name->fd = memfd_create("cuemu-comm", MFD_CLOEXEC);
    if (name->fd < 0 || ftruncate(name->fd, sizeof(cuemu_comm)))
        return false;
    cuemu_comm *shared = cuemu_comm_map(name->pid, name->fd);
    if (!shared)
        return false;
    shared->cookie = name->cookie;
    munmap(shared, sizeof *shared);
    return true;
}

static int take_index(void)
{
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < CUEMU_COMMS && in_use[i])
        i++;
    if (i < CUEMU_COMMS)
        in_use[i] = true;
    pthread_mutex_unlock(&lock);
    return i < CUEMU_COMMS ? i : -1;
}

/* Two ranks of one communicator may not share a device: NCCL refuses that, so must we. */
static ncclResult_t check_devices(const cuemu_comm *shared)
{
    for (int a = 0; a < shared->ranks; a++)
        for (int b = 0; b < a; b++)
            if (shared->rank[a].device == shared->rank[b].device) {
                fprintf(stderr, "cuemu: NCCL: ranks %d and %d share device %d\n", b, a,
                        shared->rank[a].device);
                return ncclInvalidUsage;
            }
    return ncclSuccess;
}

static ncclResult_t open_in_device(const struct ncclComm *c, const comm_name *name)
{
    cuemu_record open = {.kind = CUEMU_COMM_OPEN,
                         .u.open = {c->index, c->rank, name->fd, name->pid}};
    issued[c->index] = CUEMU_CONTROL->comm_done[c->index] = 0;
    if (cuemu_put(cuemu_own_stream(), &open) || cuemu_drain(cuemu_own_stream()))
        return ncclUnhandledCudaError;
    return cuemu_comm_barrier(c->shared, timeout_ms()) ? ncclSuccess : ncclRemoteError;
}

static void forget(struct ncclComm *c)
{
    pthread_mutex_lock(&lock);
    in_use[c->index] = false;
    pthread_mutex_unlock(&lock);
    munmap(c->shared, sizeof *c->shared);
    free(c);
}

static ncclResult_t meet(struct ncclComm *c, const comm_name *name)
{
    if (c->shared->cookie != name->cookie)
        return ncclInvalidArgument;
    c->shared->ranks = c->ranks;
    c->shared->rank[c->rank].device_process = cuemu_device_pid();
    c->shared->rank[c->rank].device = c->device;
    if (!cuemu_comm_barrier(c->shared, timeout_ms()))
        return ncclRemoteError;
    ncclResult_t result = check_devices(c->shared);
    return result ? result : open_in_device(c, name);
}

static ncclResult_t join(ncclComm_t *out, const comm_name *name, int ranks, int rank)
{
    cuemu_own_stream();
    if (ranks < 1 || ranks > CUEMU_RANKS || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->ranks = ranks;
    c->rank = rank;
    c->index = take_index();
    cudaGetDevice(&c->device);
    c->shared = c->index >= 0 ? cuemu_comm_map(name->pid, name->fd) : NULL;
    if (!c->shared) {
        fprintf(stderr, "cuemu: NCCL: cannot map the communicator of process %d\n", (int)name->pid);
        free(c);
        return ncclSystemError;
    }
    ncclResult_t result = meet(c, name);
    if (name->pid == getpid())
        close(name->fd);
    if (result)
        forget(c);
    else
        *out = c;
    return result;
}

ncclResult_t ncclGetVersion(int *version)
{
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    comm_name name;
    memset(id, 0, sizeof *id);
    if (!make_name(&name))
        return ncclSystemError;
    memcpy(id->internal, &name, sizeof name);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank,
                                    ncclConfig_t *config)
{
    (void)config;
    comm_name name;
    memcpy(&name, id.internal, sizeof name);
    return join(comm, &name, ranks, rank);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank)
{
    return ncclCommInitRankConfig(comm, ranks, id, rank, NULL);
}

/* Rank in the child, its size, and the parent's rank that is the child's first. */
static int place_in_child(const struct ncclComm *p, int *size, int *first)
{
    __typeof__(&p->shared->rank[0]) all = p->shared->rank, me = &all[p->rank];
    int rank = 0;
    *size = 0;
    *first = -1;
    for (int i = 0; i < p->ranks; i++) {
        if (all[i].color != me->color)
            continue;
        ++*size;
        rank += all[i].key < me->key || (all[i].key == me->key && i < p->rank);
        if (*first < 0 || all[i].key < all[*first].key)
            *first = i;
    }
    return rank;
}

ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config)
{
    (void)config;
    comm_name name;
    __typeof__(&parent->shared->rank[0]) all = parent->shared->rank, me = &all[parent->rank];
    int size, first;
    me->color = color;
    me->key = key;
    *child = NULL;
    if (!cuemu_comm_barrier(parent->shared, timeout_ms()))
        return ncclRemoteError;
    int rank = place_in_child(parent, &size, &first);
    if (first == parent->rank && color != NCCL_SPLIT_NOCOLOR) {
        if (!make_name(&name))
            return ncclSystemError;
        me->child_pid = name.pid;
        me->child_fd = name.fd;
        me->child_cookie = name.cookie;
    }
    if (!cuemu_comm_barrier(parent->shared, timeout_ms()))
        return ncclRemoteError;
    name = (comm_name){all[first].child_pid, all[first].child_fd, all[first].child_cookie};
    if (!cuemu_comm_barrier(parent->shared, timeout_ms())) /* the fields may be used again */
        return ncclRemoteError;
    return color == NCCL_SPLIT_NOCOLOR ? ncclSuccess : join(child, &name, size, rank);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    _Atomic uint32_t *over = &CUEMU_CONTROL->comm_done[comm->index];
    uint32_t done;
    while (done = *over, done != issued[comm->index] && !cuemu_health())
        cuemu_futex_wait(over, done, 20);
    return cuemu_health() ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    ncclResult_t result = ncclCommFinalize(comm);
    cuemu_record close = {.kind = CUEMU_COMM_CLOSE, .u.open = {.comm = comm->index}};
    if (!cuemu_put(cuemu_own_stream(), &close))
        cuemu_drain(cuemu_own_stream());
    forget(comm);
    return result;
}

/* What waits in this communicator, on any rank, returns at once. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    uint32_t none = 0;
    if (!comm)
        return ncclSuccess;
    atomic_compare_exchange_strong(&comm->shared->bad, &none, ncclRemoteError);
    return ncclCommDestroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    *error = cuemu_health() ? ncclUnhandledCudaError : (ncclResult_t)comm->shared->bad;
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
    *count = comm->ranks;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
    *rank = comm->rank;
    return ncclSuccess;
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
    *device = comm->device;
    return ncclSuccess;
}
