/* SPDX-License-Identifier: Apache-2.0 */
/* all_reduce: small buffers are gathered and summed by everyone, which takes one round; large ones
 * are reduce-scattered and gathered, which moves 2(n-1)/n of the buffer. Both sum in rank order, so
 * they give the same bits, on all members. */
#include "collectives/algo.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/reduce.h"
#include "core/dtype.h"

enum { SMALL_BYTES = 32 * 1024, BLOCK_ALIGN = 64 };

static ndm_status small(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t n = s->run.comm->size, bytes = ndm_algo_bytes(a->count, a->dtype);

    if (s->step == 0) {
        NDM_TRY(ndm_schedule_stage(s, n * bytes));
        memcpy(s->staging + s->run.comm->index * bytes, a->recv, (size_t)bytes);
    }
    ndm_blocks blocks = {s->staging, bytes, n * bytes};
    NDM_TRY(ndm_algo_gather_blocks(s, &blocks, s->step++, done));
    if (!*done)
        return NDM_OK;
    const void **slices = malloc((size_t)n * sizeof *slices);
    if (!slices)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory to reduce over %lld ranks", (long long)n);
    for (int64_t i = 0; i < n; i++)
        slices[i] = s->staging + i * bytes;
    ndm_reduce_slices(a->recv, a->dtype, slices, n, a->count, a->dtype, a->op, 0);
    free(slices);
    return NDM_OK;
}

static ndm_status large(ndm_schedule *s, bool *done)
{
    const ndm_collective_args *a = &s->run.args;
    int64_t n = s->run.comm->size, me = s->run.comm->index;
    int64_t block = ((a->count + n - 1) / n + BLOCK_ALIGN - 1) / BLOCK_ALIGN * BLOCK_ALIGN;
    ndm_blocks blocks = {a->recv, ndm_algo_bytes(block, a->dtype),
                         ndm_algo_bytes(a->count, a->dtype)};
    ndm_reduction r = {.blocks = blocks,
                       .out = ndm_blocks_at(&blocks, me),
                       .dtype = a->dtype,
                       .recv_dtype = a->dtype,
                       .op = a->op};
    bool reduced = s->phase_step > 0;

    *done = false;
    if (!reduced)
        NDM_TRY(ndm_algo_reduce_blocks(s, &r, s->step++, &reduced));
    if (!reduced)
        return NDM_OK;
    if (s->phase_step == 0)
        s->phase_step = s->step;
    return ndm_algo_gather_blocks(s, &blocks, s->step++ - s->phase_step, done);
}

ndm_status ndm_algo_all_reduce(ndm_schedule *s, bool *done)
{
    *done = s->run.args.count == 0;
    if (*done)
        return NDM_OK;
    if (ndm_algo_bytes(s->run.args.count, s->run.args.dtype) <= SMALL_BYTES)
        return small(s, done);
    return large(s, done);
}
