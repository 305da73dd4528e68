/* SPDX-License-Identifier: Apache-2.0 */
/* all_to_all: block j of every member goes to member j, some peers a round. Bytes received:
 * (n-1) * block. */
#include "collectives/algo.h"

#include <string.h>

enum { PEERS_A_ROUND = 16 };

ndm_status ndm_algo_all_to_all(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t n = s->run.comm->size, me = s->run.comm->index;
    int64_t bytes = ndm_algo_bytes(a->count, a->dtype);
    int64_t first = 1 + s->step * PEERS_A_ROUND;
    int64_t end = first + PEERS_A_ROUND < n ? first + PEERS_A_ROUND : n;
    const char *send = a->send;
    char *recv = a->recv;

    if (s->step++ == 0 && bytes > 0)
        memcpy(recv + me * bytes, send + me * bytes, (size_t)bytes);
    *done = first >= n;
    for (int64_t i = first; i < end; i++) {
        int64_t from = (me - i + n) % n;
        NDM_TRY(ndm_schedule_recv(s, from, recv + from * bytes, bytes));
    }
    for (int64_t i = first; i < end; i++) {
        int64_t to = (me + i) % n;
        NDM_TRY(ndm_schedule_send(s, to, send + to * bytes, bytes));
    }
    return NDM_OK;
}
