/* SPDX-License-Identifier: Apache-2.0 */
/* Cases in the shapes of a model: each op once with its usual options, the matrix products of a
 * layer forward and backward. */
#include "cli/bench_cases.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "kernels/cases_list.h"

/* ---- matrix products: y = x W^T, dx = dy W, dW += dy^T x ----------------------------------------
 */

enum { FORWARD, GRADIENT_X, GRADIENT_W, PRODUCTS };

static void product(ndm_case *c, const char *name, int which, int64_t tokens, int64_t out,
                    int64_t in)
{
    ndm_gemm_args a = {.alpha = 1.0f, .m = tokens, .n = out, .k = in, .trans_b = true};
    static const char *const roles[] = {"y = x W'", "dx = dy W", "dW += dy' x"};

    if (which == GRADIENT_X)
        a = (ndm_gemm_args){.alpha = 1.0f, .m = tokens, .n = in, .k = out};
    if (which == GRADIENT_W)
        a = (ndm_gemm_args){
            .alpha = 1.0f, .beta = 1.0f, .m = out, .n = in, .k = tokens, .trans_a = true};
    ndm_case_gemm(c, &a, false, 0);
    LABEL("gemm %s %s %lldx%lldx%lld", name, roles[which], (long long)a.m, (long long)a.n,
          (long long)a.k);
}

static bool get_product(const ndm_bench_shape *s, int64_t i, ndm_case *c)
{
    const struct {
        const char *name;
        int64_t out, in;
    } linears[] = {{"qkv", (s->heads + 2 * s->kv_heads) * s->head_dim, s->width},
                   {"out", s->width, s->heads * s->head_dim},
                   {"gate_up", 2 * s->ffn, s->width},
                   {"down", s->width, s->ffn},
                   {"head", s->vocab, s->width}};
    int64_t n = (int64_t)(sizeof linears / sizeof linears[0]);

    if (i >= n * PRODUCTS)
        return false;
    product(c, linears[i / PRODUCTS].name, (int)(i % PRODUCTS), s->tokens,
            linears[i / PRODUCTS].out, linears[i / PRODUCTS].in);
    return true;
}

/* ---- layers ------------------------------------------------------------------------------------
 */

static void embedding(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_embedding_args *a = &c->args.embedding;

    *a = (ndm_embedding_args){
        .dtype = NDM_F32, .scale = 1.0f, .n = s->tokens, .width = s->width, .rows = s->vocab};
    case_range(IN(embedding, ids, NDM_I32, 1, a->n, a->n), 0, (double)a->rows);
    IN(embedding, table, NDM_F32, a->rows, a->width, a->width);
    OUT(embedding, out, NDM_F32, a->n, a->width, a->width);
}

static void embedding_backward(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_embedding_backward_args *a = &c->args.embedding_backward;

    *a = (ndm_embedding_backward_args){
        .scale = 1.0f, .n = s->tokens, .width = s->width, .rows = s->vocab};
    case_range(IN(embedding_backward, ids, NDM_I32, 1, a->n, a->n), 0, (double)a->rows);
    IN(embedding_backward, dout, NDM_F32, a->n, a->width, a->width);
    OUT(embedding_backward, dtable, NDM_F32, a->rows, a->width, a->width);
}

static void norm(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_norm_args *a = &c->args.norm;

    *a = (ndm_norm_args){.dtype = NDM_F32, .eps = 1e-5f, .n = s->tokens, .width = s->width};
    IN(norm, x, NDM_F32, a->n, a->width, a->width);
    IN(norm, residual, NDM_F32, a->n, a->width, a->width);
    OUT(norm, sum, NDM_F32, a->n, a->width, a->width);
    OUT(norm, y, NDM_F32, a->n, a->width, a->width);
    IN(norm, weight, NDM_F32, 1, a->width, a->width);
    OUT(norm, rstd, NDM_F32, 1, a->n, a->n);
}

static void norm_backward(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_norm_backward_args *a = &c->args.norm_backward;
    int64_t scratch = ndm_norm_workspace_bytes(s->width) / (int64_t)sizeof(float);

    *a = (ndm_norm_backward_args){.dtype = NDM_F32, .n = s->tokens, .width = s->width};
    IN(norm_backward, dy, NDM_F32, a->n, a->width, a->width);
    OUT(norm_backward, dx, NDM_F32, a->n, a->width, a->width);
    IN(norm_backward, x, NDM_F32, a->n, a->width, a->width);
    case_range(IN(norm_backward, rstd, NDM_F32, 1, a->n, a->n), 0.5, 2.0);
    IN(norm_backward, weight, NDM_F32, 1, a->width, a->width);
    OUT(norm_backward, dweight, NDM_F32, 1, a->width, a->width)->scale = sqrt((double)a->n);
    OUT(norm_backward, workspace, NDM_F32, 1, scratch, scratch)->scratch = true;
}

