/* SPDX-License-Identifier: Apache-2.0 */
/* send_recv: one message out, one in; to itself it is a copy. */
#include "collectives/algo.h"

#include <string.h>

ndm_status ndm_algo_send_recv(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t bytes = ndm_algo_bytes(a->count, a->dtype), me = s->run.comm->index;

    *done = s->step++ > 0;
    if (*done)
        return NDM_OK;
    if (a->peer_dst == me && a->peer_src == me) {
        if (bytes > 0)
            memmove(a->recv, a->send, (size_t)bytes);
        return NDM_OK;
    }
    NDM_TRY(ndm_schedule_recv(s, a->peer_src, a->recv, bytes));
    return ndm_schedule_send(s, a->peer_dst, a->send, bytes);
}
