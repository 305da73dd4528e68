/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of the matrix product and of attention, and the list of all generators. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cases_list.h"
#include "kernels/ref.h"

/* Ops of parameters, statistics or bytes have no activations. */
static bool has_activations(ndm_op op)
{
    switch (op) {
    case NDM_OP_ce_merge:
    case NDM_OP_adamw:
    case NDM_OP_sumsq:
    case NDM_OP_clip:
    case NDM_OP_dequantize:
    case NDM_OP_cast:
    case NDM_OP_copy2d:
    case NDM_OP_init:
        return false;
    default:
        return true;
    }
}

/* Of every three cases two are consecutive ones in fp32, and the third is one of these, now the
 * first and now the second, in bf16. */
static int64_t choose_activations(int64_t i, ndm_dtype *activations)
{
    int64_t pair = i / 3, part = i % 3;

    *activations = part < 2 ? NDM_F32 : NDM_BF16;
    return 2 * pair + (part < 2 ? part : (pair + pair / 2 + pair / 8) % 2);
}

static bool generate(ndm_op op, int64_t i, ndm_case *c)
{
    static bool (*const generators[NDM_OP_COUNT])(int64_t, ndm_case *) = {
#define GENERATOR(name, doc) ndm_case_get_##name,
        NDM_KERNEL_LIST(GENERATOR)
#undef GENERATOR
    };

    return generators[op](i, c);
}

bool ndm_case_get(ndm_op op, int64_t i, ndm_case *c)
{
    memset(c, 0, sizeof *c);
    c->op = op;
    if (has_activations(op))
        i = choose_activations(i, &c->activations);
    if (!generate(op, i, c))
        return false;
    if (c->activations != NDM_F32) {
        size_t used = strlen(c->label);
        (void)snprintf(c->label + used, sizeof c->label - used, " in %s",
                       ndm_dtype_name(c->activations));
    }
    return true;
}

/* ---- matrix product -------------------------------------------------------------------------- */

/* Scales are powers of two. */
static ndm_status prepare_scales(ndm_case *c)
{
    *(float *)c->args.gemm.a_scale = 0.5f;
    *(float *)c->args.gemm.b_scale = 4.0f;
    return NDM_OK;
}

void ndm_case_gemm(ndm_case *c, const ndm_gemm_args *shape, bool bias, int64_t pad)
{
    ndm_gemm_args *a = &c->args.gemm;

    *c = (ndm_case){.op = NDM_OP_gemm, .activations = shape->a_dtype, .args.gemm = *shape};
    a->lda = (a->trans_a ? a->m : a->k) + pad;
    a->ldb = (a->trans_b ? a->k : a->n) + pad;
    a->ldc = a->n + pad;
    IN(gemm, a, a->a_dtype, a->trans_a ? a->k : a->m, a->lda - pad, a->lda);
    IN(gemm, b, a->b_dtype, a->trans_b ? a->n : a->k, a->ldb - pad, a->ldb);
    if (bias)
        IN(gemm, bias, ndm_dtype_is_f8(a->b_dtype) ? a->bias_dtype : a->b_dtype, 1, a->n, a->n);
    if (ndm_dtype_is_f8(a->a_dtype)) {
        IN(gemm, a_scale, NDM_F32, 1, 1, 1);
        IN(gemm, b_scale, NDM_F32, 1, 1, 1);
        c->prepare = prepare_scales;
    }
    case_scale(OUT(gemm, c, a->c_dtype, a->m, a->n, a->ldc), sqrt((double)(a->k + 1)));
    c->flop = 2.0 * (double)a->m * (double)a->n * (double)a->k;
    LABEL("gemm %c%c m %lld n %lld k %lld alpha %g beta %g bias %d b %s pad %lld",
          a->trans_a ? 'T' : 'N', a->trans_b ? 'T' : 'N', (long long)a->m, (long long)a->n,
          (long long)a->k, (double)a->alpha, (double)a->beta, bias, case_weight_name(a->b_dtype),
          (long long)pad);
}

/* Some past the blocks of fast products, some without a k. */
static const int64_t large_products[][3] = {
    {130, 70, 400}, {300, 33, 17}, {9, 2100, 5},  {33, 48, 900},
    {720, 40, 65},  {5, 7, 0},     {1, 300, 600}, {257, 513, 33},
};
enum { LARGE_PRODUCTS = sizeof large_products / sizeof large_products[0] };

