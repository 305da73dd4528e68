/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's entry points. A communicator is a memory file of one host process, which the others and
 * all device processes map through /proc/PID/fd: no names in the file system, nothing left by a
 * killed rank. */
#include "cuemu_host.h"

#include <fcntl.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GROUPED = 4096 };

struct ncclComm {
    cuemu_comm *shared;
    int rank, ranks, index, device;
};

typedef struct { /* in a ncclUniqueId */
    pid_t pid;
    int fd;
    uint64_t cookie;
} comm_name;

typedef struct {
    cudaStream_t stream;
    cuemu_record record;
} grouped_call;

static _Atomic uint32_t issued[CUEMU_COMMS];
static bool in_use[CUEMU_COMMS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int group_depth, n_grouped;
static _Thread_local grouped_call *grouped;

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

/* ---- calls ---- */

static ncclResult_t type_of(ncclDataType_t type, cuemu_type *out)
{
    static const int map[ncclNumTypes] = {
        [ncclInt8] = CUEMU_I8,       [ncclUint8] = CUEMU_U8,        [ncclInt32] = CUEMU_I32,
        [ncclUint32] = CUEMU_U32,    [ncclInt64] = CUEMU_I64,       [ncclUint64] = CUEMU_U64,
        [ncclFloat16] = CUEMU_F16,   [ncclFloat32] = CUEMU_F32,     [ncclFloat64] = CUEMU_F64,
        [ncclBfloat16] = CUEMU_BF16, [ncclFloat8e4m3] = CUEMU_E4M3, [ncclFloat8e5m2] = CUEMU_E5M2,
    };
    if ((int)type < 0 || type >= ncclNumTypes)
        return ncclInvalidArgument;
    *out = (cuemu_type)map[type];
    return ncclSuccess;
}

static ncclResult_t issue(cudaStream_t stream, const cuemu_record *record)
{
    return cuemu_push(stream, record) ? ncclUnhandledCudaError : ncclSuccess;
}

/* nccl.h declares these two without a prototype */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    if (!grouped && !(grouped = malloc(sizeof *grouped * GROUPED)))
        abort();
    group_depth++;
    return ncclSuccess;
}

static ncclResult_t issue_kind(cuemu_kind kind)
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < n_grouped; i++)
        if (grouped[i].record.kind == kind && !result)
            result = issue(grouped[i].stream, &grouped[i].record);
    return result;
}

/* All sends are posted before any receive waits, so a group cannot block itself. */
ncclResult_t ncclGroupEnd(void)
{
    static const cuemu_kind order[] = {CUEMU_COLLECTIVE, CUEMU_POST, CUEMU_TAKE, CUEMU_DRAIN};
    ncclResult_t result = ncclSuccess;
    if (!group_depth)
        return ncclInvalidUsage;
    if (--group_depth)
        return ncclSuccess;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        ncclResult_t one = issue_kind(order[i]);
        result = result ? result : one;
    }
    n_grouped = 0;
    return result;
}

static ncclResult_t enqueue(cudaStream_t stream, const cuemu_record *record)
{
    if (n_grouped == GROUPED)
        return ncclInternalError;
    grouped[n_grouped++] = (grouped_call){stream, *record};
    return ncclSuccess;
}

static bool in_device(const void *at, size_t bytes)
{
    if (cuemu_is_device(at, bytes))
        return true;
    fprintf(stderr, "cuemu: NCCL: %p is not device memory\n", at);
    return false;
}

/* send and recv hold send_factor and recv_factor times count. */
static ncclResult_t collective(ncclComm_t comm, const cuemu_record *proto, ncclDataType_t type,
                               size_t send_factor, size_t recv_factor, cudaStream_t stream)
{
    cuemu_record r = *proto;
    cuemu_type mine;
    ncclResult_t result = type_of(type, &mine);
    if (result)
        return result;
    size_t bytes = r.u.call.count * cuemu_type_bytes(mine);
    if (!in_device((void *)r.u.call.send, bytes * send_factor) ||
        !in_device((void *)r.u.call.recv, bytes * recv_factor))
        return ncclInvalidArgument;
    r.kind = CUEMU_COLLECTIVE;
    r.u.call.comm = comm->index;
    r.u.call.type = (int)mine;
    return group_depth ? enqueue(stream, &r) : issue(stream, &r);
}

#define CALL(what, op, root)         \
    &(cuemu_record)                  \
    {                                \
        .u.call = {                  \
            .operation = (what),     \
            .send = (uintptr_t)send, \
            .recv = (uintptr_t)recv, \
            .count = count,          \
            .reduction = (int)(op),  \
            .peer = (root)           \
        }                            \
    }

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, CALL(CUEMU_ALL_GATHER, 0, 0), type, 1, (size_t)comm->ranks, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, CALL(CUEMU_REDUCE_SCATTER, op, 0), type, (size_t)comm->ranks, 1,
                      stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, CALL(CUEMU_ALL_REDUCE, op, 0), type, 1, 1, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    if (root < 0 || root >= comm->ranks)
        return ncclInvalidArgument;
    if (comm->rank != root)
        send = recv; /* only the root's counts */
    return collective(comm, CALL(CUEMU_BROADCAST, 0, root), type, 1, 1, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    size_t ranks = (size_t)comm->ranks;
    return collective(comm, CALL(CUEMU_ALL_TO_ALL, 0, 0), type, ranks, ranks, stream);
}

static ncclResult_t message(ncclComm_t comm, cuemu_kind kind, const void *at, size_t count,
                            ncclDataType_t type, int peer, cudaStream_t stream)
{
    cuemu_type mine;
    ncclResult_t result = type_of(type, &mine);
    if (result)
        return result;
    if (peer < 0 || peer >= comm->ranks || !in_device(at, count * cuemu_type_bytes(mine)))
        return ncclInvalidArgument;
    cuemu_record r = {.kind = kind,
                      .u.call = {.comm = comm->index,
                                 .type = (int)mine,
                                 .peer = peer,
                                 .send = (uintptr_t)at,
                                 .recv = (uintptr_t)at,
                                 .count = count}};
    ncclGroupStart();
    result = enqueue(stream, &r);
    r.kind = CUEMU_DRAIN;
    if (!result && kind == CUEMU_POST)
        result = enqueue(stream, &r);
    ncclResult_t ended = ncclGroupEnd();
    return result ? result : ended;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return message(comm, CUEMU_POST, send, count, type, peer, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return message(comm, CUEMU_TAKE, recv, count, type, peer, stream);
}

/* ---- memory and errors ---- */

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *at, size_t bytes, void **handle)
{
    *handle = at;
    return comm && in_device(at, bytes) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return comm && handle ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclMemAlloc(void **at, size_t bytes)
{
    return cudaMalloc(at, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclMemFree(void *at)
{
    return cudaFree(at) ? ncclUnhandledCudaError : ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
