/* SPDX-License-Identifier: Apache-2.0 */
/* The phases of a save. No communication here, and no device but in what the source hands out: a
 * thread may run them if the source may be called there. */
#include "train/checkpoint_save.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/dtype.h"
#include "core/file.h"
#include "core/log.h"
#include "core/tasks.h"
#include "model/safetensors_reader.h"

#define PART_PREFIX ".sums-"

/* ---- create ------------------------------------------------------------------------------- */

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');

    return slash ? slash + 1 : path;
}

static ndm_status plan_stem(ndm_save *s, int stem)
{
    const ndm_model_files files = {s->temporary, ndm_checkpoint_stems[stem].stem,
                                   ndm_checkpoint_stems[stem].suffix, NDM_F32,
                                   s->options->shard_bytes};
    ndm_safetensors_writer *w;

    NDM_TRY(ndm_model_plan_files(s->model, &files, &s->writers[stem]));
    w = s->writers[stem];
    s->first_file[stem] = s->sums.n_files;
    for (int64_t f = 0; f < ndm_safetensors_writer_files(w); f++) {
        int64_t bytes = ndm_safetensors_writer_bytes(w, f);
        NDM_TRY(ndm_sums_add_file(&s->sums, base_name(ndm_safetensors_writer_path(w, f)), bytes));
        s->bytes += bytes;
    }
    return NDM_OK;
}

static ndm_status make_folder(const ndm_save *s)
{
    NDM_TRY(ndm_file_make_dirs(s->folder));
    if (s->options->local && s->options->keep > 0) /* all hosts have the newest by now */
        NDM_TRY(ndm_checkpoint_retain(s->folder, s->options->keep + 1, s->facts.state.step));
    NDM_TRY(ndm_checkpoint_check_space(s->folder, s->bytes));
    NDM_TRY(ndm_checkpoint_remove(s->temporary));
    return ndm_file_make_dirs(s->temporary);
}

static ndm_status create(ndm_save *s)
{
    char name[NDM_CHECKPOINT_NAME_BYTES];

    ndm_checkpoint_name(s->facts.state.step, name);
    s->path = ndm_text_printf("%s/%s", s->folder, name);
    s->temporary = ndm_text_printf("%s/.%s.tmp", s->folder, name);
    if (!s->path || !s->temporary)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", s->folder);
    ndm_sums_init(&s->sums, s->options->block_bytes);
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        NDM_TRY(plan_stem(s, i));
    if (s->rank != 0)
        return NDM_OK;
    NDM_TRY(make_folder(s));
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        NDM_TRY(ndm_safetensors_writer_begin(s->writers[i]));
    return ndm_model_write_config(s->model, s->temporary, NDM_F32);
}

/* ---- write -------------------------------------------------------------------------------- */

typedef struct output {
    ndm_save *save;
    int stem;
} output;

/* A run in pieces that end where blocks do, so that a block is written while it is in the cache. */
static ndm_status write_run(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                            float *values)
{
    const output *o = user;
    ndm_save *s = o->save;
    ndm_safetensors_writer *writer = s->writers[o->stem];
    int64_t piece = s->options->block_bytes, width = (int64_t)sizeof *values;
    char name[1024];

    snprintf(name, sizeof name, "%s%s", spec->name, ndm_checkpoint_stems[o->stem].suffix);
    const ndm_tensor_info *info = ndm_safetensors_writer_find(writer, name);
    if (!info)
        NDM_FAIL(NDM_ERR_INTERNAL, "%s: tensor '%s' was not planned", s->temporary, name);
    for (int64_t n; count > 0; first += n, values += n, count -= n) {
        int64_t offset = info->offset + first * width;
        n = (offset / piece * piece + piece - offset) / width;
        n = n < count ? n : count;
        ndm_sums_put(&s->sums, s->first_file[o->stem] + info->file, offset, values, n * width);
        NDM_TRY(ndm_safetensors_write(writer, name, first, n, values, NDM_F32));
        atomic_fetch_add(&s->progress, n);
    }
    return NDM_OK;
}

/* Neighbouring tasks write to different files, for writes to one file wait for each other; for the
 * same reason ranks begin with different ones. */
static ndm_status write_task(void *user, int64_t i, int thread)
{
    ndm_save *s = user;
    output o = {s, (int)((i + s->rank) % NDM_CHECKPOINT_STEMS)};

    (void)thread;
    return s->source(s->source_user, i / NDM_CHECKPOINT_STEMS, o.stem, write_run, &o);
}

static char *part_path(const ndm_save *s, ndm_save_phase phase, int64_t rank)
{
    return ndm_text_printf("%s/" PART_PREFIX "%d-%lld", s->temporary, (int)phase, (long long)rank);
}

static ndm_status write_part(const ndm_save *s, ndm_save_phase phase)
{
    char *path = part_path(s, phase, s->rank);

    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", s->temporary);
    ndm_status status = ndm_sums_write_part(&s->sums, path);
    free(path);
    return status;
}

