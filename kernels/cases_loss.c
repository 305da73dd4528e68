/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the loss, the optimizer, and plain vectors and rows. */
#include <math.h>

#include "kernels/cases_list.h"
#include "kernels/ref.h"

/* ---- cross entropy --------------------------------------------------------------------------- */

/* Padding of a slice: none, some columns, all but one, all. */
static int64_t valid_columns(int64_t width, int64_t option)
{
    const int64_t valid[] = {width, width - width / 3, 1, 0};
    return valid[option];
}

/* Every fourth target is ignored, as -100 or as another negative number. */
static void ignore_targets(int32_t *targets, int64_t n)
{
    for (int64_t i = 1; i < n; i += 4)
        targets[i] = i % 8 == 1 ? -100 : -1;
}

static ndm_status prepare_ce_stats(ndm_case *c)
{
    ignore_targets((int32_t *)c->args.ce_stats.targets, c->args.ce_stats.n);
    return NDM_OK;
}

bool ndm_case_get_ce_stats(int64_t i, ndm_case *c)
{
    ndm_ce_stats_args *a = &c->args.ce_stats;
    int64_t valid = case_option(&i, 4), pad = case_option(&i, 2) * 5,
            first = case_option(&i, 2) * 23;
    double spread = case_option(&i, 2) ? 1e4 : 3.0;

    if (i >= CASE_SIZES + 2)
        return false;
    *a = (ndm_ce_stats_args){.x_dtype = c->activations,
                             .n = case_size(i, 5),
                             .first = first,
                             .width = i < CASE_SIZES ? case_size(i, 1) : 3000 + 37 * i};
    a->valid_width = valid_columns(a->width, valid);
    a->stride = a->width + pad;
    IN(ce_stats, logits, c->activations, a->n, a->width, a->stride)->high = spread;
    case_range(IN(ce_stats, targets, NDM_I32, 1, a->n, a->n), (double)first - 3,
               (double)(first + a->width + 3));
    OUT(ce_stats, stats, NDM_F32, a->n, 4, 4)->scale = spread * sqrt((double)a->width);
    c->prepare = prepare_ce_stats;
    LABEL("ce_stats n %lld V %lld valid %lld stride %lld first %lld spread %g", (long long)a->n,
          (long long)a->width, (long long)a->valid_width, (long long)a->stride, (long long)first,
          spread);
    return true;
}

/* A slice without valid columns: -inf, 0, 0, 0. */
static ndm_status prepare_ce_merge(ndm_case *c)
{
    const ndm_ce_merge_args *a = &c->args.ce_merge;

    for (int64_t i = 0; i < a->n * a->parts; i++) {
        float *s = (float *)a->all + 4 * i;
        s[1] = fabsf(s[1]) + 1.0f;
        if (i % 5 == 2) {
            s[0] = -INFINITY;
            s[1] = s[2] = s[3] = 0.0f;
        }
    }
    return NDM_OK;
}

bool ndm_case_get_ce_merge(int64_t i, ndm_case *c)
{
    ndm_ce_merge_args *a = &c->args.ce_merge;
    int64_t parts = 1 + case_option(&i, 5);

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_ce_merge_args){.n = case_size(i, 1), .parts = parts};
    IN(ce_merge, all, NDM_F32, parts * a->n, 4, 4)->high = 5.0;
    OUT(ce_merge, stats, NDM_F32, a->n, 4, 4);
    c->prepare = prepare_ce_merge;
    LABEL("ce_merge n %lld parts %lld", (long long)a->n, (long long)parts);
    return true;
}

/* Statistics of the slice itself, taken as the whole row. */
static ndm_status prepare_ce_apply(ndm_case *c)
{
    const ndm_ce_apply_args *a = &c->args.ce_apply;
    ndm_ce_stats_args stats = {.logits = a->logits,
                               .x_dtype = a->x_dtype,
                               .targets = a->targets,
                               .n = a->n,
                               .width = a->width,
                               .valid_width = a->valid_width,
                               .stride = a->stride,
                               .first = a->first,
                               .stats = (float *)a->stats};

    ignore_targets((int32_t *)a->targets, a->n);
    if (a->tokens)
        *(int64_t *)a->tokens = c->variant;
    return ndm_ref_ce_stats(&stats);
}

