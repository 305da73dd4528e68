/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that take numbered tasks until none is left. */
#include <core/tasks.h>

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "core/error.h"

typedef struct crew {
    ndm_task_fn task;
    void *user;
    int64_t n;
    atomic_llong next;
    atomic_bool failed;
    ndm_status status; /* of the one that set `failed` */
    ndm_error error;
} crew;

typedef struct member {
    crew *crew;
    int number;
    pthread_t thread;
} member;

static void *work(void *user)
{
    const member *m = user;
    crew *c = m->crew;

    for (int64_t i; !atomic_load(&c->failed) && (i = atomic_fetch_add(&c->next, 1)) < c->n;) {
        ndm_status status = c->task(c->user, i, m->number);
        if (status != NDM_OK && !atomic_exchange(&c->failed, true)) {
            c->status = status;
            ndm_error_keep(&c->error);
        }
    }
    return NULL;
}

/* Signals are the training thread's. */
static int start(crew *c, member *members, int wanted)
{
    sigset_t all, before;
    int started = 1;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    for (; started < wanted; started++) {
        members[started] = (member){.crew = c, .number = started};
        if (pthread_create(&members[started].thread, NULL, work, &members[started]) != 0)
            break; /* fewer do it as well */
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

ndm_status ndm_tasks_run(int64_t n, int threads, ndm_task_fn task, void *user)
{
    crew c = {.task = task, .user = user, .n = n};
    member members[NDM_TASK_THREADS] = {{.crew = &c}};
    int wanted = threads < NDM_TASK_THREADS ? threads : NDM_TASK_THREADS;
    int started = start(&c, members, n < wanted ? (int)n : wanted);

    work(&members[0]);
    for (int i = 1; i < started; i++)
        pthread_join(members[i].thread, NULL);
    if (!c.failed)
        return NDM_OK;
    ndm_error_restore(&c.error);
    return c.status;
}