/* The angles of a circle: pairs that are turned again and again keep their length. */
static ndm_status fill_angles(ndm_case *c)
{
    float *cosine = (float *)c->args.rope.cos, *sine = (float *)c->args.rope.sin;

    for (int64_t i = 0; i < c->args.rope.n * c->args.rope.head_dim / 2; i++) {
        float angle = 3.0f * cosine[i];
        cosine[i] = cosf(angle);
        sine[i] = sinf(angle);
    }
    return NDM_OK;
}

static void rope(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_rope_args *a = &c->args.rope;

    *a = (ndm_rope_args){.n = s->tokens, .heads = s->heads, .head_dim = s->head_dim, .sign = 1.0f};
    OUT(rope, x, NDM_F32, a->n, a->heads * a->head_dim, a->heads * a->head_dim);
    case_range(IN(rope, positions, NDM_I32, 1, a->n, a->n), 0, (double)a->n);
    case_range(IN(rope, cos, NDM_F32, a->n, a->head_dim / 2, a->head_dim / 2), -1, 1);
    case_range(IN(rope, sin, NDM_F32, a->n, a->head_dim / 2, a->head_dim / 2), -1, 1);
    c->prepare = fill_angles;
}

static ndm_attention_args attention_shape(const ndm_bench_shape *s)
{
    return (ndm_attention_args){.batch = 1,
                                .tq = s->tokens,
                                .tk = s->tokens,
                                .heads = s->heads,
                                .kv_heads = s->kv_heads,
                                .head_dim = s->head_dim};
}

static void attention(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_attention_args a = attention_shape(s);

    ndm_case_attention(c, &a, 0, 0);
}

static void attention_backward(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_attention_args a = attention_shape(s);

    ndm_case_attention_backward(c, &a, 0, 0, 0, NDM_F32);
}

static void attention_merge(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_attention_merge_args *a = &c->args.attention_merge;
    int64_t width = s->heads * s->head_dim;

    *a = (ndm_attention_merge_args){.batch = 1,
                                    .t = s->tokens,
                                    .heads = s->heads,
                                    .head_dim = s->head_dim,
                                    .out_stride = width,
                                    .part_stride = width};
    OUT(attention_merge, out, NDM_F32, a->t, width, width);
    OUT(attention_merge, lse, NDM_F32, a->heads, a->t, a->t)->high = 5.0;
    IN(attention_merge, part, NDM_F32, a->t, width, width);
    IN(attention_merge, part_lse, NDM_F32, a->heads, a->t, a->t)->high = 5.0;
}

static void act(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_act_args *a = &c->args.act;

    *a = (ndm_act_args){.activation = NDM_SILU, .gated = true, .n = s->tokens, .width = s->ffn};
    IN(act, x, NDM_F32, a->n, 2 * a->width, 2 * a->width);
    OUT(act, y, NDM_F32, a->n, a->width, a->width);
}

static void act_backward(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_act_backward_args *a = &c->args.act_backward;

    *a = (ndm_act_backward_args){
        .activation = NDM_SILU, .gated = true, .n = s->tokens, .width = s->ffn};
    IN(act_backward, x, NDM_F32, a->n, 2 * a->width, 2 * a->width);
    OUT(act_backward, dx, NDM_F32, a->n, 2 * a->width, 2 * a->width);
    IN(act_backward, dy, NDM_F32, a->n, a->width, a->width);
}

/* ---- loss, optimizer, vectors ------------------------------------------------------------------
 */

static void ce_stats(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_ce_stats_args *a = &c->args.ce_stats;

    *a = (ndm_ce_stats_args){
        .n = s->tokens, .width = s->vocab, .valid_width = s->vocab, .stride = s->vocab};
    IN(ce_stats, logits, NDM_F32, a->n, a->width, a->stride)->high = 3.0;
    case_range(IN(ce_stats, targets, NDM_I32, 1, a->n, a->n), 0, (double)a->width);
    OUT(ce_stats, stats, NDM_F32, a->n, 4, 4)->scale = 3.0 * sqrt((double)a->width);
}

static ndm_status fill_stats(ndm_case *c)
{
    float *stats = (float *)c->args.ce_merge.all;

    for (int64_t i = 0; i < c->args.ce_merge.n * c->args.ce_merge.parts; i++)
        stats[4 * i + 1] = fabsf(stats[4 * i + 1]) + 1.0f; /* sums of exponentials */
    return NDM_OK;
}

