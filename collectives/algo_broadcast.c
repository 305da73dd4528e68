/* SPDX-License-Identifier: Apache-2.0 */
/* broadcast: down a binomial tree, chunk after chunk, so that all levels of the tree are busy with
 * large buffers. Ranks are counted from the root: the parent of v clears v's lowest bit. */
#include "collectives/algo.h"

enum { CHUNK_BYTES = 1024 * 1024 };

static int64_t chunk_bytes(int64_t bytes, int64_t c)
{
    int64_t left = bytes - c * CHUNK_BYTES;
    return left < CHUNK_BYTES ? left : CHUNK_BYTES;
}

/* Children of v: v + 2^j below v's lowest bit, the largest subtree first. */
static ndm_status send_to_children(ndm_schedule *s, int64_t v, const char *data, int64_t bytes)
{
    int64_t n = s->run.comm->size, root = s->run.args.peer_src, bit = 1;

    while (bit < n && !(v & bit))
        bit <<= 1;
    for (bit >>= 1; bit > 0; bit >>= 1)
        if (v + bit < n)
            NDM_TRY(ndm_schedule_send(s, (v + bit + root) % n, data, bytes));
    return NDM_OK;
}

/* Step t receives chunk t and passes on chunk t-1, which the step before has received. */
ndm_status ndm_algo_broadcast(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t n = s->run.comm->size, v = (s->run.comm->index - a->peer_src + n) % n;
    int64_t bytes = ndm_algo_bytes(a->count, a->dtype);
    int64_t chunks = (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES;
    int64_t in = s->step, out = v == 0 ? s->step : s->step - 1;
    char *buffer = a->recv;

    *done = out >= chunks;
    s->step++;
    if (v != 0 && in < chunks)
        NDM_TRY(ndm_schedule_recv(s, ((v & (v - 1)) + a->peer_src) % n, buffer + in * CHUNK_BYTES,
                                  chunk_bytes(bytes, in)));
    if (out >= 0 && out < chunks)
        NDM_TRY(send_to_children(s, v, buffer + out * CHUNK_BYTES, chunk_bytes(bytes, out)));
    return NDM_OK;
}
