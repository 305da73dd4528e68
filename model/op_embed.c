/* SPDX-License-Identifier: Apache-2.0 */
/* The embedding: rows of a table that tp cuts by vocabulary. A rank makes zeros for ids that others
 * hold; the sum over tp is the whole. Learned positions are added by the first tp rank alone. */
#include "model/model.h"

static bool first_tp_rank(const ndm_model *m)
{
    return ndm_context_coord(m->context, NDM_TP) == 0;
}

ndm_status ndm_embed_forward(const ndm_run *run)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    void *x0 = m->slots[S_X0][0]; /* the stream of layer 0 */
    bool split = s->local != s->padded;
    void *full = split ? m->branch : x0;
    ndm_embedding_args args = {
        .ids = m->ids,
        .table = ndm_block_weight(run->block, W_EMBED),
        .dtype = run->block->unit->fsdp.param_dtype,
        .position_table = first_tp_rank(m) ? ndm_block_weight(run->block, W_POSITION) : NULL,
        .positions = m->positions,
        .scale = m->config.embedding_scale,
        .n = s->padded,
        .width = s->hidden,
        .first = s->vocab_first,
        .rows = s->vocab_rows,
        .out = full,
        .out_dtype = m->dtype,
    };

    NDM_TRY(ndm_embedding(m->context->compute, &args));
    m->stream = x0;
    m->pending = false;
    if (m->region.parts > 1) /* own rows have no place among all: they go where they belong */
        return ndm_region_pass(m, NDM_REGION_OUT, NDM_FORWARD, x0, full);
    void *mine = ndm_model_at(m, full, s->row0 * s->hidden);
    NDM_TRY(ndm_region_pass(m, NDM_REGION_OUT, NDM_FORWARD, mine, full));
    if (!split)
        return NDM_OK;
    return ndm_copy(m->context->compute, x0, mine,
                    s->local * s->hidden * (int64_t)ndm_dtype_bytes(m->dtype),
                    NDM_DEVICE_TO_DEVICE);
}

static ndm_status add_to_table(const ndm_run *run, const void *dout)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_embedding_backward_args args = {
        .ids = m->grad_ids,
        .positions = m->positions,
        .dout = dout,
        .dout_dtype = m->dtype,
        .scale = m->config.embedding_scale,
        .n = s->padded,
        .width = s->hidden,
        .first = s->vocab_first,
        .rows = s->vocab_rows,
        .dtable = ndm_block_grad(run->block, W_EMBED),
        .dposition_table = first_tp_rank(m) ? ndm_block_grad(run->block, W_POSITION) : NULL,
        .position_rows = m->config.max_positions,
    };

    return ndm_embedding_backward(m->context->compute, &args);
}

ndm_status ndm_embed_backward(const ndm_run *run)
{
    ndm_model *m = run->model;
    ndm_unit *unit = run->block->unit;
    void *full = m->d_out ? m->d_out : m->grad, *own;

    NDM_TRY(ndm_region_place_grad(m, &own));
    NDM_TRY(ndm_region_pass(m, NDM_REGION_OUT, NDM_BACKWARD, own, full));
    NDM_TRY(ndm_region_settle(m));
    if (ndm_unit_by_rows(unit))
        return ndm_unit_grad_rows(unit, m->grad_ids, full, m->dtype, m->size.vocab_first,
                                  m->config.embedding_scale, m->context->compute);
    return add_to_table(run, full);
}