bool ndm_case_get_ce_apply(int64_t i, ndm_case *c)
{
    ndm_ce_apply_args *a = &c->args.ce_apply;
    int64_t valid = case_option(&i, 3), pad = i % 2 * 5, first = i % 3 * 23;
    bool smooth = case_option(&i, 2), grad = case_option(&i, 2), count = case_option(&i, 2),
         rows = case_option(&i, 2);

    if (i >= CASE_SIZES + 2)
        return false;
    *a = (ndm_ce_apply_args){.x_dtype = c->activations,
                             .n = case_size(i, 5),
                             .first = first,
                             .width = i < CASE_SIZES ? case_size(i, 1) : 3000 + 37 * i,
                             .grad_scale = 0.25f,
                             .label_smoothing = smooth ? 0.1f : 0.0f,
                             .grad = grad,
                             .count_loss = count};
    a->valid_width = valid_columns(a->width, valid);
    a->stride = a->width + pad;
    a->vocabulary = first + a->valid_width + 7;
    ndm_case_buffer *logits = IN(ce_apply, logits, c->activations, a->n, a->width, a->stride);
    logits->high = 3.0;
    logits->scale = 0.05;
    logits->output = grad;
    case_range(IN(ce_apply, targets, NDM_I32, 1, a->n, a->n), (double)first - 3,
               (double)(first + a->valid_width));
    IN(ce_apply, stats, NDM_F32, a->n, 4, 4);
    if (count)
        OUT(ce_apply, loss_sum, NDM_F64, 1, 1, 1)->scale = (double)a->n * 10.0;
    if (rows)
        OUT(ce_apply, loss_rows, NDM_F32, 1, a->n, a->n)->scale = 10.0;
    c->variant = i % 4 == 3 ? 0 : 11; /* without any token there is no gradient */
    if (count)
        IN(ce_apply, tokens, NDM_I64, 1, 1, 1);
    c->prepare = prepare_ce_apply;
    LABEL("ce_apply n %lld V %lld valid %lld pad %lld first %lld smoothing %d grad %d count %d "
          "rows %d of %d tokens",
          (long long)a->n, (long long)a->width, (long long)a->valid_width, (long long)pad,
          (long long)first, smooth, grad, count, rows, c->variant);
    return true;
}

/* ---- optimizer ------------------------------------------------------------------------------- */

/* Lengths past the blocks of vectors. */
static int64_t vector_length(int64_t i)
{
    static const int64_t large[] = {1000, 4097, 20000, 131073};
    return i < CASE_SIZES ? case_sizes[i] : large[i - CASE_SIZES];
}
enum { VECTOR_LENGTHS = CASE_SIZES + 4 };

/* Elements that never had a gradient, for eps 0. */
static ndm_status prepare_adamw(ndm_case *c)
{
    const ndm_adamw_args *a = &c->args.adamw;

    for (int64_t i = 0; i < a->n; i += 3) {
        a->m[i] = a->v[i] = 0.0f;
        ((float *)a->g)[i] = 0.0f;
    }
    if (a->step)
        *(ndm_step_numbers *)a->step = (ndm_step_numbers){
            0.02, 1.0 - pow(a->beta1, 4.0), 1.0 - pow(a->beta2, 4.0), c->variant ? NAN : 0.3};
    return NDM_OK;
}

bool ndm_case_get_adamw(int64_t i, ndm_case *c)
{
    ndm_adamw_args *a = &c->args.adamw;
    int64_t copy = case_option(&i, 4);
    bool decay = case_option(&i, 2), eps = case_option(&i, 2);
    int64_t step = i % 3; /* the arguments' numbers; those of the device; a step not taken */

    if (i >= VECTOR_LENGTHS)
        return false;
    *a = (ndm_adamw_args){.n = vector_length(i),
                          .lr = 0.01,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = eps ? 1e-8 : 0.0,
                          .weight_decay = decay ? 0.1 : 0.0,
                          .grad_scale = 0.7};
    a->bias1 = 1.0 - pow(a->beta1, 3.0);
    a->bias2 = 1.0 - pow(a->beta2, 3.0);
    a->copy_dtype = copy ? (ndm_dtype)(copy - 1) : NDM_F32;
    OUT(adamw, w, NDM_F32, 1, a->n, a->n);
    OUT(adamw, m, NDM_F32, 1, a->n, a->n);
    case_scale(case_range(OUT(adamw, v, NDM_F32, 1, a->n, a->n), 0.01, 1.0), 0.1);
    IN(adamw, g, NDM_F32, 1, a->n, a->n);
    if (copy)
        OUT(adamw, copy, a->copy_dtype, 1, a->n, a->n);
    if (step)
        IN(adamw, step, NDM_F64, 1, sizeof *a->step / sizeof(double),
           sizeof *a->step / sizeof(double));
    c->variant = step == 2;
    c->prepare = prepare_adamw;
    LABEL("adamw n %lld copy %s decay %g eps %g %s", (long long)a->n,
          copy ? case_weight_name(a->copy_dtype) : "none", a->weight_decay, a->eps,
          step == 0   ? ""
          : step == 1 ? "step on the device"
                      : "step not taken");
    return true;
}

