/* SPDX-License-Identifier: Apache-2.0 */
/* An optimizer step: count the valid tokens of the world, run the micro-batches with that one
 * scale, then norm, clip and AdamW. All of it is launched before the host waits, once, for what it
 * reports: numbers on the way stay in memory of the device. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/given.h"
#include "core/sized.h"
#include "model/model.h"
#include "train/schedule.h"
#include "train/step_graph.h"
#include "train/trainer.h"

/* Worst over ranks: exposed ns, peak bytes, reason to stop; highest and lowest rate of those that
 * programs have set, which must be one; and the number of valid tokens of the step. */
enum { EXPOSED, PEAK, STOP, HIGHEST, LOWEST, FACTS, TOKENS = FACTS, NUMBERS };

enum { SCHEDULED = -2, RATE_BYTES = 32 }; /* bits of no rate, and not 0 turned */

static const int64_t TOKENS_MAX = (int64_t)1 << 40;

struct ndm_trainer {
    ndm_model *model;
    ndm_context *context;
    ndm_trainer_options options;
    ndm_schedule schedule;
    double lr; /* NAN: the schedule's */
    ndm_optimizer *optimizer;
    int64_t *numbers;     /* device, [NUMBERS] */
    int64_t late_exposed; /* ns that became known at the end of the last step */
    int64_t tokens_total;
    ndm_status (*before_update)(void *user); /* NULL = none */
    void *before_update_user;
    volatile sig_atomic_t stop; /* why this rank wants to stop, 0 = it does not */
    int stopped;                /* why all do: the largest of these, after a step */
    ndm_step_graph *graph;
};

/* The options hold another struct of options, whose own size says which ndmesh the program was
 * built for. */
static ndm_status take_options(const ndm_trainer_options *given, ndm_trainer_options *mine)
{
    NDM_TRY(NDM_SIZED_TAKE(ndm_trainer_options, mine, NDM_TRAINER_OPTIONS_INIT, given));
    if (mine->optimizer.size != sizeof mine->optimizer)
        NDM_FAIL(NDM_ERR_USAGE,
                 "ndm_trainer_options: the size of its optimizer is %zu, not %zu; start from "
                 "NDM_TRAINER_OPTIONS_INIT",
                 mine->optimizer.size, sizeof mine->optimizer);
    return NDM_OK;
}

static ndm_status check_options(const ndm_trainer *t)
{
    const ndm_model_options *m = ndm_model_get_options(t->model);
    int64_t grad_accum = t->options.grad_accum, tokens = m->micro_batch * m->seq_len;

    if (grad_accum < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "grad_accum=%lld; at least 1 is needed", (long long)grad_accum);
    if (grad_accum > TOKENS_MAX / tokens) /* counts of all ranks and their bytes stay exact */
        NDM_FAIL(NDM_ERR_CONFIG,
                 "grad_accum=%lld of micro_batch=%lld and seq_len=%lld; a rank's step takes at "
                 "most %lld tokens",
                 (long long)grad_accum, (long long)m->micro_batch, (long long)m->seq_len,
                 (long long)TOKENS_MAX);
    if (t->options.steps < 0)
        NDM_FAIL(NDM_ERR_CONFIG, "steps=%lld must not be negative", (long long)t->options.steps);
    if ((unsigned)t->options.graphs > NDM_TOGGLE_OFF)
        NDM_FAIL(NDM_ERR_CONFIG, "graphs=%d; auto, on and off are known", t->options.graphs);
    NDM_TRY(ndm_step_options_check(&t->options.optimizer));
    return ndm_schedule_check(&t->schedule);
}

static ndm_status build(ndm_trainer *t)
{
    const ndm_trainer_options *o = &t->options;
    int64_t n_units;
    ndm_unit *const *units = ndm_model_units(t->model, &n_units);
    void *memory;

    t->schedule = (ndm_schedule){(ndm_schedule_kind)o->lr_schedule, o->optimizer.lr,
                                 o->min_lr_ratio, o->warmup, o->steps};
    NDM_TRY(check_options(t));
    NDM_TRY(ndm_optimizer_create(t->context, units, n_units, &t->optimizer));
    NDM_TRY(ndm_device_alloc(t->context->device, NUMBERS * (int64_t)sizeof(int64_t),
                             NDM_MEMORY_WORKSPACE, &memory));
    t->numbers = memory;
    return ndm_step_graph_create(t->context, o->graphs, o->grad_accum, &t->graph);
}

