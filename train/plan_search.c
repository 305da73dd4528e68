/* SPDX-License-Identifier: Apache-2.0 */
/* All meshes of a number of ranks, with what else is open: each is a plan of its own, and has the
 * numbers that this plan would show. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/plan.h"

typedef struct search {
    const ndm_plan_open *open;
    ndm_plan_request request; /* of the row at hand */
    ndm_plan_rows *rows;
    int64_t capacity;
    bool one; /* the first that fits is enough */
} search;

static ndm_status add_row(search *s, const ndm_plan_row *row)
{
    if (s->rows->n == s->capacity) {
        int64_t capacity = s->capacity ? 2 * s->capacity : 256;
        ndm_plan_row *items = realloc(s->rows->items, (size_t)capacity * sizeof *items);
        if (!items)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld plans", (long long)capacity);
        s->rows->items = items;
        s->capacity = capacity;
    }
    s->rows->items[s->rows->n++] = *row;
    return NDM_OK;
}

static bool is_done(const search *s)
{
    return s->one && s->rows->n > 0 && s->rows->items[s->rows->n - 1].fits;
}

/* A refusal of the mesh or the memory is a row; any other failure ends the search. */
static ndm_status try_row(search *s, bool *refused)
{
    const ndm_parallelism_config *m = &s->request.parallelism;
    ndm_plan_row row = {.mesh = {m->dp_replicate, m->dp_shard, m->cp, m->tp},
                        .micro_batch = s->request.options.micro_batch,
                        .recompute = s->request.options.recompute};
    ndm_plan_result result;
    ndm_status status = ndm_plan_run(&s->request, &result);

    *refused = row.refused = status == NDM_ERR_CONFIG;
    if (status != NDM_OK && status != NDM_ERR_CONFIG && status != NDM_ERR_MEMORY)
        return status;
    if (status == NDM_OK) {
        row.fits = result.fits;
        row.tokens_per_s = result.tokens_per_s;
        row.step_ns = result.step_ns;
        row.mfu = result.mfu;
        row.needed = result.needed;
        if (!row.fits)
            snprintf(row.why, sizeof row.why, "needs %.1f GiB of %.1f",
                     (double)row.needed / 1073741824.0,
                     s->request.machine->memory_bytes / 1073741824.0);
    } else {
        snprintf(row.why, sizeof row.why, "%s",
                 status == NDM_ERR_MEMORY ? "more memory than there is" : ndm_error_message());
    }
    return add_row(s, &row);
}

static ndm_status try_recomputes(search *s, bool *refused)
{
    static const ndm_recompute all[] = {NDM_RECOMPUTE_NONE, NDM_RECOMPUTE_SELECTIVE,
                                        NDM_RECOMPUTE_FULL};

    if (!s->open->recompute)
        return try_row(s, refused);
    *refused = false;
    for (int i = 0; i < 3 && !*refused && !is_done(s); i++) {
        s->request.options.recompute = all[i];
        NDM_TRY(try_row(s, refused));
    }
    return NDM_OK;
}

/* Whether any of the last rows fits: a larger micro-batch needs more. */
static bool some_fit(const search *s, int64_t from)
{
    for (int64_t i = from; i < s->rows->n; i++)
        if (s->rows->items[i].fits)
            return true;
    return false;
}

static ndm_status try_mesh(search *s)
{
    bool refused = false;

    if (!s->open->micro_batch)
        return try_recomputes(s, &refused);
    for (int64_t b = 1; b <= s->open->micro_batch_max && !refused && !is_done(s); b *= 2) {
        int64_t from = s->rows->n;
        s->request.options.micro_batch = b;
        NDM_TRY(try_recomputes(s, &refused));
        if (!some_fit(s, from))
            break;
    }
    return NDM_OK;
}

/* Whether an axis may have a size, where `left` ranks are not taken by others yet. */
static bool may_be(const search *s, ndm_axis axis, int64_t size, int64_t left)
{
    int64_t fixed = s->open->fixed[axis];

    return left % size == 0 && (fixed == 0 || fixed == size);
}

