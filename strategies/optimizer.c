/* SPDX-License-Identifier: Apache-2.0 */
/* Global norm, clipping and AdamW on slices.
 *
 * One message a step: the squares of this rank's counted segments and the caller's sums go through
 * one all-reduce of doubles over the world, and every rank decides from the same bits. The infinity
 * norm takes a second one, since it is no sum. All of it is launched without waiting: the device
 * finds the factor of clipping, and takes no step where a sum is not finite. */
#include <math.h>
#include <stdlib.h>

#include "core/given.h"
#include "core/sized.h"
#include "core/text.h"
#include "strategies/internal.h"

enum { SUMS_MAX = 8, SQUARES = 0, LARGEST = 1 + SUMS_MAX, DOUBLES = LARGEST + 1 };

struct ndm_optimizer {
    ndm_context *context;
    ndm_unit **units; /* [n_units], borrowed */
    int64_t n_units;
    float **exp_avg, **exp_avg_sq; /* [n_units] of [slice] */
    double *sums;            /* device, [DOUBLES]: squares, the caller's, and the largest element */
    double fetched[DOUBLES]; /* the same */
    ndm_step_numbers *step;  /* device, [1] */
    int64_t steps;
    bool ahead; /* the next step's first gathers start in this one */
};

static ndm_status moments_create(ndm_optimizer *o, int64_t i)
{
    int64_t bytes = o->units[i]->slice * (int64_t)sizeof(float);
    void *memory;

    NDM_TRY(ndm_device_alloc(o->context->device, bytes, NDM_MEMORY_OPTIMIZER, &memory));
    o->exp_avg[i] = memory;
    NDM_TRY(ndm_device_alloc(o->context->device, bytes, NDM_MEMORY_OPTIMIZER, &memory));
    o->exp_avg_sq[i] = memory;
    NDM_TRY(ndm_zero(o->context->compute, o->exp_avg[i], bytes));
    return ndm_zero(o->context->compute, o->exp_avg_sq[i], bytes);
}

static ndm_status build(ndm_optimizer *o, ndm_unit *const *units)
{
    void *memory;

    o->units = calloc((size_t)o->n_units, sizeof *o->units);
    o->exp_avg = calloc((size_t)o->n_units, sizeof *o->exp_avg);
    o->exp_avg_sq = calloc((size_t)o->n_units, sizeof *o->exp_avg_sq);
    if (!o->units || !o->exp_avg || !o->exp_avg_sq)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an optimizer of %lld units", (long long)o->n_units);
    for (int64_t i = 0; i < o->n_units; i++) {
        o->units[i] = units[i];
        NDM_TRY(moments_create(o, i));
    }
    NDM_TRY(ndm_device_alloc(o->context->device, DOUBLES * (int64_t)sizeof(double),
                             NDM_MEMORY_OPTIMIZER, &memory));
    o->sums = memory;
    NDM_TRY(ndm_device_alloc(o->context->device, (int64_t)sizeof *o->step, NDM_MEMORY_OPTIMIZER,
                             &memory));
    o->step = memory;
    return NDM_OK;
}

static ndm_status check_units(const ndm_context *context, ndm_unit *const *units, int64_t n_units)
{
    if (n_units < 1)
        NDM_FAIL(NDM_ERR_USAGE, "an optimizer needs at least one unit");
    for (int64_t i = 0; i < n_units; i++) {
        if (!units[i])
            NDM_FAIL(NDM_ERR_USAGE, "an optimizer: unit %lld is NULL", (long long)i);
        if (units[i]->context != context)
            NDM_FAIL(NDM_ERR_USAGE, "an optimizer: unit %s is of another context", units[i]->name);
        for (int64_t j = 0; j < i; j++)
            if (units[j] == units[i])
                NDM_FAIL(NDM_ERR_USAGE, "an optimizer: unit %s is named twice", units[i]->name);
    }
    return NDM_OK;
}

ndm_status ndm_optimizer_create(ndm_context *context, ndm_unit *const *units, int64_t n_units,
                                ndm_optimizer **optimizer)
{
    ndm_optimizer *o;

    NDM_NEED(context);
    NDM_NEED(units);
    NDM_NEED(optimizer);
    NDM_TRY(check_units(context, units, n_units));
    o = calloc(1, sizeof *o);
    if (!o)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an optimizer");
    o->context = context;
    o->n_units = n_units;
    o->ahead = !context->device->others_schedule;
    ndm_status status = build(o, units);
    if (status != NDM_OK) {
        ndm_optimizer_destroy(o);
        return status;
    }
    *optimizer = o;
    return NDM_OK;
}