/* Unlike rates or counts would part replicas without a word. */
static ndm_status verify_options(const ndm_trainer *t)
{
    const ndm_trainer_options *o = &t->options;
    const ndm_step_options *s = &o->optimizer;
    char counts[96], schedule[96], optimizer[192];
    const ndm_fact facts[] = {{"grad_accum, steps, graphs", counts},
                              {"lr_schedule, warmup, min_lr_ratio", schedule},
                              {"lr, betas, eps, weight_decay, grad_clip, grad_norm", optimizer}};

    snprintf(counts, sizeof counts, "%lld, %lld, %d", (long long)o->grad_accum, (long long)o->steps,
             (int)o->graphs);
    snprintf(schedule, sizeof schedule, "%d, %lld, %.17g", (int)o->lr_schedule,
             (long long)o->warmup, o->min_lr_ratio);
    snprintf(optimizer, sizeof optimizer, "%.17g, %.17g %.17g, %.17g, %.17g, %.17g, %d", s->lr,
             s->beta1, s->beta2, s->eps, s->weight_decay, s->grad_clip, (int)s->grad_norm);
    return ndm_world_verify(t->context->world, facts, sizeof facts / sizeof *facts);
}

ndm_status ndm_trainer_create(ndm_model *model, const ndm_trainer_options *options,
                              ndm_trainer **trainer)
{
    ndm_trainer_options mine;
    ndm_trainer *t;

    NDM_NEED(model);
    NDM_NEED(trainer);
    NDM_TRY(take_options(options, &mine));
    t = calloc(1, sizeof *t);
    if (!t)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a trainer");
    t->model = model;
    t->context = ndm_model_context(model);
    t->options = mine;
    t->lr = NAN;
    ndm_status status = ndm_context_agree(t->context, build(t));
    if (status == NDM_OK)
        status = verify_options(t);
    if (status != NDM_OK) {
        ndm_trainer_destroy(t);
        return status;
    }
    *trainer = t;
    return NDM_OK;
}

void ndm_trainer_destroy(ndm_trainer *trainer)
{
    if (!trainer)
        return;
    ndm_step_graph_destroy(trainer->graph);
    ndm_optimizer_destroy(trainer->optimizer);
    ndm_device_free(trainer->context->device, trainer->numbers);
    free(trainer);
}

void ndm_trainer_request_stop(ndm_trainer *trainer)
{
    if (trainer)
        ndm_trainer_request_stop_for(trainer, 1);
}

void ndm_trainer_request_stop_for(ndm_trainer *trainer, int reason)
{
    trainer->stop = reason;
}

int ndm_trainer_stopped_for(const ndm_trainer *trainer)
{
    return trainer->stopped;
}

ndm_optimizer *ndm_trainer_optimizer(const ndm_trainer *trainer)
{
    return trainer ? trainer->optimizer : NULL;
}

int64_t ndm_trainer_steps(const ndm_trainer *trainer)
{
    return trainer ? ndm_optimizer_steps(trainer->optimizer) : 0;
}

void ndm_trainer_set_progress(ndm_trainer *trainer, int64_t steps, int64_t tokens_total)
{
    ndm_optimizer_set_steps(trainer->optimizer, steps);
    trainer->tokens_total = tokens_total;
}

ndm_status ndm_trainer_set_lr(ndm_trainer *trainer, double lr)
{
    NDM_NEED(trainer);
    if (lr < 0 || isinf(lr))
        NDM_FAIL(NDM_ERR_CONFIG, "lr is %g, must be a finite number and not negative", lr);
    trainer->lr = lr == 0 ? 0 : lr; /* no -0 */
    return NDM_OK;
}

static double lr_of_next_step(const ndm_trainer *t)
{
    return isnan(t->lr) ? ndm_schedule_lr(&t->schedule, ndm_trainer_steps(t) + 1) : t->lr;
}

ndm_model *ndm_trainer_model(const ndm_trainer *trainer)
{
    return trainer->model;
}

const ndm_trainer_options *ndm_trainer_get_options(const ndm_trainer *trainer)
{
    return &trainer->options;
}

int64_t ndm_trainer_tokens_total(const ndm_trainer *trainer)
{
    return trainer->tokens_total;
}

void ndm_trainer_before_update(ndm_trainer *trainer, ndm_status (*call)(void *user), void *user)
{
    trainer->before_update = call;
    trainer->before_update_user = user;
}

/* Their reduction over the group, on all ranks, from t->numbers[first] on. */
static ndm_status reduce(ndm_trainer *t, ndm_axis_set axes, ndm_reduce_op op, const int64_t *values,
                         int64_t first, int64_t n)
{
    ndm_stream *stream = t->context->compute;
    ndm_comm *comm;

    NDM_TRY(ndm_context_comm(t->context, axes, &comm));
    NDM_TRY(ndm_copy(stream, t->numbers + first, values, n * (int64_t)sizeof *values,
                     NDM_HOST_TO_DEVICE));
    return ndm_all_reduce(comm, t->numbers + first, n, NDM_I64, op, stream);
}

