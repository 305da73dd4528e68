/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks write a checkpoint together: all of the world on a file system that all see, or, on
 * disks of hosts, those of each host, where every host has a whole checkpoint of its own. */
#ifndef NDM_TRAIN_CHECKPOINT_LOCAL_H
#define NDM_TRAIN_CHECKPOINT_LOCAL_H

#include <stdbool.h>

#include "strategies/internal.h"

typedef struct ndm_save_group {
    int64_t rank, size; /* the first makes and finishes folders */
    bool writes;        /* this rank is of the replica that writes */
} ndm_save_group;

/* local: NDM_ERR_CONFIG where this host has no whole replica. Not collective. */
NDM_MUST_USE ndm_status ndm_save_group_find(const ndm_context *context, bool local,
                                            ndm_save_group *group);

#endif
