/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in and out: every rank reads the ranges of its slices, and writes those it owns, in
 * Hugging Face's layout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/given.h"
#include "core/log.h"
#include "model/model.h"

/* ---- names -------------------------------------------------------------------------------- */

/* Tensors that files of a family may hold besides weights, by the end of their names. */
static bool is_buffer(const char *name)
{
    static const char *const ends[] = {".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias"};
    size_t n = strlen(name);

    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        size_t e = strlen(ends[i]);
        if (n >= e && strcmp(name + n - e, ends[i]) == 0)
            return true;
    }
    return false;
}

/* GPT-2 on the hub has no "transformer." in front of its names. */
static const char *name_in_file(const ndm_safetensors *file, const char *name)
{
    static const char prefix[] = "transformer.";
    bool short_form = strncmp(name, prefix, sizeof prefix - 1) == 0 &&
                      !ndm_safetensors_find(file, name);
    const char *bare = name + sizeof prefix - 1;

    return short_form && ndm_safetensors_find(file, bare) ? bare : name;
}

static bool is_ours(const ndm_model *m, const ndm_safetensors *file, const char *name)
{
    for (int64_t u = 0; u < m->n_units; u++)
        for (int64_t i = 0; i < ndm_unit_params(m->units[u]); i++)
            if (strcmp(name_in_file(file, ndm_unit_spec(m->units[u], i)->name), name) == 0)
                return true;
    return (m->config.tied && strcmp(name, "lm_head.weight") == 0) || is_buffer(name);
}

/* Missing or misshapen tensors first, then one that nothing asks for. */
ndm_status ndm_model_check_tensors(const ndm_model *m, const ndm_safetensors *file)
{
    const ndm_tensor_info *info;

    for (int64_t u = 0; u < m->n_units; u++)
        for (int64_t i = 0; i < ndm_unit_params(m->units[u]); i++) {
            const ndm_param_spec *spec = ndm_unit_spec(m->units[u], i);
            NDM_TRY(ndm_safetensors_require(file, name_in_file(file, spec->name), spec->ndim,
                                            spec->shape, &info));
        }
    for (int64_t i = 0; i < ndm_safetensors_count(file); i++) {
        info = ndm_safetensors_at(file, i);
        if (!is_ours(m, file, info->name))
            NDM_FAIL(NDM_ERR_FORMAT, "%s: tensor %s is not part of this %s model",
                     ndm_safetensors_path(file, info->file), info->name,
                     ndm_family_table(m->config.family)->model_type);
    }
    return NDM_OK;
}

/* ---- reading ------------------------------------------------------------------------------ */

typedef struct asked {
    const ndm_safetensors *file;
    ndm_gather *gather;
} asked;

static ndm_status ask_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                            float *values)
{
    const asked *s = user;

    return ndm_gather_add(s->gather, name_in_file(s->file, spec->name), first, count, values);
}

static ndm_status read_asked(void *user)
{
    return ndm_gather_run(((const asked *)user)->gather);
}

static ndm_status read_units(ndm_model *m, asked *from)
{
    for (int64_t u = 0; u < m->n_units; u++)
        NDM_TRY(ndm_unit_ask_array(m->units[u], ndm_unit_master(m->units[u]), ask_range, read_asked,
                                   from));
    NDM_TRY(read_asked(from));
    for (int64_t u = 0; u < m->n_units; u++)
        NDM_TRY(ndm_unit_changed(m->units[u]));
    return NDM_OK;
}

ndm_gather_options ndm_model_gather_options(const ndm_model *m)
{
    int threads = m->context->device->options.threads;

    return (ndm_gather_options){
        .threads = 2 * (threads > 1 ? threads : 1),
        .rank = ndm_context_rank(m->context),
        .ranks = ndm_context_size(m->context),
        .shared = ndm_context_axes_size(m->context, NDM_AXIS_DP_REPLICATE) > 1,
    };
}

static ndm_status load_from(ndm_model *m, const ndm_safetensors *file)
{
    ndm_gather_options options = ndm_model_gather_options(m);
    asked from = {.file = file};

    NDM_TRY(ndm_model_check_tensors(m, file));
    NDM_TRY(ndm_gather_create(file, &options, &from.gather));
    ndm_status status = read_units(m, &from);
    ndm_gather_destroy(from.gather);
    return status;
}

ndm_status ndm_model_check_weights(const ndm_model *m, const char *folder)
{
    ndm_safetensors *file;

    NDM_TRY(ndm_safetensors_open(folder, &file));
    ndm_status status = ndm_model_check_tensors(m, file);
    ndm_safetensors_close(file);
    return status;
}

