/* SPDX-License-Identifier: Apache-2.0 */
/* How a wait passes the time until what it waits for has come.
 *
 * Where every rank has a core, a wait looks again and again: what it waits for is about to come.
 * Where ranks share cores it comes from one that is not running. A rank that only yields stays one
 * of those that its core has to run, and the scheduler does not move another core's ranks there: a
 * core whose ranks all wait for those of the other is lost. So a wait yields for a while and then
 * sleeps. Whoever puts out what it waits for wakes it, by its bell.
 *
 * A wait is a loop of looks:
 *
 *     for (ndm_wait_begin(&w); look(), !done; ndm_wait_pause(&w))
 *         ;
 *     ndm_wait_end(&w);
 *
 * A look that finds nothing says by ndm_wait_for() whom it found missing. */
#ifndef NDM_DEVICE_WAIT_H
#define NDM_DEVICE_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The bell of a rank, in memory that the ranks of its node share, at first all zero. */
typedef struct ndm_bell {
    _Alignas(64) _Atomic uint32_t rings; /* a futex */
    _Atomic uint64_t awaited; /* bit i: it sleeps until a rank i of the node, modulo 64, rings */
} ndm_bell;

/* Wakes the rank of a bell if it waits for rank `from` of the node. To be called after what it may
 * wait for has been put out, with a seq_cst fence between. */
void ndm_bell_ring(ndm_bell *bell, int64_t from);

/* What the looks of this thread found since the last pause: that rank `from` of the node is
 * missing, who rings `bell`; or somebody who rings none, and a wait will not sleep. */
void ndm_wait_for(ndm_bell *bell, int64_t from);
void ndm_wait_for_other(void);

typedef struct ndm_wait {
    int64_t looks;
    int64_t slept;    /* how often */
    int64_t alone;    /* of those, how often the time was over before the bell rang */
    ndm_bell *bell;   /* where it says whom it waits for; NULL: nowhere yet */
    uint64_t awaited; /* what it says there */
    uint32_t rings;   /* of the bell, before the last look */
} ndm_wait;

void ndm_wait_begin(ndm_wait *w);
void ndm_wait_pause(ndm_wait *w); /* gives up the turn (turn.h) while others run */
void ndm_wait_end(ndm_wait *w);

/* Have the first pauses passed without yielding? Until then no time has passed to speak of. */
bool ndm_wait_yields(const ndm_wait *w);

/* Of a process; set when it joins a world. */
void ndm_wait_share_cores(bool shared);

#endif