/* Of 8-bit numbers: as multiplied directly, and as not. */
static const int64_t eight_products[][3] = {{32, 48, 64}, {80, 16, 160}, {48, 20, 32}};
enum { EIGHT_PRODUCTS = sizeof eight_products / sizeof eight_products[0] };

static void case_eight(int64_t i, bool other, ndm_gemm_args *a)
{
    a->c_dtype = a->a_dtype;
    a->a_dtype = other ? NDM_F8E5M2 : NDM_F8E4M3;
    a->b_dtype = other && a->trans_b ? NDM_F8E5M2 : NDM_F8E4M3;
    a->bias_dtype = NDM_F32;
    a->m = eight_products[i][0];
    a->n = eight_products[i][1];
    a->k = eight_products[i][2];
}

static void case_product(int64_t i, ndm_gemm_args *a)
{
    const int64_t *large = i < 2 * CASE_SIZES ? NULL : large_products[i - 2 * CASE_SIZES];

    a->m = large ? large[0] : case_size(i, 1);
    a->n = large ? large[1] : case_size(i, 5);
    a->k = large ? large[2] : case_size(i + i / CASE_SIZES, 7);
}

bool ndm_case_get_gemm(int64_t i, ndm_case *c)
{
    static const float factors[][2] = {{1.0f, 0.0f}, {1.0f, 1.0f}, {-0.5f, 0.75f}};
    int64_t pad = i % 5 == 0 ? 0 : i % 5 * 2 - 1;
    int64_t trans = case_option(&i, 4), factor = case_option(&i, 3);
    bool bias = case_option(&i, 2);
    bool half = (trans + factor + bias + i) % 2; /* with each of these, over the shapes */

    int64_t eight = i - 2 * CASE_SIZES - LARGE_PRODUCTS;
    if (eight >= EIGHT_PRODUCTS)
        return false;
    ndm_gemm_args a = {.trans_a = trans & 1,
                       .trans_b = trans & 2,
                       .alpha = factors[factor][0],
                       .beta = factors[factor][1],
                       .b_dtype = half ? NDM_BF16 : NDM_F32};
    if (c->activations != NDM_F32) { /* the sums of a gradient, or the next activations */
        a.a_dtype = a.b_dtype = c->activations;
        a.c_dtype = half ? NDM_F32 : c->activations;
    }
    if (eight >= 0)
        case_eight(eight, half, &a);
    else
        case_product(i, &a);
    ndm_case_gemm(c, &a, bias, eight >= 0 ? pad / 3 * 16 : pad);
    return true;
}

/* ---- attention ------------------------------------------------------------------------------- */

enum attention_mask {
    MASK_CAUSAL,    /* no index arrays */
    MASK_FULL,      /* every query sees every key */
    MASK_DOCUMENTS, /* causal within documents, no index arrays */
    MASK_ZIGZAG,    /* causal with a window, rows in the order of a zigzag split */
    MASK_BLOCK,     /* queries and keys from different places of a sequence: some see nothing */
    MASK_SUFFIX,    /* not causal, keys from first[q] on */
    MASKS
};

static const char *const mask_names[MASKS] = {"causal", "full",  "documents",
                                              "zigzag", "block", "suffix"};

/* Place of row i of n when the first and the last quarter of a sequence come first. */
static int32_t zigzag_index(int64_t i, int64_t n)
{
    int64_t quarter = n / 4, half = 2 * quarter;
    if (i < quarter)
        return (int32_t)i;
    if (i < half)
        return (int32_t)(n - half + i);
    return (int32_t)(i - quarter);
}

static void fill_first(const ndm_attention_args *a, int mask, int32_t *first)
{
    int64_t window = a->tq < 100 ? 9 : a->tq / 2; /* some tiles of keys whole, some in part */

    for (int64_t row = 0; row < a->batch * a->tq; row++) {
        int64_t i = row % a->tq, place = a->q_index ? a->q_index[row] : i;
        if (mask ==
            MASK_DOCUMENTS) /* documents of 5, 10, 15, ... and another shift in each sequence */
            for (int64_t start = row / a->tq, length = 5; start <= i; start += length, length += 5)
                first[row] = (int32_t)start;
        else if (mask == MASK_SUFFIX)
            first[row] = (int32_t)(place * 2 % (a->tk + 3));
        else
            first[row] = (int32_t)(place > window ? place - window : 0);
    }
}

