/* SPDX-License-Identifier: Apache-2.0 */
/* Front ends of the ops that layers are made of: matrix product, embedding, norm, rotation,
 * attention, activation. */
#include "core/dtype.h"
#include "kernels/launch.h"

/* 8-bit operands come together, with scales; others have none. */
static ndm_status check_operands(const ndm_gemm_args *args)
{
    ndm_gemm_args a = *args;
    bool eight = ndm_dtype_is_f8(a.a_dtype);

    if (eight != ndm_dtype_is_f8(a.b_dtype))
        NDM_FAIL(NDM_ERR_USAGE, "kernel gemm: a is %s and b %s; 8-bit types come together",
                 ndm_dtype_name(a.a_dtype), ndm_dtype_name(a.b_dtype));
    if (!eight && (a.a_scale || a.b_scale))
        NDM_FAIL(NDM_ERR_USAGE, "kernel gemm: scales are for 8-bit types, a is %s",
                 ndm_dtype_name(a.a_dtype));
    if (eight) {
        WEIGHT("gemm", bias_dtype);
        return NDM_OK;
    }
    WEIGHT("gemm", a_dtype);
    WEIGHT("gemm", b_dtype);
    return NDM_OK;
}

ndm_status ndm_gemm(ndm_stream *stream, const ndm_gemm_args *args)
{
    ndm_gemm_args a = *args;

    COUNT("gemm", m, 0);
    COUNT("gemm", n, 0);
    COUNT("gemm", k, 0);
    if (a.m == 0 || a.n == 0)
        return NDM_OK;
    POINTER("gemm", c);
    if (a.k > 0) {
        POINTER("gemm", a);
        POINTER("gemm", b);
    }
    STRIDE("gemm", lda, a.trans_a ? a.m : a.k);
    STRIDE("gemm", ldb, a.trans_b ? a.k : a.n);
    STRIDE("gemm", ldc, a.n);
    NDM_TRY(check_operands(&a));
    WEIGHT("gemm", c_dtype);
    return LAUNCH(gemm);
}

ndm_status ndm_embedding(ndm_stream *stream, const ndm_embedding_args *args)
{
    ndm_embedding_args a = *args;

    COUNT("embedding", n, 0);
    COUNT("embedding", width, 0);
    COUNT("embedding", rows, 0);
    COUNT("embedding", first, 0);
    if (a.n == 0 || a.width == 0)
        return NDM_OK;
    POINTER("embedding", ids);
    if (a.rows > 0)
        POINTER("embedding", table);
    POINTER("embedding", out);
    if (a.position_table)
        POINTER("embedding", positions);
    WEIGHT("embedding", dtype);
    WEIGHT("embedding", out_dtype);
    return LAUNCH(embedding);
}

ndm_status ndm_embedding_backward(ndm_stream *stream, const ndm_embedding_backward_args *args)
{
    ndm_embedding_backward_args a = *args;

    COUNT("embedding_backward", n, 0);
    COUNT("embedding_backward", width, 0);
    COUNT("embedding_backward", rows, 0);
    COUNT("embedding_backward", first, 0);
    COUNT("embedding_backward", position_rows, 0);
    COUNT("embedding_backward", part_first, 0);
    COUNT("embedding_backward", part_count, 0);
    if (a.n == 0 || a.width == 0)
        return NDM_OK;
    POINTER("embedding_backward", ids);
    POINTER("embedding_backward", dout);
    if (a.rows > 0)
        POINTER("embedding_backward", dtable);
    if (a.dposition_table)
        POINTER("embedding_backward", positions);
    WEIGHT("embedding_backward", dout_dtype);
    return LAUNCH(embedding_backward);
}

ndm_status ndm_norm(ndm_stream *stream, const ndm_norm_args *args)
{
    ndm_norm_args a = *args;

    COUNT("norm", n, 0);
    COUNT("norm", width, 1);
    if (a.n == 0)
        return NDM_OK;
    POINTER("norm", x);
    POINTER("norm", y);
    POINTER("norm", weight);
    POINTER("norm", rstd);
    if (a.layer_norm)
        POINTER("norm", mean);
    if (a.residual)
        POINTER("norm", sum);
    STRIDE("norm", x_stride, a.width);
    STRIDE("norm", y_stride, a.width);
    WEIGHT("norm", dtype);
    WEIGHT("norm", x_dtype);
    if (a.residual && a.x_stride != a.width)
        NDM_FAIL(NDM_ERR_USAGE,
                 "kernel norm: with a residual x is packed, but x_stride is %lld and width %lld",
                 (long long)a.x_stride, (long long)a.width);
    return LAUNCH(norm);
}

