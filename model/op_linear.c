/* SPDX-License-Identifier: Apache-2.0 */
/* The model's split linear ops, made of linears (strategies/linear.c). A column op's input was
 * gathered where it was made, by the norm before it: so that it is whole again when it is made
 * again in the backward. */
#include "model/model.h"
#include "strategies/linear.h"

static ndm_linear linear_of(const ndm_run *run, const ndm_model_op *op)
{
    const int *param = run->block->param;
    ndm_linear linear = {
        .unit = run->block->unit, .dtype = run->model->dtype, .fp8 = run->model->options.fp8};

    for (int i = 0; i < NDM_LINEAR_MAX; i++)
        if (op->w[i] != W_NONE && ndm_block_has(run->block, op->w[i])) {
            linear.weight[linear.n] = param[op->w[i]];
            linear.bias[linear.n++] = op->b[i] == W_NONE ? -1 : param[op->b[i]];
        }
    return linear;
}

/* ---- column-parallel: norm output -> features of this rank -------------------------------- */

/* Gradient of a column op's output. Gate and up turn into their gradient in place. */
static void *grad_of_out(const ndm_run *run, const ndm_model_op *op)
{
    return op->out == S_GU ? ndm_run_slot(run, S_GU) : run->model->d_qkv;
}

ndm_status ndm_op_column_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_linear linear = linear_of(run, op);

    return ndm_region_multiply_in(run->model, &linear, ndm_run_slot(run, op->in),
                                  ndm_run_slot(run, op->out));
}

ndm_status ndm_op_column_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_linear linear = linear_of(run, op);

    return ndm_region_backward_in(run->model, &linear, grad_of_out(run, op));
}

ndm_status ndm_op_column_weights(const ndm_run *run, const ndm_model_op *op)
{
    int64_t rows = run->model->size.padded;
    ndm_linear linear = linear_of(run, op);
    const void *dy = grad_of_out(run, op);

    NDM_TRY(ndm_linear_grad_weight(&linear, rows, ndm_run_slot(run, op->in), dy));
    return ndm_linear_grad_bias(&linear, rows, dy);
}

/* ---- row-parallel: features of this rank -> the branch ------------------------------------- */

ndm_status ndm_op_row_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_linear linear = linear_of(run, op);

    run->model->pending = true;
    return ndm_region_multiply_out(run->model, &linear, ndm_run_slot(run, op->in));
}

ndm_status ndm_op_row_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    ndm_linear linear = linear_of(run, op);

    return ndm_region_backward_out(m, &linear, op->in == S_ATT ? m->d_att : m->d_act);
}

/* The gradient of the stream is as it was: only a norm's backward adds to it. */
ndm_status ndm_op_row_weights(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    ndm_linear linear = linear_of(run, op);

    NDM_TRY(ndm_linear_grad_bias(&linear, m->size.local, m->grad));
    return ndm_linear_grad_weight(&linear, m->size.padded, ndm_run_slot(run, op->in),
                                  ndm_region_whole_grad(m));
}
