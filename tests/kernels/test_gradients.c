/* SPDX-License-Identifier: Apache-2.0 */
/* Every backward of the reference against finite differences of its forward.
 *
 * A loss is sum(cotangent * output) in double. Differences are taken over 2h and 4h, (4 d(2h) -
 * d(4h)) / 3, so that h = 1/16 leaves an error of h^4, about 1e-5, beside the rounding of fp32
 * outputs, about 1e-6 / h. */
#include "world.h"

#include <math.h>
#include <string.h>

#include "kernels/table.h"

static const float step = 0x1p-4f;
static const double tolerance = 2e-4;

static world w;

static int open_world(void **state)
{
    (void)state;
    return world_init(&w, &ndm_kernels_ref) ? 0 : -1;
}

static int close_world(void **state)
{
    (void)state;
    world_finish(&w);
    return 0;
}

static double weighted(const float *cotangent, const float *y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)cotangent[i] * y[i];
    return sum;
}

typedef double (*loss_function)(const void *context);

static double loss_at(float *x, float value, loss_function loss, const void *context)
{
    *x = value;
    return loss(context);
}

static void check_gradient(const char *name, float *x, int64_t n, const float *gradient,
                           loss_function loss, const void *context)
{
    for (int64_t i = 0; i < n; i++) {
        float at = x[i], low = at - step, high = at + step, low2 = at - 2 * step,
              high2 = at + 2 * step;
        double near = loss_at(&x[i], high, loss, context) - loss_at(&x[i], low, loss, context);
        double far = loss_at(&x[i], high2, loss, context) - loss_at(&x[i], low2, loss, context);
        double expected = (4.0 * near / (high - low) - far / (high2 - low2)) / 3.0;
        x[i] = at;
        if (fabs(gradient[i] - expected) > tolerance * fmax(1.0, fabs(expected)))
            fail_msg("%s[%lld] is %.7g, differences give %.7g (seed %llu)", name, (long long)i,
                     (double)gradient[i], expected, (unsigned long long)test_seed());
    }
}

/* ---- matrix product: dA and dB are products themselves --------------------------------------- */

enum { GM = 3, GN = 5, GK = 4 };

typedef struct gemm_context {
    float a[GM * GK], b[GK * GN], c[GM * GN], cotangent[GM * GN];
} gemm_context;

static double gemm_loss(const void *context)
{
    const gemm_context *g = context;
    float c[GM * GN];
    ndm_gemm_args args = {.m = GM, .n = GN, .k = GK, .alpha = 1.0f, .a = g->a, .b = g->b, .c = c};
    assert_ok(ndm_gemm(w.stream, &args));
    return weighted(g->cotangent, c, GM * GN);
}

static void gemm_gradients(void **state)
{
    gemm_context g;
    float da[GM * GK], db[GK * GN];

    (void)state;
    test_fill(g.a, GM * GK, "a");
    test_fill(g.b, GK * GN, "b");
    test_fill(g.cotangent, GM * GN, "dc");
    ndm_gemm_args da_args = {.trans_b = true,
                             .m = GM,
                             .n = GK,
                             .k = GN,
                             .alpha = 1.0f,
                             .a = g.cotangent,
                             .b = g.b,
                             .c = da};
    ndm_gemm_args db_args = {.trans_a = true,
                             .m = GK,
                             .n = GN,
                             .k = GM,
                             .alpha = 1.0f,
                             .a = g.a,
                             .b = g.cotangent,
                             .c = db};
    assert_ok(ndm_gemm(w.stream, &da_args));
    assert_ok(ndm_gemm(w.stream, &db_args));
    check_gradient("da", g.a, GM * GK, da, gemm_loss, &g);
    check_gradient("db", g.b, GK * GN, db, gemm_loss, &g);
}

/* ---- embedding ------------------------------------------------------------------------------- */

enum { EN = 6, EC = 3, EROWS = 4, EPLACES = 5 };

static const int32_t embedding_ids[EN] = {5, 7, 5, 4, 9, 5}; /* 4 and 9 are outside 5..8 */
static const int32_t embedding_places[EN] = {0, 1, 2, 0, 4, 0};

typedef struct embedding_context {
    float table[EROWS * EC], places[EPLACES * EC], cotangent[EN * EC];
} embedding_context;

