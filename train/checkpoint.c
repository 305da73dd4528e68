/* SPDX-License-Identifier: Apache-2.0 */
/* Saving: copies the slices, runs the phases of a save behind the training, and lets ranks agree
 * between two of them. The thread touches files and the copy alone; all communication is here. */
#include <ndmesh/checkpoint.h>

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/error.h"
#include "core/given.h"
#include "core/pages.h"
#include "core/sized.h"
#include "core/tasks.h"
#include "core/text.h"
#include "train/checkpoint_copy.h"
#include "train/checkpoint_local.h"
#include "train/checkpoint_lock.h"
#include "train/checkpoint_save.h"
#include "train/trainer.h"

enum { PAUSE_US = 500 };

struct ndm_saver {
    ndm_trainer *trainer;
    ndm_model *model;
    ndm_context *context;
    ndm_checkpoint_options options; /* options_json owned */
    char *folder;
    ndm_save_group group;
    ndm_checkpoint_lock lock; /* of the group's first rank */
    float **copies;   /* [n_copies], in the background; NULL where this rank writes nothing */
    int64_t n_copies; /* n_units * NDM_CHECKPOINT_STEMS */

    ndm_save save;
    ndm_save_phase phase;
    int64_t started_ns;

    pthread_t thread; /* of the phase, if has_thread */
    bool has_thread;
    atomic_bool done;
    ndm_status status; /* of the phase on this rank, with its error, once done */
    ndm_error error;

    ndm_save_result result;
    char *result_path;
    ndm_error result_error;
};

/* ---- making ------------------------------------------------------------------------------- */

/* Of this rank: what its kernels have, and nothing else needs while a save begins or is waited for.
 */
static int threads_of(const ndm_saver *s)
{
    int threads = s->context->device->options.threads;

    return threads > 1 ? threads : 1;
}

/* Device array of a unit: the weights, or a moment. */
static float *array_of(const ndm_saver *s, int64_t unit, int stem)
{
    return stem == 0 ? ndm_unit_master(s->model->units[unit])
                     : ndm_optimizer_moment(ndm_trainer_optimizer(s->trainer), unit,
                                            stem == 1 ? NDM_EXP_AVG : NDM_EXP_AVG_SQ);
}

static int64_t slice_bytes(const ndm_saver *s, int64_t unit)
{
    return ndm_unit_slice_numel(s->model->units[unit]) * (int64_t)sizeof(float);
}

/* Touched here: no save pays for the first use of a page. */
static float *allocate_copy(int64_t bytes)
{
    void *copy = ndm_pages_alloc(bytes);

    if (copy)
        memset(copy, 0, (size_t)bytes);
    return copy;
}

static ndm_status make_copies(ndm_saver *s)
{
    for (int64_t i = 0; i < s->n_copies && s->options.background; i++) {
        int64_t unit = i / NDM_CHECKPOINT_STEMS, bytes = slice_bytes(s, unit);
        if (!s->group.writes)
            continue;
        s->copies[i] = allocate_copy(bytes);
        if (!s->copies[i])
            NDM_FAIL(NDM_ERR_MEMORY,
                     "no memory for a copy of unit %s, %lld bytes; --no-save-async "
                     "needs none",
                     ndm_unit_name(s->model->units[unit]), (long long)bytes);
    }
    return NDM_OK;
}

static ndm_status check_options(const ndm_checkpoint_options *o)
{
    if (o->keep < 0 || o->shard_bytes < 0)
        NDM_FAIL(NDM_ERR_CONFIG, "checkpoints: keep=%lld, shard_bytes=%lld; neither is negative",
                 (long long)o->keep, (long long)o->shard_bytes);
    if (o->block_bytes < 64 || o->block_bytes % 64 || o->block_bytes > 1 << 30)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "checkpoints: block_bytes=%lld; a multiple of 64 up to 1 GiB is needed",
                 (long long)o->block_bytes);
    return ndm_checkpoint_check_options_json(o->options_json);
}