static int64_t count_valid(const ndm_trainer *t, const ndm_batch *batch)
{
    int64_t n = batch->sequences * ndm_model_get_options(t->model)->seq_len, valid = 0;

    for (int64_t i = 0; i < n; i++)
        valid += batch->targets[i] >= 0;
    return valid;
}

ndm_batch ndm_trainer_micro_batch(const ndm_trainer *t, const ndm_batch *batch, int64_t i)
{
    const ndm_model_options *o = ndm_model_get_options(t->model);
    int64_t at = i * o->micro_batch * o->seq_len;

    return (ndm_batch){o->micro_batch, batch->inputs + at, batch->targets + at,
                       batch->positions ? batch->positions + at : NULL,
                       batch->first ? batch->first + at : NULL};
}

static ndm_status feed(ndm_trainer *t, const ndm_batch *batch, int64_t i)
{
    ndm_batch micro = ndm_trainer_micro_batch(t, batch, i);

    ndm_context_micro_batch(t->context, i, t->options.grad_accum);
    return ndm_model_feed(t->model, &micro);
}

/* What is launched for the micro-batch that was fed last, and the step to new weights after it. */
static ndm_status launch(void *user)
{
    ndm_trainer *t = user;
    double *loss = t->model->loss;

    NDM_TRY(ndm_model_train_fed(t->model, t->numbers + TOKENS));
    if (t->before_update)
        NDM_TRY(t->before_update(t->before_update_user));
    ndm_optimizer_set_ahead(t->optimizer, !ndm_step_graph_wanted(t->graph));
    NDM_TRY(
        ndm_optimizer_launch(t->optimizer, &t->options.optimizer, loss, 1, NDM_DEVICE_TO_DEVICE));
    return ndm_zero(t->context->compute, loss, (int64_t)sizeof *loss);
}

static ndm_status run_micro_batches(ndm_trainer *t, const ndm_batch *batch)
{
    int64_t last = t->options.grad_accum - 1, n_units;
    ndm_unit *const *units = ndm_model_units(t->model, &n_units);

    for (int64_t i = 0; i < last; i++) {
        NDM_TRY(feed(t, batch, i));
        NDM_TRY(ndm_model_train_fed(t->model, t->numbers + TOKENS));
    }
    NDM_TRY(feed(t, batch, last));
    return t->before_update ? launch(t) : ndm_step_graph_run(t->graph, launch, t, units, n_units);
}

/* Bits of rates, which are not negative, are in the order of rates; so are all bits turned in the
 * other one. Schedules are compared when a trainer is made: their rates may differ in the last bit
 * where hosts do. */
static int64_t bits_of_rate(const ndm_trainer *t)
{
    int64_t bits = SCHEDULED;

    if (!isnan(t->lr))
        memcpy(&bits, &t->lr, sizeof bits);
    return bits;
}

static void name_rate(int64_t bits, char text[RATE_BYTES])
{
    double lr;

    memcpy(&lr, &bits, sizeof lr);
    if (bits == SCHEDULED)
        snprintf(text, RATE_BYTES, "the schedule's");
    else
        snprintf(text, RATE_BYTES, "%g", lr);
}

/* Devices that count or simulate give zeros, and turned bits are never 0. */
static ndm_status check_rates(const int64_t numbers[NUMBERS])
{
    char highest[RATE_BYTES], lowest[RATE_BYTES];

    if (numbers[LOWEST] == 0 || numbers[HIGHEST] == ~numbers[LOWEST])
        return NDM_OK;
    name_rate(numbers[HIGHEST], highest);
    name_rate(~numbers[LOWEST], lowest);
    NDM_FAIL(NDM_ERR_MISMATCH,
             "ndm_trainer_set_lr: ranks have stepped with unlike learning rates, %s and %s", lowest,
             highest);
}

/* What is reported is the worst over ranks; a wish to stop is everybody's. Where streams are the
 * device's, it tells how long one stood waiting when the host waits: the next step reports it. */
