/* SPDX-License-Identifier: Apache-2.0 */
/* Known answers of cross entropy, AdamW, sums, casts, copies, initial values. */
#include "answers.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"

#define STREAM answer_world.stream

/* ---- cross entropy --------------------------------------------------------------------------- */

enum { N = 7, V = 10 }; /* rows, vocabulary */

static const int32_t targets[N] = {0, 9, -100, 4, 7, -1, 5};

typedef struct cross_entropy {
    double loss; /* sum over valid rows */
    float rows[N], gradient[N * V];
} cross_entropy;

static void formula(const float *logits, double smoothing, double grad_scale, cross_entropy *e)
{
    memset(e, 0, sizeof *e);
    for (int i = 0; i < N; i++) {
        double max = -INFINITY, sum = 0.0, loss = 0.0;
        if (targets[i] < 0)
            continue;
        for (int j = 0; j < V; j++)
            max = fmax(max, (double)logits[i * V + j]);
        for (int j = 0; j < V; j++)
            sum += exp(logits[i * V + j] - max);
        for (int j = 0; j < V; j++) {
            double log_p = logits[i * V + j] - max - log(sum);
            double q = (j == targets[i] ? 1.0 - smoothing : 0.0) + smoothing / V;
            loss -= q * log_p;
            e->gradient[i * V + j] = (float)((exp(log_p) - q) * grad_scale);
        }
        e->rows[i] = (float)loss;
        e->loss += loss;
    }
}

/* The vocabulary cut over `parts` ranks of `width` columns: statistics, merge, then loss and
 * gradient of each slice. */
static void sliced(const float *logits, int parts, int width, float smoothing, cross_entropy *e)
{
    static float slice[4][N * 12], all[4 * N * 4], stats[N * 4];

    memset(e, 0, sizeof *e);
    for (int p = 0; p < parts; p++) {
        int valid = V - p * width < width ? V - p * width : width;
        valid = valid > 0 ? valid : 0;
        for (int i = 0; i < N * width; i++) /* padding that would win every maximum */
            slice[p][i] = i % width < valid ? logits[i / width * V + p * width + i % width] : 1e30f;
        ndm_ce_stats_args one = {.logits = slice[p],
                                 .targets = targets,
                                 .n = N,
                                 .width = width,
                                 .valid_width = valid,
                                 .first = p * width,
                                 .stats = all + p * N * 4};
        assert_ok(ndm_ce_stats(STREAM, &one));
    }
    ndm_ce_merge_args merge = {.all = all, .stats = stats, .n = N, .parts = parts};
    assert_ok(ndm_ce_merge(STREAM, &merge));
    for (int p = 0; p < parts; p++) {
        int valid = V - p * width < width ? V - p * width : width;
        valid = valid > 0 ? valid : 0;
        ndm_ce_apply_args two = {.logits = slice[p],
                                 .targets = targets,
                                 .stats = stats,
                                 .n = N,
                                 .width = width,
                                 .valid_width = valid,
                                 .first = p * width,
                                 .vocabulary = V,
                                 .grad_scale = 0.2f,
                                 .label_smoothing = smoothing,
                                 .grad = true,
                                 .count_loss = p == 0,
                                 .loss_sum = &e->loss,
                                 .loss_rows = e->rows};
        assert_ok(ndm_ce_apply(STREAM, &two));
        for (int i = 0; i < N * width; i++) {
            if (i % width < valid)
                e->gradient[i / width * V + p * width + i % width] = slice[p][i];
            else
                assert_near(slice[p][i], 0.0, 0.0);
        }
    }
}

static void check_cross_entropy(const float *logits, double tolerance)
{
    const int parts[][2] = {
        {1, 10}, {1, 12}, {2, 5}, {4, 3}, {3, 5}}; /* the last has an empty slice */
    const float smoothings[] = {0.0f, 0.1f, 1.0f};

    for (int s = 0; s < 3; s++)
        for (int k = 0; k < 5; k++) {
            cross_entropy expected, got;
            formula(logits, smoothings[s], 0.2, &expected);
            sliced(logits, parts[k][0], parts[k][1], smoothings[s], &got);
            assert_near(got.loss, expected.loss, tolerance);
            for (int i = 0; i < N; i++)
                assert_near(got.rows[i], expected.rows[i], tolerance);
            for (int i = 0; i < N * V; i++)
                assert_near(got.gradient[i], expected.gradient[i], tolerance);
        }
}

