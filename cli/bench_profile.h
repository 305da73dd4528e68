/* SPDX-License-Identifier: Apache-2.0 */
/* What `ndmesh bench profile` measures of this machine: the numbers of a file of share/clusters. */
#ifndef NDM_CLI_BENCH_PROFILE_H
#define NDM_CLI_BENCH_PROFILE_H

#include "device/sim_machine.h"
#include <ndmesh/status.h>

/* Operands are measured as a step finds them: not where the last use has left them, but where all
 * that came between has: each is used again when so many bytes of others have been. */
enum { NDM_PROFILE_APART_BYTES = 32 << 20 };

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

/* bench_profile_fit.c: [NDM_SIM_LINE_TERMS]. */
void ndm_profile_fit(const ndm_sim_gemm *gemms, int n, double *line);

/* bench_profile_collectives.c: curves by operation and ranks, of `ndmesh bench collectives`. */
NDM_MUST_USE ndm_status ndm_profile_collectives(const ndm_profile_effort *effort,
                                                ndm_sim_machine *machine);

#endif