/* A norm of 3, 0, one that is not a number, and a sum that is infinite. */
static ndm_status prepare_clip(ndm_case *c)
{
    const ndm_clip_args *a = &c->args.clip;
    double *sums = (double *)a->sums;

    sums[0] = c->variant == 1 ? 0.0 : c->variant == 2 ? NAN : 9.0;
    if (c->variant == 3)
        sums[a->n - 1] = INFINITY;
    return NDM_OK;
}

bool ndm_case_get_clip(int64_t i, ndm_case *c)
{
    enum { NUMBERS = sizeof(ndm_step_numbers) / sizeof(double) };
    static const double most[] = {0.0, 1.0, 5.0};
    ndm_clip_args *a = &c->args.clip;
    int64_t content = case_option(&i, 4), limit = case_option(&i, 3), largest = case_option(&i, 2);

    if (i >= 2)
        return false;
    *a = (ndm_clip_args){.n = 1 + 2 * i, .max_norm = most[limit]};
    IN(clip, sums, NDM_F64, 1, a->n, a->n);
    if (largest)
        case_range(IN(clip, largest, NDM_F64, 1, 1, 1), 0.0, 4.0);
    OUT(clip, step, NDM_F64, 1, NUMBERS, NUMBERS);
    c->variant = (int)content;
    c->prepare = prepare_clip;
    LABEL("clip of %lld sums to %g, %s, content %lld", (long long)a->n, a->max_norm,
          largest ? "largest" : "root of squares", (long long)content);
    return true;
}

/* ---- vectors and rows ------------------------------------------------------------------------ */

static ndm_status prepare_sumsq(ndm_case *c)
{
    const ndm_sumsq_args *a = &c->args.sumsq;

    if (c->variant == 1)
        ((float *)a->x)[a->n / 2] = NAN;
    if (c->variant == 2)
        ((float *)a->x)[a->n - 1] = -INFINITY;
    return NDM_OK;
}

bool ndm_case_get_sumsq(int64_t i, ndm_case *c)
{
    ndm_sumsq_args *a = &c->args.sumsq;
    bool max = case_option(&i, 2);
    int64_t special = case_option(&i, 3);

    if (i >= VECTOR_LENGTHS)
        return false;
    *a = (ndm_sumsq_args){.n = vector_length(i), .weight = 0.5};
    IN(sumsq, x, NDM_F32, 1, a->n, a->n);
    OUT(sumsq, out, NDM_F64, 1, 1, 1)->scale = (double)a->n;
    if (max)
        case_range(OUT(sumsq, out_max, NDM_F64, 1, 1, 1), 0.0, 2.0);
    c->variant = (int)special;
    c->prepare = prepare_sumsq;
    LABEL("sumsq n %lld max %d %s", (long long)a->n, max,
          special == 0   ? "finite"
          : special == 1 ? "with a NaN"
                         : "with an infinity");
    return true;
}

/* Values that rounding, overflow and subnormals show on. */
static ndm_status prepare_cast(ndm_case *c)
{
    static const float special[] = {0.0f,      -0.0f,     INFINITY,    -INFINITY,  NAN,
                                    3.4e38f,   -3.4e38f,  65504.0f,    65519.99f,  65520.0f,
                                    0x1.01p0f, 0x1.03p0f, 1e-40f,      6e-8f,      2.9e-8f,
                                    1e-5f,     1.0f / 3,  0x1.0018p0f, 0x1.001p0f, 1e-45f};
    const ndm_cast_args *a = &c->args.cast;

    for (int64_t i = 0; i < a->n && i < (int64_t)(sizeof special / sizeof special[0]); i++)
        ndm_convert(&special[i], NDM_F32,
                    (char *)a->src + (a->n - 1 - i) * (int64_t)ndm_dtype_bytes(a->src_dtype),
                    a->src_dtype, 1);
    return NDM_OK;
}

