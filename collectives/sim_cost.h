/* SPDX-License-Identifier: Apache-2.0 */
/* What a collective costs on a machine. */
#ifndef NDM_COLLECTIVES_SIM_COST_H
#define NDM_COLLECTIVES_SIM_COST_H

#include "device/sim_machine.h"
#include <ndmesh/collectives.h>

/* Where the members of a group are. */
typedef struct ndm_sim_group {
    int64_t ranks;
    int64_t domains; /* that they are spread over */
    int64_t members; /* in one domain, at most */
    int64_t fewest;  /* in one domain, at least: all others' bytes pass its links too */
} ndm_sim_group;

/* Members by world rank, ascending; where they are not, a domain may count twice, and the group
 * looks more spread than it is. */
ndm_sim_group ndm_sim_place(const int64_t *ranks, int64_t n, int64_t per_domain);

/* What a communicator of the simulated world is priced as: the group that is spread furthest, of
 * those that split the ranks as it does. */
ndm_sim_group ndm_sim_group_of(const ndm_comm *comm);

/* Time in ns. bytes: of the whole buffer, which is gathered, scattered, reduced, or sent. */
double ndm_sim_collective_ns(const ndm_sim_machine *machine, const ndm_sim_group *group,
                             ndm_collective kind, double bytes);

#endif