static void fill_index(const ndm_attention_args *a, int mask, int32_t *index, int64_t rows,
                       int64_t shift)
{
    for (int64_t row = 0; row < a->batch * rows; row++) {
        int64_t i = row % rows;
        index[row] = mask == MASK_ZIGZAG ? zigzag_index(i, rows) : (int32_t)(i + shift);
    }
}

static void prepare_masks(const ndm_attention_args *a, int mask)
{
    if (a->q_index)
        fill_index(a, mask, (int32_t *)a->q_index, a->tq, mask == MASK_BLOCK ? 3 : 0);
    if (a->k_index)
        fill_index(a, mask, (int32_t *)a->k_index, a->tk, mask == MASK_BLOCK ? 6 : 0);
    if (a->q_first) {
        memset((int32_t *)a->q_first, 0, (size_t)(a->batch * a->tq) * sizeof(int32_t));
        fill_first(a, mask, (int32_t *)a->q_first);
    }
}

static ndm_status prepare_attention(ndm_case *c)
{
    prepare_masks(&c->args.attention, c->variant);
    return NDM_OK;
}

/* Backward takes out and lse of the forward of the same rows. */
static ndm_status prepare_attention_backward(ndm_case *c)
{
    prepare_masks(&c->args.attention_backward.forward, c->variant);
    NDM_TRY(ndm_ref_attention(&c->args.attention_backward.forward));
    ndm_attention_backward_args a = c->args.attention_backward;
    const ndm_attention_args *f = &a.forward;
    for (int64_t b = 0; b < f->batch && !a.make_delta; b++)
        for (int64_t h = 0; h < f->heads; h++)
            for (int64_t i = 0; i < f->tq; i++) {
                int64_t row = b * f->tq + i, column = h * f->head_dim;
                ref_row x = ref_row_of(f->out, f->out_dtype, row * f->out_stride + column);
                ref_row y = ref_row_of(a.dout, f->out_dtype, row * a.dout_stride + column);
                double sum = 0.0;
                for (int64_t d = 0; d < f->head_dim; d++)
                    sum += (double)ref_get(x, d) * ref_get(y, d);
                a.delta[(b * f->heads + h) * f->tq + i] = (float)sum;
            }
    return NDM_OK;
}

static void attention_strides(ndm_attention_args *a, int mask, int64_t pad)
{
    int64_t width = a->heads * a->head_dim, kv_width = a->kv_heads * a->head_dim;

    a->causal = mask != MASK_FULL && mask != MASK_SUFFIX;
    a->scale = 1.0f / sqrtf((float)a->head_dim);
    a->q_stride = a->out_stride = width + pad;
    a->k_stride = kv_width + 2 * pad;
    a->v_stride = kv_width + 3 * pad;
}

/* Inputs of both directions; `at` is the offset of the ndm_attention_args in the case's arguments.
 */
static void attention_inputs(ndm_case *c, const ndm_attention_args *a, int mask, size_t at)
{
    int64_t width = a->heads * a->head_dim, kv_width = a->kv_heads * a->head_dim;
    int64_t queries = a->batch * a->tq, keys = a->batch * a->tk;
    bool indexed = mask == MASK_ZIGZAG || mask == MASK_BLOCK || mask == MASK_SUFFIX;

#define FIELD(field) #field, at + offsetof(ndm_attention_args, field)
    ndm_case_add(c, FIELD(q), a->x_dtype, queries, width, a->q_stride)->high = 1.5;
    ndm_case_add(c, FIELD(k), a->x_dtype, keys, kv_width, a->k_stride)->high = 1.5;
    ndm_case_add(c, FIELD(v), a->x_dtype, keys, kv_width, a->v_stride);
    if (indexed) {
        ndm_case_add(c, FIELD(q_index), NDM_I32, 1, queries, queries);
        ndm_case_add(c, FIELD(k_index), NDM_I32, 1, keys, keys);
    }
    if (mask == MASK_DOCUMENTS || mask == MASK_ZIGZAG || mask == MASK_SUFFIX)
        ndm_case_add(c, FIELD(q_first), NDM_I32, 1, queries, queries);
    ndm_case_add(c, FIELD(out), a->out_dtype, queries, width, a->out_stride);
    ndm_case_add(c, FIELD(lse), NDM_F32, a->batch * a->heads, a->tq, a->tq);
#undef FIELD
    c->variant = mask;
    c->flop = 4.0 * (double)a->batch * (double)(a->heads * a->tq) * (double)(a->tk * a->head_dim);
    c->flop *= a->causal ? 0.5 : 1.0;
}