void ndm_optimizer_destroy(ndm_optimizer *o)
{
    if (!o)
        return;
    for (int64_t i = 0; i < o->n_units; i++) {
        if (o->exp_avg)
            ndm_device_free(o->context->device, o->exp_avg[i]);
        if (o->exp_avg_sq)
            ndm_device_free(o->context->device, o->exp_avg_sq[i]);
    }
    ndm_device_free(o->context->device, o->sums);
    ndm_device_free(o->context->device, o->step);
    free(o->exp_avg);
    free(o->exp_avg_sq);
    free(o->units);
    free(o);
}

int64_t ndm_optimizer_steps(const ndm_optimizer *optimizer)
{
    return optimizer ? optimizer->steps : 0;
}

void ndm_optimizer_set_steps(ndm_optimizer *optimizer, int64_t steps)
{
    if (optimizer)
        optimizer->steps = steps > 0 ? steps : 0;
}

void ndm_optimizer_set_ahead(ndm_optimizer *optimizer, bool ahead)
{
    optimizer->ahead = ahead && !optimizer->context->device->others_schedule;
}

static ndm_status check_reduced(const ndm_optimizer *o)
{
    for (int64_t i = 0; i < o->n_units; i++)
        if (!o->units[i]->grads_reduced)
            NDM_FAIL(NDM_ERR_STATE,
                     "unit %s has no reduced gradient; call ndm_unit_reduce_grads() before a step",
                     o->units[i]->name);
    return NDM_OK;
}

/* Squares of every logical parameter's elements once, and their largest where it is asked for. */
static ndm_status measure_unit(ndm_optimizer *o, const ndm_unit *u, ndm_grad_norm norm)
{
    ndm_stream *stream = o->context->compute;
    double *largest = norm == NDM_GRAD_NORM_INF ? o->sums + LARGEST : NULL;

    for (int64_t i = 0; i < u->n_segments; i++) {
        const ndm_segment *s = &u->segments[i];
        if (s->counted)
            NDM_TRY(ndm_sumsq(stream, &(ndm_sumsq_args){.x = u->grad_slice + s->start,
                                                        .n = s->count,
                                                        .weight = 1.0,
                                                        .out = o->sums + SQUARES,
                                                        .out_max = largest}));
    }
    return NDM_OK;
}

/* all-reduce over the world of 1 + n_sums doubles, and of one more for the infinity norm. A largest
 * element that is not a number has such squares too: the sum says so, which a maximum may not. */
static ndm_status reduce_over_world(ndm_optimizer *o, int64_t n_sums, ndm_grad_norm norm)
{
    ndm_context *c = o->context;
    ndm_comm *world;

    NDM_TRY(ndm_context_comm(c, NDM_AXES_ALL, &world));
    if (c->device->others_schedule) /* all of them before the first is measured */
        NDM_TRY(ndm_stream_wait(c->compute, o->units[0]->reduce_done));
    for (int64_t i = o->n_units - 1; i >= 0; i--) { /* a backward's order: the last one ends last */
        NDM_TRY(ndm_stream_wait(c->compute, o->units[i]->reduce_done));
        NDM_TRY(measure_unit(o, o->units[i], norm));
    }
    NDM_TRY(ndm_all_reduce(world, o->sums, 1 + n_sums, NDM_F64, NDM_SUM, c->compute));
    return norm == NDM_GRAD_NORM_INF
               ? ndm_all_reduce(world, o->sums + LARGEST, 1, NDM_F64, NDM_MAX, c->compute)
               : NDM_OK;
}

static ndm_status check_finite(double norm, const double *sums, int64_t n_sums)
{
    if (!isfinite(norm))
        NDM_FAIL(NDM_ERR_NONFINITE, "the gradient norm is %g; no weight was changed",
                 ndm_text_unsigned_nan(norm));
    for (int64_t i = 0; i < n_sums; i++)
        if (!isfinite(sums[i]))
            NDM_FAIL(NDM_ERR_NONFINITE, "the loss is %g; no weight was changed",
                     ndm_text_unsigned_nan(sums[i]));
    return NDM_OK;
}

