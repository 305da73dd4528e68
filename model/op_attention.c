/* SPDX-License-Identifier: Apache-2.0 */
/* Attention and what prepares q and k for it: norms over heads (Qwen3) and rotary positions. A row
 * is q | k | v. */
#include <math.h>

#include "model/model.h"

/* ---- q and k ------------------------------------------------------------------------------ */

static ndm_status rotate(const ndm_run *run, void *qkv, float sign)
{
    const ndm_model *m = run->model;
    ndm_rope_args args = {
        .x = qkv,
        .x_dtype = m->dtype,
        .n = m->size.rows,
        .heads = m->size.heads + m->size.kv_heads, /* q's and k's heads lie side by side */
        .head_dim = m->size.head_dim,
        .stride = m->size.qkv_width,
        .positions = m->positions,
        .cos = m->rope_cos,
        .sin = m->rope_sin,
        .sign = sign,
    };

    return m->config.rope == NDM_ROPE_NONE ? NDM_OK : ndm_rope(m->context->compute, &args);
}

/* The heads of q, then those of k, each normed with a weight of its own. */
typedef struct head_range {
    ndm_weight weight;
    int64_t first, count;
} head_range;

static void head_ranges(const ndm_model *m, head_range ranges[2])
{
    ranges[0] = (head_range){W_QNORM, 0, m->size.heads};
    ranges[1] = (head_range){W_KNORM, m->size.heads, m->size.kv_heads};
}

/* rstd of head h over all rows: [N]. */
static float *rstd_of(const ndm_run *run, int64_t h)
{
    return (float *)ndm_run_slot(run, S_QK_RSTD) + h * run->model->size.padded;
}

static ndm_status norm_heads(const ndm_run *run, head_range range, const void *from, void *to)
{
    const ndm_model *m = run->model;
    int64_t d = m->size.head_dim;

    for (int64_t h = range.first; h < range.first + range.count; h++) {
        ndm_norm_args args = {
            .x_dtype = m->dtype,
            .x = ndm_model_at(m, from, h * d),
            .weight = ndm_block_weight(run->block, range.weight),
            .dtype = run->block->unit->fsdp.param_dtype,
            .eps = (float)m->config.norm_eps,
            .n = m->size.rows,
            .width = d,
            .x_stride = m->size.qkv_width,
            .y_stride = m->size.qkv_width,
            .y = ndm_model_at(m, to, h * d),
            .rstd = rstd_of(run, h),
        };
        NDM_TRY(ndm_norm(m->context->compute, &args));
    }
    return NDM_OK;
}

static ndm_status norm_heads_backward(const ndm_run *run, head_range range, const void *x, void *d)
{
    const ndm_model *m = run->model;
    int64_t width = m->size.head_dim;

    for (int64_t h = range.first; h < range.first + range.count; h++) {
        ndm_norm_backward_args args = {
            .x_dtype = m->dtype,
            .x = ndm_model_at(m, x, h * width),
            .dy = ndm_model_at(m, d, h * width),
            .rstd = rstd_of(run, h),
            .weight = ndm_block_weight(run->block, range.weight),
            .dtype = run->block->unit->fsdp.param_dtype,
            .n = m->size.rows,
            .width = width,
            .x_stride = m->size.qkv_width,
            .dy_stride = m->size.qkv_width,
            .dx_stride = m->size.qkv_width,
            .dx = ndm_model_at(m, d, h * width),
            .dweight = ndm_block_grad(run->block, range.weight),
            .workspace = m->workspace,
        };
        NDM_TRY(ndm_norm_backward(m->context->compute, &args));
    }
    return NDM_OK;
}

ndm_status ndm_op_qk_forward(const ndm_run *run, const ndm_model_op *op)
{
    const ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    void *qkv = ndm_run_slot(run, op->in), *normed = ndm_run_slot(run, S_QKV2);
    int64_t v = s->q_width + s->kv_width, element = (int64_t)ndm_dtype_bytes(m->dtype),
            row_bytes = s->qkv_width * element;
    head_range ranges[2];

    if (!m->config.qk_norm)
        return rotate(run, qkv, 1.0f);
    head_ranges(m, ranges);
    for (int i = 0; i < 2; i++)
        NDM_TRY(norm_heads(run, ranges[i], qkv, normed));
    ndm_copy2d_args values = {
        .src = ndm_model_at(m, qkv, v),
        .dst = ndm_model_at(m, normed, v),
        .m = s->rows,
        .row_bytes = s->kv_width * element,
        .src_stride_bytes = row_bytes,
        .dst_stride_bytes = row_bytes,
    };
    NDM_TRY(ndm_copy2d(m->context->compute, &values));
    return rotate(run, normed, 1.0f);
}

ndm_status ndm_op_qk_backward(const ndm_run *run, const ndm_model_op *op)
{
    const ndm_model *m = run->model;
    head_range ranges[2];

    NDM_TRY(rotate(run, m->d_qkv, -1.0f));
    if (!m->config.qk_norm)
        return NDM_OK;
    head_ranges(m, ranges);
    for (int i = 0; i < 2; i++)
        NDM_TRY(norm_heads_backward(run, ranges[i], ndm_run_slot(run, op->in), m->d_qkv));
    return NDM_OK;
}

/* ---- attention ---------------------------------------------------------------------------- */

static ndm_attention_call attention_call(const ndm_run *run)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    void *qkv = ndm_run_slot(run, m->config.qk_norm ? S_QKV2 : S_QKV);
    int64_t window = ndm_model_config_window(&m->config, run->block->layer);

    return (ndm_attention_call){
        .dtype = m->dtype,
        .q = qkv,
        .k = ndm_model_at(m, qkv, s->q_width),
        .v = ndm_model_at(m, qkv, s->q_width + s->kv_width),
        .dq = m->d_qkv,
        .dk = ndm_model_at(m, m->d_qkv, s->q_width),
        .dv = ndm_model_at(m, m->d_qkv, s->q_width + s->kv_width),
        .out = ndm_run_slot(run, S_ATT),
        .lse = ndm_run_slot(run, S_LSE),
        .dout = m->d_att,
        .delta = m->delta,
        .qkv_stride = s->qkv_width,
        .dqkv_stride = s->qkv_width,
        .out_stride = s->q_width,
        .dout_stride = s->q_width,
        .batch = s->batch,
        .tokens = s->tokens,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->head_dim,
        .scale = 1.0f / sqrtf((float)s->head_dim),
        .index = m->use_index ? m->index : NULL,
        .first = window > 0     ? m->window_first
                 : m->use_first ? m->first
                                : NULL,
    };
}

ndm_status ndm_op_attention_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_attention_call call = attention_call(run);

    (void)op;
    return ndm_engine_attention(run->model->context, NDM_FORWARD, &call);
}

ndm_status ndm_op_attention_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_attention_call call = attention_call(run);

    (void)op;
    return ndm_engine_attention(run->model->context, NDM_BACKWARD, &call);
}
