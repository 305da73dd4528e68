/* SPDX-License-Identifier: Apache-2.0 */
/* The front end of every op: checks the arguments, fills in packed strides, launches the body that
 * the device is bound to. */

#include "core/dtype.h"
#include "kernels/kernels.h"

static ndm_status launch(ndm_stream *stream, ndm_op op, const void *args, size_t args_bytes)
{
    const ndm_device *device = stream->device;

    if (!device->kernels)
        NDM_FAIL(NDM_ERR_STATE, "kernel %s: no kernels are bound to device %s", ndm_op_name(op),
                 device->ops->name);
    /* a world without any kernels only prices them; on others a missing body is a gap */
    if (!device->kernels->body[op] && device->ops->host_accessible)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel %s: device %s has none", ndm_op_name(op),
                 device->ops->name);
    ndm_launch call = {.name = ndm_op_name(op),
                       .body = device->kernels->body[op],
                       .args = args,
                       .args_bytes = args_bytes,
                       .op = (int)op};
    return ndm_stream_launch(stream, &call);
}

#define LAUNCH(name) launch(stream, NDM_OP_##name, &a, sizeof a)

#define FITS(name, doc)                                              \
    _Static_assert(sizeof(ndm_##name##_args) <= NDM_LAUNCH_ARGS_MAX, \
                   #name " arguments fit a launch");
NDM_KERNEL_LIST(FITS)
#undef FITS

static ndm_status check_pointer(const char *op, const char *field, const void *pointer)
{
    if (!pointer)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is NULL", op, field);
    return NDM_OK;
}

static ndm_status check_count(const char *op, const char *field, int64_t value, int64_t least)
{
    if (value < least)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %lld, below %lld", op, field, (long long)value,
                 (long long)least);
    return NDM_OK;
}

/* Fills in a stride of 0. */
static ndm_status check_stride(const char *op, const char *field, int64_t *stride, int64_t width)
{
    if (*stride == 0)
        *stride = width;
    if (*stride < width)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %lld, rows are %lld wide", op, field,
                 (long long)*stride, (long long)width);
    return NDM_OK;
}

static ndm_status check_weight(const char *op, const char *field, ndm_dtype dtype)
{
    if (dtype != NDM_F32 && dtype != NDM_BF16 && dtype != NDM_F16)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %s; fp32, bf16 and fp16 are known", op, field,
                 ndm_dtype_name(dtype));
    return NDM_OK;
}

/* These four read better at the call: the op and the field are named once. `a` is the launch's own
 * copy of the arguments. */
#define POINTER(op, field) NDM_TRY(check_pointer(op, #field, a.field))
#define COUNT(op, field, least) NDM_TRY(check_count(op, #field, a.field, least))
#define STRIDE(op, field, width) NDM_TRY(check_stride(op, #field, &a.field, width))
#define WEIGHT(op, field) NDM_TRY(check_weight(op, #field, a.field))

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
    WEIGHT("gemm", a_dtype);
    WEIGHT("gemm", b_dtype);
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
    if (a.n == 0 || a.width == 0)
        return NDM_OK;
    POINTER("embedding_backward", ids);
    POINTER("embedding_backward", dout);
    if (a.rows > 0)
        POINTER("embedding_backward", dtable);
    if (a.dposition_table)
        POINTER("embedding_backward", positions);
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
    WEIGHT("norm_backward", dtype);
    if (a.accumulate && a.dx == a.dy)
        NDM_FAIL(NDM_ERR_USAGE, "kernel norm_backward: dx is dy and accumulates onto it");
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
    return LAUNCH(act_backward);
}

static ndm_status check_vocabulary(const char *op, int64_t width, int64_t valid_width)
{
    if (valid_width < 0 || valid_width > width)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: valid_width %lld is not in 0..%lld (width)", op,
                 (long long)valid_width, (long long)width);
    return NDM_OK;
}

ndm_status ndm_ce_stats(ndm_stream *stream, const ndm_ce_stats_args *args)
{
    ndm_ce_stats_args a = *args;

    COUNT("ce_stats", n, 0);
    COUNT("ce_stats", width, 0);
    COUNT("ce_stats", first, 0);
    NDM_TRY(check_vocabulary("ce_stats", a.width, a.valid_width));
    if (a.n == 0)
        return NDM_OK;
    if (a.width > 0)
        POINTER("ce_stats", logits);
    POINTER("ce_stats", targets);
    POINTER("ce_stats", stats);
    STRIDE("ce_stats", stride, a.width);
    return LAUNCH(ce_stats);
}

ndm_status ndm_ce_merge(ndm_stream *stream, const ndm_ce_merge_args *args)
{
    ndm_ce_merge_args a = *args;

    COUNT("ce_merge", n, 0);
    COUNT("ce_merge", parts, 1);
    if (a.n == 0)
        return NDM_OK;
    POINTER("ce_merge", all);
    POINTER("ce_merge", stats);
    return LAUNCH(ce_merge);
}

