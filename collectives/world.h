/* SPDX-License-Identifier: Apache-2.0 */
/* What is behind ndm_world, for the files of this folder. */
#ifndef NDM_COLLECTIVES_WORLD_H
#define NDM_COLLECTIVES_WORLD_H

#include "collectives/comm.h"
#include "collectives/flight.h"
#include "collectives/p2p.h"

/* What every rank tells of itself when it joins. Sent as it is. */
typedef struct ndm_rank_facts {
    char host[64];
    uint64_t node_key; /* hash of what processes that can share memory have in common */
    int64_t pid;
    int64_t cores;      /* that it may run on, when it joins */
    uint64_t cores_key; /* hash of which */
    int64_t node;       /* filled in by the receiver: nodes numbered by first appearance */
} ndm_rank_facts;

struct ndm_world {
    int64_t rank, size, local_rank, local_size, nodes;
    int64_t timeout_ns;
    ndm_rank_facts *ranks; /* [size] */
    ndm_p2p *p2p;          /* NULL in a world of one that has no MPI */
    ndm_comm *comm;        /* all ranks; carries exchange, agree, verify, leave */
    ndm_comms *comms;      /* list of those alive: their queues advance while the host waits here */
    uint32_t generations;  /* ndm_comms made so far */
    bool failed;           /* a collective did not complete: nobody will come to the next one */
    ndm_flight flight;
    struct ndm_stall *stall; /* what other ranks told while this one waited */
    bool simulated;          /* this process plays one rank of many that do as it does */
};

/* world_self.c, world_mpi.c: set rank, size, p2p. */
NDM_MUST_USE ndm_status ndm_world_join_self(ndm_world *world);
NDM_MUST_USE ndm_status ndm_world_join_mpi(ndm_world *world, const ndm_world_options *options);
/* world_sim.c: as join_self, and the facts of all ranks. */
NDM_MUST_USE ndm_status ndm_world_join_sim(ndm_world *world, const ndm_world_options *options);

/* Finalises MPI if join initialised it; the ranks have met before. */
void ndm_world_leave_mpi(ndm_world *world);
bool ndm_world_mpi_is_gone(void); /* finalised: nothing may be sent any more */

/* launcher.c: started by something that starts MPI ranks? */
bool ndm_launcher_present(void);
/* Refuses a world of one rank under a launcher that started several. NDM_ERR_COMM. */
NDM_MUST_USE ndm_status ndm_launcher_check(int64_t world_size);

/* Host memory collectives over the world (agree.c) or any communicator; wait with progress. */
NDM_MUST_USE ndm_status ndm_comm_host_run(ndm_comm *comm, const ndm_collective_args *args);

/* Advances the queues of all devices that have communicators here. What fails there is reported by
 * the stream, not here. */
void ndm_world_progress(ndm_world *world);

/* "rank 3 (node b, pid 8812)"; returns text. */
/* Are there more ranks than cores where this rank runs? Those that a launcher has bound to other
 * cores do not count. */
bool ndm_world_shares_cores(const ndm_world *world, int64_t rank);

const char *ndm_world_rank_text(const ndm_world *world, int64_t rank, char *text,
                                size_t text_bytes);

#endif
