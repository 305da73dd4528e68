/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the nccl backend share. Part of the module libndm_cuda.so only. */
#ifndef NDM_COLLECTIVES_NCCL_COMM_H
#define NDM_COLLECTIVES_NCCL_COMM_H

#include <nccl.h>

#include "collectives/comms.h"
#include "device/cuda/cuda.h"

typedef struct ndm_nccl_segment ndm_nccl_segment;

/* Of a communicator: comm->state. */
typedef struct ndm_nccl_comm {
    ncclComm_t handle;          /* NULL after an abort */
    float *token;               /* [1] on the device: what a barrier sums */
    bool registers;             /* memory that it uses: nccl_register.c */
    ndm_nccl_segment *segments; /* [n_segments], registered */
    int n_segments;
    struct ndm_nccl_comm *next; /* in the world's list, if it was not made */
} ndm_nccl_comm;

/* Of all communicators of a mesh: what comms_init makes. */
typedef struct ndm_nccl_world {
    ndm_cuda_watch watch; /* first */
    ndm_comms *comms;
    ncclComm_t handle;     /* of all ranks, from which the others are split; NULL after an abort */
    ndm_nccl_comm *unmade; /* whose splits failed: NCCL may fill in their handles later */
    bool at_work;          /* an abort has not come back: NCCL may write into all of this */
} ndm_nccl_world;

bool ndm_nccl_registers(void); /* does the environment ask for it? */
void ndm_nccl_register(ndm_nccl_comm *n, const ndm_device *device, const void *memory);
void ndm_nccl_forget(ndm_nccl_comm *n, const void *base);
void ndm_nccl_forget_all(ndm_nccl_comm *n);

/* NCCL's answer as a status, with the communicator's name and NCCL's words. */
NDM_MUST_USE ndm_status ndm_nccl_check(ncclResult_t result, const char *what, const char *name,
                                       const char *file, int line);
#define NDM_NCCL_TRY(what, name, call) \
    NDM_TRY(ndm_nccl_check((call), (what), (name), __FILE__, __LINE__))

/* Communicators do not block: a call may be in progress when it returns. Waits for the end of it,
 * with the world's deadline. */
NDM_MUST_USE ndm_status ndm_nccl_settle(ncclComm_t handle, ncclResult_t result, const char *what,
                                        const char *name, int64_t timeout_ns);
/* Likewise, and until the communicator that is made of this one is there. */
NDM_MUST_USE ndm_status ndm_nccl_await(ncclComm_t handle, const ncclComm_t *made, const char *what,
                                       const char *name, int64_t timeout_ns);

/* Asks all communicators for errors while the host waits for the device; after one, or after the
 * deadline, they are aborted. */
void ndm_nccl_watch(ndm_nccl_world *w);

/* Ends everything of NCCL's on the device, and all graphs: nothing can be issued any more. */
void ndm_nccl_abort(ndm_nccl_world *w);

/* Ends one communicator whose collectives are over; its handle is NULL then. An abort of all, if
 * that does not succeed within the world's deadline. */
void ndm_nccl_end(ndm_nccl_world *w, ncclComm_t *handle, const char *name);

/* What the module exports. */
NDM_API extern const ndm_comm_backend ndm_cuda_nccl, ndm_cuda_staged;

/* Issues a collective on the stream (ndm_comm_backend.run). */
ndm_status ndm_nccl_run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream);

#endif