ndm_status ndm_ce_apply(ndm_stream *stream, const ndm_ce_apply_args *args)
{
    ndm_ce_apply_args a = *args;

    COUNT("ce_apply", n, 0);
    COUNT("ce_apply", width, 0);
    COUNT("ce_apply", first, 0);
    COUNT("ce_apply", vocabulary, 1);
    NDM_TRY(check_vocabulary("ce_apply", a.width, a.valid_width));
    if (!(a.label_smoothing >= 0.0f && a.label_smoothing <= 1.0f))
        NDM_FAIL(NDM_ERR_USAGE, "kernel ce_apply: label_smoothing %g is not in 0..1",
                 (double)a.label_smoothing);
    if (a.n == 0)
        return NDM_OK;
    POINTER("ce_apply", targets);
    POINTER("ce_apply", stats);
    if (a.grad && a.width > 0)
        POINTER("ce_apply", logits);
    if (a.count_loss)
        POINTER("ce_apply", loss_sum);
    STRIDE("ce_apply", stride, a.width);
    return LAUNCH(ce_apply);
}

ndm_status ndm_adamw(ndm_stream *stream, const ndm_adamw_args *args)
{
    ndm_adamw_args a = *args;

    COUNT("adamw", n, 0);
    if (a.n == 0)
        return NDM_OK;
    POINTER("adamw", w);
    POINTER("adamw", m);
    POINTER("adamw", v);
    POINTER("adamw", g);
    if (a.copy)
        WEIGHT("adamw", copy_dtype);
    if (!(a.bias1 > 0.0 && a.bias2 > 0.0))
        NDM_FAIL(NDM_ERR_USAGE,
                 "kernel adamw: bias1 %g and bias2 %g must be above 0 (steps count from 1)",
                 a.bias1, a.bias2);
    return LAUNCH(adamw);
}

ndm_status ndm_sumsq(ndm_stream *stream, const ndm_sumsq_args *args)
{
    ndm_sumsq_args a = *args;

    COUNT("sumsq", n, 0);
    if (a.n == 0)
        return NDM_OK;
    POINTER("sumsq", x);
    POINTER("sumsq", out);
    return LAUNCH(sumsq);
}

static ndm_status check_float(const char *field, ndm_dtype dtype)
{
    if (dtype != NDM_F64)
        return check_weight("cast", field, dtype);
    return NDM_OK;
}

ndm_status ndm_cast(ndm_stream *stream, const ndm_cast_args *args)
{
    ndm_cast_args a = *args;

    COUNT("cast", n, 0);
    NDM_TRY(check_float("src_dtype", a.src_dtype));
    NDM_TRY(check_float("dst_dtype", a.dst_dtype));
    if (a.n == 0)
        return NDM_OK;
    POINTER("cast", src);
    POINTER("cast", dst);
    return LAUNCH(cast);
}

ndm_status ndm_scale(ndm_stream *stream, const ndm_scale_args *args)
{
    ndm_scale_args a = *args;

    COUNT("scale", n, 0);
    if (a.n == 0)
        return NDM_OK;
    POINTER("scale", x);
    return LAUNCH(scale);
}

ndm_status ndm_add(ndm_stream *stream, const ndm_add_args *args)
{
    ndm_add_args a = *args;

    COUNT("add", n, 0);
    if (a.n == 0)
        return NDM_OK;
    POINTER("add", x);
    POINTER("add", y);
    return LAUNCH(add);
}

ndm_status ndm_colsum(ndm_stream *stream, const ndm_colsum_args *args)
{
    ndm_colsum_args a = *args;

    COUNT("colsum", m, 0);
    COUNT("colsum", n, 0);
    if (a.m == 0 || a.n == 0)
        return NDM_OK;
    POINTER("colsum", x);
    POINTER("colsum", out);
    STRIDE("colsum", stride, a.n);
    return LAUNCH(colsum);
}

ndm_status ndm_copy2d(ndm_stream *stream, const ndm_copy2d_args *args)
{
    ndm_copy2d_args a = *args;

    COUNT("copy2d", m, 0);
    COUNT("copy2d", row_bytes, 0);
    if (a.m == 0 || a.row_bytes == 0)
        return NDM_OK;
    POINTER("copy2d", src);
    POINTER("copy2d", dst);
    STRIDE("copy2d", src_stride_bytes, a.row_bytes);
    STRIDE("copy2d", dst_stride_bytes, a.row_bytes);
    return LAUNCH(copy2d);
}

ndm_status ndm_init(ndm_stream *stream, const ndm_init_args *args)
{
    ndm_init_args a = *args;

    COUNT("init", n, 0);
    COUNT("init", first, 0);
    if (a.n == 0)
        return NDM_OK;
    POINTER("init", out);
    return LAUNCH(init);
}
