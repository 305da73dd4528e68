/* SPDX-License-Identifier: Apache-2.0 */
/* A collective as rounds of point-to-point messages: what an algorithm of the mpi backend is made
 * of.
 *
 * advance() is called with step 0 when the collective starts, and again whenever all transfers that
 * the last call posted are complete. It posts the next round and moves step on, or says done. */
#ifndef NDM_COLLECTIVES_SCHEDULE_H
#define NDM_COLLECTIVES_SCHEDULE_H

#include "collectives/run.h"

typedef struct ndm_schedule ndm_schedule;
typedef ndm_status (*ndm_schedule_advance)(ndm_schedule *s, bool *done);

/* One message under way. */
typedef struct ndm_transfer {
    MPI_Request request;
    int64_t member, bytes;
    bool receive, done;
} ndm_transfer;

struct ndm_schedule {
    ndm_run run; /* first */
    ndm_schedule_advance advance;
    int64_t step;
    bool finished;
    int tag;
    int64_t n_transfers, capacity, n_done; /* those before n_done are complete */
    ndm_transfer *transfers;
    char *staging;            /* from ndm_schedule_stage */
    int64_t phase_step;       /* step at which the second phase began; 0 = in the first */
    char token_in, token_out; /* messages of a barrier */
};

/* Posts a message to or from a member; any size, 0 is none. */
NDM_MUST_USE ndm_status ndm_schedule_send(ndm_schedule *s, int64_t member, const void *data,
                                          int64_t bytes);
NDM_MUST_USE ndm_status ndm_schedule_recv(ndm_schedule *s, int64_t member, void *data,
                                          int64_t bytes);

/* Gives s->staging room; the contents are undefined. Once a schedule. */
NDM_MUST_USE ndm_status ndm_schedule_stage(ndm_schedule *s, int64_t bytes);

/* Executes a schedule: on a stream of the communicator's device, or on the host. */
NDM_MUST_USE ndm_status ndm_schedule_submit(ndm_comm *comm, const ndm_collective_args *args,
                                            ndm_stream *stream);
NDM_MODULE_API NDM_MUST_USE ndm_status ndm_schedule_execute(ndm_comm *comm,
                                                            const ndm_collective_args *args);

/* Staging memory that a communicator keeps for its next collective: comm->state of the backend. It
 * is the device's where the host may touch that, else the host's. */
typedef struct ndm_staging {
    void *memory;
    int64_t bytes;
    bool taken;
} ndm_staging;

NDM_MODULE_API void ndm_staging_finish(ndm_comm *comm, ndm_staging *staging);

#endif
