/* SPDX-License-Identifier: Apache-2.0 */
/* The head: final norm, logits, loss, and its whole backward at once.
 *
 * Logits are made for `chunk` rows at a time and turn into their gradient in place, so [N, V] never
 * exists. Under tp each rank holds a slice of the vocabulary: only four numbers a row are exchanged
 * (max, sum of exp, target logit, sum). */
#include "core/dtype.h"
#include "model/model.h"

/* The table lies [V, C] in the unit: lm_head's, or the embedding's when tied. */
static ndm_weight head_weight(const ndm_block *block)
{
    return ndm_block_has(block, W_HEAD) ? W_HEAD : W_EMBED;
}

static ndm_status final_norm_forward(const ndm_run *run)
{
    ndm_model *m = run->model;
    bool layer_norm = m->config.norm == NDM_NORM_LAYER;
    ndm_norm_args args = {
        .layer_norm = layer_norm,
        .x_dtype = m->dtype,
        .x = m->stream,
        .residual = ndm_region_own_out(m, m->branch),
        .sum = m->x_final,
        .weight = ndm_block_weight(run->block, W_NORM_F),
        .bias = ndm_block_weight(run->block, B_NORM_F),
        .dtype = run->block->unit->fsdp.param_dtype,
        .eps = (float)m->config.norm_eps,
        .weight_offset = m->config.norm_weight_offset,
        .n = m->size.local,
        .width = m->size.hidden,
        .y = ndm_region_own_in(m, m->h_final),
        .mean = layer_norm ? m->mean_final : NULL,
        .rstd = m->rstd_final,
    };

    return ndm_norm(m->context->compute, &args);
}

static ndm_status final_norm_backward(const ndm_run *run)
{
    ndm_model *m = run->model;
    bool layer_norm = m->config.norm == NDM_NORM_LAYER;
    ndm_norm_backward_args args = {
        .layer_norm = layer_norm,
        .x_dtype = m->dtype,
        .x = m->x_final,
        .dy = ndm_region_own_out(m, m->d_full),
        .mean = layer_norm ? m->mean_final : NULL,
        .rstd = m->rstd_final,
        .weight = ndm_block_weight(run->block, W_NORM_F),
        .dtype = run->block->unit->fsdp.param_dtype,
        .weight_offset = m->config.norm_weight_offset,
        .n = m->size.local,
        .width = m->size.hidden,
        .dx = m->grad,
        .dweight = ndm_block_grad(run->block, W_NORM_F),
        .dbias = ndm_block_grad(run->block, B_NORM_F),
        .workspace = m->workspace,
    };

    return ndm_norm_backward(m->context->compute, &args);
}

/* One GEMM of a chunk with the table. */
static ndm_gemm_args table_gemm(const ndm_run *run, int64_t rows)
{
    const ndm_sizes *s = &run->model->size;

    return (ndm_gemm_args){
        .m = rows,
        .alpha = 1.0f,
        .b = ndm_block_weight(run->block, head_weight(run->block)),
        .ldb = s->hidden,
        .a_dtype = run->model->dtype,
        .b_dtype = run->block->unit->fsdp.param_dtype,
        .c_dtype = run->model->dtype,
    };
}

static ndm_status chunk_logits(const ndm_run *run, int64_t row, int64_t rows)
{
    ndm_model *m = run->model;
    ndm_gemm_args args = table_gemm(run, rows);

    args.trans_b = true;
    args.n = m->size.vocab_rows;
    args.k = m->size.hidden;
    args.a = ndm_model_at(m, m->h_final, row * m->size.hidden);
    args.lda = m->size.hidden;
    args.c = m->logits;
    args.ldc = m->size.vocab_rows;
    return ndm_gemm(m->context->compute, &args);
}

