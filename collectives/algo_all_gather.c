/* SPDX-License-Identifier: Apache-2.0 */
/* all_gather: every block straight to every member, or around a ring.
 *
 * Direct exchange has one round and is the fastest on one node. Between nodes it sends each block
 * over the network once for every rank there; a ring sends it once for every node, and wins as soon
 * as blocks are large. */
#include "collectives/algo.h"

#include <string.h>

#include "core/dtype.h"

enum { PEERS_A_ROUND = 16 };
enum { RING_BLOCK_BYTES = 256 * 1024 };

int64_t ndm_algo_bytes(int64_t count, ndm_dtype dtype)
{
    return count * (int64_t)ndm_dtype_bytes(dtype);
}

char *ndm_blocks_at(const ndm_blocks *blocks, int64_t member)
{
    int64_t at = member * blocks->block;
    return blocks->base + (at < blocks->total ? at : blocks->total);
}

int64_t ndm_blocks_bytes(const ndm_blocks *blocks, int64_t member)
{
    int64_t left = blocks->total - member * blocks->block;
    return left < 0 ? 0 : left < blocks->block ? left : blocks->block;
}

static bool spans_nodes(const ndm_comm *comm)
{
    const ndm_rank_facts *ranks = comm->world->ranks;

    for (int64_t i = 1; i < comm->size; i++)
        if (ranks[comm->ranks[i]].node != ranks[comm->ranks[0]].node)
            return true;
    return false;
}

static ndm_status ring(ndm_schedule *s, const ndm_blocks *blocks, int64_t step, bool *done)
{
    int64_t n = s->run.comm->size, me = s->run.comm->index;
    int64_t out = (me - step + n) % n, in = (me - step - 1 + n) % n;

    *done = step == n - 1;
    if (*done)
        return NDM_OK;
    NDM_TRY(ndm_schedule_recv(s, (me - 1 + n) % n, ndm_blocks_at(blocks, in),
                              ndm_blocks_bytes(blocks, in)));
    return ndm_schedule_send(s, (me + 1) % n, ndm_blocks_at(blocks, out),
                             ndm_blocks_bytes(blocks, out));
}

static ndm_status direct(ndm_schedule *s, const ndm_blocks *blocks, int64_t step, bool *done)
{
    int64_t n = s->run.comm->size, me = s->run.comm->index;
    int64_t first = 1 + step * PEERS_A_ROUND;
    int64_t end = first + PEERS_A_ROUND < n ? first + PEERS_A_ROUND : n;

    *done = first >= n;
    for (int64_t i = first; i < end; i++) {
        int64_t from = (me - i + n) % n;
        NDM_TRY(ndm_schedule_recv(s, from, ndm_blocks_at(blocks, from),
                                  ndm_blocks_bytes(blocks, from)));
    }
    for (int64_t i = first; i < end; i++)
        NDM_TRY(ndm_schedule_send(s, (me + i) % n, ndm_blocks_at(blocks, me),
                                  ndm_blocks_bytes(blocks, me)));
    return NDM_OK;
}

ndm_status ndm_algo_gather_blocks(ndm_schedule *s, const ndm_blocks *blocks, int64_t step,
                                  bool *done)
{
    bool use_ring = s->run.comm->size > 2 && blocks->block >= RING_BLOCK_BYTES &&
                    spans_nodes(s->run.comm);

    return (use_ring ? ring : direct)(s, blocks, step, done);
}

ndm_status ndm_algo_all_gather(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t bytes = ndm_algo_bytes(a->count, a->dtype);
    ndm_blocks blocks = {a->recv, bytes, bytes * s->run.comm->size};
    char *own = ndm_blocks_at(&blocks, s->run.comm->index);

    if (s->step == 0 && bytes > 0 && a->send != own)
        memcpy(own, a->send, (size_t)bytes);
    return ndm_algo_gather_blocks(s, &blocks, s->step++, done);
}
