/* SPDX-License-Identifier: Apache-2.0 */
/* Norms of the residual stream. The branch before joins the stream on the way: x += branch, then y
 * = norm(x). */
#include "model/model.h"

static ndm_weight bias_of(ndm_weight w)
{
    return w == W_NORM1 ? B_NORM1 : w == W_NORM2 ? B_NORM2 : B_NORM_F;
}

/* In a second making, the stream that was kept is read again; one that was not is summed again. */
static void choose_stream(const ndm_run *run, const ndm_model_op *op, ndm_norm_args *args)
{
    ndm_model *m = run->model;
    void *kept = ndm_run_slot(run, op->stream);

    if (run->again && m->keeping[op->stream] == NDM_KEPT) {
        args->x = kept;
    } else {
        args->x = m->stream;
        args->residual = m->pending ? ndm_region_own_out(m, m->branch) : NULL;
        args->sum = m->pending ? kept : NULL;
    }
    m->stream = kept;
    m->pending = false;
}

ndm_status ndm_op_norm_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    bool layer_norm = m->config.norm == NDM_NORM_LAYER;
    ndm_norm_args args = {
        .layer_norm = layer_norm,
        .x_dtype = m->dtype,
        .weight = ndm_block_weight(run->block, op->w[0]),
        .bias = ndm_block_weight(run->block, bias_of(op->w[0])),
        .dtype = run->block->unit->fsdp.param_dtype,
        .eps = (float)m->config.norm_eps,
        .weight_offset = m->config.norm_weight_offset,
        .n = m->size.local,
        .width = m->size.hidden,
        .y = ndm_region_own_in(m, ndm_run_slot(run, op->out)),
        .mean = layer_norm ? ndm_run_slot(run, op->mean) : NULL,
        .rstd = ndm_run_slot(run, op->rstd),
    };

    choose_stream(run, op, &args);
    NDM_TRY(ndm_region_settle(m)); /* the branch before */
    NDM_TRY(ndm_norm(m->context->compute, &args));
    return ndm_region_pass(m, NDM_REGION_IN, NDM_FORWARD, args.y, ndm_run_slot(run, op->out));
}

ndm_status ndm_op_norm_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    bool layer_norm = m->config.norm == NDM_NORM_LAYER;
    ndm_norm_backward_args args = {
        .layer_norm = layer_norm,
        .x_dtype = m->dtype,
        .accumulate = true, /* the stream's own gradient flows past the branch */
        .x = ndm_run_slot(run, op->stream),
        .dy = ndm_region_own_out(m, m->d_full),
        .mean = layer_norm ? ndm_run_slot(run, op->mean) : NULL,
        .rstd = ndm_run_slot(run, op->rstd),
        .weight = ndm_block_weight(run->block, op->w[0]),
        .bias = ndm_block_weight(run->block, bias_of(op->w[0])),
        .dtype = run->block->unit->fsdp.param_dtype,
        .weight_offset = m->config.norm_weight_offset,
        .n = m->size.local,
        .width = m->size.hidden,
        .dx = m->grad,
        .y = ndm_run_remade(run, op->out),
        .dweight = ndm_block_grad(run->block, op->w[0]),
        .dbias = ndm_block_grad(run->block, bias_of(op->w[0])),
        .workspace = m->workspace,
    };

    NDM_TRY(ndm_region_settle(m)); /* dy */
    return ndm_norm_backward(m->context->compute, &args);
}
