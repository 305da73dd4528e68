/* SPDX-License-Identifier: Apache-2.0 */
/* The guard: a device like cpu whose memory nothing can reach but what runs on a stream. Each
 * allocation is pages of its own that are closed outside kernels, copies and collectives, and ends
 * at a page that is always closed. */
#ifndef NDM_TESTS_ENGINE_GUARD_H
#define NDM_TESTS_ENGINE_GUARD_H

#include "device/host.h"

/* Makes device "guard" known. Call before MPI starts: it keeps UCX from reading the memory of other
 * processes, which closed pages do not allow. */
void guard_register(void);

/* Allocations alive on all guard devices, and times that memory was opened: that something ran. */
int64_t guard_live(void);
int64_t guard_openings(void);

#endif