bool ndm_case_get_cast(int64_t i, ndm_case *c)
{
    ndm_cast_args *a = &c->args.cast;
    ndm_dtype from = (ndm_dtype)case_option(&i, 4), to = (ndm_dtype)case_option(&i, 4);

    if (i >= VECTOR_LENGTHS)
        return false;
    *a = (ndm_cast_args){.src_dtype = from, .dst_dtype = to, .n = vector_length(i)};
    IN(cast, src, from, 1, a->n, a->n);
    OUT(cast, dst, to, 1, a->n, a->n);
    c->prepare = prepare_cast;
    LABEL("cast %s to %s n %lld", ndm_dtype_name(from), ndm_dtype_name(to), (long long)a->n);
    return true;
}

bool ndm_case_get_scale(int64_t i, ndm_case *c)
{
    ndm_scale_args *a = &c->args.scale;

    if (i >= VECTOR_LENGTHS)
        return false;
    *a = (ndm_scale_args){.x_dtype = c->activations, .factor = 0.3f, .n = vector_length(i)};
    OUT(scale, x, c->activations, 1, a->n, a->n);
    LABEL("scale n %lld", (long long)a->n);
    return true;
}

bool ndm_case_get_add(int64_t i, ndm_case *c)
{
    ndm_add_args *a = &c->args.add;
    float factor = case_option(&i, 2) ? -0.3f : 1.0f;

    if (i >= VECTOR_LENGTHS)
        return false;
    *a = (ndm_add_args){.y_dtype = i % 2 ? NDM_F32 : c->activations,
                        .x_dtype = c->activations,
                        .factor = factor,
                        .n = vector_length(i)};
    OUT(add, y, a->y_dtype, 1, a->n, a->n);
    IN(add, x, a->x_dtype, 1, a->n, a->n);
    LABEL("add n %lld factor %g", (long long)a->n, (double)factor);
    return true;
}

bool ndm_case_get_colsum(int64_t i, ndm_case *c)
{
    ndm_colsum_args *a = &c->args.colsum;
    int64_t pad = case_option(&i, 3) * 3;

    if (i >= 2 * CASE_SIZES)
        return false;
    *a = (ndm_colsum_args){.x_dtype = c->activations,
                           .m = i < CASE_SIZES ? case_size(i, 5) : 40 * i,
                           .n = case_size(i, 1)};
    a->stride = a->n + pad;
    IN(colsum, x, c->activations, a->m, a->n, a->stride);
    OUT(colsum, out, NDM_F32, 1, a->n, a->n)->scale = sqrt((double)a->m);
    LABEL("colsum m %lld n %lld stride %lld", (long long)a->m, (long long)a->n,
          (long long)a->stride);
    return true;
}

enum { ROWS_MORE = 3 }; /* rows that an index does not reach */

/* Gather may repeat rows; scatter must not. */
static ndm_status prepare_copy2d(ndm_case *c)
{
    const ndm_copy2d_args *a = &c->args.copy2d;

    for (int64_t i = 0; a->index && i < a->m; i++)
        ((int32_t *)a->index)[i] = (int32_t)(a->gather ? i * 7 % (a->m + ROWS_MORE)
                                                       : a->m + ROWS_MORE - 1 - i);
    return NDM_OK;
}

bool ndm_case_get_copy2d(int64_t i, ndm_case *c)
{
    ndm_copy2d_args *a = &c->args.copy2d;
    int64_t kind = case_option(&i, 3), unit = 1 + 3 * case_option(&i, 2),
            pad = case_option(&i, 2) * 12;

    if (i >= 2 * CASE_SIZES)
        return false;
    /* kinds: rows in order, gather, scatter; row_bytes of any number and of whole floats */
    *a = (ndm_copy2d_args){
        .m = case_size(i, 5), .row_bytes = unit * case_size(i, 1), .gather = kind == 1};
    a->src_stride_bytes = a->row_bytes + pad;
    a->dst_stride_bytes = a->row_bytes + pad / 3;
    int64_t src_rows = a->m + (kind == 1 ? ROWS_MORE : 0),
            dst_rows = a->m + (kind == 2 ? ROWS_MORE : 0);
    case_range(IN(copy2d, src, NDM_U8, src_rows, a->row_bytes, a->src_stride_bytes), 0, 256);
    case_range(OUT(copy2d, dst, NDM_U8, dst_rows, a->row_bytes, a->dst_stride_bytes), 0, 256);
    if (kind)
        IN(copy2d, index, NDM_I32, 1, a->m, a->m);
    c->prepare = prepare_copy2d;
    LABEL("copy2d %s m %lld row_bytes %lld strides %lld %lld",
          kind == 0   ? "rows"
          : kind == 1 ? "gather"
                      : "scatter",
          (long long)a->m, (long long)a->row_bytes, (long long)a->src_stride_bytes,
          (long long)a->dst_stride_bytes);
    return true;
}