static ndm_status chunk_loss(const ndm_run *run, int64_t row, int64_t rows, bool grad)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_stream *stream = m->context->compute;
    ndm_ce_stats_args stats = {
        .logits = m->logits,
        .x_dtype = m->dtype,
        .targets = m->targets + row,
        .n = rows,
        .width = s->vocab_rows,
        .valid_width = s->vocab_valid,
        .stride = s->vocab_rows,
        .first = s->vocab_first,
        .stats = m->stats,
    };
    ndm_ce_apply_args apply = {
        .logits = m->logits,
        .x_dtype = m->dtype,
        .targets = m->targets + row,
        .stats = m->stats,
        .n = rows,
        .width = s->vocab_rows,
        .valid_width = s->vocab_valid,
        .stride = s->vocab_rows,
        .first = s->vocab_first,
        .vocabulary = m->config.vocab,
        .grad_scale = (float)m->grad_scale,
        .tokens = m->tokens,
        .label_smoothing = (float)m->options.label_smoothing,
        .grad = grad,
        .count_loss = ndm_context_coord(m->context, NDM_TP) == 0,
        .loss_sum = m->loss,
    };

    NDM_TRY(ndm_ce_stats(stream, &stats));
    NDM_TRY(ndm_engine_loss_stats(m->context, m->stats, m->stats_all, rows));
    return ndm_ce_apply(stream, &apply);
}

/* dW += dlogits^T H for a chunk, in the rows that the unit asks for, one after the other. */
static ndm_status chunk_grad_weight(const ndm_run *run, int64_t row, int64_t rows)
{
    ndm_model *m = run->model;
    int param = run->block->param[head_weight(run->block)];
    ndm_product_rows part = {0};
    ndm_gemm_args args = {
        .trans_a = true,
        .n = m->size.hidden,
        .k = rows,
        .alpha = 1.0f,
        .lda = m->size.vocab_rows,
        .b = ndm_model_at(m, m->h_final, row * m->size.hidden),
        .a_dtype = m->dtype,
        .b_dtype = m->dtype,
        .ldb = m->size.hidden,
        .ldc = m->size.hidden,
    };

    for (;;) {
        NDM_TRY(ndm_unit_product_next(run->block->unit, param, m->context->compute, &part));
        if (part.rows == 0)
            return NDM_OK;
        args.m = part.rows;
        args.beta = part.beta;
        args.a = ndm_model_at(m, m->logits, part.first);
        args.c = part.grad;
        NDM_TRY(ndm_gemm(m->context->compute, &args));
    }
}

/* dH = dlogits W, and dW. */
static ndm_status chunk_backward(const ndm_run *run, int64_t row, int64_t rows)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_gemm_args input = table_gemm(run, rows);

    input.n = s->hidden;
    input.k = s->vocab_rows;
    input.a = m->logits;
    input.lda = s->vocab_rows;
    input.c = ndm_model_at(m, m->d_full, row * s->hidden);
    input.ldc = s->hidden;
    NDM_TRY(ndm_gemm(m->context->compute, &input));
    return chunk_grad_weight(run, row, rows);
}

ndm_status ndm_head_forward(const ndm_run *run, bool grad)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;

    NDM_TRY(ndm_region_settle(m)); /* the last branch */
    NDM_TRY(final_norm_forward(run));
    NDM_TRY(ndm_region_pass(m, NDM_REGION_IN, NDM_FORWARD, ndm_region_own_in(m, m->h_final),
                            m->h_final));
    NDM_TRY(ndm_region_settle(m));
    for (int64_t row = 0; row < s->padded; row += s->chunk) {
        int64_t rows = s->padded - row < s->chunk ? s->padded - row : s->chunk;
        NDM_TRY(chunk_logits(run, row, rows));
        NDM_TRY(ndm_model_tap_logits(m, row, rows));
        NDM_TRY(chunk_loss(run, row, rows, grad));
        if (grad)
            NDM_TRY(chunk_backward(run, row, rows));
    }
    if (!grad)
        return NDM_OK;
    NDM_TRY(ndm_region_pass(m, NDM_REGION_IN, NDM_BACKWARD, ndm_region_own_out(m, m->d_full),
                            m->d_full));
    NDM_TRY(ndm_region_settle(m));
    return final_norm_backward(run);
}
