/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a run fits into the memory of its hosts, before it takes any. */
#ifndef NDM_TRAIN_RUN_FIT_H
#define NDM_TRAIN_RUN_FIT_H

#include "train/run_internal.h"

/* The host where least is left. */
typedef struct ndm_fit {
    int64_t needed, limit;         /* bytes of all its ranks; what it has, 0 = not to be checked */
    int64_t ranks;                 /* that share it */
    int64_t largest, largest_rank; /* bytes of the rank that needs most, and which */
    char host[64];
} ndm_fit;

/* From what this rank needs. Collective over the world. */
NDM_MUST_USE ndm_status ndm_fit_find(const ndm_options *options, const ndm_context *context,
                                     int64_t bytes, ndm_fit *fit);

/* NDM_ERR_MEMORY with both numbers, if it does not. */
NDM_MUST_USE ndm_status ndm_fit_judge(const ndm_fit *fit);

#endif
