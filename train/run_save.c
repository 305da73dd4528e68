/* SPDX-License-Identifier: Apache-2.0 */
/* A run's checkpoints: going on from one, and making them. A save that fails is told and training
 * goes on, unless --save-strict; the last one decides how the run ends, since nothing comes after
 * it. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/log.h"
#include "train/checkpoint_files.h"
#include "train/checkpoint_local.h"
#include "train/run_internal.h"
#include "train/trainer.h"

/* ---- going on
 * ------------------------------------------------------------------------------------ */

ndm_status ndm_training_lock_checkpoints(ndm_training *r)
{
    const char *folder = ndm_option_string(r->options, "save-dir");
    ndm_save_group group;

    if (!folder || !ndm_file_is_dir(folder))
        return NDM_OK;
    NDM_TRY(ndm_save_group_find(r->context, ndm_option_bool(r->options, "save-local"), &group));
    if (group.rank != 0)
        return NDM_OK;
    NDM_TRY(ndm_checkpoint_lock_take(folder, &r->lock));
    return r->lock.shared ? NDM_OK : ndm_checkpoint_sweep(folder);
}

static ndm_status find_latest(ndm_training *r, const char *folder, bool required)
{
    NDM_TRY(ndm_option_bool(r->options, "save-local")
                ? ndm_checkpoint_latest_local(r->context, folder, r->resumed, sizeof r->resumed)
                : ndm_checkpoint_latest(r->context, folder, r->resumed, sizeof r->resumed));
    if (r->resumed[0])
        return NDM_OK;
    if (required)
        NDM_FAIL(NDM_ERR_IO, "--resume %s: there is no complete checkpoint", folder);
    ndm_log(NDM_LOG_INFO, "checkpoint", "%s has no complete checkpoint: the run starts anew",
            folder);
    return NDM_OK;
}

ndm_status ndm_training_find_resume(ndm_training *r)
{
    const char *resume = ndm_option_string(r->options, "resume");
    const char *folder = ndm_option_string(r->options, "save-dir");
    char trainer[NDM_RUN_PATH_BYTES + 32];

    if (!resume)
        return NDM_OK;
    if (strcmp(resume, "latest") == 0 && !folder)
        NDM_FAIL(NDM_ERR_USAGE,
                 "--resume latest needs --save-dir: it is where they are looked for");
    if (strcmp(resume, "latest") == 0)
        return find_latest(r, folder, false);
    if (strlen(resume) >= sizeof r->resumed)
        NDM_FAIL(NDM_ERR_USAGE, "--resume: the path is too long");
    snprintf(trainer, sizeof trainer, "%s/" NDM_CHECKPOINT_TRAINER, resume);
    if (!ndm_file_exists(trainer))
        return find_latest(r, resume, true);
    snprintf(r->resumed, sizeof r->resumed, "%s", resume);
    return NDM_OK;
}

/* Samples are numbers in an order that the seed gives: another seed is another order. */
static void compare_seed(const ndm_training *r, const ndm_checkpoint_state *state)
{
    uint64_t seed = (uint64_t)ndm_option_int64(r->options, "seed");

    if (seed != state->seed && ndm_option_bool(r->options, "shuffle") &&
        ndm_context_rank(r->context) == 0)
        ndm_log(NDM_LOG_WARNING, "checkpoint",
                "%s was shuffled with seed %llu, this run has %llu: some samples will come again",
                r->resumed, (unsigned long long)state->seed, (unsigned long long)seed);
}

static bool lies_in(const char *path, const char *folder)
{
    size_t n = strlen(folder);

    return strncmp(path, folder, n) == 0 && path[n] == '/';
}

static ndm_status resume(ndm_training *r)
{
    const char *folder = ndm_option_string(r->options, "save-dir");
    double begin = ndm_clock_s();
    ndm_checkpoint_state state;

    if (!r->resumed[0])
        return NDM_OK;
    NDM_TRY(ndm_checkpoint_load(r->trainer, r->resumed, &state));
    r->load_ms = (ndm_clock_s() - begin) * 1e3;
    compare_seed(r, &state);
    r->samples = state.samples;
    r->last.tokens_total = state.tokens_total;
    r->last.step = state.step;
    if (folder && lies_in(r->resumed, folder))
        r->saved_step = state.step;
    return NDM_OK;
}