static double embedding_loss(const void *context)
{
    const embedding_context *e = context;
    float out[EN * EC];
    ndm_embedding_args args = {.ids = embedding_ids,
                               .table = e->table,
                               .position_table = e->places,
                               .positions = embedding_places,
                               .scale = 1.5f,
                               .n = EN,
                               .width = EC,
                               .first = 5,
                               .rows = EROWS,
                               .out = out};
    assert_ok(ndm_embedding(w.stream, &args));
    return weighted(e->cotangent, out, EN * EC);
}

static void embedding_gradients(void **state)
{
    embedding_context e;
    float dtable[EROWS * EC] = {0}, dplaces[EPLACES * EC] = {0};

    (void)state;
    test_fill(e.table, EROWS * EC, "table");
    test_fill(e.places, EPLACES * EC, "places");
    test_fill(e.cotangent, EN * EC, "dout");
    ndm_embedding_backward_args args = {.ids = embedding_ids,
                                        .positions = embedding_places,
                                        .dout = e.cotangent,
                                        .scale = 1.5f,
                                        .n = EN,
                                        .width = EC,
                                        .first = 5,
                                        .rows = EROWS,
                                        .dtable = dtable,
                                        .dposition_table = dplaces,
                                        .position_rows = EPLACES};
    assert_ok(ndm_embedding_backward(w.stream, &args));
    check_gradient("dtable", e.table, EROWS * EC, dtable, embedding_loss, &e);
    check_gradient("dplaces", e.places, EPLACES * EC, dplaces, embedding_loss, &e);
}

/* ---- norm ------------------------------------------------------------------------------------ */

enum { NN = 3, NW = 6, NX = 8, NY = 7 }; /* rows, width, strides */

typedef struct norm_context {
    bool layer;
    float x[NN * NX], weight[NW], bias[NW], cotangent[NN * NY], y[NN * NY], mean[NN], rstd[NN];
} norm_context;

static ndm_norm_args norm_forward(norm_context *n)
{
    return (ndm_norm_args){.layer_norm = n->layer,
                           .x = n->x,
                           .weight = n->weight,
                           .bias = n->layer ? n->bias : NULL,
                           .eps = 0.1f,
                           .weight_offset = 1.0f,
                           .n = NN,
                           .width = NW,
                           .x_stride = NX,
                           .y_stride = NY,
                           .y = n->y,
                           .mean = n->mean,
                           .rstd = n->rstd};
}

static double norm_loss(const void *context)
{
    norm_context n = *(const norm_context *)context;
    ndm_norm_args args = norm_forward(&n);
    assert_ok(ndm_norm(w.stream, &args));
    return weighted(n.cotangent, n.y, NN * NY);
}

static void check_norm(bool layer)
{
    norm_context n = {.layer = layer};
    float dx[NN * NX], dweight[NW] = {0}, dbias[NW] = {0};
    float *workspace = malloc((size_t)ndm_norm_workspace_bytes(NW));

    assert_non_null(workspace);
    test_fill(n.x, NN * NX, "x");
    test_fill(n.weight, NW, "weight");
    test_fill(n.bias, NW, "bias");
    test_fill(n.cotangent, NN * NY, "dy");
    ndm_norm_args forward = norm_forward(&n);
    assert_ok(ndm_norm(w.stream, &forward));
    for (int64_t i = 0; i < NN * NX; i++)
        dx[i] = i % NX < NW ? 2.0f : 0.0f; /* accumulated onto; padding has no gradient */
    ndm_norm_backward_args args = {.layer_norm = layer,
                                   .accumulate = true,
                                   .x = n.x,
                                   .dy = n.cotangent,
                                   .mean = n.mean,
                                   .rstd = n.rstd,
                                   .weight = n.weight,
                                   .weight_offset = 1.0f,
                                   .n = NN,
                                   .width = NW,
                                   .x_stride = NX,
                                   .dy_stride = NY,
                                   .dx_stride = NX,
                                   .dx = dx,
                                   .dweight = dweight,
                                   .dbias = dbias,
                                   .workspace = workspace};
    assert_ok(ndm_norm_backward(w.stream, &args));
    free(workspace);
    for (int64_t i = 0; i < NN * NX; i++)
        dx[i] -= i % NX < NW ? 2.0f : 0.0f;
    check_gradient("dx", n.x, NN * NX, dx, norm_loss, &n);
    check_gradient("dweight", n.weight, NW, dweight, norm_loss, &n);
    check_gradient("dbias", n.bias, NW, dbias, norm_loss, &n);
}

