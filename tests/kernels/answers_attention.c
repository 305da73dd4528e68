/* SPDX-License-Identifier: Apache-2.0 */
/* Attention against a dense softmax in double: documents, windows, rows that see nothing, and a
 * ring of key blocks. */
#include "answers.h"

#include <math.h>
#include <string.h>

#define STREAM answer_world.stream

enum { B = 2, T = 24, H = 4, K = 2, D = 8, Q = H * D, KV = K * D, LSE = B * H * T };

typedef struct tensors {
    float q[B * T * Q], k[B * T * KV], v[B * T * KV], dout[B * T * Q];
    float out[B * T * Q], lse[LSE], delta[LSE];
    float dq[B * T * Q], dk[B * T * KV], dv[B * T * KV];
    int32_t index[B * T], first[B * T];
} tensors;

static tensors t, dense, ring;

static void fill_tensors(void)
{
    memset(&t, 0, sizeof t);
    test_fill(t.q, B * T * Q, "q");
    test_fill(t.k, B * T * KV, "k");
    test_fill(t.v, B * T * KV, "v");
    test_fill(t.dout, B * T * Q, "dout");
    for (int i = 0; i < B * T; i++)
        t.index[i] = i % T;
}

static ndm_attention_args arguments(tensors *x, bool causal)
{
    return (ndm_attention_args){.q = x->q,
                                .k = x->k,
                                .v = x->v,
                                .batch = B,
                                .tq = T,
                                .tk = T,
                                .heads = H,
                                .kv_heads = K,
                                .head_dim = D,
                                .scale = 0.5f,
                                .causal = causal,
                                .q_index = x->index,
                                .k_index = x->index,
                                .q_first = x->first,
                                .out = x->out,
                                .lse = x->lse};
}

static bool sees(const tensors *x, bool causal, int b, int i, int j)
{
    int query = x->index[b * T + i], key = x->index[b * T + j];
    return key >= x->first[b * T + i] && (!causal || key <= query);
}

/* Row i of head h by the definition: probabilities p[T], the output, and lse. */
static double dense_row(tensors *x, bool causal, int b, int h, int i, double *p)
{
    double total = 0.0;

    for (int j = 0; j < T; j++) {
        double score = 0.0;
        for (int d = 0; d < D; d++)
            score += (double)x->q[(b * T + i) * Q + h * D + d] *
                     x->k[(b * T + j) * KV + h / (H / K) * D + d];
        p[j] = sees(x, causal, b, i, j) ? exp(0.5 * score) : 0.0;
        total += p[j];
    }
    for (int j = 0; j < T; j++)
        p[j] = total > 0.0 ? p[j] / total : 0.0;
    for (int d = 0; d < D; d++) {
        double sum = 0.0;
        for (int j = 0; j < T; j++)
            sum += p[j] * x->v[(b * T + j) * KV + h / (H / K) * D + d];
        x->out[(b * T + i) * Q + h * D + d] = (float)sum;
    }
    return log(total);
}

static void dense_gradients(tensors *x, int b, int h, int i, const double *p)
{
    double dp[T], delta = 0.0;
    const float *dout = x->dout + (b * T + i) * Q + h * D;
    int kv = h / (H / K) * D;

    for (int j = 0; j < T; j++) {
        dp[j] = 0.0;
        for (int d = 0; d < D; d++)
            dp[j] += (double)dout[d] * x->v[(b * T + j) * KV + kv + d];
        delta += p[j] * dp[j];
    }
    for (int j = 0; j < T; j++) {
        double ds = 0.5 * p[j] * (dp[j] - delta);
        for (int d = 0; d < D; d++) {
            x->dq[(b * T + i) * Q + h * D + d] += (float)(ds * x->k[(b * T + j) * KV + kv + d]);
            x->dk[(b * T + j) * KV + kv + d] += (float)(ds * x->q[(b * T + i) * Q + h * D + d]);
            x->dv[(b * T + j) * KV + kv + d] += (float)(p[j] * dout[d]);
        }
    }
}

/* dense = the definition on the inputs of t. */
static void make_dense(bool causal)
{
    double p[T];

    dense = t;
    for (int b = 0; b < B; b++)
        for (int h = 0; h < H; h++)
            for (int i = 0; i < T; i++) {
                dense.lse[(b * H + h) * T + i] = (float)dense_row(&dense, causal, b, h, i, p);
                dense_gradients(&dense, b, h, i, p);
            }
}

static void assert_all_near(const float *x, const float *expected, int n, double tolerance)
{
    for (int i = 0; i < n; i++)
        assert_near(x[i], expected[i], tolerance);
}

