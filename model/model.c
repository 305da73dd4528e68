/* SPDX-License-Identifier: Apache-2.0 */
/* Models: making one from a config, and running a micro-batch through its blocks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/given.h"
#include "core/log.h"
#include "core/sized.h"
#include "model/model.h"

/* ---- making ------------------------------------------------------------------------------- */

/* "embed", "layers.3", "head", or the first and the last of several blocks. */
static void name_unit(const ndm_model *m, int64_t unit, const int64_t *unit_of, char *name,
                      size_t bytes)
{
    char first[32] = "", last[32] = "";

    for (int64_t b = 0; b < m->n_blocks; b++) {
        if (unit_of[b] != unit)
            continue;
        if (m->blocks[b].kind == NDM_BLOCK_LAYER)
            snprintf(last, sizeof last, "layers.%lld", (long long)m->blocks[b].layer);
        else
            snprintf(last, sizeof last, "%s",
                     m->blocks[b].kind == NDM_BLOCK_EMBED ? "embed" : "head");
        if (!first[0])
            memcpy(first, last, sizeof first);
    }
    snprintf(name, bytes, strcmp(first, last) ? "%s..%s" : "%s", first, last);
}

static ndm_status create_unit(ndm_model *m, int64_t unit, const int64_t *unit_of,
                              const ndm_fsdp_config *fsdp)
{
    ndm_param_spec *specs = calloc((size_t)m->n_blocks * NDM_BLOCK_SPECS_MAX, sizeof *specs);
    int count = 0, added = 0;
    char name[64];
    ndm_status status = NDM_OK;

    if (!specs)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the parameters of a unit");
    for (int64_t b = 0; b < m->n_blocks && status == NDM_OK; b++) {
        if (unit_of[b] != unit)
            continue;
        status = ndm_block_specs(&m->config, &m->blocks[b], count, specs + count, &added);
        count += added;
    }
    name_unit(m, unit, unit_of, name, sizeof name);
    if (status == NDM_OK)
        status = ndm_unit_create(m->context, name, specs, count, fsdp, &m->units[unit]);
    for (int i = 0; i < count; i++)
        free((char *)specs[i].name);
    free(specs);
    return status;
}

static ndm_status create_units(ndm_model *m, const ndm_fsdp_config *fsdp)
{
    int64_t *unit_of = calloc((size_t)m->n_blocks, sizeof *unit_of);
    ndm_status status = NDM_OK;

    m->units = calloc((size_t)m->n_blocks, sizeof *m->units);
    m->visits = calloc((size_t)m->n_blocks, sizeof *m->visits);
    if (!unit_of || !m->units || !m->visits) {
        free(unit_of);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the units of %lld blocks", (long long)m->n_blocks);
    }
    NDM_TRY_OR(status, ndm_wrap_plan(&m->config, fsdp, m->n_blocks, unit_of, &m->n_units), done);
    for (int64_t u = 0; u < m->n_units; u++)
        NDM_TRY_OR(status, create_unit(m, u, unit_of, fsdp), done);
    for (int64_t b = 0; b < m->n_blocks; b++)
        m->blocks[b].unit = m->units[unit_of[b]];
    ndm_block *head = &m->blocks[m->n_blocks - 1];
    if (m->config.tied) /* the head reads the embedding's table in the unit they share */
        head->param[W_EMBED] = m->blocks[0].param[W_EMBED];
    else
        NDM_TRY_OR(status, ndm_unit_expect_rows(m->blocks[0].unit, m->size.padded, m->dtype), done);
    if (m->size.chunk == m->size.padded) /* else chunks add to the whole of it */
        ndm_unit_expect_product(head->unit, m->units, m->n_units);
done:
    free(unit_of);
    return status;
}

static ndm_status create_blocks(ndm_model *m)
{
    m->n_blocks = m->config.layers + 2;
    m->blocks = calloc((size_t)m->n_blocks, sizeof *m->blocks);
    if (!m->blocks)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld blocks", (long long)m->n_blocks);
    m->blocks[0].kind = NDM_BLOCK_EMBED;
    for (int64_t i = 0; i < m->config.layers; i++)
        m->blocks[1 + i] = (ndm_block){.kind = NDM_BLOCK_LAYER, .layer = i};
    m->blocks[m->n_blocks - 1].kind = NDM_BLOCK_HEAD;
    return NDM_OK;
}