static ndm_status build(ndm_saver *s, const char *folder, const ndm_checkpoint_options *options)
{
    NDM_TRY(check_options(options));
    s->options = *options;
    s->options.options_json = NULL;
    s->n_copies = s->model->n_units * NDM_CHECKPOINT_STEMS;
    s->folder = ndm_text_duplicate(folder);
    s->copies = calloc((size_t)s->n_copies, sizeof *s->copies);
    if (options->options_json)
        s->options.options_json = ndm_text_duplicate(options->options_json);
    if (!s->folder || !s->copies || (options->options_json && !s->options.options_json))
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to save %lld units", (long long)s->model->n_units);
    NDM_TRY(ndm_save_group_find(s->context, options->local, &s->group));
    NDM_TRY(make_copies(s));
    if (s->group.rank != 0)
        return NDM_OK;
    NDM_TRY(ndm_checkpoint_lock_take(folder, &s->lock));
    return s->lock.shared ? NDM_OK : ndm_checkpoint_sweep(folder); /* the other may be writing */
}

ndm_status ndm_saver_create(ndm_trainer *trainer, const char *folder,
                            const ndm_checkpoint_options *options, ndm_saver **saver)
{
    ndm_checkpoint_options mine;
    ndm_saver *s;

    NDM_NEED(trainer);
    NDM_NEED(folder);
    NDM_NEED(saver);
    NDM_TRY(NDM_SIZED_TAKE(ndm_checkpoint_options, &mine, NDM_CHECKPOINT_OPTIONS_INIT, options));
    s = calloc(1, sizeof *s);
    if (!s)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a saver");
    s->trainer = trainer;
    s->model = ndm_trainer_model(trainer);
    s->context = ndm_model_context(s->model);
    ndm_status status = ndm_context_agree(s->context, build(s, folder, &mine));
    if (status != NDM_OK) {
        ndm_saver_destroy(s);
        return status;
    }
    *saver = s;
    return NDM_OK;
}

/* A thread that hangs in a file system is left to itself, with what it uses. */
static bool join_in_time(ndm_saver *s)
{
    struct timespec until;

    if (!s->has_thread)
        return true;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += s->context->device->options.timeout_ns / 1000000000;
    s->has_thread = false;
    if (pthread_clockjoin_np(s->thread, NULL, CLOCK_MONOTONIC, &until) == 0)
        return true;
    pthread_detach(s->thread);
    return false;
}

bool ndm_saver_give_lock(ndm_saver *saver)
{
    if (saver && saver->has_thread && !atomic_load(&saver->done))
        return false;
    if (saver)
        ndm_checkpoint_lock_give(&saver->lock);
    return true;
}

void ndm_saver_destroy(ndm_saver *s)
{
    if (!s || !join_in_time(s))
        return;
    if (s->phase != NDM_SAVE_IDLE)
        ndm_save_finish(&s->save, false);
    for (int64_t i = 0; s->copies && i < s->n_copies; i++)
        free(s->copies[i]);
    ndm_checkpoint_lock_give(&s->lock);
    free(s->copies);
    free((char *)s->options.options_json);
    free(s->result_path);
    free(s->folder);
    free(s);
}

/* ---- phases ------------------------------------------------------------------------------- */

static ndm_status keep_lock(ndm_saver *s)
{
    return s->phase == NDM_SAVE_CREATE && s->group.rank == 0
               ? ndm_checkpoint_lock_keep(s->folder, &s->lock)
               : NDM_OK;
}

static void *run_phase(void *user)
{
    ndm_saver *s = user;

    s->status = keep_lock(s);
    if (s->status == NDM_OK)
        s->status = ndm_save_run_phase(&s->save, s->phase);
    if (s->status != NDM_OK)
        ndm_error_keep(&s->error);
    atomic_store(&s->done, true);
    return NULL;
}

/* In a thread that no signal interrupts; without background, or where there is none to be had, here
 * and now. */
static void start_phase(ndm_saver *s, ndm_save_phase phase)
{
    sigset_t all, before;

    s->phase = phase;
    atomic_store(&s->done, false);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    s->has_thread = s->options.background && pthread_create(&s->thread, NULL, run_phase, s) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!s->has_thread)
        run_phase(s);
}

static bool is_in_place(const ndm_saver *s)
{
    return s->context->device->ops->in_place;
}

static ndm_status copy_slice(void *user, int64_t i, int thread)
{
    const ndm_saver *s = user;
    int64_t unit = i / NDM_CHECKPOINT_STEMS, bytes = slice_bytes(s, unit);
    const float *array = array_of(s, unit, (int)(i % NDM_CHECKPOINT_STEMS));

    (void)thread;
    if (!s->copies[i])
        return NDM_OK;
    if (!is_in_place(s))
        return ndm_copy(s->context->compute, s->copies[i], array, bytes, NDM_DEVICE_TO_HOST);
    ndm_copy_past_caches(s->copies[i], array, bytes);
    return NDM_OK;
}