static ndm_status update(ndm_optimizer *o, int64_t i, const ndm_step_options *opt)
{
    ndm_unit *u = o->units[i];

    NDM_TRY(ndm_stream_wait(o->context->compute, u->gather_done)); /* it reads the master */
    for (int64_t j = 0; j < u->n_segments; j++) {
        int64_t at = u->segments[j].start;
        ndm_adamw_args args = {
            .w = u->master + at,
            .m = o->exp_avg[i] + at,
            .v = o->exp_avg_sq[i] + at,
            .g = u->grad_slice + at,
            .n = u->segments[j].count,
            .beta1 = opt->beta1,
            .beta2 = opt->beta2,
            .eps = opt->eps,
            .weight_decay = u->segments[j].decay ? opt->weight_decay : 0.0,
            .step = o->step,
        };
        NDM_TRY(ndm_adamw(o->context->compute, &args));
    }
    u->grads_reduced = false;
    return ndm_unit_changed(u);
}

/* Strategies that write weights after a step make whatever was gathered before old. */
static bool gathers_ahead(const ndm_optimizer *o)
{
    const ndm_context *c = o->context;
    bool ahead = o->ahead;

    for (int64_t i = 0; i < c->n_strategies; i++)
        ahead = ahead && !c->strategies[i]->step_end;
    return ahead;
}

/* Units lie in the order of their first use: the next step's first weights travel while the others
 * are still being made. */
static ndm_status update_all(ndm_optimizer *o, const ndm_step_options *options)
{
    bool ahead = gathers_ahead(o);

    for (int64_t i = 0; i < o->n_units; i++) {
        NDM_TRY(update(o, i, options));
        if (ahead)
            NDM_TRY(ndm_unit_gather_ahead(o->units[i]));
    }
    return NDM_OK;
}

ndm_status ndm_optimizer_prepare(ndm_optimizer *o, const ndm_step_options *options)
{
    double step = (double)o->steps + 1.0;
    ndm_step_numbers numbers = {.lr = options->lr,
                                .bias1 = 1.0 - pow(options->beta1, step),
                                .bias2 = 1.0 - pow(options->beta2, step)};

    return ndm_copy(o->context->compute, o->step, &numbers, (int64_t)sizeof numbers,
                    NDM_HOST_TO_DEVICE);
}

ndm_status ndm_optimizer_launch(ndm_optimizer *o, const ndm_step_options *options,
                                const double *sums, int64_t n_sums, ndm_copy_kind from)
{
    ndm_stream *stream = o->context->compute;

    if (n_sums < 0 || n_sums > SUMS_MAX)
        NDM_FAIL(NDM_ERR_USAGE, "%lld sums; at most %d travel with a step", (long long)n_sums,
                 SUMS_MAX);
    if (n_sums > 0 && !sums)
        NDM_FAIL(NDM_ERR_USAGE, "%lld sums, and they are NULL", (long long)n_sums);
    NDM_TRY(check_reduced(o));
    NDM_TRY(ndm_zero(stream, o->sums, DOUBLES * (int64_t)sizeof(double)));
    if (n_sums > 0)
        NDM_TRY(ndm_copy(stream, o->sums + 1, sums, n_sums * (int64_t)sizeof(double), from));
    NDM_TRY(reduce_over_world(o, n_sums, options->grad_norm));
    NDM_TRY(ndm_clip(stream, &(ndm_clip_args){.sums = o->sums,
                                              .n = 1 + n_sums,
                                              .largest = options->grad_norm == NDM_GRAD_NORM_INF
                                                             ? o->sums + LARGEST
                                                             : NULL,
                                              .max_norm = options->grad_clip,
                                              .step = o->step}));
    return update_all(o, options);
}

ndm_status ndm_optimizer_fetch(ndm_optimizer *o)
{
    return ndm_copy(o->context->compute, o->fetched, o->sums, DOUBLES * (int64_t)sizeof(double),
                    NDM_DEVICE_TO_HOST);
}

ndm_status ndm_optimizer_conclude(ndm_optimizer *o, const ndm_step_options *options, double *sums,
                                  int64_t n_sums, double *norm)
{
    const double *got = o->fetched;
    bool largest = options->grad_norm == NDM_GRAD_NORM_INF && !isnan(got[SQUARES]);

    for (int64_t i = 0; i < n_sums; i++)
        sums[i] = got[1 + i];
    *norm = largest ? got[LARGEST] : sqrt(got[SQUARES]);
    NDM_TRY(check_finite(*norm, sums, n_sums));
    o->steps++;
    return ndm_engine_step_end(o->context, o->units, o->n_units, o->steps);
}

