/* SPDX-License-Identifier: Apache-2.0 */
/* Several threads for numbered tasks that wait for a disk or for memory. */
#ifndef NDM_CORE_TASKS_H
#define NDM_CORE_TASKS_H

#include <stdint.h>

#include <ndmesh/status.h>

/* Task `i`; `thread` counts from 0, which is the caller's. */
typedef ndm_status (*ndm_task_fn)(void *user, int64_t i, int thread);

enum { NDM_TASK_THREADS = 4 };

/* Runs tasks 0..n-1, begun in this order, by the caller and up to threads - 1 others (at most
 * NDM_TASK_THREADS in all). Returns when none runs. The first failure is the outcome, with its
 * message; tasks that have not begun by then are left out. */
NDM_MUST_USE ndm_status ndm_tasks_run(int64_t n, int threads, ndm_task_fn task, void *user);

#endif
