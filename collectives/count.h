/* SPDX-License-Identifier: Apache-2.0 */
/* The counting backend takes memory as another one would. */
#ifndef NDM_COLLECTIVES_COUNT_H
#define NDM_COLLECTIVES_COUNT_H

#include "collectives/comm.h"

/* Whom to count for: a backend's name, or "auto" (at first). Process-wide, as a dry run is. */
void ndm_count_mimic(const char *backend);

/* The backend that a group's collectives are counted for. */
const char *ndm_count_mimicked(const ndm_comm *comm);

#endif