static void cross_entropy_of_any_slices(void **state)
{
    float logits[N * V];

    (void)state;
    test_fill(logits, N * V, "logits");
    check_cross_entropy(logits, 1e-6);
}

static void large_logits_do_not_overflow(void **state)
{
    float logits[N * V];

    (void)state;
    test_fill(logits, N * V, "logits");
    for (int i = 0; i < N * V; i++)
        logits[i] = logits[i] * 2.0f + (i % 3 == 0 ? 1e4f : -1e4f);
    check_cross_entropy(logits, 2e-3); /* fp32 logits near 1e4 are 1e-3 apart */
}

static void ignored_rows_add_nothing(void **state)
{
    const int32_t ignored[] = {-100, -1};
    float logits[] = {1, 2, NAN, 4}, stats[8], rows[2];
    double sum = 3.0;
    ndm_ce_stats_args one = {
        .logits = logits, .targets = ignored, .n = 2, .width = 2, .valid_width = 2, .stats = stats};
    ndm_ce_apply_args two = {.logits = logits,
                             .targets = ignored,
                             .stats = stats,
                             .n = 2,
                             .width = 2,
                             .valid_width = 2,
                             .vocabulary = 2,
                             .grad_scale = 1.0f,
                             .grad = true,
                             .count_loss = true,
                             .loss_sum = &sum,
                             .loss_rows = rows};

    (void)state;
    assert_ok(ndm_ce_stats(STREAM, &one));
    assert_ok(ndm_ce_apply(STREAM, &two));
    assert_near(sum, 3.0, 0.0);
    for (int i = 0; i < 4; i++)
        assert_near(logits[i], 0.0, 0.0);
    assert_near(rows[0] + rows[1], 0.0, 0.0);
}

/* A NaN logit must show in the loss. */
static void nan_reaches_the_loss(void **state)
{
    const int32_t target[] = {1};
    float logits[] = {1, 2, NAN, 4}, stats[4];
    double sum = 0.0;
    ndm_ce_stats_args one = {
        .logits = logits, .targets = target, .n = 1, .width = 4, .valid_width = 4, .stats = stats};
    ndm_ce_apply_args two = {.logits = logits,
                             .targets = target,
                             .stats = stats,
                             .n = 1,
                             .width = 4,
                             .valid_width = 4,
                             .vocabulary = 4,
                             .count_loss = true,
                             .loss_sum = &sum};

    (void)state;
    assert_ok(ndm_ce_stats(STREAM, &one));
    assert_ok(ndm_ce_apply(STREAM, &two));
    assert_true(isnan(sum));
}

/* ---- AdamW ----------------------------------------------------------------------------------- */

enum { STEPS = 6, WEIGHTS = 19 };

typedef struct adamw_state {
    double w[WEIGHTS], m[WEIGHTS], v[WEIGHTS];
} adamw_state;

/* In the order of torch.optim.AdamW: decay, lerp, addcmul, step_size over a denominator. */
static void torch_step(adamw_state *s, const float *g, int step, double lr, double decay,
                       double clip)
{
    double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
    double step_size = lr / (1.0 - pow(beta1, step)), root2 = sqrt(1.0 - pow(beta2, step));

    for (int i = 0; i < WEIGHTS; i++) {
        double gradient = clip * g[i];
        s->w[i] *= 1.0 - lr * decay;
        s->m[i] += (gradient - s->m[i]) * (1.0 - beta1);
        s->v[i] = s->v[i] * beta2 + gradient * gradient * (1.0 - beta2);
        s->w[i] -= step_size * s->m[i] / (sqrt(s->v[i]) / root2 + eps);
    }
}

static void adamw_follows_torch(void **state)
{
    float w[WEIGHTS], m[WEIGHTS] = {0}, v[WEIGHTS] = {0}, g[STEPS * WEIGHTS];
    uint16_t copy[WEIGHTS];
    adamw_state expected = {0};

    (void)state;
    test_fill(w, WEIGHTS, "w");
    test_fill(g, STEPS * WEIGHTS, "g");
    for (int i = 0; i < WEIGHTS; i++)
        expected.w[i] = w[i];
    for (int step = 1; step <= STEPS; step++) {
        double lr = 0.01 * step, decay = step % 2 ? 0.1 : 0.0, clip = 1.0 / step;
        ndm_adamw_args args = {.w = w,
                               .m = m,
                               .v = v,
                               .g = g + (step - 1) * WEIGHTS,
                               .n = WEIGHTS,
                               .lr = lr,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = decay,
                               .grad_scale = clip,
                               .bias1 = 1.0 - pow(0.9, step),
                               .bias2 = 1.0 - pow(0.95, step),
                               .copy = copy,
                               .copy_dtype = NDM_BF16};
        assert_ok(ndm_adamw(STREAM, &args));
        torch_step(&expected, g + (step - 1) * WEIGHTS, step, lr, decay, clip);
        for (int i = 0; i < WEIGHTS; i++) {
            assert_near(w[i], expected.w[i], 1e-6);
            assert_near(m[i], expected.m[i], 5e-7);
            assert_near(v[i], expected.v[i], 5e-7);
            assert_int_equal(copy[i], ndm_f32_to_bf16(w[i]));
        }
    }
}