int64_t ndm_norm_workspace_bytes(int64_t width)
{
    return NDM_NORM_PARTIALS * 2 * width * (int64_t)sizeof(float);
}

ndm_status ndm_norm_backward(ndm_stream *stream, const ndm_norm_backward_args *args)
{
    ndm_norm_backward_args a = *args;

    COUNT("norm_backward", n, 0);
    COUNT("norm_backward", width, 1);
    if (a.n == 0)
        return NDM_OK;
    POINTER("norm_backward", x);
    POINTER("norm_backward", dy);
    POINTER("norm_backward", rstd);
    POINTER("norm_backward", weight);
    POINTER("norm_backward", dx);
    POINTER("norm_backward", dweight);
    POINTER("norm_backward", workspace);
    if (a.layer_norm)
        POINTER("norm_backward", mean);
    STRIDE("norm_backward", x_stride, a.width);
    STRIDE("norm_backward", dy_stride, a.width);
    STRIDE("norm_backward", dx_stride, a.width);
    STRIDE("norm_backward", y_stride, a.width);
    WEIGHT("norm_backward", dtype);
    WEIGHT("norm_backward", x_dtype);
    if (a.accumulate && a.dx == a.dy)
        NDM_FAIL(NDM_ERR_USAGE, "kernel norm_backward: dx is dy and accumulates onto it");
    if (a.y && (a.y == a.dx || a.y == a.x))
        NDM_FAIL(NDM_ERR_USAGE, "kernel norm_backward: y is %s", a.y == a.x ? "x" : "dx");
    return LAUNCH(norm_backward);
}

ndm_status ndm_rope(ndm_stream *stream, const ndm_rope_args *args)
{
    ndm_rope_args a = *args;

    COUNT("rope", n, 0);
    COUNT("rope", heads, 1);
    COUNT("rope", head_dim, 2);
    if (a.head_dim % 2 != 0)
        NDM_FAIL(NDM_ERR_USAGE, "kernel rope: head_dim %lld is odd", (long long)a.head_dim);
    if (a.sign != 1.0f && a.sign != -1.0f)
        NDM_FAIL(NDM_ERR_USAGE, "kernel rope: sign %g is neither 1 nor -1", (double)a.sign);
    if (a.n == 0)
        return NDM_OK;
    POINTER("rope", x);
    POINTER("rope", positions);
    POINTER("rope", cos);
    POINTER("rope", sin);
    STRIDE("rope", stride, a.heads * a.head_dim);
    WEIGHT("rope", x_dtype);
    return LAUNCH(rope);
}

/* `op` is attention or its backward: both take the same rows. */
static ndm_status check_attention(const char *op, ndm_attention_args *args)
{
    ndm_attention_args a = *args;

    COUNT(op, heads, 1);
    COUNT(op, kv_heads, 1);
    COUNT(op, head_dim, 1);
    if (a.heads % a.kv_heads != 0)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: kv_heads %lld does not divide heads %lld", op,
                 (long long)a.kv_heads, (long long)a.heads);
    if (a.causal && !a.q_index != !a.k_index)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: causal with q_index %s and k_index %s: both or neither",
                 op, a.q_index ? "set" : "NULL", a.k_index ? "set" : "NULL");
    if (a.causal && !a.q_index && a.tq != a.tk)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: causal without indices, but tq is %lld and tk %lld", op,
                 (long long)a.tq, (long long)a.tk);
    POINTER(op, q);
    POINTER(op, out);
    POINTER(op, lse);
    if (a.tk > 0) {
        POINTER(op, k);
        POINTER(op, v);
    }
    STRIDE(op, q_stride, a.heads * a.head_dim);
    STRIDE(op, k_stride, a.kv_heads * a.head_dim);
    STRIDE(op, v_stride, a.kv_heads * a.head_dim);
    STRIDE(op, out_stride, a.heads * a.head_dim);
    WEIGHT(op, x_dtype);
    WEIGHT(op, out_dtype);
    *args = a;
    return NDM_OK;
}

static ndm_status check_extent(const char *op, const ndm_attention_args *args, bool *empty)
{
    ndm_attention_args a = *args;

    COUNT(op, batch, 0);
    COUNT(op, tq, 0);
    COUNT(op, tk, 0);
    *empty = a.batch == 0 || a.tq == 0;
    return NDM_OK;
}