static ndm_status fetch(ndm_trainer *t, int64_t waited_ns, int64_t numbers[NUMBERS])
{
    ndm_stream *stream = t->context->compute;
    int64_t now = ndm_stream_waited_ns(stream);
    const int64_t facts[FACTS] = {
        [EXPOSED] = now - waited_ns + t->late_exposed,
        [PEAK] = ndm_device_memory(t->context->device).peak_total_bytes,
        [STOP] = t->stop,
        [HIGHEST] = bits_of_rate(t),
        [LOWEST] = ~bits_of_rate(t),
    };

    NDM_TRY(reduce(t, NDM_AXES_ALL, NDM_MAX, facts, 0, FACTS));
    NDM_TRY(ndm_copy(stream, numbers, t->numbers, NUMBERS * (int64_t)sizeof *numbers,
                     NDM_DEVICE_TO_HOST));
    NDM_TRY(ndm_optimizer_fetch(t->optimizer));
    NDM_TRY(ndm_stream_synchronize(stream));
    t->late_exposed = ndm_stream_waited_ns(stream) - now;
    return NDM_OK;
}

static void report(ndm_trainer *t, const int64_t numbers[NUMBERS], double loss,
                   ndm_step_result *result)
{
    int64_t tokens = numbers[TOKENS];

    t->tokens_total += tokens;
    result->step = ndm_trainer_steps(t);
    result->loss = tokens > 0 ? loss / (double)tokens : 0.0;
    result->tokens = tokens;
    result->tokens_total = t->tokens_total;
    result->comm_exposed_ms = (double)numbers[EXPOSED] * 1e-6;
    result->mem_peak_bytes = numbers[PEAK];
    t->stopped = (int)numbers[STOP];
    result->stop = t->stopped != 0;
}

static ndm_status check_step(const ndm_trainer *t, const ndm_batch *batch, int64_t sequences,
                             const ndm_step_result *result)
{
    if (!result)
        NDM_FAIL(NDM_ERR_USAGE, "ndm_trainer_step: result is NULL");
    return ndm_model_check_batch(t->model, batch, sequences);
}

ndm_status ndm_trainer_step(ndm_trainer *trainer, const ndm_batch *batch, ndm_step_result *result)
{
    NDM_NEED(trainer);
    ndm_trainer *t = trainer;
    int64_t start = ndm_clock_ns(), waited = ndm_stream_waited_ns(t->context->compute);
    int64_t sequences = ndm_model_get_options(t->model)->micro_batch * t->options.grad_accum;
    ndm_step_options optimizer = t->options.optimizer;
    int64_t numbers[NUMBERS], tokens;
    double loss, norm;

    NDM_TRY(ndm_context_agree(t->context, check_step(t, batch, sequences, result)));
    tokens = count_valid(t, batch);
    NDM_TRY(reduce(t, NDM_AXES_DP, NDM_SUM, &tokens, TOKENS, 1));
    optimizer.lr = lr_of_next_step(t);
    NDM_TRY(ndm_optimizer_prepare(t->optimizer, &optimizer));
    if (t->model->loss_untaken)
        NDM_TRY(ndm_model_drop_loss(t->model));
    NDM_TRY(run_micro_batches(t, batch));
    NDM_TRY(fetch(t, waited, numbers));
    NDM_TRY(ndm_optimizer_conclude(t->optimizer, &optimizer, &loss, 1, &norm));
    NDM_TRY(check_rates(numbers));
    report(t, numbers, loss, result);
    result->grad_norm = norm;
    result->lr = optimizer.lr;
    result->step_ms = (double)(ndm_clock_ns() - start) * 1e-6;
    return NDM_OK;
}

ndm_status ndm_trainer_evaluate(ndm_trainer *trainer, const ndm_batch *batch, double *loss_sum,
                                int64_t *tokens)
{
    NDM_NEED(trainer);
    NDM_NEED(loss_sum);
    NDM_NEED(tokens);
    ndm_trainer *t = trainer;
    int64_t sequences = ndm_model_get_options(t->model)->micro_batch, valid;
    double sum;

    NDM_TRY(ndm_context_agree(t->context, ndm_model_check_batch(t->model, batch, sequences)));
    valid = count_valid(t, batch);
    NDM_TRY(reduce(t, NDM_AXES_DP, NDM_SUM, &valid, TOKENS, 1));
    NDM_TRY(ndm_copy(t->context->compute, &valid, t->numbers + TOKENS, (int64_t)sizeof valid,
                     NDM_DEVICE_TO_HOST));
    NDM_TRY(ndm_model_drop_loss(t->model));
    NDM_TRY(ndm_model_evaluate_agreed(t->model, batch));
    NDM_TRY(ndm_model_take_loss(t->model, &sum));
    NDM_TRY(ndm_context_sum(t->context, &sum));
    *loss_sum = sum;
    *tokens = valid;
    return NDM_OK;
}
