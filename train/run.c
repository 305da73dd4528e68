/* SPDX-License-Identifier: Apache-2.0 */
/* A training run: set up, loop over steps, write what was asked for. Ranks agree after every part
 * that may fail on one of them. */
#include "train/run.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/log.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run_setup.h"

typedef struct run {
    const ndm_options *options;
    ndm_context *context;
    ndm_model *model;
    ndm_data *data;
    ndm_trainer *trainer;
    ndm_metrics *metrics; /* rank 0 alone */
    ndm_progress progress;
    ndm_data_split split;
    int32_t *buffer; /* [4, sequences, seq_len] */
    int64_t sequences;
    double start_s;
    ndm_step_result last;
} run;

/* ---- signals: the first asks for a stop after the step, the second ends at once
 * -------------------- */

static ndm_trainer *volatile signalled_trainer;
static volatile sig_atomic_t caught;

static void on_signal(int signal_number)
{
    if (caught || !signalled_trainer) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    caught = signal_number;
    ndm_trainer_request_stop(signalled_trainer);
}

static void watch_signals(ndm_trainer *trainer)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    signalled_trainer = trainer;
    caught = 0;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void unwatch_signals(void)
{
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    signalled_trainer = NULL;
}

/* ---- a step's samples
 * -------------------------------------------------------------------------------- */

static ndm_batch batch_of(const run *r, int64_t sequences)
{
    int64_t n = r->sequences * ndm_model_get_options(r->model)->seq_len;

    return (ndm_batch){sequences, r->buffer, r->buffer + n, r->buffer + 2 * n, r->buffer + 3 * n};
}

static ndm_status read_samples(run *r, int64_t step)
{
    int64_t S = ndm_model_get_options(r->model)->seq_len, n = r->sequences * S;
    int64_t used = step * ndm_data_global_batch(&r->split);

    for (int64_t i = 0; i < r->sequences; i++) {
        int64_t micro = i / r->split.micro_batch, row = i % r->split.micro_batch;
        int32_t *at = r->buffer + i * S;
        NDM_TRY(ndm_data_sample(r->data, ndm_data_index(&r->split, used, micro, row), at, at + n,
                                at + 2 * n, at + 3 * n));
    }
    return NDM_OK;
}

/* ---- reporting
 * ---------------------------------------------------------------------------------------- */

static void write_run_line(run *r)
{
    ndm_json *json = ndm_metrics_begin(r->metrics, "run");
    const ndm_parallelism_config *p = ndm_context_parallelism(r->context);

    ndm_metrics_add_host(json);
    ndm_json_key(json, "config");
    ndm_options_write_json(r->options, json);
    ndm_json_key(json, "mesh");
    ndm_json_begin_object(json);
    ndm_json_key(json, "ranks");
    ndm_json_int(json, ndm_context_size(r->context));
    ndm_json_key(json, "dp_replicate");
    ndm_json_int(json, p->dp_replicate);
    ndm_json_key(json, "dp_shard");
    ndm_json_int(json, p->dp_shard);
    ndm_json_key(json, "cp");
    ndm_json_int(json, p->cp);
    ndm_json_key(json, "tp");
    ndm_json_int(json, p->tp);
    ndm_json_end_object(json);
    ndm_json_key(json, "parameters");
    ndm_json_int(json, ndm_model_parameters(r->model));
}

static ndm_status open_metrics(run *r)
{
    const char *path = ndm_option_string(r->options, "metrics");

    if (ndm_context_rank(r->context) != 0 || !path)
        return NDM_OK;
    NDM_TRY(ndm_metrics_open(path, false, &r->metrics));
    write_run_line(r);
    return ndm_metrics_end(r->metrics);
}

static ndm_status report(run *r)
{
    const ndm_step_result *s = &r->last;
    ndm_step_metrics m = {
        .step = s->step,
        .loss = s->loss,
        .grad_norm = s->grad_norm,
        .lr = s->lr,
        .tokens = s->tokens,
        .tokens_total = s->tokens_total,
        .step_ms = s->step_ms,
        .tokens_per_s = (double)s->tokens / s->step_ms * 1e3,
        .tflops = ndm_model_flops_per_token(r->model) * (double)s->tokens / s->step_ms * 1e-9,
        .mfu = NAN,
        .comm_exposed_ms = s->comm_exposed_ms,
        .mem_peak_bytes = s->mem_peak_bytes,
    };

    if (ndm_context_rank(r->context) != 0)
        return NDM_OK;
    ndm_progress_step(&r->progress, &m);
    return r->metrics ? ndm_metrics_step(r->metrics, &m) : NDM_OK;
}