/* The folder, or the one that the config.json lies in. */
static ndm_status remember_folder(ndm_model *m, const char *model_name)
{
    const char *slash = strrchr(model_name, '/');

    if (ndm_file_is_dir(model_name))
        m->folder = ndm_text_duplicate(model_name);
    else if (ndm_file_exists(model_name))
        m->folder = slash ? ndm_text_printf("%.*s", (int)(slash - model_name), model_name)
                          : ndm_text_duplicate(".");
    else
        return NDM_OK;
    if (!m->folder)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the path %s", model_name);
    return NDM_OK;
}

static ndm_status build(ndm_model *m, const char *model_name, const ndm_fsdp_config *fsdp)
{
    NDM_TRY(ndm_context_agree(m->context, ndm_model_config_resolve(model_name, &m->config)));
    NDM_TRY(remember_folder(m, model_name));
    if (m->options.seq_len == 0)
        m->options.seq_len = m->config.max_positions;
    NDM_TRY(create_blocks(m));
    NDM_TRY(ndm_model_plan(m, fsdp));
    return ndm_context_agree(m->context, create_units(m, fsdp));
}

ndm_status ndm_model_create(ndm_context *context, const char *model_name,
                            const ndm_fsdp_config *fsdp, const ndm_model_options *options,
                            ndm_model **model)
{
    ndm_model_options own;
    ndm_fsdp_config sharding;
    ndm_model *m;

    NDM_NEED(context);
    NDM_NEED(model_name);
    NDM_NEED(model);
    NDM_TRY(NDM_SIZED_TAKE(ndm_model_options, &own, NDM_MODEL_OPTIONS_INIT, options));
    NDM_TRY(NDM_SIZED_TAKE(ndm_fsdp_config, &sharding, NDM_FSDP_CONFIG_INIT, fsdp));
    m = calloc(1, sizeof *m);
    if (!m)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a model");
    m->context = context;
    m->options = own;
    ndm_status status = build(m, model_name, &sharding);
    if (status != NDM_OK) {
        ndm_model_destroy(m);
        return status;
    }
    *model = m;
    return NDM_OK;
}

void ndm_model_destroy(ndm_model *m)
{
    if (!m)
        return;
    for (int64_t i = 0; m->units && i < m->n_units; i++)
        ndm_unit_destroy(m->units[i]);
    ndm_model_unplan(m);
    ndm_model_config_finish(&m->config);
    free(m->folder);
    free(m->units);
    free(m->visits);
    free(m->blocks);
    free(m);
}

ndm_status ndm_model_init(ndm_model *model, uint64_t seed)
{
    NDM_NEED(model);
    for (int64_t i = 0; i < model->n_units; i++)
        NDM_TRY(ndm_unit_init(model->units[i], seed));
    return NDM_OK;
}

/* ---- running ------------------------------------------------------------------------------ */

/* The unit used after block i in the given direction, if it is another one. */
static ndm_unit *unit_after(const ndm_model *m, int64_t i, int step)
{
    for (int64_t b = i + step; b >= 0 && b < m->n_blocks; b += step)
        if (m->blocks[b].unit != m->blocks[i].unit)
            return m->blocks[b].kind == NDM_BLOCK_EMBED && step < 0 ? NULL : m->blocks[b].unit;
    return NULL;
}

bool ndm_model_same_unit(const ndm_model *m, int64_t block)
{
    return block >= 0 && m->blocks[block].unit == m->blocks[block + 1].unit;
}

static ndm_status layer_forward(const ndm_run *run)
{
    for (int i = 0; i < ndm_decoder_op_count; i++)
        NDM_TRY(ndm_decoder_ops[i].forward(run, &ndm_decoder_ops[i]));
    return NDM_OK;
}

