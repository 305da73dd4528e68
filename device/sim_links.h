/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses a link when. */
#ifndef NDM_DEVICE_SIM_LINKS_H
#define NDM_DEVICE_SIM_LINKS_H

#include <ndmesh/status.h>
#include <stdint.h>

typedef struct ndm_sim_interval {
    double begin, end;
} ndm_sim_interval;

/* Busy times of a link, ascending and apart; `first` is the first that still matters. */
typedef struct ndm_sim_times {
    ndm_sim_interval *items;
    int64_t n, first, capacity;
} ndm_sim_times;

/* Takes ns of what is free from `from` on, in pieces; *end receives when it is done. Times before
 * `past` will not be asked for again. */
NDM_MUST_USE ndm_status ndm_sim_times_take(ndm_sim_times *times, double past, double from,
                                           double ns, double *end);

/* When work of `ns` that begins at `from` ends, if it runs at 1 / (1 + share) while the link is
 * busy. */
double ndm_sim_times_slowed(const ndm_sim_times *times, double from, double ns, double share);
void ndm_sim_times_finish(ndm_sim_times *times);

#endif