static ndm_status load(ndm_model *m, const char *folder)
{
    ndm_safetensors *file;

    NDM_TRY(ndm_safetensors_open(folder, &file));
    ndm_status status = load_from(m, file);
    ndm_safetensors_close(file);
    return status;
}

ndm_status ndm_model_change(ndm_model *model)
{
    for (int64_t u = 0; u < model->n_units; u++)
        NDM_TRY(ndm_unit_change(model->units[u]));
    return NDM_OK;
}

ndm_status ndm_model_load(ndm_model *model, const char *folder)
{
    NDM_NEED(model);
    NDM_NEED(folder);
    NDM_TRY(ndm_model_change(model));
    return ndm_context_agree(model->context, load(model, folder));
}

ndm_status ndm_model_from_pretrained(ndm_context *context, const char *folder,
                                     const ndm_fsdp_config *fsdp, const ndm_model_options *options,
                                     ndm_model **model)
{
    ndm_model *m;

    NDM_NEED(model);
    NDM_TRY(ndm_model_create(context, folder, fsdp, options, &m));
    ndm_status status = ndm_model_load(m, folder);
    if (status != NDM_OK) {
        ndm_model_destroy(m);
        return status;
    }
    *model = m;
    return NDM_OK;
}

/* ---- writing ------------------------------------------------------------------------------ */

static ndm_status write_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                              float *values)
{
    return ndm_safetensors_write(user, spec->name, first, count, values, NDM_F32);
}

static int64_t count_params(const ndm_model *m)
{
    int64_t n = 0;

    for (int64_t u = 0; u < m->n_units; u++)
        n += ndm_unit_params(m->units[u]);
    return n;
}

static void free_specs(ndm_tensor_spec *specs, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        free((char *)specs[i].name);
    free(specs);
}

ndm_status ndm_model_plan_files(const ndm_model *m, const ndm_model_files *files,
                                ndm_safetensors_writer **writer)
{
    int64_t n = count_params(m), at = 0;
    ndm_tensor_spec *specs = calloc((size_t)n, sizeof *specs);
    bool memory = specs != NULL;

    for (int64_t u = 0; memory && u < m->n_units; u++)
        for (int64_t i = 0; i < ndm_unit_params(m->units[u]); i++, at++) {
            const ndm_param_spec *p = ndm_unit_spec(m->units[u], i);
            char *name = ndm_text_printf("%s%s", p->name, files->suffix);
            specs[at] = (ndm_tensor_spec){
                name, files->dtype, p->ndim, {p->shape[0], p->ndim == 2 ? p->shape[1] : 0}};
            memory = memory && name;
        }
    ndm_status status = memory ? ndm_safetensors_writer_create(files->folder, files->stem, specs, n,
                                                               files->shard_bytes, NULL, writer)
                               : ndm_error_set(NDM_ERR_MEMORY, __FILE__, __LINE__,
                                               "no memory to plan a file of %lld tensors",
                                               (long long)n);
    free_specs(specs, specs ? n : 0);
    return status;
}

static ndm_status write_slices(ndm_model *m, ndm_unit_part part, ndm_safetensors_writer *writer)
{
    for (int64_t u = 0; u < m->n_units; u++)
        NDM_TRY(ndm_unit_write(m->units[u], part, write_range, writer));
    return ndm_safetensors_writer_sync(writer);
}

static ndm_status begin(ndm_model *m, const char *folder, ndm_safetensors_writer *writer)
{
    if (ndm_context_rank(m->context) != 0)
        return NDM_OK;
    NDM_TRY(ndm_file_make_dirs(folder));
    return ndm_safetensors_writer_begin(writer);
}

static ndm_status plan(const ndm_model *m, const ndm_model_files *files, bool replace,
                       ndm_safetensors_writer **writer)
{
    NDM_TRY(ndm_model_plan_files(m, files, writer));
    return replace ? ndm_safetensors_writer_stage(*writer) : NDM_OK;
}

/* One rank makes the files, all write their ranges; nobody returns before all have. replace: what
 * is in the folder stays until then. */
