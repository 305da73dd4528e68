/* SPDX-License-Identifier: Apache-2.0 */
/* Points of a sweep: every way to write the ranks as a product over the axes, times micro-batches
 * and kinds of recomputation. All do the same global batch, so that all have the same losses. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/launch.h"
#include "cli/sweep.h"
#include "cli/sweep_filter.h"

static int64_t dp_of(const ndm_sweep_point *p)
{
    return p->sizes[NDM_DP_REPLICATE] * p->sizes[NDM_DP_SHARD];
}

static void finish_point(const ndm_sweep_plan *plan, ndm_sweep_point *p)
{
    int64_t unit = dp_of(p) * p->micro_batch;

    p->grad_accum = plan->global_batch % unit == 0 ? plan->global_batch / unit : 0;
    snprintf(p->id, sizeof p->id,
             "dp_replicate %" PRId64 " x dp_shard %" PRId64 " x cp %" PRId64 " x tp %" PRId64
             ", micro-batch %" PRId64 ", %s%s",
             p->sizes[0], p->sizes[1], p->sizes[2], p->sizes[3], p->micro_batch, p->recompute,
             p->reference ? ", reference" : "");
}

static ndm_status append(ndm_sweep_plan *plan, ndm_sweep_point point)
{
    if (plan->n == plan->capacity) {
        int64_t capacity = plan->capacity > 0 ? 2 * plan->capacity : 64;
        ndm_sweep_point *points = realloc(plan->points, (size_t)capacity * sizeof *points);
        if (points == NULL)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " points", capacity);
        plan->points = points;
        plan->capacity = capacity;
    }
    finish_point(plan, &point);
    plan->points[plan->n++] = point;
    return NDM_OK;
}

/* ---- lists of options
 * ---------------------------------------------------------------------------- */

static ndm_status read_number(const char *option, const char *text, int64_t *value)
{
    char *end;

    *value = strtoll(text, &end, 10);
    if (*end != '\0' || end == text || *value < 1)
        NDM_FAIL(NDM_ERR_USAGE, "--%s: '%s' is no number of 1 or more", option, text);
    return NDM_OK;
}

static ndm_status largest(const ndm_options *o, const char *option, int64_t *value)
{
    int64_t v;

    *value = 1;
    for (size_t i = 0; i < ndm_option_count(o, option); i++) {
        NDM_TRY(read_number(option, ndm_option_item(o, option, i), &v));
        *value = v > *value ? v : *value;
    }
    return NDM_OK;
}

static ndm_status recompute_name(const char *text, const char **name)
{
    static const char *const names[] = {"none", "full", "selective"};
    enum { N = sizeof names / sizeof names[0] };

    for (size_t i = 0; i < N; i++) {
        *name = names[i];
        if (ndm_text_name_equal(text, names[i]))
            return NDM_OK;
    }
    const char *nearest = ndm_text_nearest(text, names, N);
    NDM_FAIL(NDM_ERR_USAGE, "--recompute: '%s' is none of none, full, selective%s%s", text,
             nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "");
}

static ndm_status allowed_axes(const ndm_options *o, ndm_axis_set *axes)
{
    ndm_axis_set one;

    *axes = ndm_option_count(o, "axes") > 0 ? 0 : NDM_AXES_ALL;
    for (size_t i = 0; i < ndm_option_count(o, "axes"); i++) {
        NDM_TRY(ndm_axis_set_parse(ndm_option_item(o, "axes", i), &one));
        *axes |= one;
    }
    return NDM_OK;
}

/* ---- shapes
 * -------------------------------------------------------------------------------------- */

static ndm_status passes(const ndm_options *o, const ndm_sweep_point *p, bool *pass)
{
    const char *filter = ndm_option_string(o, "filter");
    const ndm_filter_name names[] = {{"ranks", p->ranks},
                                     {"dp_replicate", p->sizes[NDM_DP_REPLICATE]},
                                     {"dp_shard", p->sizes[NDM_DP_SHARD]},
                                     {"cp", p->sizes[NDM_CP]},
                                     {"tp", p->sizes[NDM_TP]},
                                     {"dp", dp_of(p)},
                                     {"micro_batch", p->micro_batch}};

    *pass = true;
    if (filter == NULL)
        return NDM_OK;
    return ndm_filter_holds(filter, names, sizeof names / sizeof names[0], pass);
}

