/* SPDX-License-Identifier: Apache-2.0 */
/* Loading: every rank reads the ranges of its slices, verified block by block; and which checkpoint
 * is the newest. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/given.h"
#include "model/model.h"
#include "model/safetensors_gather.h"
#include "train/checkpoint_tools.h"
#include "train/trainer.h"

void ndm_checkpoint_input_close(ndm_checkpoint_input *in)
{
    ndm_safetensors_close(in->reader);
    ndm_verified_finish(&in->verified);
}

/* Headers were parsed at open, as those of any file; here their bytes are verified too. */
static ndm_status verify_headers(const ndm_checkpoint_input *in)
{
    ndm_status status = NDM_OK;

    for (int64_t f = 0; f < ndm_safetensors_files(in->reader) && status == NDM_OK; f++) {
        unsigned char first[8];
        status = ndm_safetensors_read_bytes(in->reader, f, first, 8, 0);
        int64_t bytes = 8;
        for (int i = 0; i < 4; i++)
            bytes += (int64_t)first[i] << (8 * i);
        void *header = status == NDM_OK ? malloc((size_t)bytes) : NULL;
        if (header)
            status = ndm_safetensors_read_bytes(in->reader, f, header, bytes, 0);
        else if (status == NDM_OK)
            status = ndm_error_set(NDM_ERR_MEMORY, __FILE__, __LINE__, "no memory for a header");
        free(header);
    }
    return status;
}

ndm_status ndm_checkpoint_input_open(const char *path, const ndm_sums *sums, int stem,
                                     ndm_checkpoint_input *in)
{
    *in = (ndm_checkpoint_input){.suffix = ndm_checkpoint_stems[stem].suffix};
    NDM_TRY(ndm_safetensors_open_stem(path, ndm_checkpoint_stems[stem].stem, &in->reader));
    in->verified = (ndm_verified){.sums = sums, .reader = in->reader};
    ndm_safetensors_set_source(in->reader, ndm_verified_read, &in->verified);
    ndm_status status = verify_headers(in);
    if (status != NDM_OK)
        ndm_checkpoint_input_close(in);
    return status;
}

/* ---- a stem: weights, or a moment, of all units ------------------------------------------- */

typedef struct loader {
    ndm_trainer *trainer;
    ndm_unit *const *units;
    int64_t n_units;
    ndm_checkpoint_input input; /* of the stem */
    ndm_gather *gather;
} loader;

static ndm_status ask_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                            float *values)
{
    const loader *l = user;
    char name[1024];

    snprintf(name, sizeof name, "%s%s", spec->name, l->input.suffix);
    return ndm_gather_add(l->gather, name, first, count, values);
}

static ndm_status read_asked(void *user)
{
    return ndm_gather_run(((const loader *)user)->gather);
}

static ndm_status check_shapes(const ndm_unit *unit, const ndm_checkpoint_input *in)
{
    const ndm_tensor_info *info;
    char name[1024];

    for (int64_t i = 0; i < ndm_unit_params(unit); i++) {
        const ndm_param_spec *spec = ndm_unit_spec(unit, i);
        snprintf(name, sizeof name, "%s%s", spec->name, in->suffix);
        NDM_TRY(ndm_safetensors_require(in->reader, name, spec->ndim, spec->shape, &info));
    }
    return NDM_OK;
}

static ndm_status load_units(loader *l, int stem)
{
    const ndm_model *model = ndm_trainer_model(l->trainer);

    if (stem == 0)
        NDM_TRY(ndm_model_check_tensors(model, l->input.reader));
    for (int64_t u = 0; u < l->n_units; u++) {
        float *array = stem == 0 ? ndm_unit_master(l->units[u])
                                 : ndm_optimizer_moment(ndm_trainer_optimizer(l->trainer), u,
                                                        stem == 1 ? NDM_EXP_AVG : NDM_EXP_AVG_SQ);
        NDM_TRY(check_shapes(l->units[u], &l->input));
        NDM_TRY(ndm_unit_ask_array(l->units[u], array, ask_range, read_asked, l));
    }
    return read_asked(l);
}

static ndm_status load_stem(loader *l, const char *path, const ndm_sums *sums, int stem)
{
    ndm_gather_options options = ndm_model_gather_options(ndm_trainer_model(l->trainer));

    NDM_TRY(ndm_checkpoint_input_open(path, sums, stem, &l->input));
    l->gather = NULL;
    options.check = ndm_verified_check;
    options.block_bytes = sums->block_bytes;
    options.user = &l->input.verified;
    ndm_status status = ndm_gather_create(l->input.reader, &options, &l->gather);
    if (status == NDM_OK)
        status = load_units(l, stem);
    ndm_gather_destroy(l->gather);
    ndm_checkpoint_input_close(&l->input);
    return status;
}

