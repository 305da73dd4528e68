/* SPDX-License-Identifier: Apache-2.0 */
/* Front ends of the loss, the optimizer, and plain vectors and rows. */
#include "kernels/launch.h"

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
    WEIGHT("ce_stats", x_dtype);
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
    WEIGHT("ce_apply", x_dtype);
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
    if (!a.step && !(a.bias1 > 0.0 && a.bias2 > 0.0))
        NDM_FAIL(NDM_ERR_USAGE,
                 "kernel adamw: bias1 %g and bias2 %g must be above 0 (steps count from 1)",
                 a.bias1, a.bias2);
    return LAUNCH(adamw);
}

ndm_status ndm_clip(ndm_stream *stream, const ndm_clip_args *args)
{
    ndm_clip_args a = *args;

    COUNT("clip", n, 1);
    POINTER("clip", sums);
    POINTER("clip", step);
    return LAUNCH(clip);
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
        return ndm_check_weight("cast", field, dtype);
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
    WEIGHT("scale", x_dtype);
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
    WEIGHT("add", y_dtype);
    WEIGHT("add", x_dtype);
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
    WEIGHT("colsum", x_dtype);
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

ndm_status ndm_amax(ndm_stream *stream, const ndm_amax_args *args)
{
    ndm_amax_args a = *args;

    COUNT("amax", m, 0);
    COUNT("amax", width, 0);
    POINTER("amax", out);
    if (a.m == 0 || a.width == 0)
        return NDM_OK;
    POINTER("amax", src);
    STRIDE("amax", stride, a.width);
    WEIGHT("amax", src_dtype);
    return LAUNCH(amax);
}

/* Without elements there is still a scale to write. */
ndm_status ndm_quantize(ndm_stream *stream, const ndm_quantize_args *args)
{
    ndm_quantize_args a = *args;

    COUNT("quantize", m, 0);
    COUNT("quantize", width, 0);
    POINTER("quantize", amax);
    POINTER("quantize", scale);
    if (a.m > 0 && a.width > 0) {
        POINTER("quantize", src);
        POINTER("quantize", dst);
    }
    STRIDE("quantize", stride, a.width);
    WEIGHT("quantize", src_dtype);
    EIGHT("quantize", dst_dtype);
    return LAUNCH(quantize);
}

ndm_status ndm_dequantize(ndm_stream *stream, const ndm_dequantize_args *args)
{
    ndm_dequantize_args a = *args;

    COUNT("dequantize", n, 0);
    if (a.n == 0)
        return NDM_OK;
    POINTER("dequantize", src);
    POINTER("dequantize", scale);
    POINTER("dequantize", dst);
    WEIGHT("dequantize", dst_dtype);
    EIGHT("dequantize", src_dtype);
    return LAUNCH(dequantize);
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