/* Makes slots again that were not kept, in order; what only the next block reads is left out. */
static ndm_status layer_again(const ndm_run *run)
{
    ndm_run again = *run;

    again.again = true;
    for (int i = 0; i < ndm_decoder_op_count; i++) {
        const ndm_model_op *op = &ndm_decoder_ops[i];
        if (ndm_op_runs_again(run->model, op))
            NDM_TRY(op->forward(&again, op));
    }
    return NDM_OK;
}

/* Gradients of weights wait until the backward of the op before has made their input. */
static ndm_status layer_backward(const ndm_run *run)
{
    const ndm_model_op *waiting = NULL;

    NDM_TRY(layer_again(run));
    for (int i = ndm_decoder_op_count - 1; i >= 0; i--) {
        const ndm_model_op *op = &ndm_decoder_ops[i];
        NDM_TRY(op->backward(run, op));
        if (waiting)
            NDM_TRY(waiting->weights(run, waiting));
        waiting = NULL;
        if (op->weights && run->model->keeping[op->in] == NDM_MADE_BY_BACKWARD)
            waiting = op;
        else if (op->weights)
            NDM_TRY(op->weights(run, op));
    }
    return NDM_OK;
}

/* The last layer's unit is used first in the backward: it stays gathered through the head. */
static bool stays_gathered(const ndm_model *m, int64_t block, bool train)
{
    return train && block == m->n_blocks - 2;
}

static ndm_status forward(ndm_model *m, bool train)
{
    for (int64_t i = 0; i < m->n_blocks - 1; i++) {
        ndm_run run = {m, &m->blocks[i], false};
        if (!ndm_model_same_unit(m, i - 1))
            NDM_TRY(ndm_engine_unit_enter(run.block->unit, unit_after(m, i, 1)));
        NDM_TRY(run.block->kind == NDM_BLOCK_EMBED ? ndm_embed_forward(&run) : layer_forward(&run));
        if (!ndm_model_same_unit(m, i) && !stays_gathered(m, i, train))
            NDM_TRY(ndm_engine_unit_leave(run.block->unit));
    }
    return NDM_OK;
}

/* A unit's gradients are complete when all its blocks have been through the backward. */
static ndm_status finish_visit(ndm_model *m, ndm_unit *unit)
{
    for (int64_t u = 0; u < m->n_units; u++)
        if (m->units[u] == unit && --m->visits[u] == 0)
            return ndm_unit_reduce_grads(unit, m->context->compute);
    return NDM_OK;
}

static void count_visits(ndm_model *m)
{
    memset(m->visits, 0, (size_t)m->n_units * sizeof *m->visits);
    for (int64_t b = 0; b < m->n_blocks; b++)
        for (int64_t u = 0; u < m->n_units; u++)
            m->visits[u] += m->units[u] == m->blocks[b].unit;
}

static ndm_status head(ndm_model *m, bool train)
{
    ndm_run run = {m, &m->blocks[m->n_blocks - 1], false};
    bool held = ndm_model_same_unit(m, m->n_blocks - 2);

    if (!held)
        NDM_TRY(ndm_engine_unit_enter(run.block->unit, NULL));
    if (train)
        NDM_TRY(ndm_unit_grads_begin(run.block->unit, m->context->compute));
    NDM_TRY(ndm_head_forward(&run, train));
    if (!held || !train)
        NDM_TRY(ndm_engine_unit_leave(run.block->unit));
    return train ? finish_visit(m, run.block->unit) : NDM_OK;
}

static ndm_status backward(ndm_model *m)
{
    for (int64_t i = m->n_blocks - 2; i > 0; i--) {
        ndm_run run = {m, &m->blocks[i], false};
        if (!stays_gathered(m, i, true) && !ndm_model_same_unit(m, i))
            NDM_TRY(ndm_engine_unit_enter(run.block->unit, unit_after(m, i, -1)));
        else if (unit_after(m, i, -1))
            NDM_TRY(ndm_unit_prefetch(unit_after(m, i, -1), m->context->compute));
        NDM_TRY(ndm_unit_grads_begin(run.block->unit, m->context->compute));
        NDM_TRY(layer_backward(&run));
        if (i == 1 || !ndm_model_same_unit(m, i - 1))
            NDM_TRY(ndm_engine_unit_leave(run.block->unit));
        NDM_TRY(finish_visit(m, run.block->unit));
    }
    ndm_run embed = {m, &m->blocks[0], false}; /* needs no weights */
    NDM_TRY(ndm_unit_grads_begin(embed.block->unit, m->context->compute));
    NDM_TRY(ndm_embed_backward(&embed));
    return finish_visit(m, embed.block->unit);
}

