/* SPDX-License-Identifier: Apache-2.0 */
/* What the counting backend knows of the others. */
#ifndef NDM_COLLECTIVES_COUNT_H
#define NDM_COLLECTIVES_COUNT_H

#include "collectives/comm.h"

/* Bytes of staging that a group has with a backend: exact for shm; a bound for messages, whose
 * reductions take two halves of 2 MiB. */
int64_t ndm_count_staging_bytes(const ndm_comm *comm, const char *backend);

#endif