/* Where the device's memory is the host's, by several threads; otherwise by the device. */
static ndm_status copy_slices(ndm_saver *s)
{
    NDM_TRY(ndm_stream_synchronize(s->context->compute));
    if (s->options.background)
        NDM_TRY(ndm_tasks_run(s->n_copies, is_in_place(s) ? threads_of(s) : 1, copy_slice, s));
    return ndm_stream_synchronize(s->context->compute);
}

/* An ndm_save_source, for any thread. */
static ndm_status from_copies(void *user, int64_t unit, int stem, ndm_unit_range_fn write,
                              void *write_user)
{
    const ndm_saver *s = user;
    const float *copy = s->copies[unit * NDM_CHECKPOINT_STEMS + stem];

    return copy ? ndm_unit_write_host(s->model->units[unit], copy, write, write_user) : NDM_OK;
}

/* An ndm_save_source, while training waits: for any thread where the host may read the device's
 * memory, else for the one that trains. */
static ndm_status from_device(void *user, int64_t unit, int stem, ndm_unit_range_fn write,
                              void *write_user)
{
    const ndm_saver *s = user;
    ndm_unit *of = s->model->units[unit];
    const float *array = array_of(s, unit, stem);

    if (!s->group.writes)
        return NDM_OK;
    return is_in_place(s) ? ndm_unit_write_host(of, array, write, write_user)
                          : ndm_unit_write_array(of, array, write, write_user);
}

static void take_facts(ndm_saver *s, int64_t samples)
{
    ndm_checkpoint_facts *f = &s->save.facts;

    f->state = (ndm_checkpoint_state){ndm_trainer_steps(s->trainer),
                                      ndm_trainer_tokens_total(s->trainer), samples,
                                      s->options.seed};
    f->model_dtype = s->model->config.dtype;
    f->trainer = *ndm_trainer_get_options(s->trainer);
    f->options_json = s->options.options_json;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        f->mesh[a] = ndm_mesh_axis_size(s->context->mesh, (ndm_axis)a);
}

static void choose_source(ndm_saver *s)
{
    s->save.threads = s->options.background || is_in_place(s) ? threads_of(s) : 1;
    s->save.source = s->options.background ? from_copies : from_device;
}

ndm_status ndm_saver_begin(ndm_saver *saver, int64_t samples)
{
    ndm_saver *s = saver;
    int64_t copied;

    NDM_NEED(saver);
    if (samples < 0)
        NDM_FAIL(NDM_ERR_USAGE, "%s: %lld samples used", s->folder, (long long)samples);
    if (s->phase != NDM_SAVE_IDLE)
        NDM_FAIL(NDM_ERR_STATE, "the save of step %lld is not finished",
                 (long long)s->save.facts.state.step);
    s->started_ns = ndm_clock_ns();
    free(s->result_path);
    s->result_path = NULL;
    s->save = (ndm_save){.model = s->model,
                         .folder = s->folder,
                         .options = &s->options,
                         .rank = s->group.rank,
                         .world = s->group.size,
                         .source_user = s};
    choose_source(s);
    take_facts(s, samples);
    s->result = (ndm_save_result){.step = s->save.facts.state.step};
    NDM_TRY(copy_slices(s));
    copied = ndm_clock_ns();
    start_phase(s, NDM_SAVE_CREATE);
    s->result.copy_ms = (double)(copied - s->started_ns) * 1e-6;
    s->result.pause_ms = (double)(ndm_clock_ns() - s->started_ns) * 1e-6;
    return NDM_OK;
}

bool ndm_saver_busy(const ndm_saver *saver)
{
    return saver && saver->phase != NDM_SAVE_IDLE;
}

/* ---- agreeing ----------------------------------------------------------------------------- */

typedef struct report {
    int64_t done, progress;
} report;

/* exchange over world, 16 bytes a rank: are all through with the phase, and how far are they? */
static ndm_status ask_all(ndm_saver *s, bool *done, int64_t *progress)
{
    int64_t n = ndm_context_size(s->context);
    report mine = {atomic_load(&s->done), (int64_t)atomic_load(&s->save.progress)};
    report *all = calloc((size_t)n, sizeof *all);

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to ask %lld ranks", (long long)n);
    ndm_status status = ndm_world_exchange(s->context->world, &mine, (int64_t)sizeof mine, all);
    *done = true;
    *progress = 0;
    for (int64_t i = 0; i < n; i++) {
        *done = *done && all[i].done;
        *progress += all[i].progress + all[i].done;
    }
    free(all);
    return status;
}