static ndm_attention_backward_args backward_arguments(tensors *x, bool causal)
{
    return (ndm_attention_backward_args){.forward = arguments(x, causal),
                                         .dout = x->dout,
                                         .make_delta = true,
                                         .delta = x->delta,
                                         .dq = x->dq,
                                         .dk = x->dk,
                                         .dv = x->dv};
}

static void check_against_dense(bool causal)
{
    ndm_attention_args forward = arguments(&t, causal);
    ndm_attention_backward_args backward = backward_arguments(&t, causal);

    make_dense(causal);
    assert_ok(ndm_attention(STREAM, &forward));
    assert_ok(ndm_attention_backward(STREAM, &backward));
    assert_all_near(t.out, dense.out, B * T * Q, 2e-6);
    assert_all_near(t.lse, dense.lse, LSE, 2e-6);
    assert_all_near(t.dq, dense.dq, B * T * Q, 1e-5);
    assert_all_near(t.dk, dense.dk, B * T * KV, 1e-5);
    assert_all_near(t.dv, dense.dv, B * T * KV, 1e-5);
}

static void causal_is_dense_softmax(void **state)
{
    (void)state;
    fill_tensors();
    check_against_dense(true);
    /* the same without index arrays */
    tensors indexed = t;
    ndm_attention_args plain = arguments(&t, true);
    plain.q_index = plain.k_index = plain.q_first = NULL;
    assert_ok(ndm_attention(STREAM, &plain));
    assert_all_near(t.out, indexed.out, B * T * Q, 2e-6);
    assert_all_near(t.lse, indexed.lse, LSE, 2e-6);
}

static void full_is_dense_softmax(void **state)
{
    (void)state;
    fill_tensors();
    check_against_dense(false);
}

/* Documents [0, 5), [5, 6), [6, 24) in one sequence, [0, 24) in the other. */
static void documents_do_not_see_each_other(void **state)
{
    (void)state;
    fill_tensors();
    for (int i = 0; i < T; i++)
        t.first[i] = i < 5 ? 0 : i < 6 ? 5 : 6;
    check_against_dense(true);
    /* a document of one token is its own value */
    assert_near(t.out[5 * Q + 3], t.v[5 * KV + 3], 1e-6);
}

static void windows_see_what_is_near(void **state)
{
    (void)state;
    fill_tensors();
    for (int i = 0; i < B * T; i++)
        t.first[i] = i % T > 3 ? i % T - 3 : 0;
    check_against_dense(true);
}

/* Rows in the order of a zigzag split over two ranks. */
static void order_of_rows_is_free(void **state)
{
    (void)state;
    fill_tensors();
    for (int i = 0; i < B * T; i++)
        t.index[i] = i % T + (i % T < T / 4 ? 0 : i % T < T / 2 ? T / 2 : -T / 4);
    for (int i = 0; i < B * T; i++)
        t.first[i] = t.index[i] / 7 * 7;
    check_against_dense(true);
}

static void rows_that_see_nothing_are_zero(void **state)
{
    (void)state;
    fill_tensors();
    for (int i = 0; i < B * T; i++)
        t.first[i] = i % 3 == 1 ? T + 1 : 0;
    memset(t.out, 0xff, sizeof t.out);
    check_against_dense(true);
    for (int i = 0; i < D; i++)
        assert_near(t.out[Q + i], 0.0, 0.0);
    assert_true(t.lse[1] == -INFINITY);
}

/* Scores near 1e4 and -1e4 neither overflow nor vanish. */
static void large_scores_do_not_overflow(void **state)
{
    (void)state;
    fill_tensors();
    for (int i = 0; i < B * T * Q; i++)
        t.q[i] *= 3e3f;
    ndm_attention_args args = arguments(&t, true);
    ndm_attention_backward_args backward = backward_arguments(&t, true);
    assert_ok(ndm_attention(STREAM, &args));
    assert_ok(ndm_attention_backward(STREAM, &backward));
    for (int i = 0; i < B * T * Q; i++)
        assert_true(isfinite(t.out[i]) && fabsf(t.out[i]) < 10.0f && isfinite(t.dq[i]));
    for (int i = 0; i < LSE; i++)
        assert_true(isfinite(t.lse[i]));
}

/* ---- a ring of key blocks -------------------------------------------------------------------- */

enum { BLOCKS = 3, BT = T / BLOCKS };

typedef struct key_block {
    float k[B * BT * KV], v[B * BT * KV], dk[B * BT * KV], dv[B * BT * KV];
    int32_t index[B * BT];
} key_block;

static void take_block(key_block *block, const tensors *x, int part)
{
    for (int b = 0; b < B; b++) {
        int from = b * T + part * BT;
        memcpy(block->k + b * BT * KV, x->k + from * KV, BT * KV * sizeof(float));
        memcpy(block->v + b * BT * KV, x->v + from * KV, BT * KV * sizeof(float));
        memcpy(block->index + b * BT, x->index + from, BT * sizeof(int32_t));
    }
}