static ndm_status write_end(run *r, const char *status)
{
    if (!r->metrics)
        return NDM_OK;
    ndm_json *json = ndm_metrics_begin(r->metrics, "end");
    ndm_json_key(json, "status");
    ndm_json_string(json, status);
    ndm_json_key(json, "steps");
    ndm_json_int(json, ndm_trainer_steps(r->trainer));
    ndm_json_key(json, "tokens_total");
    ndm_json_int(json, r->last.tokens_total);
    ndm_json_key(json, "seconds");
    ndm_json_double(json, ndm_clock_s() - r->start_s);
    return ndm_metrics_end(r->metrics);
}

/* ---- the run
 * ------------------------------------------------------------------------------------------- */

static ndm_status set_up_batches(run *r)
{
    const ndm_mesh *mesh = ndm_context_mesh(r->context);
    ndm_group dp = ndm_mesh_group(mesh, NDM_AXES_DP, ndm_context_rank(r->context));

    r->split = (ndm_data_split){ndm_option_int64(r->options, "micro-batch"),
                                ndm_option_int64(r->options, "grad-accum"), dp.size, dp.index};
    r->sequences = r->split.micro_batch * r->split.grad_accum;
    r->buffer = malloc((size_t)(4 * r->sequences * ndm_model_get_options(r->model)->seq_len) *
                       sizeof *r->buffer);
    if (!r->buffer)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the samples of a step");
    return NDM_OK;
}

static ndm_status set_up(run *r)
{
    bool quiet = ndm_option_bool(r->options, "quiet");

    NDM_TRY(ndm_setup_context(r->options, &r->context));
    NDM_TRY(ndm_setup_model(r->options, r->context, &r->model));
    NDM_TRY(ndm_setup_data(r->options, "data", r->model, &r->data));
    NDM_TRY(ndm_setup_trainer(r->options, r->model, &r->trainer));
    NDM_TRY(ndm_context_agree(r->context, set_up_batches(r)));
    ndm_progress_init(&r->progress, quiet ? NULL : stderr, ndm_option_int64(r->options, "steps"),
                      ndm_option_int64(r->options, "log-every"));
    return ndm_context_agree(r->context, open_metrics(r));
}

/* Between the backward and the optimizer of the first step. */
static ndm_status dump_grads(void *user)
{
    run *r = user;
    const char *file = ndm_option_string(r->options, "dump-grads");

    return file && ndm_trainer_steps(r->trainer) == 0 ? ndm_model_save_grads(r->model, file)
                                                      : NDM_OK;
}

static ndm_status loop(run *r)
{
    int64_t steps = ndm_option_int64(r->options, "steps");

    for (int64_t step = ndm_trainer_steps(r->trainer); step < steps; step++) {
        ndm_batch batch = batch_of(r, r->sequences);
        NDM_TRY(ndm_context_agree(r->context, read_samples(r, step)));
        NDM_TRY(ndm_trainer_step(r->trainer, &batch, &r->last));
        NDM_TRY(ndm_context_agree(r->context, report(r)));
        if (r->last.stop)
            break;
    }
    return NDM_OK;
}

static ndm_status export_model(run *r)
{
    const char *folder = ndm_option_string(r->options, "export-hf");
    ndm_dtype dtype = NDM_DTYPE_COUNT;

    if (!folder)
        return NDM_OK;
    if (ndm_option_has_value(r->options, "export-dtype"))
        NDM_TRY(ndm_dtype_parse(ndm_option_string(r->options, "export-dtype"), &dtype));
    return ndm_model_save(r->model, folder, dtype, (int64_t)5 << 30);
}

static ndm_status train(run *r)
{
    ndm_trainer_before_update(r->trainer, dump_grads, r);
    watch_signals(r->trainer);
    ndm_status status = loop(r);
    unwatch_signals();
    ndm_progress_finish(&r->progress);
    NDM_TRY(status);
    NDM_TRY(export_model(r));
    NDM_TRY(ndm_context_agree(r->context, write_end(r, r->last.stop ? "stopped" : "done")));
    if (r->last.stop)
        NDM_FAIL(NDM_ERR_INTERRUPTED, "stopped by a signal after step %lld",
                 (long long)r->last.step);
    return NDM_OK;
}

static void tear_down(run *r, bool failed)
{
    ndm_trainer_destroy(r->trainer);
    ndm_data_close(r->data);
    ndm_model_destroy(r->model);
    ndm_metrics_close(r->metrics);
    free(r->buffer);
    if (failed)
        ndm_context_abandon(r->context);
    else
        ndm_context_destroy(r->context);
}

ndm_status ndm_train_run(const ndm_options *options, FILE *out, ndm_run_outcome *outcome)
{
    run r = {.options = options, .start_s = ndm_clock_s()};

    (void)out;
    ndm_status status = set_up(&r);
    if (status == NDM_OK)
        status = train(&r);
    outcome->rank = r.context ? (long long)ndm_context_rank(r.context) : 0;
    outcome->signal = caught;
    tear_down(&r, status != NDM_OK && status != NDM_ERR_INTERRUPTED);
    return status;
}
