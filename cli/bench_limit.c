/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sums that bound collectives from below. */
#include "cli/bench_limit.h"

#include <stdlib.h>
#include <string.h>

#include "collectives/reduce.h"
#include "core/clock.h"
#include "strategies/internal.h"

enum { ALIGNMENT = 4096, MOST_STREAMS = 512 };

ndm_status ndm_limit_init(ndm_limit *limit, int64_t bytes)
{
    size_t size = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

    *limit = (ndm_limit){aligned_alloc(ALIGNMENT, size), aligned_alloc(ALIGNMENT, size), bytes};
    if (limit->from == NULL || limit->to == NULL) {
        ndm_limit_finish(limit);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for two buffers of %zu bytes", size);
    }
    memset(limit->from, 0, size);
    memset(limit->to, 0, size);
    return NDM_OK;
}

void ndm_limit_finish(ndm_limit *limit)
{
    free(limit->from);
    free(limit->to);
    *limit = (ndm_limit){0};
}

bool ndm_limit_exists(ndm_collective kind)
{
    return kind != NDM_BARRIER;
}

/* Sums n streams, as the engine sums: in one pass over each. In place, to the first. */
static void reduce(char *to, char *from, int64_t n, int64_t bytes, bool in_place)
{
    const void *streams[MOST_STREAMS];
    int64_t count = bytes / n / (int64_t)sizeof(float);

    n = n < MOST_STREAMS ? n : MOST_STREAMS;
    for (int64_t s = 0; s < n; s++)
        streams[s] = from + s * count * (int64_t)sizeof(float);
    ndm_reduce_slices(in_place ? from : to, NDM_F32, streams, n, count, NDM_F32, NDM_SUM,
                      count * (int64_t)sizeof(float));
}

static void work_once(const ndm_limit_work *w, int64_t turn)
{
    const ndm_limit *l = w->limit;
    int64_t room = w->room < l->bytes ? w->room : l->bytes;
    int64_t bytes = w->bytes < room ? w->bytes : room, own = bytes / w->n;
    int64_t places = w->step > 0 && room > w->step ? room / w->step : 1;
    char *from = l->from + turn % places * w->step, *to = l->to + turn % places * w->step;

    if (w->kind == NDM_REDUCE_SCATTER || w->kind == NDM_ALL_REDUCE)
        reduce(to, from, w->n, bytes, w->in_place);
    else if (w->kind == NDM_ALL_GATHER || w->kind == NDM_ALL_TO_ALL)
        memcpy(to, from, (size_t)(bytes - own));
    else if (w->kind != NDM_BARRIER)
        memcpy(to, from, (size_t)bytes);
}

/* ---- time ------------------------------------------------------------------------------------ */

/* When a rank did its work. */
typedef struct turn {
    int64_t begin_ns, end_ns;
} turn;

static ndm_status take_turns(const ndm_limit_work *work, ndm_context *context, int64_t n,
                             turn *mine)
{
    ndm_stream *stream = ndm_context_stream(context);
    ndm_comm *everyone;

    NDM_TRY(ndm_context_comm(context, NDM_AXES_ALL, &everyone));
    for (int64_t i = 0; i < n; i++) {
        NDM_TRY(ndm_barrier(everyone, stream));
        NDM_TRY(ndm_stream_synchronize(stream));
        mine[i].begin_ns = ndm_clock_ns();
        work_once(work, i);
        mine[i].end_ns = ndm_clock_ns();
    }
    return NDM_OK;
}

/* all, [ranks][n]: from the first rank's begin to the last one's end, the mean over turns. Ranks of
 * several hosts have no common clock: there it is the longest. */
static double mean_span(const turn *all, int64_t ranks, int64_t n, bool one_clock)
{
    int64_t sum = 0;

    for (int64_t i = 0; i < n; i++) {
        int64_t begin = all[i].begin_ns, end = all[i].end_ns, longest = 0;
        for (int64_t r = 0; r < ranks; r++) {
            const turn *t = &all[r * n + i];
            begin = t->begin_ns < begin ? t->begin_ns : begin;
            end = t->end_ns > end ? t->end_ns : end;
            longest = t->end_ns - t->begin_ns > longest ? t->end_ns - t->begin_ns : longest;
        }
        sum += one_clock ? end - begin : longest;
    }
    return (double)sum * 1e-3 / (double)n;
}

ndm_status ndm_limit_time(const ndm_limit_work *work, ndm_context *context, int64_t turns,
                          double *us)
{
    int64_t ranks = ndm_context_size(context);
    bool one_clock = ndm_world_local_size(context->world) == ranks;
    turn *mine = calloc((size_t)turns, sizeof *mine);
    turn *all = calloc((size_t)(ranks * turns), sizeof *all);
    ndm_status status = NDM_ERR_MEMORY;

    if (mine == NULL || all == NULL)
        (void)ndm_error_set(status, __FILE__, __LINE__, "no memory for %lld turns",
                            (long long)turns);
    else
        status = take_turns(work, context, turns, mine);
    if (status == NDM_OK)
        status = ndm_world_exchange(context->world, mine, turns * (int64_t)sizeof *mine, all);
    if (status == NDM_OK)
        *us = mean_span(all, ranks, turns, one_clock);
    free(mine);
    free(all);
    return status;
}
