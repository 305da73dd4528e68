/* SPDX-License-Identifier: Apache-2.0 */
/* Turns, and the thread that advances queues while the host computes. */
#include "device/turn.h"

#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "device/host.h"

/* Between two looks: a small part of a core, which kernels want, and not longer than sockets can
 * buffer. At 2 Gbit/s a step of llama-m took less at 1 ms than at 0.05, 0.3 or 3. */
static const struct timespec PAUSE = {.tv_nsec = 1000000};

/* One lock a process: MPI is one, and so is the world that all devices' collectives meet in. */
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static _Atomic int helpers; /* how many there are; nobody locks without one */
static _Thread_local int depth;

struct ndm_host_helper {
    pthread_t thread;
    pthread_cond_t work; /* a queue is no longer empty, or the end */
    ndm_device *device;
    bool stop;         /* guarded by the turn */
    ndm_status failed; /* likewise; what advancing returned at last */
};

/* A thread that took no turn because there was no helper has none to give. */
void ndm_turn_take(void)
{
    if (depth == 0 && atomic_load(&helpers) == 0)
        return;
    if (depth++ == 0)
        pthread_mutex_lock(&turn);
}

void ndm_turn_give(void)
{
    if (depth > 0 && --depth == 0)
        pthread_mutex_unlock(&turn);
}

int ndm_turn_suspend(void)
{
    int had = depth;

    depth = 0;
    if (had > 0)
        pthread_mutex_unlock(&turn);
    return had;
}

void ndm_turn_resume(int suspended)
{
    if (suspended > 0)
        pthread_mutex_lock(&turn);
    depth = suspended;
}

void ndm_turn_yield(void)
{
    int had = ndm_turn_suspend();

    ndm_clock_yield();
    ndm_turn_resume(had);
}

bool ndm_turn_has_helper(void)
{
    return atomic_load_explicit(&helpers, memory_order_relaxed) > 0;
}

/* With the turn. Once a stream has failed, nothing moves any more. */
static void look(ndm_host_helper *h)
{
    bool busy = true;

    h->failed = ndm_host_progress(h->device, &busy);
    while (!h->stop && (!busy || h->failed != NDM_OK)) {
        pthread_cond_wait(&h->work, &turn);
        busy = true;
    }
}

static void *help(void *argument)
{
    ndm_host_helper *h = argument;
    bool stop = false;

    omp_set_num_threads(1); /* the cores are the host thread's */
    while (!stop) {
        ndm_turn_take();
        look(h);
        stop = h->stop;
        ndm_turn_give();
        if (!stop)
            nanosleep(&PAUSE, NULL);
    }
    return NULL;
}

ndm_status ndm_host_help(ndm_device *device)
{
    ndm_host_device *d = (ndm_host_device *)device;
    ndm_host_helper *h;

    if (d->helper)
        return NDM_OK;
    h = calloc(1, sizeof *h);
    if (!h)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a helper thread");
    h->device = device;
    pthread_cond_init(&h->work, NULL);
    atomic_fetch_add(&helpers, 1);
    int failed = pthread_create(&h->thread, NULL, help, h);
    if (failed) {
        atomic_fetch_sub(&helpers, 1);
        pthread_cond_destroy(&h->work);
        free(h);
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device %s: no helper thread: %s", device->ops->name,
                 strerror(failed));
    }
    d->helper = h;
    return NDM_OK;
}

void ndm_host_unhelp(ndm_device *device)
{
    ndm_host_device *d = (ndm_host_device *)device;
    ndm_host_helper *h = d->helper;

    if (!h)
        return;
    ndm_turn_take();
    h->stop = true;
    pthread_cond_signal(&h->work);
    int had = ndm_turn_suspend();
    pthread_join(h->thread, NULL);
    ndm_turn_resume(had);
    ndm_turn_give();
    atomic_fetch_sub(&helpers, 1);
    pthread_cond_destroy(&h->work);
    free(h);
    d->helper = NULL;
}

void ndm_host_helper_wake(ndm_host_device *device)
{
    if (device->helper)
        pthread_cond_signal(&device->helper->work);
}
