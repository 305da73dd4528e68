/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_scatter: members exchange slices pairwise into staging; each sums its own block in rank
 * order, so that the bits do not depend on who came first.
 *
 * Blocks are cut into chunks that bound the staging memory. There are two halves of staging: one
 * fills from the network while the other is summed. Bytes received: (n-1) * block. */
#include "collectives/algo.h"

#include <stdlib.h>

#include "collectives/reduce.h"
#include "core/dtype.h"

enum { STAGING_HALF_BYTES = 2 * 1024 * 1024, CHUNK_ALIGN = 64, CHUNK_MIN = 1024 };

typedef struct geometry {
    int64_t chunk, chunks; /* elements of a chunk, and chunks of a block */
    int64_t size;          /* bytes of an element */
} geometry;

static geometry plan(const ndm_schedule *s, const ndm_reduction *r)
{
    geometry g = {.size = (int64_t)ndm_dtype_bytes(r->dtype)};
    int64_t block = r->blocks.block / g.size;

    g.chunk = STAGING_HALF_BYTES / g.size / (s->run.comm->size - 1) / CHUNK_ALIGN * CHUNK_ALIGN;
    g.chunk = g.chunk < CHUNK_MIN ? CHUNK_MIN : g.chunk;
    g.chunk = g.chunk < block ? g.chunk : block;
    g.chunks = g.chunk > 0 ? (block + g.chunk - 1) / g.chunk : 0;
    return g;
}

/* Chunk `c` of member's block: where, and how many elements (0 past a short block's end). */
static char *chunk_at(const ndm_reduction *r, const geometry *g, int64_t member, int64_t c,
                      int64_t *count)
{
    int64_t elements = ndm_blocks_bytes(&r->blocks, member) / g->size, from = c * g->chunk;
    int64_t left = elements - from;

    *count = left < 0 ? 0 : left < g->chunk ? left : g->chunk;
    return ndm_blocks_at(&r->blocks, member) + (*count > 0 ? from * g->size : 0);
}

/* Staging of member's version of chunk c. */
static char *staged(const ndm_schedule *s, const geometry *g, int64_t member, int64_t c)
{
    int64_t n = s->run.comm->size, slot = member < s->run.comm->index ? member : member - 1;

    return s->staging + ((c % 2) * (n - 1) + slot) * g->chunk * g->size;
}

static ndm_status exchange(ndm_schedule *s, const ndm_reduction *r, const geometry *g, int64_t c)
{
    int64_t n = s->run.comm->size, me = s->run.comm->index, count;

    chunk_at(r, g, me, c, &count);
    for (int64_t i = 1; i < n; i++) {
        int64_t from = (me - i + n) % n;
        NDM_TRY(ndm_schedule_recv(s, from, staged(s, g, from, c), count * g->size));
    }
    for (int64_t i = 1; i < n; i++) {
        int64_t to = (me + i) % n;
        const char *data = chunk_at(r, g, to, c, &count);
        NDM_TRY(ndm_schedule_send(s, to, data, count * g->size));
    }
    return NDM_OK;
}

static ndm_status reduce(const ndm_schedule *s, const ndm_reduction *r, const geometry *g,
                         int64_t c)
{
    int64_t n = s->run.comm->size, me = s->run.comm->index, count;
    const char *own = chunk_at(r, g, me, c, &count);
    const void **slices = malloc((size_t)n * sizeof *slices);

    if (!slices)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory to reduce over %lld ranks", (long long)n);
    for (int64_t i = 0; i < n; i++)
        slices[i] = i == me ? own : staged(s, g, i, c);
    /* an all-reduce sends it on at once */
    ndm_reduce_slices(r->out + c * g->chunk * (int64_t)ndm_dtype_bytes(r->recv_dtype),
                      r->recv_dtype, slices, n, count, r->dtype, r->op, 0);
    free(slices);
    return NDM_OK;
}

ndm_status ndm_algo_reduce_blocks(ndm_schedule *s, const ndm_reduction *r, int64_t step, bool *done)
{
    geometry g = plan(s, r);

    *done = step >= g.chunks;
    if (step == 0 && g.chunks > 0)
        NDM_TRY(ndm_schedule_stage(s, (g.chunks > 1 ? 2 : 1) * (s->run.comm->size - 1) * g.chunk *
                                          g.size));
    if (step < g.chunks)
        NDM_TRY(exchange(s, r, &g, step));
    return step > 0 ? reduce(s, r, &g, step - 1) : NDM_OK;
}

ndm_status ndm_algo_reduce_scatter(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t bytes = ndm_algo_bytes(a->count, a->dtype);
    ndm_reduction r = {.blocks = {(char *)a->send, bytes, bytes * s->run.comm->size},
                       .out = a->recv,
                       .dtype = a->dtype,
                       .recv_dtype = a->recv_dtype,
                       .op = a->op};

    return ndm_algo_reduce_blocks(s, &r, s->step++, done);
}