/* A NaN or an infinity, or neither. */
static ndm_status prepare_amax(ndm_case *c)
{
    const ndm_amax_args *a = &c->args.amax;
    float special = c->variant == 1 ? NAN : -INFINITY;

    if (c->variant > 0)
        ref_store((void *)a->src, a->src_dtype, (a->m - 1) * a->stride + a->width / 2, special);
    return NDM_OK;
}

bool ndm_case_get_amax(int64_t i, ndm_case *c)
{
    ndm_amax_args *a = &c->args.amax;
    int64_t pad = case_option(&i, 2) * 3, special = case_option(&i, 3);

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_amax_args){
        .src_dtype = c->activations, .m = case_size(i, 5), .width = case_size(i, 1)};
    a->stride = a->width + pad;
    IN(amax, src, c->activations, a->m, a->width, a->stride);
    OUT(amax, out, NDM_F32, 1, 1, 1);
    c->variant = (int)special;
    c->prepare = prepare_amax;
    LABEL("amax m %lld width %lld stride %lld special %lld", (long long)a->m, (long long)a->width,
          (long long)a->stride, (long long)special);
    return true;
}

/* The sizes of gradients and of activations, exactly the largest number, none, and no number. */
static ndm_status prepare_quantize(ndm_case *c)
{
    static const float amax[] = {3e-6f, 5.0f, 448.0f, 57344.0f, 0.0f, INFINITY};

    *(float *)c->args.quantize.amax = amax[c->variant];
    return NDM_OK;
}

bool ndm_case_get_quantize(int64_t i, ndm_case *c)
{
    ndm_quantize_args *a = &c->args.quantize;
    int64_t pad = case_option(&i, 2) * 3, size = case_option(&i, 6);
    ndm_dtype dtype = case_option(&i, 2) ? NDM_F8E5M2 : NDM_F8E4M3;

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_quantize_args){.src_dtype = c->activations,
                             .dst_dtype = dtype,
                             .m = case_size(i, 5),
                             .width = case_size(i, 1)};
    a->stride = a->width + pad;
    IN(quantize, src, c->activations, a->m, a->width, a->stride)->high = size == 0 ? 1e-6 : 1.5;
    OUT(quantize, dst, dtype, a->m, a->width, a->width);
    IN(quantize, amax, NDM_F32, 1, 1, 1);
    OUT(quantize, scale, NDM_F32, 1, 1, 1);
    c->variant = (int)size;
    c->prepare = prepare_quantize;
    LABEL("quantize to %s m %lld width %lld stride %lld amax %lld", ndm_dtype_name(dtype),
          (long long)a->m, (long long)a->width, (long long)a->stride, (long long)size);
    return true;
}

bool ndm_case_get_init(int64_t i, ndm_case *c)
{
    ndm_init_args *a = &c->args.init;
    float std = case_option(&i, 2) ? 0.02f : 0.0f;
    int64_t first = case_option(&i, 3) * 7;

    if (i >= CASE_SIZES + 2)
        return false;
    *a = (ndm_init_args){
        .n = vector_length(i), .seed = 5, .stream = 9, .first = first, .mean = 0.5f, .std = std};
    OUT(init, out, NDM_F32, 1, a->n, a->n);
    LABEL("init n %lld first %lld std %g", (long long)a->n, (long long)first, (double)std);
    return true;
}

bool ndm_case_get_dequantize(int64_t i, ndm_case *c)
{
    static const ndm_dtype types[] = {NDM_F32, NDM_BF16, NDM_F16};
    ndm_dequantize_args *a = &c->args.dequantize;
    bool e5m2 = case_option(&i, 2);
    int64_t type = case_option(&i, 3);

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_dequantize_args){.src_dtype = e5m2 ? NDM_F8E5M2 : NDM_F8E4M3,
                               .dst_dtype = types[type],
                               .n = case_size(i, 1)};
    IN(dequantize, src, a->src_dtype, 1, a->n, a->n);
    case_range(IN(dequantize, scale, NDM_F32, 1, 1, 1), 0.5, 2.0);
    OUT(dequantize, dst, a->dst_dtype, 1, a->n, a->n);
    LABEL("dequantize %s to %s n %lld", ndm_dtype_name(a->src_dtype), ndm_dtype_name(a->dst_dtype),
          (long long)a->n);
    return true;
}
