/* SPDX-License-Identifier: Apache-2.0 */
/* A training run from its options: what `ndmesh train` does after reading them. */
#ifndef NDM_TRAIN_RUN_H
#define NDM_TRAIN_RUN_H

#include <stdio.h>

#include "core/option.h"

/* How a run ended, besides its status. */
typedef struct ndm_run_outcome {
    int signal;     /* that stopped it, 0 = none */
    long long rank; /* of this process; prints errors of all when 0 */
} ndm_run_outcome;

/* Trains. `out` receives what --dry-run and --json print. Collective over: world. On failure every
 * rank returns the same status. */
NDM_MUST_USE ndm_status ndm_train_run(const ndm_options *options, FILE *out,
                                      ndm_run_outcome *outcome);

#endif