static void ce_merge(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_ce_merge_args *a = &c->args.ce_merge;

    *a = (ndm_ce_merge_args){.n = s->tokens, .parts = 2};
    IN(ce_merge, all, NDM_F32, a->parts * a->n, 4, 4)->high = 5.0;
    OUT(ce_merge, stats, NDM_F32, a->n, 4, 4);
    c->prepare = fill_stats;
}

/* Row maximum and sum as logits of a bell give them; the exact ones do not matter to the time. */
static ndm_status fill_row_stats(ndm_case *c)
{
    float *stats = (float *)c->args.ce_apply.stats;

    for (int64_t i = 0; i < c->args.ce_apply.n; i++) {
        stats[4 * i] = 10.0f;
        stats[4 * i + 1] = 1.0f + (float)c->args.ce_apply.width * 1e-3f;
    }
    return NDM_OK;
}

static void ce_apply(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_ce_apply_args *a = &c->args.ce_apply;

    *a = (ndm_ce_apply_args){.n = s->tokens,
                             .width = s->vocab,
                             .valid_width = s->vocab,
                             .stride = s->vocab,
                             .vocabulary = s->vocab,
                             .grad_scale = 1.0f / (float)s->tokens,
                             .grad = true,
                             .count_loss = true};
    ndm_case_buffer *logits = OUT(ce_apply, logits, NDM_F32, a->n, a->width, a->stride);
    logits->high = 3.0;
    logits->scale = 0.05;
    case_range(IN(ce_apply, targets, NDM_I32, 1, a->n, a->n), 0, (double)a->width);
    IN(ce_apply, stats, NDM_F32, a->n, 4, 4);
    OUT(ce_apply, loss_sum, NDM_F64, 1, 1, 1)->scale = (double)a->n * 10.0;
    c->prepare = fill_row_stats;
}

/* As many elements as a layer has weights. */
static int64_t layer_weights(const ndm_bench_shape *s)
{
    return s->width * (2 * (s->heads + s->kv_heads) * s->head_dim + 3 * s->ffn);
}

static void adamw(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_adamw_args *a = &c->args.adamw;

    *a = (ndm_adamw_args){.n = layer_weights(s),
                          .lr = 1e-3,
                          .beta1 = 0.9,
                          .beta2 = 0.95,
                          .eps = 1e-8,
                          .weight_decay = 0.1,
                          .grad_scale = 0.7};
    a->bias1 = 1.0 - pow(a->beta1, 3.0);
    a->bias2 = 1.0 - pow(a->beta2, 3.0);
    OUT(adamw, w, NDM_F32, 1, a->n, a->n);
    OUT(adamw, m, NDM_F32, 1, a->n, a->n);
    case_scale(case_range(OUT(adamw, v, NDM_F32, 1, a->n, a->n), 0.01, 1.0), 0.1);
    IN(adamw, g, NDM_F32, 1, a->n, a->n);
}

static void sumsq(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_sumsq_args *a = &c->args.sumsq;

    *a = (ndm_sumsq_args){.n = layer_weights(s), .weight = 1.0};
    IN(sumsq, x, NDM_F32, 1, a->n, a->n);
    OUT(sumsq, out, NDM_F64, 1, 1, 1)->scale = (double)a->n;
}

static void cast(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_cast_args *a = &c->args.cast;

    *a = (ndm_cast_args){.src_dtype = NDM_F32, .dst_dtype = NDM_BF16, .n = layer_weights(s)};
    IN(cast, src, NDM_F32, 1, a->n, a->n);
    OUT(cast, dst, NDM_BF16, 1, a->n, a->n);
}

/* Factors of size 1, so that a thousand calls leave finite, normal numbers. */
static void scale(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_scale_args *a = &c->args.scale;

    *a = (ndm_scale_args){.factor = -1.0f, .n = layer_weights(s)};
    OUT(scale, x, NDM_F32, 1, a->n, a->n);
}

static void add(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_add_args *a = &c->args.add;

    *a = (ndm_add_args){.factor = 1.0f, .n = layer_weights(s)};
    OUT(add, y, NDM_F32, 1, a->n, a->n);
    IN(add, x, NDM_F32, 1, a->n, a->n);
}

static void colsum(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_colsum_args *a = &c->args.colsum;

    *a = (ndm_colsum_args){.m = s->tokens, .n = s->ffn, .stride = s->ffn};
    IN(colsum, x, NDM_F32, a->m, a->n, a->stride);
    OUT(colsum, out, NDM_F32, 1, a->n, a->n)->scale = sqrt((double)a->m);
}

