/* SPDX-License-Identifier: Apache-2.0 */
/* The activation of the mlp: act(gate) * up, or act(x). Its gradient overwrites its input. */
#include "model/model.h"

ndm_status ndm_op_act_forward(const ndm_run *run, const ndm_model_op *op)
{
    const ndm_model *m = run->model;
    ndm_act_args args = {
        .activation = m->config.activation,
        .gated = m->config.gated,
        .x_dtype = m->dtype,
        .x = ndm_run_slot(run, op->in),
        .y = ndm_run_slot(run, op->out),
        .n = m->size.padded,
        .width = m->size.ffn,
        .x_stride = m->size.gu_width,
        .y_stride = m->size.ffn,
    };

    return ndm_act(m->context->compute, &args);
}

ndm_status ndm_op_act_backward(const ndm_run *run, const ndm_model_op *op)
{
    const ndm_model *m = run->model;
    void *x = ndm_run_slot(run, op->in);
    ndm_act_backward_args args = {
        .activation = m->config.activation,
        .gated = m->config.gated,
        .x_dtype = m->dtype,
        .x = x,
        .dy = m->d_act,
        .dx = x,
        .y = ndm_run_remade(run, op->out),
        .n = m->size.padded,
        .width = m->size.ffn,
        .x_stride = m->size.gu_width,
        .dy_stride = m->size.ffn,
        .dx_stride = m->size.gu_width,
    };

    return ndm_act_backward(m->context->compute, &args);
}