static ndm_status add_variants(const ndm_options *o, ndm_sweep_plan *plan, ndm_sweep_point point)
{
    bool pass;

    for (size_t m = 0; m < ndm_option_count(o, "micro-batch"); m++)
        for (size_t r = 0; r < ndm_option_count(o, "recompute"); r++) {
            NDM_TRY(read_number("micro-batch", ndm_option_item(o, "micro-batch", m),
                                &point.micro_batch));
            NDM_TRY(recompute_name(ndm_option_item(o, "recompute", r), &point.recompute));
            NDM_TRY(passes(o, &point, &pass));
            plan->filtered += !pass;
            if (pass)
                NDM_TRY(append(plan, point));
        }
    return NDM_OK;
}

/* Factors of `left` over the axes from `axis` on. */
static ndm_status add_shapes(const ndm_options *o, ndm_sweep_plan *plan, ndm_axis_set axes,
                             ndm_sweep_point point, int axis, int64_t left)
{
    if (axis == NDM_AXIS_COUNT - 1) {
        point.sizes[axis] = left;
        if (left == 1 || (axes & (1u << axis)) != 0)
            return add_variants(o, plan, point);
        plan->filtered++;
        return NDM_OK;
    }
    for (int64_t size = 1; size <= left; size++) {
        if (left % size != 0 || (size > 1 && (axes & (1u << axis)) == 0))
            continue;
        point.sizes[axis] = size;
        NDM_TRY(add_shapes(o, plan, axes, point, axis + 1, left / size));
    }
    return NDM_OK;
}

/* The default batch is the least that every degree of data parallelism can do. */
static ndm_status read_batch(const ndm_options *o, ndm_sweep_plan *plan)
{
    int64_t ranks, micro_batch;

    NDM_TRY(largest(o, "ranks", &ranks));
    NDM_TRY(largest(o, "micro-batch", &micro_batch));
    plan->global_batch = ndm_option_int64(o, "global-batch");
    if (plan->global_batch == 0)
        plan->global_batch = ranks * micro_batch;
    return NDM_OK;
}

static ndm_status add_reference(const ndm_options *o, ndm_sweep_plan *plan)
{
    ndm_sweep_point one = {.ranks = 1, .sizes = {1, 1, 1, 1}, .reference = true};

    NDM_TRY(read_number("micro-batch", ndm_option_item(o, "micro-batch", 0), &one.micro_batch));
    NDM_TRY(recompute_name(ndm_option_item(o, "recompute", 0), &one.recompute));
    return append(plan, one);
}

static ndm_status make(const ndm_options *o, ndm_sweep_plan *plan)
{
    ndm_axis_set axes;
    int64_t ranks;

    NDM_TRY(allowed_axes(o, &axes));
    NDM_TRY(read_batch(o, plan));
    if (ndm_option_bool(o, "reference"))
        NDM_TRY(add_reference(o, plan));
    for (size_t i = 0; i < ndm_option_count(o, "ranks"); i++) {
        NDM_TRY(read_number("ranks", ndm_option_item(o, "ranks", i), &ranks));
        NDM_TRY(ndm_cli_check_ranks(ranks));
        NDM_TRY(add_shapes(o, plan, axes, (ndm_sweep_point){.ranks = ranks}, 0, ranks));
    }
    if (plan->n == (int64_t)ndm_option_bool(o, "reference"))
        NDM_FAIL(NDM_ERR_USAGE, "sweep: --filter and --axes leave no shape");
    return NDM_OK;
}

ndm_status ndm_sweep_plan_make(const ndm_options *options, ndm_sweep_plan *plan)
{
    *plan = (ndm_sweep_plan){0};
    ndm_status status = make(options, plan);
    if (status != NDM_OK)
        ndm_sweep_plan_finish(plan);
    return status;
}

void ndm_sweep_plan_finish(ndm_sweep_plan *plan)
{
    free(plan->points);
    *plan = (ndm_sweep_plan){0};
}