ndm_status ndm_attention(ndm_stream *stream, const ndm_attention_args *args)
{
    ndm_attention_args a = *args;
    bool empty;

    NDM_TRY(check_extent("attention", &a, &empty));
    if (empty)
        return NDM_OK;
    NDM_TRY(check_attention("attention", &a));
    return LAUNCH(attention);
}

/* Without queries there is still dk, dv to clear, unless they accumulate. */
ndm_status ndm_attention_backward(ndm_stream *stream, const ndm_attention_backward_args *args)
{
    ndm_attention_backward_args a = *args;
    int64_t width = a.forward.heads * a.forward.head_dim;
    int64_t kv_width = a.forward.kv_heads * a.forward.head_dim;
    bool empty;

    NDM_TRY(check_extent("attention_backward", &a.forward, &empty));
    if (a.forward.batch == 0 || (empty && (a.accumulate_dkv || a.forward.tk == 0)))
        return NDM_OK;
    if (!empty) {
        NDM_TRY(check_attention("attention_backward", &a.forward));
        POINTER("attention_backward", dout);
        POINTER("attention_backward", delta);
        POINTER("attention_backward", dq);
    }
    if (a.forward.tk > 0) {
        POINTER("attention_backward", dk);
        POINTER("attention_backward", dv);
    }
    STRIDE("attention_backward", dout_stride, width);
    STRIDE("attention_backward", dq_stride, width);
    STRIDE("attention_backward", dk_stride, kv_width);
    STRIDE("attention_backward", dv_stride, kv_width);
    WEIGHT("attention_backward", d_dtype);
    return LAUNCH(attention_backward);
}

ndm_status ndm_attention_merge(ndm_stream *stream, const ndm_attention_merge_args *args)
{
    ndm_attention_merge_args a = *args;

    COUNT("attention_merge", batch, 0);
    COUNT("attention_merge", t, 0);
    COUNT("attention_merge", heads, 1);
    COUNT("attention_merge", head_dim, 1);
    if (a.batch == 0 || a.t == 0)
        return NDM_OK;
    POINTER("attention_merge", out);
    POINTER("attention_merge", lse);
    POINTER("attention_merge", part);
    POINTER("attention_merge", part_lse);
    STRIDE("attention_merge", out_stride, a.heads * a.head_dim);
    STRIDE("attention_merge", part_stride, a.heads * a.head_dim);
    WEIGHT("attention_merge", out_dtype);
    WEIGHT("attention_merge", part_dtype);
    return LAUNCH(attention_merge);
}

static ndm_status check_activation(const char *op, ndm_activation activation)
{
    if (activation != NDM_SILU && activation != NDM_GELU_TANH && activation != NDM_GELU_ERF)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: activation %d is unknown", op, (int)activation);
    return NDM_OK;
}

ndm_status ndm_act(ndm_stream *stream, const ndm_act_args *args)
{
    ndm_act_args a = *args;

    NDM_TRY(check_activation("act", a.activation));
    COUNT("act", n, 0);
    COUNT("act", width, 0);
    if (a.n == 0 || a.width == 0)
        return NDM_OK;
    POINTER("act", x);
    POINTER("act", y);
    STRIDE("act", x_stride, a.gated ? 2 * a.width : a.width);
    STRIDE("act", y_stride, a.width);
    WEIGHT("act", x_dtype);
    return LAUNCH(act);
}

ndm_status ndm_act_backward(ndm_stream *stream, const ndm_act_backward_args *args)
{
    ndm_act_backward_args a = *args;
    int64_t x_width = a.gated ? 2 * a.width : a.width;

    NDM_TRY(check_activation("act_backward", a.activation));
    COUNT("act_backward", n, 0);
    COUNT("act_backward", width, 0);
    if (a.n == 0 || a.width == 0)
        return NDM_OK;
    POINTER("act_backward", x);
    POINTER("act_backward", dy);
    POINTER("act_backward", dx);
    STRIDE("act_backward", x_stride, x_width);
    STRIDE("act_backward", dy_stride, a.width);
    STRIDE("act_backward", dx_stride, x_width);
    STRIDE("act_backward", y_stride, a.width);
    WEIGHT("act_backward", x_dtype);
    if (a.y && (a.y == a.dx || a.y == a.x))
        NDM_FAIL(NDM_ERR_USAGE, "kernel act_backward: y is %s", a.y == a.x ? "x" : "dx");
    return LAUNCH(act_backward);
}