static ndm_status try_meshes(search *s)
{
    int64_t n = s->request.ranks;
    ndm_parallelism_config *m = &s->request.parallelism;

    if (!s->open->mesh)
        return try_mesh(s);
    for (m->tp = 1; m->tp <= n; m->tp++)
        for (m->cp = 1; may_be(s, NDM_TP, m->tp, n) && m->cp <= n / m->tp; m->cp++)
            for (m->dp_shard = 1;
                 may_be(s, NDM_CP, m->cp, n / m->tp) && m->dp_shard <= n / m->tp / m->cp;
                 m->dp_shard++) {
                int64_t left = n / m->tp / m->cp;
                m->dp_replicate = left / m->dp_shard;
                if (!is_done(s) && may_be(s, NDM_DP_SHARD, m->dp_shard, left) &&
                    may_be(s, NDM_DP_REPLICATE, m->dp_replicate, m->dp_replicate))
                    NDM_TRY(try_mesh(s));
            }
    return NDM_OK;
}

/* Of plans that memory is too small for, the one that splits most is closest to it. */
static int closer(const ndm_plan_row *x, const ndm_plan_row *y)
{
    int64_t more;

    if (x->refused != y->refused)
        return x->refused ? 1 : -1;
    more = x->mesh[NDM_DP_REPLICATE] - y->mesh[NDM_DP_REPLICATE];
    if (more == 0)
        more = y->mesh[NDM_TP] - x->mesh[NDM_TP];
    if (more == 0)
        more = y->mesh[NDM_CP] - x->mesh[NDM_CP];
    return (more > 0) - (more < 0);
}

static int faster(const void *a, const void *b)
{
    const ndm_plan_row *x = a, *y = b;

    if (x->fits != y->fits)
        return x->fits ? -1 : 1;
    if (!x->fits)
        return closer(x, y);
    return x->tokens_per_s > y->tokens_per_s ? -1 : x->tokens_per_s < y->tokens_per_s;
}

static ndm_status run_search(const ndm_plan_request *request, const ndm_plan_open *open, bool one,
                             ndm_plan_rows *rows)
{
    search s = {.open = open, .request = *request, .rows = rows, .one = one};

    memset(rows, 0, sizeof *rows);
    s.request.brief = true;
    s.request.refuse_large = true;
    s.request.trace = s.request.svg = NULL;
    ndm_status status = try_meshes(&s);
    if (status != NDM_OK) {
        free(rows->items);
        memset(rows, 0, sizeof *rows);
        return status;
    }
    if (rows->n > 0)
        qsort(rows->items, (size_t)rows->n, sizeof *rows->items, faster);
    for (int64_t i = 0; i < rows->n; i++)
        rows->fit += rows->items[i].fits;
    return NDM_OK;
}

ndm_status ndm_plan_search(const ndm_plan_request *request, const ndm_plan_open *open,
                           ndm_plan_rows *rows)
{
    return run_search(request, open, false, rows);
}

ndm_status ndm_plan_ranks_that_fit(const ndm_plan_request *request, const ndm_plan_open *open,
                                   int64_t *ranks)
{
    enum { RANKS_MAX = 65536 };
    ndm_plan_request more = *request;
    ndm_plan_open least = *open;
    const ndm_parallelism_config *m = &request->parallelism;
    bool auto_size = m->dp_replicate == NDM_AUTO || m->dp_shard == NDM_AUTO || m->cp == NDM_AUTO ||
                     m->tp == NDM_AUTO;
    /* ranks of one host share its memory: more of them hold no more */
    bool grows = (open->mesh || auto_size) && request->machine->cores_per_host <= 0.0;
    ndm_plan_rows rows;

    *ranks = 0;
    least.micro_batch_max = 1;
    if (open->recompute)
        more.options.recompute = NDM_RECOMPUTE_FULL;
    least.recompute = false;
    for (more.ranks *= 2; grows && *ranks == 0 && more.ranks <= RANKS_MAX; more.ranks *= 2) {
        NDM_TRY(run_search(&more, &least, true, &rows));
        if (rows.fit > 0)
            *ranks = more.ranks;
        free(rows.items);
    }
    return NDM_OK;
}

void ndm_plan_row_mesh(const ndm_plan_row *row, ndm_parallelism_config *parallelism)
{
    parallelism->dp_replicate = row->mesh[NDM_DP_REPLICATE];
    parallelism->dp_shard = row->mesh[NDM_DP_SHARD];
    parallelism->cp = row->mesh[NDM_CP];
    parallelism->tp = row->mesh[NDM_TP];
}
