/* SPDX-License-Identifier: Apache-2.0 */
/* What is behind ndm_comms, for the files of this folder. */
#ifndef NDM_COLLECTIVES_COMMS_H
#define NDM_COLLECTIVES_COMMS_H

#include "collectives/comm.h"

/* A canonical name of a communicator: axes of size above 1, whole (block 0) or cut into blocks. All
 * ranks number them alike, so the number is the communicator's id, and no rank needs to be asked.
 */
typedef struct ndm_comm_slot {
    ndm_axis_set axes;
    int64_t block;
    ndm_comm *comm; /* NULL until it is first asked for */
} ndm_comm_slot;

struct ndm_comms {
    ndm_comms *next; /* in the world's list */
    ndm_world *world;
    const ndm_mesh *mesh;
    ndm_device *device;
    const ndm_comm_backend *forced; /* NULL: the best that takes a group */
    ndm_comm_slot *slots;           /* [n_slots]; slot 0 is the group of one */
    int64_t n_slots;
    ndm_comm **made; /* [n_made], in the order they were made */
    int64_t n_made;
    int64_t n_backends;   /* in the list when this was made: a module may add to it later */
    void **backend_state; /* [n_backends], of comms_init */
    bool *backend_ready;  /* [n_backends]: its probe said yes and comms_init is done */
    uint32_t generation;  /* 1, 2, ... in the world */
    ndm_comms_observer observer;
    void *observer_user;
    int64_t delay_polls;
    uint64_t delay_seed, delayed;
};

/* State that the backend of `comm` made in comms_init. */
NDM_MODULE_API void *ndm_comms_backend_state(const ndm_comm *comm);

/* Records a call in the flight recorder: what a backend without runs (run.h) does of them. */
NDM_MODULE_API void ndm_comm_note(ndm_comm *comm, const ndm_collective_args *args);

/* Polls by which the next collective is held back (fault injection). */
int64_t ndm_comms_draw_delay(ndm_comms *comms);

#endif
