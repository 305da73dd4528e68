/* SPDX-License-Identifier: Apache-2.0 */
/* The least that a collective inside a node has to do, measured: every rank copies, or sums
 * streams, of its own memory, all ranks at once and without any word between them. */
#ifndef NDM_CLI_BENCH_LIMIT_H
#define NDM_CLI_BENCH_LIMIT_H

#include <stdint.h>

#include <ndmesh/collectives.h>
#include <ndmesh/context.h>

typedef struct ndm_limit {
    char *from, *to; /* [bytes] */
    int64_t bytes;
} ndm_limit;

NDM_MUST_USE ndm_status ndm_limit_init(ndm_limit *limit, int64_t bytes);
void ndm_limit_finish(ndm_limit *limit);

/* Whether a collective has such a limit. */
bool ndm_limit_exists(ndm_collective kind);

/* The work of one rank of n, for a message of `bytes` as benchmarks count it: all-gather and
 * all-to-all copy (n-1)/n of it, broadcast and send-recv all, reductions sum n streams of 1/n. An
 * all-reduce is held to the limit of a reduce-scatter. */
typedef struct ndm_limit_work {
    const ndm_limit *limit;
    ndm_collective kind;
    int64_t n, bytes;
    bool in_place;      /* sums go where one of the streams is */
    int64_t step, room; /* turns take bytes `step` apart, as many as there are in `room` */
} ndm_limit_work;

/* us: mean of so many turns in each of which every rank does its work once. All begin together, so
 * where ranks share cores a turn takes what a core has to do for all of its ranks, and finds in
 * caches what those have left there, as in a collective. Collective over: world. */
NDM_MUST_USE ndm_status ndm_limit_time(const ndm_limit_work *work, ndm_context *context,
                                       int64_t turns, double *us);

#endif