static void rms_norm_gradients(void **state)
{
    (void)state;
    check_norm(false);
}

static void layer_norm_gradients(void **state)
{
    (void)state;
    check_norm(true);
}

/* ---- rotation -------------------------------------------------------------------------------- */

enum { RN = 3, RH = 2, RD = 4, RS = 9 };

typedef struct rope_context {
    float x[RN * RS], cotangent[RN * RS], cos[5 * RD / 2], sin[5 * RD / 2];
    int32_t positions[RN];
} rope_context;

static void rotate(const rope_context *r, float *x, float sign)
{
    ndm_rope_args args = {.x = x,
                          .n = RN,
                          .heads = RH,
                          .head_dim = RD,
                          .stride = RS,
                          .positions = r->positions,
                          .cos = r->cos,
                          .sin = r->sin,
                          .sign = sign};
    assert_ok(ndm_rope(w.stream, &args));
}

static double rope_loss(const void *context)
{
    rope_context r = *(const rope_context *)context;
    rotate(&r, r.x, 1.0f);
    return weighted(r.cotangent, r.x, RN * RS);
}

static void rope_gradients(void **state)
{
    rope_context r = {.positions = {4, 0, 2}};
    float dx[RN * RS];

    (void)state;
    test_fill(r.x, RN * RS, "x");
    test_fill(r.cotangent, RN * RS, "dy");
    test_fill(r.cos, 5 * RD / 2, "cos");
    test_fill(r.sin, 5 * RD / 2, "sin");
    memcpy(dx, r.cotangent, sizeof dx);
    rotate(&r, dx, -1.0f);
    check_gradient("dx", r.x, RN * RS, dx, rope_loss, &r);
}

/* ---- attention ------------------------------------------------------------------------------- */

enum { AB = 2, AT = 5, AH = 4, AK = 2, AD = 3, AQ = AH * AD + 1, AKV = AK * AD + 2 };

typedef struct attention_context {
    bool causal;
    float q[AB * AT * AQ], k[AB * AT * AKV], v[AB * AT * AKV], cotangent[AB * AT * AQ];
    float out[AB * AT * AQ], lse[AB * AH * AT];
    int32_t index[AB * AT], first[AB * AT];
} attention_context;

static ndm_attention_args attention_forward(attention_context *a)
{
    return (ndm_attention_args){.q = a->q,
                                .k = a->k,
                                .v = a->v,
                                .q_stride = AQ,
                                .k_stride = AKV,
                                .v_stride = AKV,
                                .batch = AB,
                                .tq = AT,
                                .tk = AT,
                                .heads = AH,
                                .kv_heads = AK,
                                .head_dim = AD,
                                .scale = 0.6f,
                                .causal = a->causal,
                                .q_index = a->index,
                                .k_index = a->index,
                                .q_first = a->first,
                                .out = a->out,
                                .out_stride = AQ,
                                .lse = a->lse};
}

static double attention_loss(const void *context)
{
    attention_context a = *(const attention_context *)context;
    ndm_attention_args args = attention_forward(&a);
    assert_ok(ndm_attention(w.stream, &args));
    return weighted(a.cotangent, a.out, AB * AT * AQ);
}

static void check_attention(bool causal)
{
    attention_context a = {.causal = causal,
                           .index = {3, 0, 4, 1, 2, 0, 1, 2, 3, 4},
                           .first = {1, 0, 3, 1, 0, 0, 0, 9, 2, 3}}; /* one row sees no key */
    float dq[AB * AT * AQ] = {0}, dk[AB * AT * AKV] = {0}, dv[AB * AT * AKV] = {0},
                       delta[AB * AH * AT];

    test_fill(a.q, AB * AT * AQ, "q");
    test_fill(a.k, AB * AT * AKV, "k");
    test_fill(a.v, AB * AT * AKV, "v");
    test_fill(a.cotangent, AB * AT * AQ, "dout");
    ndm_attention_backward_args args = {.forward = attention_forward(&a),
                                        .dout = a.cotangent,
                                        .dout_stride = AQ,
                                        .make_delta = true,
                                        .delta = delta,
                                        .dq = dq,
                                        .dk = dk,
                                        .dv = dv,
                                        .dq_stride = AQ,
                                        .dk_stride = AKV,
                                        .dv_stride = AKV};
    assert_ok(ndm_attention(w.stream, &args.forward));
    assert_ok(ndm_attention_backward(w.stream, &args));
    check_gradient("dq", a.q, AB * AT * AQ, dq, attention_loss, &a);
    check_gradient("dk", a.k, AB * AT * AKV, dk, attention_loss, &a);
    check_gradient("dv", a.v, AB * AT * AKV, dv, attention_loss, &a);
}