/* w 1, g 0.5, lr 0.1: the first step is lr long whatever the gradient; decay 0.1 takes 1 % first.
 */
static void adamw_first_step(void **state)
{
    (void)state;
    for (int decay = 0; decay < 2; decay++) {
        float w[] = {1.0f}, m[] = {0}, v[] = {0}, g[] = {0.5f};
        ndm_adamw_args args = {.w = w,
                               .m = m,
                               .v = v,
                               .g = g,
                               .n = 1,
                               .lr = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .weight_decay = decay ? 0.1 : 0.0,
                               .grad_scale = 1.0,
                               .bias1 = 1.0 - 0.9,
                               .bias2 = 1.0 - 0.999};
        assert_ok(ndm_adamw(STREAM, &args));
        assert_near(w[0], decay ? 0.89 : 0.9, 2e-7);
        assert_near(m[0], 0.05, 1e-7);
        assert_near(v[0] * 1e4, 2.5, 1e-6); /* 1 - beta2 is 1e-3 to seven digits */
    }
}

/* A row that never had a gradient: decay still acts, 0/0 does not. */
static void case_16a_adamw_without_eps_is_defined(void **state)
{
    float w[] = {1.0f, 1.0f}, m[] = {0, 0}, v[] = {0, 0}, g[] = {0.0f, 2.0f};
    ndm_adamw_args args = {.w = w,
                           .m = m,
                           .v = v,
                           .g = g,
                           .n = 2,
                           .lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.99,
                           .weight_decay = 0.5,
                           .grad_scale = 1.0,
                           .bias1 = 0.1,
                           .bias2 = 0.01};

    (void)state;
    assert_ok(ndm_adamw(STREAM, &args));
    assert_near(w[0], 0.95, 1e-7);
    assert_near(w[1], 0.85, 2e-7);
}

/* Steps too small for bf16 still move an fp32 weight. */
static void adamw_keeps_small_steps(void **state)
{
    float w[] = {1.0f}, m[] = {0}, v[] = {0}, g[] = {1.0f};

    (void)state;
    for (int step = 1; step <= 1000; step++) {
        ndm_adamw_args args = {.w = w,
                               .m = m,
                               .v = v,
                               .g = g,
                               .n = 1,
                               .lr = 1e-5,
                               .beta1 = 0.9,
                               .beta2 = 0.999,
                               .eps = 1e-8,
                               .grad_scale = 1.0,
                               .bias1 = 1.0 - pow(0.9, step),
                               .bias2 = 1.0 - pow(0.999, step)};
        assert_ok(ndm_adamw(STREAM, &args));
    }
    assert_near(w[0], 0.99, 1e-4);
}

/* ---- sums, casts, copies, initial values ----------------------------------------------------- */

/* Ones beside many squares of 2^16: in fp32 they would be lost. */
static void case_16a_sumsq_counts_in_double(void **state)
{
    int64_t n = 70000;
    float *x = malloc((size_t)n * sizeof *x);
    double out = 1.0, max = 0.0;

    (void)state;
    assert_non_null(x);
    for (int64_t i = 0; i < n; i++)
        x[i] = i % 2 ? -256.0f : 1.0f;
    ndm_sumsq_args args = {.x = x, .n = n, .weight = 0.5, .out = &out, .out_max = &max};
    assert_ok(ndm_sumsq(STREAM, &args));
    assert_true(out == 1.0 + 0.5 * ((double)n / 2 * 65536.0 + (double)n / 2));
    assert_true(max == 256.0);
    x[123] = NAN;
    assert_ok(ndm_sumsq(STREAM, &args));
    assert_true(isnan(out) && isnan(max));
    free(x);
}

/* Squares that overflow fp32 are finite in double. */
static void sumsq_of_large_numbers(void **state)
{
    const float x[] = {1e30f, -1e30f};
    double out = 0.0;
    ndm_sumsq_args args = {.x = x, .n = 2, .weight = 1.0, .out = &out};

    (void)state;
    assert_ok(ndm_sumsq(STREAM, &args));
    assert_near(out / 2e60, 1.0, 1e-6);
}

