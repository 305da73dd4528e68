/* SPDX-License-Identifier: Apache-2.0 */
/* Point-to-point messages between ranks of the world: the only use that is made of MPI after start.
 *
 * One communicator carries everything; a tag tells collectives apart:
 *     bits 27..17 communicator   16..12 sequence mod 32   11..9 collective   8..0 hash of the rest
 * so that ranks that disagree on a collective do not exchange its data by mistake. */
#ifndef NDM_COLLECTIVES_P2P_H
#define NDM_COLLECTIVES_P2P_H

#include <mpi.h>

#include "collectives/flight.h"

enum { NDM_P2P_MAX_COMMS = 2047, NDM_P2P_TAG_NOTICE = (1 << 28) - 1 };

typedef struct ndm_p2p {
    MPI_Comm comm;
    bool owns_comm;        /* free it on leaving */
    bool finalize;         /* this library initialised MPI */
    bool any_thread;       /* MPI takes calls of any thread, one at a time */
    int64_t message_limit; /* bytes a message has at most; longer ones are cut */
} ndm_p2p;

int ndm_p2p_tag(const ndm_signature *signature);
bool ndm_p2p_tag_same_collective(int tag, int other); /* communicator and sequence */
ndm_collective ndm_p2p_tag_kind(int tag);

/* bytes <= message_limit. */
NDM_MUST_USE ndm_status ndm_p2p_send(ndm_p2p *p2p, const void *data, int64_t bytes, int64_t rank,
                                     int tag, MPI_Request *request);
NDM_MUST_USE ndm_status ndm_p2p_recv(ndm_p2p *p2p, void *data, int64_t bytes, int64_t rank, int tag,
                                     MPI_Request *request);
/* bytes: what was received, if request was a receive. */
NDM_MUST_USE ndm_status ndm_p2p_test(MPI_Request *request, bool *done, int64_t *bytes);

/* Gives up a request of a collective that failed. */
void ndm_p2p_cancel(MPI_Request *request, bool receive);

/* Is there a message from a rank (or MPI_ANY_SOURCE) that nobody has received, with any tag (or
 * this one)? */
NDM_MUST_USE ndm_status ndm_p2p_probe(ndm_p2p *p2p, int64_t rank, int tag, bool *found,
                                      MPI_Status *status);

/* Receives and drops what nobody will ask for: late notices, messages of collectives that failed.
 */
void ndm_p2p_drain(ndm_p2p *p2p);

/* Tests cut messages at a small size with this. bytes >= 1. */
void ndm_p2p_set_message_limit(ndm_world *world, int64_t bytes);

#endif
