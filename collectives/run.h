/* SPDX-License-Identifier: Apache-2.0 */
/* A collective in flight in a host world: what the mpi and shm backends have in common.
 *
 * A run is a task of a stream. It starts when all collectives issued before it on its communicator
 * have started, whatever stream they are on, so that every rank starts them in the same order. From
 * then on it is polled; a poll never blocks. A run that makes no progress looks after the reason
 * (stall.h) and fails when the deadline has passed. */
#ifndef NDM_COLLECTIVES_RUN_H
#define NDM_COLLECTIVES_RUN_H

#include "collectives/world.h"

typedef struct ndm_run ndm_run;

/* A run that does not progress looks at the clock, and for the reason, at every so many polls. */
enum { NDM_RUN_POLLS_BETWEEN_CHECKS = 64 };

typedef struct ndm_run_ops {
    bool (*ready)(const ndm_run *run); /* NULL = whenever it is its turn */
    ndm_status (*start)(ndm_run *run);
    ndm_status (*poll)(ndm_run *run, bool *progressed, bool *done);
    bool (*waits_for)(const ndm_run *run, int64_t member); /* has member not done its part yet? */
    void (*awaits)(const ndm_run *run); /* calls ndm_wait_for(); NULL = nobody rings a bell */
    void (*finish)(
        ndm_run *run); /* gives back what the run holds, done or not; run is freed after */
} ndm_run_ops;

struct ndm_run {
    ndm_task task; /* first */
    const ndm_run_ops *ops;
    ndm_comm *comm;
    ndm_collective_args args;
    ndm_signature signature;
    uint64_t flight;
    int64_t delay; /* polls it is held back (fault injection) */
    bool done;
    int64_t idle_polls, idle_ns; /* since the last progress; idle_ns counts polled time only */
    int64_t checked_ns, next_probe_ns;
};

/* Fills in a run made by calloc, the next of its communicator. After this, submit or execute it:
 * either takes ownership, also on failure. */
void ndm_run_init(ndm_run *run, const ndm_run_ops *ops, ndm_comm *comm,
                  const ndm_collective_args *args);

/* Enqueues on a stream. */
NDM_MUST_USE ndm_status ndm_run_submit(ndm_run *run, ndm_stream *stream);

/* Runs to its end on the host, advancing all queues meanwhile. */
NDM_MUST_USE ndm_status ndm_run_execute(ndm_run *run);

#endif