static void casts_round_to_even(void **state)
{
    const float x[] = {0x1.01p0f, 0x1.03p0f, 0x1.010002p0f, -0x1.01p0f, FLT_MAX, INFINITY, NAN};
    const uint16_t expected[] = {0x3f80, 0x3f82, 0x3f81, 0xbf80, 0x7f80, 0x7f80, 0x7fc0};
    uint16_t h[7];
    ndm_cast_args args = {.src = x, .dst = h, .src_dtype = NDM_F32, .dst_dtype = NDM_BF16, .n = 7};

    (void)state;
    assert_ok(ndm_cast(STREAM, &args));
    for (int i = 0; i < 7; i++)
        assert_int_equal(h[i] & 0xffff, expected[i]);
}

static void rows_gather_and_scatter_back(void **state)
{
    const int32_t index[] = {2, 0, 3};
    const float x[] = {1, 2, 3, 4, 5, 6, 7, 8};
    float rows[6], back[8] = {0};
    ndm_copy2d_args gather = {
        .src = x, .dst = rows, .m = 3, .row_bytes = 8, .index = index, .gather = true};
    ndm_copy2d_args scatter = {.src = rows, .dst = back, .m = 3, .row_bytes = 8, .index = index};

    (void)state;
    assert_ok(ndm_copy2d(STREAM, &gather));
    const float expected[] = {5, 6, 1, 2, 7, 8}, restored[] = {1, 2, 0, 0, 5, 6, 7, 8};
    assert_memory_equal(rows, expected, sizeof expected);
    assert_ok(ndm_copy2d(STREAM, &scatter));
    assert_memory_equal(back, restored, sizeof restored);
}

/* A tensor made in pieces is the tensor made at once, and has the mean and deviation asked for. */
static void init_does_not_depend_on_the_cut(void **state)
{
    enum { COUNT = 5000, CUT = 1237 };
    static float whole[COUNT], pieces[COUNT];
    double sum = 0.0, square = 0.0;
    ndm_init_args args = {
        .out = whole, .n = COUNT, .seed = 3, .stream = 8, .mean = 1.0f, .std = 0.5f};

    (void)state;
    assert_ok(ndm_init(STREAM, &args));
    args.out = pieces;
    args.n = CUT;
    assert_ok(ndm_init(STREAM, &args));
    args.out = pieces + CUT;
    args.n = COUNT - CUT;
    args.first = CUT;
    assert_ok(ndm_init(STREAM, &args));
    assert_memory_equal(whole, pieces, sizeof whole);
    for (int i = 0; i < COUNT; i++) {
        sum += whole[i];
        square += (whole[i] - 1.0) * (whole[i] - 1.0);
        assert_true(whole[i] == 1.0f + 0.5f * ndm_rng_normal(3, 8, (uint64_t)i));
    }
    assert_near(sum / COUNT, 1.0, 0.04);
    assert_near(sqrt(square / COUNT), 0.5, 0.03);
}

static void init_without_deviation_is_constant(void **state)
{
    float x[5];
    ndm_init_args args = {.out = x, .n = 5, .mean = 1.0f};

    (void)state;
    assert_ok(ndm_init(STREAM, &args));
    for (int i = 0; i < 5; i++)
        assert_near(x[i], 1.0, 0.0);
}

const struct CMUnitTest answers_loss[] = {
    cmocka_unit_test(cross_entropy_of_any_slices),
    cmocka_unit_test(large_logits_do_not_overflow),
    cmocka_unit_test(ignored_rows_add_nothing),
    cmocka_unit_test(nan_reaches_the_loss),
    cmocka_unit_test(adamw_follows_torch),
    cmocka_unit_test(adamw_first_step),
    cmocka_unit_test(case_16a_adamw_without_eps_is_defined),
    cmocka_unit_test(adamw_keeps_small_steps),
    cmocka_unit_test(case_16a_sumsq_counts_in_double),
    cmocka_unit_test(sumsq_of_large_numbers),
    cmocka_unit_test(casts_round_to_even),
    cmocka_unit_test(rows_gather_and_scatter_back),
    cmocka_unit_test(init_does_not_depend_on_the_cut),
    cmocka_unit_test(init_without_deviation_is_constant),
};
const size_t answers_loss_count = sizeof answers_loss / sizeof answers_loss[0];
