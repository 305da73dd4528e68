/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in and out: every rank reads the ranges of its slices, and writes those it owns, in
 * Hugging Face's layout. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/log.h"
#include "model/model.h"
#include "model/safetensors.h"

/* ---- names
 * --------------------------------------------------------------------------------------- */

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
static ndm_status check_tensors(const ndm_model *m, const ndm_safetensors *file)
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

/* ---- reading
 * ------------------------------------------------------------------------------------- */

static ndm_status read_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                             float *values)
{
    const ndm_safetensors *file = user;

    return ndm_safetensors_read(file, name_in_file(file, spec->name), first, count, values,
                                NDM_F32);
}

static ndm_status load(ndm_model *m, const char *folder)
{
    ndm_safetensors *file;
    ndm_status status;

    NDM_TRY(ndm_safetensors_open(folder, &file));
    NDM_TRY_OR(status, check_tensors(m, file), done);
    for (int64_t u = 0; u < m->n_units; u++)
        NDM_TRY_OR(status, ndm_unit_read(m->units[u], read_range, file), done);
done:
    ndm_safetensors_close(file);
    return status;
}

ndm_status ndm_model_load(ndm_model *model, const char *folder)
{
    return ndm_context_agree(model->context, load(model, folder));
}

ndm_status ndm_model_from_pretrained(ndm_context *context, const char *folder,
                                     const ndm_fsdp_config *fsdp, const ndm_model_options *options,
                                     ndm_model **model)
{
    ndm_model *m;

    NDM_TRY(ndm_model_create(context, folder, fsdp, options, &m));
    ndm_status status = ndm_model_load(m, folder);
    if (status != NDM_OK) {
        ndm_model_destroy(m);
        return status;
    }
    *model = m;
    return NDM_OK;
}

/* ---- writing
 * ------------------------------------------------------------------------------------- */

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

static ndm_status plan_files(ndm_model *m, const char *folder, const char *stem, ndm_dtype dtype,
                             int64_t shard_bytes, ndm_safetensors_writer **writer)
{
    int64_t n = count_params(m), at = 0;
    ndm_tensor_spec *specs = calloc((size_t)n, sizeof *specs);

    if (!specs)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to plan a file of %lld tensors", (long long)n);
    for (int64_t u = 0; u < m->n_units; u++)
        for (int64_t i = 0; i < ndm_unit_params(m->units[u]); i++, at++) {
            const ndm_param_spec *p = ndm_unit_spec(m->units[u], i);
            specs[at] = (ndm_tensor_spec){
                p->name, dtype, p->ndim, {p->shape[0], p->ndim == 2 ? p->shape[1] : 0}};
        }
    ndm_status status = ndm_safetensors_writer_create(folder, stem, specs, n, shard_bytes, NULL,
                                                      writer);
    free(specs);
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

/* One rank makes the files, all write their ranges; nobody returns before all have. */
static ndm_status write_files(ndm_model *m, const char *folder, const char *stem,
                              ndm_unit_part part, ndm_dtype dtype, int64_t shard_bytes)
{
    ndm_safetensors_writer *writer = NULL;
    ndm_status status;

    NDM_TRY_OR(
        status,
        ndm_context_agree(m->context, plan_files(m, folder, stem, dtype, shard_bytes, &writer)),
        done);
    NDM_TRY_OR(status, ndm_context_agree(m->context, begin(m, folder, writer)), done);
    status = ndm_context_agree(m->context, write_slices(m, part, writer));
done:
    ndm_safetensors_writer_destroy(writer);
    return status;
}

static ndm_status write_config(ndm_model *m, const char *folder, ndm_dtype dtype)
{
    char path[4096];
    ndm_model_config copy = m->config;

    if (ndm_context_rank(m->context) != 0)
        return NDM_OK;
    copy.dtype = dtype;
    snprintf(path, sizeof path, "%s/config.json", folder);
    return ndm_model_config_write(&copy, path);
}

ndm_status ndm_model_save(ndm_model *model, const char *folder, ndm_dtype dtype,
                          int64_t shard_bytes)
{
    ndm_dtype out = dtype == NDM_DTYPE_COUNT ? model->config.dtype : dtype;

    NDM_TRY(write_files(model, folder, "model", NDM_UNIT_WEIGHTS, out, shard_bytes));
    return ndm_context_agree(model->context, write_config(model, folder, out));
}

/* FILE.safetensors is folder and stem. */
ndm_status ndm_model_save_grads(ndm_model *model, const char *file)
{
    static const char end[] = ".safetensors";
    char folder[4096], stem[4096];
    const char *slash = strrchr(file, '/'), *base = slash ? slash + 1 : file;
    size_t n = strlen(base), e = sizeof end - 1;

    if (n <= e || strcmp(base + n - e, end) != 0)
        NDM_FAIL(NDM_ERR_USAGE, "%s: gradients are written to a file that ends in %s", file, end);
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - file) : 1, slash ? file : ".");
    snprintf(stem, sizeof stem, "%.*s", (int)(n - e), base);
    return write_files(model, folder, stem, NDM_UNIT_GRADS, NDM_F32, 0);
}