/* ---- saving
 * -------------------------------------------------------------------------------------- */

static ndm_status options_text(const ndm_training *r, ndm_buffer *text)
{
    ndm_json json;

    ndm_json_init_buffer(&json, text, false);
    ndm_options_write_json(r->options, &json);
    return ndm_json_finish(&json);
}

static ndm_status create_saver(ndm_training *r, const char *folder)
{
    ndm_checkpoint_options o = NDM_CHECKPOINT_OPTIONS_INIT;
    ndm_buffer text = {0};

    o.keep = ndm_option_int64(r->options, "save-total-limit");
    o.shard_bytes = ndm_option_int64(r->options, "export-shard-size");
    o.local = ndm_option_bool(r->options, "save-local");
    o.seed = (uint64_t)ndm_option_int64(r->options, "seed");
    o.background = ndm_option_bool(r->options, "save-async") &&
                   ndm_option_int64(r->options, "save-every") > 0;
    ndm_status status = ndm_context_agree(r->context, options_text(r, &text));
    o.options_json = text.data;
    if (status == NDM_OK)
        status = ndm_saver_create(r->trainer, folder, &o, &r->saver);
    ndm_buffer_finish(&text);
    return status;
}

ndm_status ndm_training_open_checkpoints(ndm_training *r)
{
    const char *folder = ndm_option_string(r->options, "save-dir");

    r->saved_step = -1;
    NDM_TRY(resume(r));
    return folder ? create_saver(r, folder) : NDM_OK;
}

/* The outcome of a save: a failed one is told once, as the run's error if it must end it. */
static ndm_status take(ndm_training *r, const ndm_save_result *finished, bool must)
{
    if (!finished)
        return NDM_OK;
    NDM_TRY(ndm_context_agree(r->context, ndm_training_report_save(r, finished)));
    if (finished->status == NDM_OK)
        return NDM_OK;
    if (must || ndm_option_bool(r->options, "save-strict"))
        return ndm_error_set(finished->status, __FILE__, __LINE__, "step %lld is not saved: %s",
                             (long long)finished->step, finished->message);
    if (ndm_context_rank(r->context) == 0)
        ndm_log(NDM_LOG_WARNING, "checkpoint", "step %lld is not saved: %s",
                (long long)finished->step, finished->message);
    return NDM_OK;
}

static ndm_status begin(ndm_training *r)
{
    const ndm_save_result *finished;

    NDM_TRY(ndm_saver_wait(r->saver, &finished)); /* of the save before */
    NDM_TRY(take(r, finished, false));
    r->saved_step = ndm_trainer_steps(r->trainer);
    return ndm_saver_begin(r->saver, r->samples);
}

ndm_status ndm_training_save_if_due(ndm_training *r)
{
    int64_t every = ndm_option_int64(r->options, "save-every"),
            step = ndm_trainer_steps(r->trainer);
    const ndm_save_result *finished;

    if (!r->saver)
        return NDM_OK;
    NDM_TRY(ndm_saver_poll(r->saver, &finished));
    NDM_TRY(take(r, finished, false));
    if (every <= 0 || step % every != 0)
        return NDM_OK;
    NDM_TRY(begin(r));
    if (ndm_option_bool(r->options, "save-async"))
        return NDM_OK;
    NDM_TRY(ndm_saver_wait(r->saver, &finished));
    return take(r, finished, false);
}

ndm_status ndm_training_save_last(ndm_training *r)
{
    const ndm_save_result *finished;

    if (!r->saver)
        return NDM_OK;
    if (r->saved_step != ndm_trainer_steps(r->trainer))
        NDM_TRY(begin(r));
    NDM_TRY(ndm_saver_wait(r->saver, &finished));
    return take(r, finished, true);
}
