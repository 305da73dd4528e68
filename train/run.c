/* SPDX-License-Identifier: Apache-2.0 */
/* A training run: set up, loop over steps, write what was asked for. Ranks agree after every part
 * that may fail on one of them. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/resident.h"
#include "train/run_internal.h"
#include "train/trainer.h"

/* ---- signals: the first asks for a stop after the step, the second ends at once ----------- */

enum { SIGNAL_STACK_BYTES = 64 * 1024 }; /* AVX-512 and AMX states are part of a frame */

static ndm_trainer *volatile signalled_trainer;
static volatile sig_atomic_t caught;
static struct sigaction before_int, before_term;

static void on_signal(int signal_number)
{
    if (caught || !signalled_trainer) {
        signal(signal_number, SIG_DFL);
        raise(signal_number);
        return;
    }
    caught = signal_number;
    ndm_trainer_request_stop_for(signalled_trainer, signal_number);
}

/* Handlers have a stack of their own: GEMM libraries use the stack pointer as one more register,
 * and a frame that the kernel pushes there lands in somebody's data. */
static void watch_signals(ndm_trainer *trainer)
{
    static _Alignas(64) char stack[SIGNAL_STACK_BYTES];
    const stack_t own = {.ss_sp = stack, .ss_size = sizeof stack};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};

    sigaltstack(&own, NULL);
    signalled_trainer = trainer;
    caught = 0;
    sigaction(SIGINT, &action, &before_int);
    sigaction(SIGTERM, &action, &before_term);
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is a failed save, not the end */
}

static void unwatch_signals(void)
{
    sigaction(SIGINT, &before_int, NULL);
    sigaction(SIGTERM, &before_term, NULL);
    signalled_trainer = NULL;
}

/* ---- a step's samples --------------------------------------------------------------------- */

ndm_batch ndm_training_batch(const ndm_training *r)
{
    int64_t n = r->sequences * ndm_model_get_options(r->model)->seq_len;

    return (ndm_batch){r->sequences, r->buffer, r->buffer + n, r->buffer + 2 * n,
                       r->buffer + 3 * n};
}

/* The step after this one is asked for as well, so that the disk works while the model does. */
ndm_status ndm_training_read_samples(ndm_training *r)
{
    int64_t S = ndm_model_get_options(r->model)->seq_len, n = r->sequences * S;

    for (int64_t i = 0; i < r->sequences; i++) {
        int64_t micro = i / r->split.micro_batch, row = i % r->split.micro_batch;
        int64_t index = ndm_data_index(&r->split, r->samples, micro, row);
        int32_t *at = r->buffer + i * S;
        NDM_TRY(ndm_data_sample(r->data, index, at, at + n, at + 2 * n, at + 3 * n));
        ndm_data_advise(r->data, index + ndm_data_global_batch(&r->split));
    }
    return NDM_OK;
}

/* ---- the run ------------------------------------------------------------------------------ */

ndm_status ndm_training_set_up_batches(ndm_training *r)
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

static ndm_status open_eval(ndm_training *r)
{
    r->evaluated_step = -1;
    return ndm_option_count(r->options, "eval-data") > 0
               ? ndm_setup_data(r->options, "eval-data", r->model, &r->eval_data)
               : NDM_OK;
}

/* Folders that are written hours later: now is the time to say that they cannot be. */
static ndm_status check_outputs(const ndm_training *r)
{
    static const char *const names[] = {"save-dir", "export-hf"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *folder = ndm_option_string(r->options, names[i]);
        if (folder && ndm_context_rank(r->context) == 0)
            NDM_TRY(ndm_file_make_writable(folder));
    }
    return NDM_OK;
}

/* Everything that has no outside effect: a dry run goes this far as well. */
static ndm_status build(ndm_training *r)
{
    NDM_TRY(ndm_setup_empty_model(r->options, r->context, &r->model));
    NDM_TRY(ndm_setup_data(r->options, "data", r->model, &r->data));
    NDM_TRY(open_eval(r));
    NDM_TRY(ndm_setup_trainer(r->options, r->model, &r->trainer));
    return ndm_context_agree(r->context, ndm_training_set_up_batches(r));
}

/* What may take long comes last. */
static ndm_status fill(ndm_training *r)
{
    NDM_TRY(ndm_context_agree(r->context, check_outputs(r)));
    return r->resumed[0] ? NDM_OK : ndm_setup_weights(r->options, r->model, &r->load_ms);
}

/* While nobody has gone on yet: ranks share pages. */
static ndm_status look_at_program(ndm_training *r)
{
    int64_t bytes = ndm_resident_bytes(0);

    r->program_bytes = bytes < 0 ? 0 : bytes;
    return ndm_context_agree(r->context, NDM_OK);
}

static ndm_status set_up(ndm_training *r, bool dry)
{
    bool quiet = ndm_option_bool(r->options, "quiet");

    NDM_TRY(dry ? ndm_setup_dry_context(r->options, &r->context)
                : ndm_setup_context(r->options, &r->context));
    NDM_TRY(dry ? look_at_program(r) : ndm_setup_check_memory(r->options, r->context));
    if (!dry)
        NDM_TRY(ndm_context_agree(r->context, ndm_training_lock_checkpoints(r)));
    NDM_TRY(ndm_training_find_resume(r));
    NDM_TRY(build(r));
    if (dry)
        return NDM_OK;
    NDM_TRY(fill(r));
    ndm_progress_init(&r->progress, quiet ? NULL : stderr, ndm_option_int64(r->options, "steps"),
                      ndm_option_int64(r->options, "log-every"));
    NDM_TRY(ndm_training_open_checkpoints(r));
    NDM_TRY(ndm_context_agree(r->context, ndm_training_open_metrics(r)));
    return ndm_context_agree(r->context, ndm_training_open_trace(r));
}

