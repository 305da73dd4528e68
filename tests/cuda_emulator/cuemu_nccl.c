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

enum { LATE_MS = 20 };

static _Atomic uint32_t issued[CUEMU_COMMS]; /* of a queue */
static int users[CUEMU_COMMS];               /* of a communicator's index, or its queue */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

uint32_t cuemu_comm_order(int queue)
{
    return ++issued[queue];
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
    while (i < CUEMU_COMMS && users[i])
        i++;
    if (i < CUEMU_COMMS)
        users[i]++;
    pthread_mutex_unlock(&lock);
    return i < CUEMU_COMMS ? i : -1;
}

static void use_index(int index, int times)
{
    pthread_mutex_lock(&lock);
    users[index] += times;
    pthread_mutex_unlock(&lock);
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
    if (c->queue == c->index)
        issued[c->index] = CUEMU_CONTROL->comm_done[c->index] = 0;
    if (cuemu_put(cuemu_own_stream(), &open) || cuemu_drain(cuemu_own_stream()))
        return ncclUnhandledCudaError;
    return cuemu_comm_barrier(c->shared, timeout_ms()) ? ncclSuccess : ncclRemoteError;
}

static void forget(struct ncclComm *c)
{
    if (c->queue != c->index)
        use_index(c->queue, -1);
    use_index(c->index, -1);
    if (c->shared)
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

/* shares: with a parent, or NULL */
static struct ncclComm *make(int ranks, int rank, int device, struct ncclComm *shares,
                             bool blocking)
{
    const char *nvls = getenv("NCCL_NVLS_ENABLE");
    cuemu_own_stream();
    struct ncclComm *c = calloc(1, sizeof *c);
    if (!c)
        abort();
    c->ranks = ranks;
    c->rank = rank;
    c->device = device;
    c->index = take_index();
    if (c->index < 0) {
        fprintf(stderr, "cuemu: NCCL: more than %d communicators\n", CUEMU_COMMS);
        abort();
    }
    c->shares = shares;
    c->queue = shares ? shares->queue : c->index;
    if (shares)
        use_index(c->queue, 1);
    c->blocking = blocking;
    c->nvls = !nvls || strcmp(nvls, "0") != 0; /* as on a machine whose links can do it */
    return c;
}

static ncclResult_t join(struct ncclComm *c, const comm_name *name)
{
    c->shared = cuemu_comm_map(name->pid, name->fd);
    if (!c->shared) {
        fprintf(stderr, "cuemu: NCCL: cannot map the communicator of process %d\n", (int)name->pid);
        return ncclSystemError;
    }
    ncclResult_t result = meet(c, name);
    if (name->pid == getpid())
        close(name->fd);
    return result;
}

static ncclResult_t join_or_forget(struct ncclComm *c, const comm_name *name, ncclComm_t *out)
{
    ncclResult_t result = join(c, name);
    if (result)
        forget(c);
    else
        *out = c;
    return result;
}

static bool blocks(const ncclConfig_t *config, bool otherwise)
{
    return !config || config->blocking == NCCL_CONFIG_UNDEF_INT ? otherwise : config->blocking != 0;
}

/* ---- what does not block is done by a thread, as NCCL does ---- */

typedef struct job {
    struct ncclComm *comm; /* asked for its state meanwhile */
    comm_name name;
    int color, key;
    ncclConfig_t config;
    ncclComm_t *child;
    uint32_t polls; /* after which a split is over, if it was not before */
} job;

static uint32_t draw(struct ncclComm *c)
{
    uint32_t random = (CUEMU_CONTROL->seed + ++c->calls) * 2654435761u;
    return CUEMU_CONTROL->seed ? random >> 30 : 0;
}

static void end_thread(struct ncclComm *c)
{
    if (c->threaded)
        pthread_join(c->thread, NULL);
    c->threaded = false;
}

static void start_thread(const job *what, void *(*run)(void *job))
{
    struct ncclComm *c = what->comm;
    job *j = malloc(sizeof *j);
    if (!j)
        abort();
    *j = *what;
    end_thread(c);
    c->state = ncclInProgress;
    c->polls = 0;
    if (pthread_create(&c->thread, NULL, run, j))
        abort();
    c->threaded = true;
}

static void *connect_in_thread(void *user)
{
    job *j = user;
    j->comm->state = join(j->comm, &j->name);
    free(j);
    return NULL;
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
    comm_name name;
    int device = 0;
    memcpy(&name, id.internal, sizeof name);
    if (ranks < 1 || ranks > CUEMU_RANKS || rank < 0 || rank >= ranks)
        return ncclInvalidArgument;
    cudaGetDevice(&device);
    struct ncclComm *c = make(ranks, rank, device, NULL, blocks(config, true));
    if (c->blocking)
        return join_or_forget(c, &name, comm);
    *comm = c;
    start_thread(&(job){.comm = c, .name = name}, connect_in_thread);
    return ncclInProgress;
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

static ncclResult_t split(struct ncclComm *parent, int color, int key, const ncclConfig_t *config,
                          ncclComm_t *child)
{
    comm_name name;
    __typeof__(&parent->shared->rank[0]) all = parent->shared->rank, me = &all[parent->rank];
    int size, first;
    me->color = color;
    me->key = key;
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
    if (color == NCCL_SPLIT_NOCOLOR)
        return ncclSuccess;
    struct ncclComm *c = make(size, rank, parent->device,
                              config && config->splitShare == 1 ? parent : NULL,
                              blocks(config, parent->blocking));
    return join_or_forget(c, &name, child);
}

static void *split_in_thread(void *user)
{
    job *j = user;
    ncclComm_t made = NULL;
    ncclResult_t result = split(j->comm, j->color, j->key, &j->config, &made);
    for (int ms = 0; j->comm->polls <= j->polls && ms < LATE_MS; ms++)
        usleep(1000);
    if (!result)
        __atomic_store_n(j->child, made, __ATOMIC_RELEASE);
    j->comm->state = (int)result;
    free(j);
    return NULL;
}

/* One that does not block is under way when this returns with success: the child is there when the
 * parent is not in progress any more. */
ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t *child,
                           ncclConfig_t *config)
{
    ncclConfig_t defaults = NCCL_CONFIG_INITIALIZER;
    ncclResult_t result = cuemu_comm_ready(parent);
    if (result)
        return result;
    *child = NULL;
    if (parent->blocking)
        return split(parent, color, key, config, child);
    start_thread(&(job){.comm = parent,
                        .color = color,
                        .key = key,
                        .config = config ? *config : defaults,
                        .child = child,
                        .polls = draw(parent)},
                 split_in_thread);
    return ncclSuccess;
}

/* Its calls are over, and there is no graph that holds one. */
static bool idle(const struct ncclComm *c)
{
    return CUEMU_CONTROL->comm_done[c->queue] == issued[c->queue] && !cuemu_graphs_hold(c->index);
}

ncclResult_t ncclCommFinalize(ncclComm_t comm)
{
    ncclResult_t result = cuemu_comm_ready(comm);
    if (result)
        return result;
    comm->finishing = true;
    if (!comm->blocking)
        return ncclInProgress;
    while (!idle(comm) && !cuemu_health())
        usleep(100);
    return cuemu_health() ? ncclUnhandledCudaError : ncclSuccess;
}

/* NCCL waits for graphs whatever has happened: they hold references to the communicator. */
static ncclResult_t destroy(struct ncclComm *comm)
{
    end_thread(comm);
    while (cuemu_graphs_hold(comm->index) || (!idle(comm) && !cuemu_health()))
        usleep(100);
    cuemu_record close = {.kind = CUEMU_COMM_CLOSE, .u.open = {.comm = comm->index}};
    if (!cuemu_put(cuemu_own_stream(), &close))
        cuemu_drain(cuemu_own_stream());
    forget(comm);
    return cuemu_health() ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
    return comm ? destroy(comm) : ncclSuccess;
}

/* What waits in this communicator, on any rank, returns at once. */
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    if (!comm)
        return ncclSuccess;
    for (struct ncclComm *c = comm; c; c = c->shares) {
        cuemu_comm *shared = __atomic_load_n(&c->shared, __ATOMIC_ACQUIRE);
        uint32_t none = 0;
        if (shared)
            atomic_compare_exchange_strong(&shared->bad, &none, ncclRemoteError);
    }
    return destroy(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
    comm->polls++;
    *error = (ncclResult_t)comm->state;
    if (*error)
        return ncclSuccess;
    if (cuemu_health())
        *error = ncclUnhandledCudaError;
    else if (comm->shared->bad)
        *error = (ncclResult_t)comm->shared->bad;
    else if (comm->settling > 0 || (comm->finishing && !idle(comm)))
        *error = ncclInProgress;
    comm->settling -= comm->settling > 0;
    return ncclSuccess;
}

ncclResult_t cuemu_comm_ready(ncclComm_t comm)
{
    if (!comm)
        return ncclInvalidArgument;
    if (comm->state == ncclSuccess && !comm->settling && !comm->finishing)
        return ncclSuccess;
    fprintf(stderr, "cuemu: NCCL: a call on a communicator that has %s\n",
            comm->finishing                 ? "been finalized"
            : comm->state == ncclInProgress ? "another in progress"
            : comm->settling                ? "not been asked whether the last one is over"
                                            : "failed");
    return ncclInvalidArgument;
}

ncclResult_t cuemu_comm_issued(ncclComm_t comm)
{
    if (!comm->blocking)
        comm->settling = (int)draw(comm);
    return comm->settling ? ncclInProgress : ncclSuccess;
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