static void attention_label(ndm_case *c, const ndm_attention_args *a, int mask, const char *options)
{
    LABEL("%s %s B %lld Tq %lld Tk %lld H %lld K %lld D %lld %s", ndm_op_name(c->op),
          mask_names[mask], (long long)a->batch, (long long)a->tq, (long long)a->tk,
          (long long)a->heads, (long long)a->kv_heads, (long long)a->head_dim, options);
}

void ndm_case_attention(ndm_case *c, const ndm_attention_args *shape, int mask, int64_t pad)
{
    ndm_attention_args *a = &c->args.attention;

    *c = (ndm_case){.op = NDM_OP_attention,
                    .activations = shape->x_dtype,
                    .args.attention = *shape,
                    .prepare = prepare_attention};
    attention_strides(a, mask, pad);
    attention_inputs(c, a, mask, 0);
    c->buffer[c->buffers - 1].output = c->buffer[c->buffers - 2].output = true;
    c->buffer[c->buffers - 1].exact = true;
    attention_label(c, a, mask, "");
}

void ndm_case_attention_backward(ndm_case *c, const ndm_attention_args *shape, int mask,
                                 int accumulate, int64_t pad, ndm_dtype d_dtype)
{
    ndm_attention_backward_args *a = &c->args.attention_backward;
    const ndm_attention_args *f = &a->forward;

    *c = (ndm_case){.op = NDM_OP_attention_backward,
                    .activations = shape->x_dtype,
                    .args.attention_backward.forward = *shape,
                    .prepare = prepare_attention_backward};
    attention_strides(&a->forward, mask, pad);
    a->d_dtype = d_dtype;
    a->accumulate_dq = accumulate & 1;
    a->accumulate_dkv = accumulate & 2;
    a->make_delta = !(accumulate & 4);
    a->dout_stride = f->q_stride;
    a->dq_stride = f->q_stride + pad;
    a->dk_stride = f->k_stride + pad;
    a->dv_stride = f->v_stride + pad;
    attention_inputs(c, f, mask, offsetof(ndm_attention_backward_args, forward));
    int64_t width = f->heads * f->head_dim, kv_width = f->kv_heads * f->head_dim;
    int64_t queries = f->batch * f->tq, keys = f->batch * f->tk;
    double scale = sqrt((double)f->head_dim);
    IN(attention_backward, dout, f->out_dtype, queries, width, a->dout_stride);
    ndm_case_buffer *delta = IN(attention_backward, delta, NDM_F32, f->batch * f->heads, f->tq,
                                f->tq);
    delta->output = delta->exact = a->make_delta;
    delta->scale = scale;
    OUT(attention_backward, dq, d_dtype, queries, width, a->dq_stride)->scale = scale;
    OUT(attention_backward, dk, d_dtype, keys, kv_width, a->dk_stride)->scale = scale;
    OUT(attention_backward, dv, d_dtype, keys, kv_width, a->dv_stride)->scale = scale;
    c->flop *= 2.5;
    char options[64];
    (void)snprintf(options, sizeof options, "accumulate dq %d dkv %d delta %d", a->accumulate_dq,
                   a->accumulate_dkv, a->make_delta);
    attention_label(c, f, mask, options);
}

/* batch, tq, tk, heads, kv_heads, head_dim; tk counts only where the mask allows it to differ. */
static const int64_t attention_shapes[][6] = {
    {1, 1, 1, 1, 1, 2},      {2, 3, 2, 2, 1, 4},       {1, 7, 9, 3, 3, 6},
    {2, 15, 16, 4, 2, 8},    {1, 16, 15, 2, 2, 16},    {1, 17, 33, 6, 2, 10},
    {2, 31, 65, 2, 1, 24},   {1, 33, 31, 4, 4, 32},    {1, 63, 64, 4, 1, 40},
    {1, 64, 129, 2, 1, 64},  {1, 65, 130, 2, 2, 64},   {1, 100, 17, 3, 1, 48},
    {1, 127, 1, 1, 1, 80},   {1, 128, 128, 2, 1, 128}, {1, 129, 200, 2, 2, 32},
    {1, 200, 130, 1, 1, 96}, {3, 5, 70, 8, 2, 12},     {1, 70, 3, 2, 1, 100},
    {1, 3, 5, 1, 1, 8},      {1, 18, 70, 2, 1, 200},
};
enum { ATTENTION_SHAPES = sizeof attention_shapes / sizeof attention_shapes[0] };

