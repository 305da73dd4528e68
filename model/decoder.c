/* SPDX-License-Identifier: Apache-2.0 */
/* A decoder layer as a list of ops. The backward walks it from the end; what was not kept is made
 * again first, or on the way. */
#include "model/model.h"

const ndm_model_op ndm_decoder_ops[] = {
    {.name = "attention_norm",
     .forward = ndm_op_norm_forward,
     .backward = ndm_op_norm_backward,
     .out = S_H1,
     .stream = S_X0,
     .mean = S_MEAN1,
     .rstd = S_RSTD1,
     .w = {W_NORM1}},
    {.name = "qkv",
     .forward = ndm_op_column_forward,
     .backward = ndm_op_column_backward,
     .weights = ndm_op_column_weights,
     .in = S_H1,
     .out = S_QKV,
     .w = {W_QKV, W_Q, W_K, W_V}, /* a family has the first or the others */
     .b = {B_QKV, B_Q, B_K, B_V}},
    {.name = "qk",
     .forward = ndm_op_qk_forward,
     .backward = ndm_op_qk_backward,
     .in = S_QKV,
     .out = S_QKV},
    {.name = "attention",
     .forward = ndm_op_attention_forward,
     .backward = ndm_op_attention_backward,
     .in = S_QKV,
     .out = S_ATT},
    {.name = "attention_out",
     .forward = ndm_op_row_forward,
     .backward = ndm_op_row_backward,
     .weights = ndm_op_row_weights,
     .in = S_ATT,
     .out = S_X1,
     .w = {W_O},
     .b = {B_O}},
    {.name = "mlp_norm",
     .forward = ndm_op_norm_forward,
     .backward = ndm_op_norm_backward,
     .out = S_H2,
     .stream = S_X1,
     .mean = S_MEAN2,
     .rstd = S_RSTD2,
     .w = {W_NORM2}},
    {.name = "gate_up",
     .forward = ndm_op_column_forward,
     .backward = ndm_op_column_backward,
     .weights = ndm_op_column_weights,
     .in = S_H2,
     .out = S_GU,
     .w = {W_GATE, W_UP},
     .b = {B_GATE, B_UP}},
    {.name = "act",
     .forward = ndm_op_act_forward,
     .backward = ndm_op_act_backward,
     .in = S_GU,
     .out = S_ACT},
    {.name = "down",
     .forward = ndm_op_row_forward,
     .backward = ndm_op_row_backward,
     .weights = ndm_op_row_weights,
     .in = S_ACT,
     .out = S_X1,
     .w = {W_DOWN},
     .b = {B_DOWN},
     .last = true},
};

const int ndm_decoder_op_count = (int)(sizeof ndm_decoder_ops / sizeof ndm_decoder_ops[0]);

/* What the backward itself makes is made ahead of it only for an op that runs again and reads it:
 * the next one. */
bool ndm_op_runs_again(const ndm_model *m, const ndm_model_op *op)
{
    if (op->last || m->keeping[op->out] == NDM_KEPT)
        return false;
    return m->keeping[op->out] == NDM_MADE_AGAIN || ndm_op_runs_again(m, op + 1);
}