static ndm_status check_fraction(const char *name, double value)
{
    if (!(value >= 0.0 && value < 1.0))
        NDM_FAIL(NDM_ERR_CONFIG, "%s is %g; 0 <= %s < 1 is needed", name,
                 ndm_text_unsigned_nan(value), name);
    return NDM_OK;
}

static ndm_status check_size(const char *name, double value)
{
    if (!(value >= 0.0) || !isfinite(value))
        NDM_FAIL(NDM_ERR_CONFIG, "%s is %g, must be a finite number and not negative", name,
                 ndm_text_unsigned_nan(value));
    return NDM_OK;
}

ndm_status ndm_step_options_check(const ndm_step_options *o)
{
    NDM_TRY(check_size("lr", o->lr));
    NDM_TRY(check_fraction("beta1", o->beta1));
    NDM_TRY(check_fraction("beta2", o->beta2));
    NDM_TRY(check_size("eps", o->eps));
    NDM_TRY(check_size("weight_decay", o->weight_decay));
    NDM_TRY(check_size("grad_clip", o->grad_clip));
    if (o->grad_norm != NDM_GRAD_NORM_2 && o->grad_norm != NDM_GRAD_NORM_INF)
        NDM_FAIL(NDM_ERR_CONFIG, "grad_norm=%d; 2 and inf are known", o->grad_norm);
    return NDM_OK;
}

ndm_status ndm_optimizer_step(ndm_optimizer *optimizer, const ndm_step_options *options,
                              double *sums, int64_t n_sums, double *norm)
{
    ndm_step_options mine;

    NDM_NEED(optimizer);
    NDM_NEED(norm);
    NDM_TRY(NDM_SIZED_TAKE(ndm_step_options, &mine, NDM_STEP_OPTIONS_INIT, options));
    NDM_TRY(ndm_step_options_check(&mine));
    NDM_TRY(ndm_optimizer_prepare(optimizer, &mine));
    NDM_TRY(ndm_optimizer_launch(optimizer, &mine, sums, n_sums, NDM_HOST_TO_DEVICE));
    NDM_TRY(ndm_optimizer_fetch(optimizer));
    NDM_TRY(ndm_stream_synchronize(optimizer->context->compute));
    return ndm_optimizer_conclude(optimizer, &mine, sums, n_sums, norm);
}

float *ndm_optimizer_moment(const ndm_optimizer *o, int64_t unit, ndm_moment moment)
{
    return moment == NDM_EXP_AVG ? o->exp_avg[unit] : o->exp_avg_sq[unit];
}

static ndm_status check_moment(const ndm_optimizer *o, int64_t unit, ndm_moment moment)
{
    if (unit < 0 || unit >= o->n_units)
        NDM_FAIL(NDM_ERR_USAGE, "an optimizer of %lld units has none numbered %lld",
                 (long long)o->n_units, (long long)unit);
    if (moment != NDM_EXP_AVG && moment != NDM_EXP_AVG_SQ)
        NDM_FAIL(NDM_ERR_USAGE, "there is no moment %d", moment);
    return NDM_OK;
}

ndm_status ndm_optimizer_read(ndm_optimizer *optimizer, int64_t unit, ndm_moment moment,
                              ndm_unit_range_fn read, void *user)
{
    NDM_NEED(optimizer);
    NDM_NEED(read);
    NDM_TRY(check_moment(optimizer, unit, moment));
    return ndm_unit_read_array(optimizer->units[unit],
                               ndm_optimizer_moment(optimizer, unit, moment), read, user);
}

ndm_status ndm_optimizer_write(ndm_optimizer *optimizer, int64_t unit, ndm_moment moment,
                               ndm_unit_range_fn write, void *user)
{
    NDM_NEED(optimizer);
    NDM_NEED(write);
    NDM_TRY(check_moment(optimizer, unit, moment));
    if (!ndm_unit_writes(optimizer->units[unit]))
        return NDM_OK;
    return ndm_unit_write_array(optimizer->units[unit],
                                ndm_optimizer_moment(optimizer, unit, moment), write, user);
}
