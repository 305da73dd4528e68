/* SPDX-License-Identifier: Apache-2.0 */
/* Contents of messages whose every element is known to every rank, and what collectives must make
 * of them. */
#ifndef NDM_CLI_BENCH_PATTERN_H
#define NDM_CLI_BENCH_PATTERN_H

#include <stdint.h>

#include <ndmesh/collectives.h>

/* Element g of member r's buffer is a small whole number that depends on (salt, r, g mod 251). */
enum { NDM_PATTERN_PERIOD = 251 };

typedef struct ndm_pattern {
    ndm_collective kind;
    ndm_reduce_op op;
    ndm_dtype dtype;
    int64_t size, index; /* members, and own place among them */
    int64_t count;       /* as in the call */
    uint64_t salt;
} ndm_pattern;

int64_t ndm_pattern_send_count(const ndm_pattern *p); /* elements of the buffers */
int64_t ndm_pattern_recv_count(const ndm_pattern *p);

void ndm_pattern_fill(const ndm_pattern *p, void *send); /* [send_count] */

/* How many elements of recv, [recv_count], are not what the collective must give; to the bit. */
int64_t ndm_pattern_count_wrong(const ndm_pattern *p, const void *recv);

#endif
