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
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_linear linear = linear_of(run, op);

    if (m->region.parts > 1)
        return ndm_region_backward_in(m, &linear, ndm_run_slot(run, op->in), grad_of_out(run, op));
    return ndm_linear_backward(&linear, s->padded, ndm_run_slot(run, op->in), grad_of_out(run, op),
                               m->d_full, ndm_model_at(m, m->d_full, s->row0 * s->hidden));
}

/* ---- row-parallel: features of this rank -> the branch ------------------------------------- */

ndm_status ndm_op_row_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_linear linear = linear_of(run, op);

    m->pending = true;
    if (m->region.parts > 1)
        return ndm_region_multiply_out(m, &linear, ndm_run_slot(run, op->in));
    return ndm_linear_forward(&linear, s->padded, ndm_run_slot(run, op->in), m->branch,
                              ndm_model_at(m, m->branch, s->row0 * s->hidden));
}

ndm_status ndm_op_row_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    ndm_linear linear = linear_of(run, op);
    void *dx = op->in == S_ATT ? m->d_att : m->d_act, *own;

    if (m->region.parts > 1)
        return ndm_region_backward_out(m, &linear, ndm_run_slot(run, op->in), dx);
    NDM_TRY(ndm_region_place_grad(m, &own));
    return ndm_linear_backward(&linear, m->size.padded, ndm_run_slot(run, op->in), own, m->d_out,
                               dx);
}