static void copy2d(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_copy2d_args *a = &c->args.copy2d;
    int64_t bytes = s->width * (int64_t)sizeof(float);

    *a = (ndm_copy2d_args){.m = s->tokens,
                           .row_bytes = bytes,
                           .src_stride_bytes = 2 * bytes,
                           .dst_stride_bytes = bytes};
    case_range(IN(copy2d, src, NDM_U8, a->m, bytes, 2 * bytes), 0, 256);
    case_range(OUT(copy2d, dst, NDM_U8, a->m, bytes, bytes), 0, 256);
}

static void init(const ndm_bench_shape *s, ndm_case *c)
{
    ndm_init_args *a = &c->args.init;

    *a = (ndm_init_args){.n = s->width * s->ffn, .seed = 5, .stream = 9, .std = 0.02f};
    OUT(init, out, NDM_F32, 1, a->n, a->n);
}

/* ---- the list ----------------------------------------------------------------------------------
 */

/* By the largest buffer; attention by its heads. */
static void name_case(const ndm_bench_shape *s, ndm_case *c)
{
    const ndm_case_buffer *largest = &c->buffer[0];

    for (int i = 1; i < c->buffers; i++) {
        const ndm_case_buffer *b = &c->buffer[i];
        bool table = strcmp(b->name, "table") == 0 || strcmp(b->name, "dtable") == 0;
        if (!b->scratch && !table && b->rows * b->width > largest->rows * largest->width)
            largest = b;
    }
    if (c->op == NDM_OP_attention || c->op == NDM_OP_attention_backward)
        LABEL("%s causal T %lld H %lld K %lld D %lld", ndm_op_name(c->op), (long long)s->tokens,
              (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim);
    else
        LABEL("%s %lldx%lld", ndm_op_name(c->op), (long long)largest->rows,
              (long long)largest->width);
}

bool ndm_bench_case_get(const ndm_bench_shape *shape, int64_t i, ndm_case *c)
{
    static void (*const makers[NDM_OP_COUNT])(const ndm_bench_shape *, ndm_case *) = {
        [NDM_OP_embedding] = embedding,
        [NDM_OP_embedding_backward] = embedding_backward,
        [NDM_OP_norm] = norm,
        [NDM_OP_norm_backward] = norm_backward,
        [NDM_OP_rope] = rope,
        [NDM_OP_attention] = attention,
        [NDM_OP_attention_backward] = attention_backward,
        [NDM_OP_attention_merge] = attention_merge,
        [NDM_OP_act] = act,
        [NDM_OP_act_backward] = act_backward,
        [NDM_OP_ce_stats] = ce_stats,
        [NDM_OP_ce_merge] = ce_merge,
        [NDM_OP_ce_apply] = ce_apply,
        [NDM_OP_adamw] = adamw,
        [NDM_OP_sumsq] = sumsq,
        [NDM_OP_cast] = cast,
        [NDM_OP_scale] = scale,
        [NDM_OP_add] = add,
        [NDM_OP_colsum] = colsum,
        [NDM_OP_copy2d] = copy2d,
        [NDM_OP_init] = init,
    };
    int64_t products = 0;

    memset(c, 0, sizeof *c);
    while (get_product(shape, products, c))
        if (products++ == i)
            return true;
    int64_t op = i - products;
    for (int o = 0; o < NDM_OP_COUNT; o++) {
        if (makers[o] == NULL || op-- > 0)
            continue;
        memset(c, 0, sizeof *c);
        c->op = (ndm_op)o;
        makers[o](shape, c);
        name_case(shape, c);
        return true;
    }
    return false;
}

/* Outputs that hold a sum from before, or the input itself. */
static bool reads_outputs(const ndm_case *c)
{
    switch (c->op) {
    case NDM_OP_gemm:
        return c->args.gemm.beta != 0.0f;
    case NDM_OP_rope:
    case NDM_OP_attention_merge:
    case NDM_OP_ce_apply:
    case NDM_OP_adamw:
    case NDM_OP_scale:
    case NDM_OP_add:
        return true;
    default:
        return false;
    }
}

/* Of a table only the rows of the ids are touched. */
static double buffer_bytes(const ndm_case *c, const ndm_case_buffer *b)
{
    bool table = strcmp(b->name, "table") == 0 || strcmp(b->name, "dtable") == 0;
    int64_t rows = table ? c->args.embedding.n : b->rows;

    if (c->op == NDM_OP_embedding_backward && table)
        rows = 2 * c->args.embedding_backward.n; /* read and written */
    return (double)rows * (double)b->width * (double)ndm_dtype_bytes(b->dtype);
}

double ndm_bench_case_traffic(const ndm_case *c)
{
    double bytes = 0.0;

    for (int i = 0; i < c->buffers; i++) {
        const ndm_case_buffer *b = &c->buffer[i];
        if (!b->scratch)
            bytes += buffer_bytes(c, b) * (b->output && reads_outputs(c) ? 2.0 : 1.0);
    }
    return bytes;
}