static void causal_attention_gradients(void **state)
{
    (void)state;
    check_attention(true);
}

static void full_attention_gradients(void **state)
{
    (void)state;
    check_attention(false);
}

/* ---- activation ------------------------------------------------------------------------------ */

enum { CN = 3, CF = 4 };

typedef struct act_context {
    ndm_activation activation;
    bool gated;
    float x[CN * 2 * CF], cotangent[CN * CF];
} act_context;

static double act_loss(const void *context)
{
    const act_context *a = context;
    float y[CN * CF];
    ndm_act_args args = {.activation = a->activation,
                         .gated = a->gated,
                         .x = a->x,
                         .y = y,
                         .n = CN,
                         .width = CF,
                         .x_stride = 2 * CF};
    assert_ok(ndm_act(w.stream, &args));
    return weighted(a->cotangent, y, CN * CF);
}

static void act_gradients(void **state)
{
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        act_context a = {.activation = (ndm_activation)(kind / 2), .gated = kind % 2};
        float dx[CN * 2 * CF] = {0};
        test_fill(a.x, CN * 2 * CF, "x");
        test_fill(a.cotangent, CN * CF, "dy");
        ndm_act_backward_args args = {.activation = a.activation,
                                      .gated = a.gated,
                                      .x = a.x,
                                      .dy = a.cotangent,
                                      .dx = dx,
                                      .n = CN,
                                      .width = CF,
                                      .x_stride = 2 * CF,
                                      .dx_stride = 2 * CF};
        assert_ok(ndm_act_backward(w.stream, &args));
        check_gradient("dx", a.x, CN * 2 * CF, dx, act_loss, &a);
    }
}

/* ---- cross entropy --------------------------------------------------------------------------- */

enum { LN = 4, LV = 5, LW = 7 }; /* rows, vocabulary, padded width */

static const int32_t loss_targets[LN] = {0, 4, -100, 2};

typedef struct loss_context {
    float smoothing, logits[LN * LW];
} loss_context;

/* Mean over the three valid rows; dlogits replace the logits when grad. */
static double cross_entropy(loss_context *l, bool grad)
{
    float stats[LN * 4];
    double sum = 0.0;
    ndm_ce_stats_args one = {.logits = l->logits,
                             .targets = loss_targets,
                             .n = LN,
                             .width = LW,
                             .valid_width = LV,
                             .stats = stats};
    ndm_ce_apply_args two = {.logits = l->logits,
                             .targets = loss_targets,
                             .stats = stats,
                             .n = LN,
                             .width = LW,
                             .valid_width = LV,
                             .vocabulary = LV,
                             .grad_scale = 1.0f / 3.0f,
                             .label_smoothing = l->smoothing,
                             .grad = grad,
                             .count_loss = true,
                             .loss_sum = &sum};
    assert_ok(ndm_ce_stats(w.stream, &one));
    assert_ok(ndm_ce_apply(w.stream, &two));
    return sum / 3.0;
}

static double cross_entropy_loss(const void *context)
{
    loss_context l = *(const loss_context *)context;
    return cross_entropy(&l, false);
}

static void cross_entropy_gradients(void **state)
{
    (void)state;
    for (int smooth = 0; smooth < 2; smooth++) {
        loss_context l = {.smoothing = smooth ? 0.2f : 0.0f}, gradient;
        test_fill(l.logits, LN * LW, "logits");
        gradient = l;
        (void)cross_entropy(&gradient, true);
        check_gradient("dlogits", l.logits, LN * LW, gradient.logits, cross_entropy_loss, &l);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_gradients),           cmocka_unit_test(embedding_gradients),
        cmocka_unit_test(rms_norm_gradients),       cmocka_unit_test(layer_norm_gradients),
        cmocka_unit_test(rope_gradients),           cmocka_unit_test(causal_attention_gradients),
        cmocka_unit_test(full_attention_gradients), cmocka_unit_test(act_gradients),
        cmocka_unit_test(cross_entropy_gradients),
    };

    return cmocka_run_group_tests(tests, open_world, close_world);
}