static ndm_status train_fed(ndm_model *m, double grad_scale, const int64_t *tokens)
{
    m->grad_scale = grad_scale;
    m->tokens = tokens;
    count_visits(m);
    NDM_TRY(forward(m, true));
    NDM_TRY(head(m, true));
    return backward(m);
}

ndm_status ndm_model_train_fed(ndm_model *model, const int64_t *tokens)
{
    return train_fed(model, 1.0, tokens);
}

ndm_status ndm_model_train_agreed(ndm_model *model, const ndm_batch *batch, double grad_scale)
{
    NDM_TRY(ndm_model_feed(model, batch));
    return train_fed(model, grad_scale, NULL);
}

ndm_status ndm_model_evaluate_agreed(ndm_model *model, const ndm_batch *batch)
{
    NDM_TRY(ndm_model_feed(model, batch));
    NDM_TRY(forward(model, false));
    return head(model, false);
}

/* What is wrong on one rank is an error on all: the others would wait for it in a collective. */
static ndm_status agree_on_batch(ndm_model *m, const ndm_batch *batch)
{
    return ndm_context_agree(m->context, ndm_model_check_batch(m, batch, m->size.batch));
}

ndm_status ndm_model_train(ndm_model *model, const ndm_batch *batch, double grad_scale)
{
    NDM_NEED(model);
    NDM_TRY(agree_on_batch(model, batch));
    model->loss_untaken = true;
    return ndm_model_train_agreed(model, batch, grad_scale);
}

ndm_status ndm_model_evaluate(ndm_model *model, const ndm_batch *batch)
{
    NDM_NEED(model);
    NDM_TRY(agree_on_batch(model, batch));
    model->loss_untaken = true;
    return ndm_model_evaluate_agreed(model, batch);
}

ndm_status ndm_model_drop_loss(ndm_model *model)
{
    model->loss_untaken = false;
    return ndm_zero(model->context->compute, model->loss, (int64_t)sizeof *model->loss);
}

ndm_status ndm_model_take_loss(ndm_model *model, double *sum)
{
    NDM_NEED(model);
    NDM_NEED(sum);
    ndm_stream *stream = model->context->compute;

    NDM_TRY(ndm_copy(stream, sum, model->loss, (int64_t)sizeof *sum, NDM_DEVICE_TO_HOST));
    NDM_TRY(ndm_model_drop_loss(model));
    return ndm_stream_synchronize(stream);
}

/* ---- facts -------------------------------------------------------------------------------- */

ndm_unit *const *ndm_model_units(const ndm_model *model, int64_t *n)
{
    if (n)
        *n = model ? model->n_units : 0;
    return model ? model->units : NULL;
}

int64_t ndm_model_parameters(const ndm_model *model)
{
    return model ? ndm_model_config_parameters(&model->config) : 0;
}

int64_t ndm_model_vocab(const ndm_model *model)
{
    return model ? model->config.vocab : 0;
}

const ndm_model_options *ndm_model_get_options(const ndm_model *model)
{
    return model ? &model->options : NULL;
}

ndm_context *ndm_model_context(const ndm_model *model)
{
    return model ? model->context : NULL;
}

double ndm_model_flops_per_token(const ndm_model *m)
{
    if (!m)
        return 0.0;
    const ndm_model_config *c = &m->config;
    double table = (double)c->vocab * (double)c->hidden;
    double positions = c->learned_positions ? (double)(c->max_positions * c->hidden) : 0.0;
    double matrices = (double)ndm_model_config_parameters(c) - (c->tied ? 0.0 : table) - positions;
    double attention = 6.0 * (double)(c->layers * c->heads * c->head_dim) *
                       (double)m->options.seq_len;

    return 6.0 * matrices + attention;
}