static ndm_status write_files(ndm_model *m, const ndm_model_files *files, ndm_unit_part part,
                              bool replace)
{
    ndm_safetensors_writer *writer = NULL;
    ndm_status status;

    NDM_TRY_OR(status, ndm_context_agree(m->context, plan(m, files, replace, &writer)), done);
    NDM_TRY_OR(status, ndm_context_agree(m->context, begin(m, files->folder, writer)), done);
    NDM_TRY_OR(status, ndm_context_agree(m->context, write_slices(m, part, writer)), done);
    if (replace)
        status = ndm_context_agree(m->context, ndm_context_rank(m->context) == 0
                                                   ? ndm_safetensors_writer_commit(writer)
                                                   : NDM_OK);
done:
    ndm_safetensors_writer_destroy(writer);
    return status;
}

/* What a model's folder holds besides its weights, and others need to use it. */
static const char *const companions[] = {
    "tokenizer.json",  "tokenizer_config.json", "special_tokens_map.json",
    "tokenizer.model", "added_tokens.json",     "vocab.json",
    "merges.txt",      "chat_template.jinja",   "generation_config.json",
};

static ndm_status copy_companion(const char *from, const char *to, const char *name)
{
    char source[4096], target[4096];
    ndm_buffer text = {0};

    snprintf(source, sizeof source, "%s/%s", from, name);
    snprintf(target, sizeof target, "%s/%s", to, name);
    if (!ndm_file_exists(source))
        return NDM_OK;
    NDM_TRY(ndm_file_read(source, &text));
    ndm_status status = ndm_file_write_atomic(target, text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}

ndm_status ndm_model_write_companions(const char *from, const char *folder)
{
    for (size_t i = 0; from && i < sizeof companions / sizeof companions[0]; i++)
        NDM_TRY(copy_companion(from, folder, companions[i]));
    return NDM_OK;
}

ndm_status ndm_model_write_config(const ndm_model *m, const char *folder, ndm_dtype dtype)
{
    char path[4096];
    ndm_model_config copy = m->config;

    copy.dtype = dtype;
    snprintf(path, sizeof path, "%s/config.json", folder);
    NDM_TRY(ndm_model_config_write(&copy, path));
    return ndm_model_write_companions(m->folder, folder);
}

static ndm_status check_saved_as(ndm_dtype dtype, int64_t shard_bytes)
{
    if (dtype != NDM_F32 && dtype != NDM_BF16 && dtype != NDM_F16)
        NDM_FAIL(NDM_ERR_USAGE, "weights are saved in fp32, bf16 or fp16, not in type %d", dtype);
    if (shard_bytes < 0)
        NDM_FAIL(NDM_ERR_USAGE, "weights in shards of %lld bytes; 0 is one file",
                 (long long)shard_bytes);
    return NDM_OK;
}

ndm_status ndm_model_save(ndm_model *model, const char *folder, ndm_dtype dtype,
                          int64_t shard_bytes)
{
    NDM_NEED(model);
    NDM_NEED(folder);
    ndm_dtype out = dtype == NDM_DTYPE_COUNT ? model->config.dtype : dtype;
    bool first = ndm_context_rank(model->context) == 0;

    NDM_TRY(check_saved_as(out, shard_bytes));
    NDM_TRY(write_files(model, &(ndm_model_files){folder, "model", "", out, shard_bytes},
                        NDM_UNIT_WEIGHTS, true));
    return ndm_context_agree(model->context,
                             first ? ndm_model_write_config(model, folder, out) : NDM_OK);
}

ndm_status ndm_model_split_path(const char *file, char **folder, char **stem)
{
    static const char end[] = ".safetensors";
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    size_t n = strlen(base), e = sizeof end - 1;

    if (n <= e || strcmp(base + n - e, end) != 0)
        NDM_FAIL(NDM_ERR_USAGE, "%s: tensors are written to a file that ends in %s", file, end);
    *folder = slash ? ndm_text_printf("%.*s", (int)(slash - file), file) : ndm_text_duplicate(".");
    *stem = ndm_text_printf("%.*s", (int)(n - e), base);
    if (*folder && *stem)
        return NDM_OK;
    free(*folder);
    free(*stem);
    *folder = *stem = NULL;
    NDM_FAIL(NDM_ERR_MEMORY, "no memory for the path %s", file);
}

ndm_status ndm_model_save_grads(ndm_model *model, const char *file)
{
    char *folder, *stem;

    NDM_NEED(model);
    NDM_NEED(file);
    NDM_TRY(ndm_model_split_path(file, &folder, &stem));
    ndm_status status = write_files(model, &(ndm_model_files){folder, stem, "", NDM_F32, 0},
                                    NDM_UNIT_GRADS, false);
    free(folder);
    free(stem);
    return status;
}