/* Between the backward and the optimizer of the first step. */
static ndm_status dump_grads(void *user)
{
    ndm_training *r = user;
    const char *file = ndm_option_string(r->options, "dump-grads");

    return file && ndm_trainer_steps(r->trainer) == 0 ? ndm_model_save_grads(r->model, file)
                                                      : NDM_OK;
}

/* Before the first step, of its first micro-batch. */
static ndm_status dump_logits(ndm_training *r)
{
    const char *file = ndm_option_string(r->options, "dump-logits");

    if (!file || ndm_trainer_steps(r->trainer) > 0)
        return NDM_OK;
    NDM_TRY(ndm_context_agree(r->context, ndm_training_read_samples(r)));
    ndm_batch batch = ndm_training_batch(r);
    batch = ndm_trainer_micro_batch(r->trainer, &batch, 0);
    return ndm_model_save_logits(r->model, &batch, file);
}

static ndm_status loop(ndm_training *r)
{
    int64_t steps = ndm_option_int64(r->options, "steps");

    NDM_TRY(ndm_context_agree(r->context, NDM_OK));
    ndm_training_trace_start(r);
    while (ndm_trainer_steps(r->trainer) < steps && !r->last.stop) {
        ndm_batch batch = ndm_training_batch(r);
        NDM_TRY(ndm_context_agree(r->context, ndm_training_read_samples(r)));
        NDM_TRY(ndm_trainer_step(r->trainer, &batch, &r->last));
        ndm_trainer_before_update(r->trainer, NULL, NULL);
        ndm_training_trace_step(r);
        r->samples += ndm_data_global_batch(&r->split);
        NDM_TRY(ndm_context_agree(r->context, ndm_training_report_step(r)));
        NDM_TRY(ndm_training_save_if_due(r));
        NDM_TRY(ndm_training_evaluate_if_due(r, false));
    }
    NDM_TRY(ndm_training_write_trace(r));
    NDM_TRY(ndm_training_save_last(r));
    return r->last.stop ? NDM_OK : ndm_training_evaluate_if_due(r, true);
}

static ndm_status export_model(ndm_training *r)
{
    const char *folder = ndm_option_string(r->options, "export-hf");
    ndm_dtype dtype = NDM_DTYPE_COUNT;

    if (!folder)
        return NDM_OK;
    if (ndm_option_has_value(r->options, "export-dtype"))
        NDM_TRY(ndm_dtype_parse(ndm_option_string(r->options, "export-dtype"), &dtype));
    return ndm_model_save(r->model, folder, dtype,
                          ndm_option_int64(r->options, "export-shard-size"));
}

static ndm_status train(ndm_training *r, FILE *out)
{
    const char *end;

    ndm_training_report_start(r);
    ndm_trainer_before_update(r->trainer, dump_grads, r);
    watch_signals(r->trainer);
    ndm_status status = dump_logits(r);
    if (status == NDM_OK)
        status = loop(r);
    unwatch_signals();
    ndm_progress_finish(&r->progress);
    NDM_TRY(status);
    NDM_TRY(export_model(r));
    end = r->last.stop ? "stopped" : "done";
    NDM_TRY(ndm_context_agree(r->context, ndm_training_report_end(r, end)));
    NDM_TRY(ndm_context_agree(r->context, ndm_training_print_summary(r, end, out)));
    if (r->last.stop)
        NDM_FAIL(NDM_ERR_INTERRUPTED, "stopped by a signal after step %lld",
                 (long long)r->last.step);
    return NDM_OK;
}

/* Files of a run that failed are whole as well. What cannot be written is logged: the run's own
 * failure is what is reported. */
static void tell_failure(ndm_training *r, ndm_status failure)
{
    ndm_error reason;

    ndm_error_keep(&reason);
    if (ndm_training_report_failed(r, failure, reason.message) != NDM_OK)
        ndm_log(NDM_LOG_WARNING, "train", "%s", ndm_error_message());
    if (ndm_training_fail_trace(r, failure, reason.message) != NDM_OK)
        ndm_log(NDM_LOG_WARNING, "train", "%s", ndm_error_message());
    ndm_error_restore(&reason);
}

static void tear_down(ndm_training *r, bool failed)
{
    if (failed) { /* the rest may be under a collective; the process ends soon */
        if (ndm_saver_give_lock(r->saver))
            ndm_checkpoint_lock_give(&r->lock);
        ndm_metrics_close(r->metrics);
        ndm_context_abandon(r->context);
        return;
    }
    ndm_saver_destroy(r->saver);
    ndm_checkpoint_lock_give(&r->lock);
    ndm_trainer_destroy(r->trainer);
    ndm_data_close(r->data);
    ndm_data_close(r->eval_data);
    ndm_model_destroy(r->model);
    ndm_metrics_close(r->metrics);
    ndm_context_destroy(r->context);
}

ndm_status ndm_train_run(const ndm_options *options, FILE *out, ndm_run_outcome *outcome)
{
    ndm_training r = {.options = options, .start_s = ndm_clock_s()};

    bool dry = ndm_option_bool(options, "dry-run");
    ndm_status status = set_up(&r, dry);
    if (status == NDM_OK)
        status = dry ? ndm_training_dry_run(&r, out) : train(&r, out);
    outcome->rank = r.context ? (long long)ndm_context_rank(r.context) : 0;
    outcome->signal = r.trainer ? ndm_trainer_stopped_for(r.trainer) : 0;
    bool failed = status != NDM_OK && status != NDM_ERR_INTERRUPTED;
    if (failed && r.context)
        tell_failure(&r, status);
    tear_down(&r, failed);
    ndm_training_close_trace(&r);
    ndm_training_close_summary(&r);
    free(r.buffer);
    return status;
}
