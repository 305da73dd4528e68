/* SPDX-License-Identifier: Apache-2.0 */
/* Backend over NCCL: its answers as statuses, waits for them, and how communicators end.
 *
 * While the host waits for the device, all communicators are asked for errors; after one, or after
 * the deadline, they are aborted, which ends what they have on the device. NCCL comes back from
 * that when all CUDA graphs with kernels of the communicator are gone, and perhaps never where a
 * device or link is broken: so graphs go first, and the wait is bounded. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "collectives/nccl_comm.h"
#include "core/clock.h"
#include "core/error.h"

enum { SLEEP_NS = 20000, ABORT_SLEEP_NS = 1000000 };
static const int64_t SPIN_NS = 300000; /* a thread of NCCL's starts and ends within it */
static const int64_t ABORT_NS = 5000000000;

/* ---- answers -------------------------------------------------------------------------------- */

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

static bool under_way(ncclResult_t result, const ncclComm_t *made)
{
    return result == ncclInProgress ||
           (result == ncclSuccess && made && !__atomic_load_n(made, __ATOMIC_ACQUIRE));
}

static ndm_status wait_for(ncclComm_t handle, const ncclComm_t *made, ncclResult_t result,
                           const char *what, const char *name, int64_t timeout_ns)
{
    int64_t start = 0, now;

    while (under_way(result, made)) {
        NDM_NCCL_TRY(what, name, ncclCommGetAsyncError(handle, &result));
        if (!under_way(result, made))
            break;
        now = ndm_clock_ns();
        start = start ? start : now;
        if (now - start > timeout_ns)
            NDM_FAIL(NDM_ERR_TIMEOUT, "comm: nccl: %s on %s: not all ranks came within %.0f s",
                     what, name, (double)timeout_ns * 1e-9);
        if (now - start < SPIN_NS)
            ndm_clock_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
    }
    NDM_NCCL_TRY(what, name, result);
    return NDM_OK;
}

ndm_status ndm_nccl_settle(ncclComm_t handle, ncclResult_t result, const char *what,
                           const char *name, int64_t timeout_ns)
{
    return wait_for(handle, NULL, result, what, name, timeout_ns);
}

ndm_status ndm_nccl_await(ncclComm_t handle, const ncclComm_t *made, const char *what,
                          const char *name, int64_t timeout_ns)
{
    return wait_for(handle, made, ncclInProgress, what, name, timeout_ns);
}

/* ---- the end -------------------------------------------------------------------------------- */

/* Aborts under way: a thread each, so that none waits for another. Who leaves last frees it. */
typedef struct ending ending;

typedef struct ender {
    ending *all;
    ncclComm_t handle;
} ender;

struct ending {
    _Atomic int64_t holders; /* the host that waits, and threads whose abort is under way */
    int64_t n;
    ender one[]; /* [n] */
};

static void leave(ending *e)
{
    if (atomic_fetch_sub(&e->holders, 1) == 1)
        free(e);
}

static void *end_one(void *user)
{
    ender *one = user;

    (void)ncclCommAbort(one->handle);
    leave(one->all);
    return NULL;
}

/* Whether all aborts came back in time. */
static bool end_all(ending *e)
{
    int64_t deadline = ndm_clock_ns() + ABORT_NS;
    bool started = true;

    atomic_store(&e->holders, 1);
    for (int64_t i = 0; i < e->n; i++) {
        pthread_t thread;
        atomic_fetch_add(&e->holders, 1);
        if (pthread_create(&thread, NULL, end_one, &e->one[i]) == 0) {
            pthread_detach(thread);
            continue;
        }
        atomic_fetch_sub(&e->holders, 1);
        started = false;
    }
    while (atomic_load(&e->holders) > 1 && ndm_clock_ns() < deadline)
        nanosleep(&(struct timespec){.tv_nsec = ABORT_SLEEP_NS}, NULL);
    bool over = started && atomic_load(&e->holders) == 1;
    leave(e);
    return over;
}

static ndm_nccl_comm *next_of(ndm_nccl_world *w, int64_t *i, ndm_comm **comm)
{
    while ((*comm = ndm_comms_at(w->comms, (*i)++)) != NULL)
        if ((*comm)->backend == &ndm_cuda_nccl && (*comm)->state)
            return (*comm)->state;
    return NULL;
}

static int64_t count_handles(ndm_nccl_world *w)
{
    int64_t count = 1;
    ndm_comm *comm;

    for (int64_t i = 0; next_of(w, &i, &comm) != NULL;)
        count++;
    for (ndm_nccl_comm *n = w->unmade; n; n = n->next)
        count++;
    return count;
}

/* Takes a handle from where it is kept; without room for it it is lost. */
static void take(ending *e, ncclComm_t *handle)
{
    ncclComm_t taken = __atomic_exchange_n(handle, NULL, __ATOMIC_ACQ_REL);

    if (e && taken)
        e->one[e->n++] = (ender){e, taken};
}

void ndm_nccl_abort(ndm_nccl_world *w)
{
    ending *e = calloc(1, sizeof *e + (size_t)count_handles(w) * sizeof e->one[0]);
    ndm_comm *comm;
    ndm_nccl_comm *n;

    for (int64_t i = 0; (n = next_of(w, &i, &comm)) != NULL;) {
        comm->broken = true;
        take(e, &n->handle);
    }
    for (n = w->unmade; n; n = n->next)
        take(e, &n->handle);
    take(e, &w->handle);
    ndm_cuda_graphs_drop(w->comms->device);
    w->at_work = !e || !end_all(e) || w->at_work;
}

void ndm_nccl_end(ndm_nccl_world *w, ncclComm_t *handle, const char *name)
{
    ndm_error kept;

    if (!*handle)
        return;
    ndm_error_keep(&kept);
    ndm_status status = ndm_nccl_settle(*handle, ncclCommFinalize(*handle), "finishing", name,
                                        ndm_world_timeout_ns(w->comms->world));
    if (status == NDM_OK)
        (void)ncclCommDestroy(*handle);
    else
        ndm_nccl_abort(w);
    *handle = NULL;
    ndm_error_restore(&kept);
}

/* ---- while the host waits ------------------------------------------------------------------- */

static ndm_status poll(ndm_cuda_watch *watch)
{
    ndm_nccl_world *w = (ndm_nccl_world *)watch;
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
        ndm_nccl_abort(w);
        return status;
    }
    return NDM_OK;
}

/* Which collective stands still is not known; what was issued last on each communicator is. */
static ndm_status expire(ndm_cuda_watch *watch)
{
    ndm_nccl_world *w = (ndm_nccl_world *)watch;
    char text[256] = "none";
    size_t used = 0;
    ndm_comm *comm;

    for (int64_t i = 0; next_of(w, &i, &comm) != NULL && used < sizeof text;)
        if (comm->sequence > 0)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s#%llu on %s",
                                     used > 0 ? ", " : "", (unsigned long long)comm->sequence,
                                     comm->name);
    ndm_nccl_abort(w);
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

    for (int64_t i = 0; (n = next_of((ndm_nccl_world *)watch, &i, &comm)) != NULL;)
        ndm_nccl_forget(n, base);
}

void ndm_nccl_watch(ndm_nccl_world *w)
{
    w->watch.poll = poll;
    w->watch.expire = expire;
    w->watch.release = release;
    ndm_cuda_watch_add(w->comms->device, &w->watch);
}
