/* SPDX-License-Identifier: Apache-2.0 */
/* barrier: dissemination. In round k a member tells the one 2^k further on; after log2 n rounds it
 * has heard, through others, of all. (Hensgen, Finkel, Manber, 1988.) */
#include "collectives/algo.h"

ndm_status ndm_algo_barrier(ndm_schedule *s, bool *done)
{
    int64_t n = s->run.comm->size, me = s->run.comm->index, distance = (int64_t)1 << s->step;

    *done = distance >= n;
    s->step++;
    if (*done)
        return NDM_OK;
    NDM_TRY(ndm_schedule_recv(s, (me - distance + n) % n, &s->token_in, 1));
    return ndm_schedule_send(s, (me + distance) % n, &s->token_out, 1);
}