static ndm_status load_all(ndm_trainer *t, const char *path, const ndm_sums *sums)
{
    loader l = {.trainer = t};

    l.units = ndm_model_units(ndm_trainer_model(t), &l.n_units);
    for (int stem = 0; stem < NDM_CHECKPOINT_STEMS; stem++)
        NDM_TRY(load_stem(&l, path, sums, stem));
    for (int64_t u = 0; u < l.n_units; u++)
        NDM_TRY(ndm_unit_changed(l.units[u]));
    return NDM_OK;
}

/* ---- the whole ---------------------------------------------------------------------------- */

static ndm_status load(ndm_trainer *t, const char *path, ndm_checkpoint_state *state)
{
    ndm_checkpoint_facts facts;
    ndm_sums sums;

    if (!ndm_file_is_dir(path))
        NDM_FAIL(NDM_ERR_IO, "%s: there is no such checkpoint", path);
    NDM_TRY(ndm_checkpoint_facts_read(path, &facts));
    NDM_TRY(ndm_checkpoint_sums_read(path, &facts, &sums));
    ndm_status status = load_all(t, path, &sums);
    ndm_sums_finish(&sums);
    NDM_TRY(status);
    ndm_trainer_set_progress(t, facts.state.step, facts.state.tokens_total);
    *state = facts.state;
    return NDM_OK;
}

/* On disks of hosts, one name may be different checkpoints. */
static ndm_status compare_steps(ndm_context *context, const char *path, int64_t step)
{
    int64_t n = ndm_context_size(context), *all = calloc((size_t)n, sizeof *all), other = 0;

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to ask %lld ranks", (long long)n);
    ndm_status status = ndm_world_exchange(context->world, &step, (int64_t)sizeof step, all);
    while (status == NDM_OK && other < n && all[other] == all[0])
        other++;
    if (status == NDM_OK && other < n)
        status = ndm_error_set(NDM_ERR_MISMATCH, __FILE__, __LINE__,
                               "%s: is step %lld on rank 0 and step %lld on rank %lld", path,
                               (long long)all[0], (long long)all[other], (long long)other);
    free(all);
    return status;
}

ndm_status ndm_checkpoint_load(ndm_trainer *trainer, const char *path, ndm_checkpoint_state *state)
{
    NDM_NEED(trainer);
    NDM_NEED(path);
    NDM_NEED(state);
    ndm_model *model = ndm_trainer_model(trainer);

    NDM_TRY(ndm_model_change(model));
    NDM_TRY(ndm_context_agree(ndm_model_context(model), load(trainer, path, state)));
    return compare_steps(ndm_model_context(model), path, state->step);
}

/* ---- the newest --------------------------------------------------------------------------- */

typedef struct found {
    int64_t step;
    char name[NDM_CHECKPOINT_NAME_BYTES];
} found;

/* The first rank looks, all take what it found: others may see a folder later. */
static ndm_status ask_first(ndm_context *context, const found *mine, found *first)
{
    found *all = calloc((size_t)ndm_context_size(context), sizeof *all);

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to ask %lld ranks",
                 (long long)ndm_context_size(context));
    ndm_status status = ndm_world_exchange(context->world, mine, (int64_t)sizeof *mine, all);
    *first = all[0];
    free(all);
    return status;
}

ndm_status ndm_checkpoint_latest(ndm_context *context, const char *folder, char *path,
                                 size_t path_bytes)
{
    found mine = {.step = -1}, first;
    ndm_status status = NDM_OK;

    NDM_NEED(context);
    NDM_NEED(folder);
    NDM_NEED(path);
    if (ndm_context_rank(context) == 0)
        status = ndm_checkpoint_find_latest(folder, &mine.step, mine.name);
    NDM_TRY(ndm_context_agree(context, status));
    NDM_TRY(ask_first(context, &mine, &first));
    path[0] = '\0';
    if (first.step < 0)
        return NDM_OK;
    if (snprintf(path, path_bytes, "%s/%s", folder, first.name) >= (int)path_bytes)
        NDM_FAIL(NDM_ERR_USAGE, "%s: the path is too long", folder);
    return NDM_OK;
}