static ndm_status write_all(ndm_save *s)
{
    if (!ndm_file_is_dir(s->temporary))
        NDM_FAIL(
            NDM_ERR_IO,
            "%s: rank 0 has made it, and it is not here: all hosts must see one file system, or "
            "save to their own (--save-local)",
            s->temporary);
    NDM_TRY(ndm_tasks_run(s->model->n_units * NDM_CHECKPOINT_STEMS, s->threads, write_task, s));
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        NDM_TRY(ndm_safetensors_writer_sync(s->writers[i]));
    return write_part(s, NDM_SAVE_WRITE);
}

/* ---- fill --------------------------------------------------------------------------------- */

static ndm_status read_parts(ndm_save *s, ndm_save_phase phase)
{
    for (int64_t r = 0; r < s->world; r++) {
        char *path = part_path(s, phase, r);
        if (!path)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", s->temporary);
        ndm_status status = ndm_sums_read_part(&s->sums, path);
        free(path);
        NDM_TRY(status);
    }
    return NDM_OK;
}

static ndm_status fill(ndm_save *s)
{
    NDM_TRY(read_parts(s, NDM_SAVE_WRITE));
    NDM_TRY(ndm_sums_fill(&s->sums, s->temporary, s->rank, s->world));
    atomic_fetch_add(&s->progress, 1);
    return write_part(s, NDM_SAVE_FILL);
}

/* ---- finish ------------------------------------------------------------------------------- */

/* config.json, indices, tokenizer: whatever is not planned is hashed whole. */
static ndm_status add_small_file(ndm_save *s, const char *name)
{
    char *path = ndm_text_printf("%s/%s", s->temporary, name);
    ndm_buffer text = {0};
    ndm_status status;

    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", s->temporary);
    NDM_TRY_OR(status, ndm_file_read(path, &text), done);
    NDM_TRY_OR(status, ndm_sums_add_file(&s->sums, name, (int64_t)text.length), done);
    ndm_sums_put(&s->sums, s->sums.n_files - 1, 0, text.data, (int64_t)text.length);
done:
    ndm_buffer_finish(&text);
    free(path);
    return status;
}

static ndm_status gather_small_files(ndm_save *s, DIR *folder)
{
    struct dirent *e;

    while ((e = readdir(folder)) != NULL) {
        if (strncmp(e->d_name, PART_PREFIX, sizeof PART_PREFIX - 1) == 0) {
            if (unlinkat(dirfd(folder), e->d_name, 0) != 0)
                NDM_FAIL(NDM_ERR_IO, "%s/%s: cannot remove: %s", s->temporary, e->d_name,
                         strerror(errno));
        } else if (e->d_name[0] != '.' && ndm_sums_find(&s->sums, e->d_name) < 0) {
            NDM_TRY(add_small_file(s, e->d_name));
        }
    }
    return NDM_OK;
}

static ndm_status write_sums(ndm_save *s)
{
    char *path = ndm_text_printf("%s/" NDM_CHECKPOINT_SUMS, s->temporary);
    ndm_hash128 hash;

    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", s->temporary);
    ndm_status status = ndm_sums_save(&s->sums, path, &hash);
    free(path);
    NDM_TRY(status);
    ndm_hash_128_hex(hash, s->facts.sums_hash);
    return NDM_OK;
}

static ndm_status write_trainer(const ndm_save *s)
{
    char *path = ndm_text_printf("%s/" NDM_CHECKPOINT_TRAINER, s->temporary);

    if (!path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", s->temporary);
    ndm_status status = ndm_checkpoint_facts_write(&s->facts, path);
    free(path);
    return status;
}

static ndm_status finish(ndm_save *s)
{
    DIR *folder;

    if (s->rank != 0)
        return NDM_OK;
    NDM_TRY(read_parts(s, NDM_SAVE_FILL));
    folder = opendir(s->temporary);
    if (!folder)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", s->temporary, strerror(errno));
    ndm_status status = gather_small_files(s, folder);
    closedir(folder);
    NDM_TRY(status);
    NDM_TRY(write_sums(s));
    NDM_TRY(write_trainer(s));
    NDM_TRY(ndm_checkpoint_publish(s->folder, s->temporary, s->path));
    return s->options->local
               ? NDM_OK
               : ndm_checkpoint_retain(s->folder, s->options->keep, s->facts.state.step);
}

ndm_status ndm_save_run_phase(ndm_save *save, ndm_save_phase phase)
{
    switch (phase) {
    case NDM_SAVE_CREATE:
        return create(save);
    case NDM_SAVE_WRITE:
        return write_all(save);
    case NDM_SAVE_FILL:
        return fill(save);
    case NDM_SAVE_FINISH:
        return finish(save);
    default:
        return NDM_OK;
    }
}

void ndm_save_finish(ndm_save *save, bool published)
{
    for (int i = 0; i < NDM_CHECKPOINT_STEMS; i++)
        ndm_safetensors_writer_destroy(save->writers[i]);
    if (!published && save->rank == 0 && save->temporary &&
        ndm_checkpoint_remove(save->temporary) != NDM_OK)
        ndm_log(NDM_LOG_WARNING, "checkpoint", "%s", ndm_error_message());
    ndm_sums_finish(&save->sums);
    free(save->temporary);
    free(save->path);
}
