/* SPDX-License-Identifier: Apache-2.0 */
/* What `ndmesh bench profile` measures of this machine: the numbers of a file of share/clusters. */
#ifndef NDM_CLI_BENCH_PROFILE_H
#define NDM_CLI_BENCH_PROFILE_H

#include "device/sim_machine.h"
#include <ndmesh/status.h>

/* How long to measure. */
typedef struct ndm_profile_effort {
    int rounds;         /* of which the median counts */
    double min_ms;      /* of a round of a kernel */
    int64_t collective; /* timed calls of a collective */
    int64_t ranks_max;  /* groups of 2, 4, ... up to it */
} ndm_profile_effort;

/* bench_profile_kernels.c: peak, bandwidths, matrix products, attentions, other kernels, all of one
 * core while the others do the same. */
NDM_MUST_USE ndm_status ndm_profile_kernels(const ndm_profile_effort *effort, int cores,
                                            ndm_sim_machine *machine);

/* bench_profile_collectives.c: curves by operation and ranks, of `ndmesh bench collectives`. */
NDM_MUST_USE ndm_status ndm_profile_collectives(const ndm_profile_effort *effort,
                                                ndm_sim_machine *machine);

#endif