/* All are through: the phase's outcome is the same everywhere. */
static ndm_status agree(ndm_saver *s)
{
    if (s->has_thread)
        pthread_join(s->thread, NULL);
    s->has_thread = false;
    if (s->status != NDM_OK)
        ndm_error_restore(&s->error);
    return ndm_context_agree(s->context, s->status);
}

static void end_save(ndm_saver *s, ndm_status status)
{
    ndm_save_result *r = &s->result;

    if (status != NDM_OK)
        ndm_error_keep(&s->result_error);
    s->result_path = s->save.path; /* may be NULL: it failed before it had a name */
    s->save.path = NULL;
    r->status = status;
    r->message = status == NDM_OK ? "" : s->result_error.message;
    r->path = s->result_path ? s->result_path : s->folder;
    r->bytes = s->save.bytes;
    r->total_ms = (double)(ndm_clock_ns() - s->started_ns) * 1e-6;
    if (!s->options.background)
        r->pause_ms = r->total_ms;
    ndm_save_finish(&s->save, status == NDM_OK);
    s->phase = NDM_SAVE_IDLE;
}

static bool is_communication(ndm_status status)
{
    return status == NDM_ERR_COMM || status == NDM_ERR_TIMEOUT || status == NDM_ERR_MISMATCH;
}

static ndm_status advance(ndm_saver *s, int64_t *progress, const ndm_save_result **finished)
{
    bool done;

    NDM_TRY(ask_all(s, &done, progress));
    if (!done)
        return NDM_OK;
    ndm_status status = agree(s);
    if (is_communication(status))
        return status;
    if (status == NDM_OK && s->phase != NDM_SAVE_FINISH) {
        start_phase(s, (ndm_save_phase)(s->phase + 1));
        return NDM_OK;
    }
    end_save(s, status);
    *finished = &s->result;
    return NDM_OK;
}

ndm_status ndm_saver_poll(ndm_saver *saver, const ndm_save_result **finished)
{
    int64_t progress;

    NDM_NEED(saver);
    NDM_NEED(finished);
    *finished = NULL;
    return saver->phase == NDM_SAVE_IDLE ? NDM_OK : advance(saver, &progress, finished);
}

ndm_status ndm_saver_wait(ndm_saver *saver, const ndm_save_result **finished)
{
    NDM_NEED(saver);
    NDM_NEED(finished);
    ndm_saver *s = saver;
    int64_t progress = 0, before = -1, since = ndm_clock_ns();
    int64_t timeout = s->context->device->options.timeout_ns;

    *finished = NULL;
    while (s->phase != NDM_SAVE_IDLE) {
        NDM_TRY(advance(s, &progress, finished));
        if (progress != before)
            since = ndm_clock_ns();
        before = progress;
        if (ndm_clock_ns() - since > timeout)
            NDM_FAIL(NDM_ERR_TIMEOUT, "%s: no rank has written anything for %.3g s", s->folder,
                     (double)timeout * 1e-9);
        if (s->phase != NDM_SAVE_IDLE && !atomic_load(&s->done))
            usleep(PAUSE_US);
    }
    return NDM_OK;
}

ndm_status ndm_checkpoint_save(ndm_trainer *trainer, const char *folder,
                               const ndm_checkpoint_options *options, int64_t samples)
{
    ndm_checkpoint_options o;
    const ndm_save_result *finished = NULL;
    ndm_saver *saver;
    ndm_status status;

    NDM_TRY(NDM_SIZED_TAKE(ndm_checkpoint_options, &o, NDM_CHECKPOINT_OPTIONS_INIT, options));
    o.background = false;
    NDM_TRY(ndm_saver_create(trainer, folder, &o, &saver));
    NDM_TRY_OR(status, ndm_saver_begin(saver, samples), done);
    NDM_TRY_OR(status, ndm_saver_wait(saver, &finished), done);
    if (finished && finished->status != NDM_OK) {
        ndm_error_restore(&saver->result_error);
        status = finished->status;
    }
done:
    ndm_saver_destroy(saver);
    return status;
}