static ndm_attention_args attention_shape(const ndm_case *c, int64_t i, int mask)
{
    const int64_t *s = attention_shapes[i];
    bool square = mask == MASK_CAUSAL || mask == MASK_DOCUMENTS || mask == MASK_ZIGZAG;

    return (ndm_attention_args){.x_dtype = c->activations,
                                .out_dtype = c->activations,
                                .batch = s[0],
                                .tq = s[1],
                                .tk = square ? s[1] : s[2],
                                .heads = s[3],
                                .kv_heads = s[4],
                                .head_dim = s[5]};
}

bool ndm_case_get_attention(int64_t i, ndm_case *c)
{
    int mask = (int)case_option(&i, MASKS);
    int64_t pad = case_option(&i, 2) * 5;

    if (i >= ATTENTION_SHAPES)
        return false;
    ndm_attention_args shape = attention_shape(c, i, mask);
    if ((i + mask) % 2) /* a part of a result that is merged */
        shape.out_dtype = NDM_F32;
    ndm_case_attention(c, &shape, mask, pad);
    return true;
}

bool ndm_case_get_attention_backward(int64_t i, ndm_case *c)
{
    int64_t pad = (i + i / MASKS) % 3 * 3; /* each with every mask, over the shapes */
    int mask = (int)case_option(&i, MASKS), more = (int)case_option(&i, 2) * 4;
    int accumulate = (int)((3 * i + mask + more) %
                           8); /* all of them with every mask, over the shapes */

    if (i >= ATTENTION_SHAPES)
        return false;
    ndm_attention_args shape = attention_shape(c, i, mask);
    ndm_case_attention_backward(c, &shape, mask, accumulate, pad,
                                (i + more) % 2 ? NDM_F32 : c->activations);
    return true;
}

static ndm_status prepare_attention_merge(ndm_case *c)
{
    const ndm_attention_merge_args *a = &c->args.attention_merge;

    for (int64_t i = 0; i < a->batch * a->heads * a->t; i++) {
        if (i % 5 == 1)
            a->lse[i] = -INFINITY;
        if (i % 3 == 1)
            ((float *)a->part_lse)[i] = -INFINITY;
        if (i % 7 == 0) /* far apart: the smaller side must vanish, not overflow */
            a->lse[i] = i % 2 ? 1e4f : -1e4f;
    }
    return NDM_OK;
}

bool ndm_case_get_attention_merge(int64_t i, ndm_case *c)
{
    int64_t pad = case_option(&i, 3) * 3;

    if (i >= ATTENTION_SHAPES)
        return false;
    const int64_t *s = attention_shapes[i];
    ndm_attention_merge_args *a = &c->args.attention_merge;
    *a = (ndm_attention_merge_args){.out_dtype = i % 2 ? NDM_F32 : c->activations,
                                    .part_dtype = i % 3 == 1 ? NDM_F32 : c->activations,
                                    .batch = s[0],
                                    .t = s[1],
                                    .heads = s[3],
                                    .head_dim = s[5]};
    int64_t width = a->heads * a->head_dim, rows = a->batch * a->t;
    a->out_stride = width + pad;
    a->part_stride = width + 2 * pad;
    OUT(attention_merge, out, a->out_dtype, rows, width, a->out_stride);
    OUT(attention_merge, lse, NDM_F32, a->batch * a->heads, a->t, a->t)->high = 5.0;
    IN(attention_merge, part, a->part_dtype, rows, width, a->part_stride);
    IN(attention_merge, part_lse, NDM_F32, a->batch * a->heads, a->t, a->t)->high = 5.0;
    c->prepare = prepare_attention_merge;
    LABEL("attention_merge B %lld T %lld H %lld D %lld pad %lld", (long long)a->batch,
          (long long)a->t, (long long)a->heads, (long long)a->head_dim, (long long)pad);
    return true;
}