static ndm_attention_args block_arguments(tensors *x, const key_block *block)
{
    ndm_attention_args a = arguments(x, true);
    a.k = block->k;
    a.v = block->v;
    a.k_index = block->index;
    a.tk = BT;
    return a;
}

static void add_block(tensors *x, const key_block *block, bool merge)
{
    static float out[B * T * Q], lse[LSE];
    ndm_attention_args args = block_arguments(x, block);

    if (merge) {
        args.out = out;
        args.lse = lse;
    }
    assert_ok(ndm_attention(STREAM, &args));
    if (!merge)
        return;
    ndm_attention_merge_args join = {.out = x->out,
                                     .lse = x->lse,
                                     .part = out,
                                     .part_lse = lse,
                                     .batch = B,
                                     .t = T,
                                     .heads = H,
                                     .head_dim = D};
    assert_ok(ndm_attention_merge(STREAM, &join));
}

static void block_gradients(tensors *x, key_block *block, int part)
{
    ndm_attention_backward_args back = backward_arguments(x, true);

    back.forward = block_arguments(x, block);
    back.dk = block->dk;
    back.dv = block->dv;
    back.make_delta = part == 0;
    back.accumulate_dq = part > 0;
    assert_ok(ndm_attention_backward(STREAM, &back));
    for (int b = 0; b < B; b++) {
        memcpy(x->dk + (b * T + part * BT) * KV, block->dk + b * BT * KV, BT * KV * sizeof(float));
        memcpy(x->dv + (b * T + part * BT) * KV, block->dv + b * BT * KV, BT * KV * sizeof(float));
    }
}

/* Blocks merged by lse, then backward block by block from the lse of the whole row, equal the
 * whole. The order of blocks makes the first ones invisible to early rows. */
static void ring_of_blocks_is_the_whole(void **state)
{
    static key_block blocks[BLOCKS];

    (void)state;
    fill_tensors();
    for (int i = 0; i < B * T; i++)
        t.first[i] = i % T > 10 ? i % T - 10 : 0;
    ring = t;
    make_dense(true);
    for (int part = BLOCKS - 1; part >= 0; part--) {
        take_block(&blocks[part], &ring, part);
        add_block(&ring, &blocks[part], part < BLOCKS - 1);
    }
    assert_all_near(ring.out, dense.out, B * T * Q, 2e-6);
    assert_all_near(ring.lse, dense.lse, LSE, 2e-6);
    for (int part = 0; part < BLOCKS; part++)
        block_gradients(&ring, &blocks[part], part);
    assert_all_near(ring.dq, dense.dq, B * T * Q, 1e-5);
    assert_all_near(ring.dk, dense.dk, B * T * KV, 1e-5);
    assert_all_near(ring.dv, dense.dv, B * T * KV, 1e-5);
}

/* lse of (-inf, -inf), (1, -inf), (-inf, 2), (log 3, log 1), (1e4, -1e4), (1e4, 1e4). */
static void merge_at_infinity(void **state)
{
    const float part[] = {9, 9, 5, 5, 5, 5}, part_lse[] = {-INFINITY, -INFINITY, 2, 0, -1e4f, 1e4f};
    float out[] = {0, 4, 0, 1, 1, 1}, lse[] = {-INFINITY, 1, -INFINITY, 1.0986123f, 1e4f, 1e4f};
    const float out_after[] = {0, 4, 5, 2, 1, 3};
    const float lse_after[] = {-INFINITY, 1, 2, 1.3862944f, 1e4f, 10000.693f};
    ndm_attention_merge_args args = {.out = out,
                                     .lse = lse,
                                     .part = part,
                                     .part_lse = part_lse,
                                     .batch = 1,
                                     .t = 6,
                                     .heads = 1,
                                     .head_dim = 1};

    (void)state;
    assert_ok(ndm_attention_merge(STREAM, &args));
    assert_all_near(out, out_after, 6, 1e-6);
    assert_all_near(lse, lse_after, 6, 2e-7);
}

const struct CMUnitTest answers_attention[] = {
    cmocka_unit_test(causal_is_dense_softmax),
    cmocka_unit_test(full_is_dense_softmax),
    cmocka_unit_test(documents_do_not_see_each_other),
    cmocka_unit_test(windows_see_what_is_near),
    cmocka_unit_test(order_of_rows_is_free),
    cmocka_unit_test(rows_that_see_nothing_are_zero),
    cmocka_unit_test(large_scores_do_not_overflow),
    cmocka_unit_test(ring_of_blocks_is_the_whole),
    cmocka_unit_test(merge_at_infinity),
};
const size_t answers_attention_count = sizeof answers_attention / sizeof answers_attention[0];
