/* SPDX-License-Identifier: Apache-2.0 */
/* Known answers of matrix product, embedding, norm, rotation, activation. */
#include "answers.h"

#include <math.h>
#include <string.h>

#include "core/dtype.h"

#define STREAM answer_world.stream

/* ---- matrix product -------------------------------------------------------------------------- */

/* [1 2 3; 4 5 6] [1 0; 2 1; 0 3] = [5 11; 14 23], stored either way. */
static void gemm_by_hand(void **state)
{
    const float a[] = {1, 2, 3, 4, 5, 6}, at[] = {1, 4, 2, 5, 3, 6};
    const float b[] = {1, 0, 2, 1, 0, 3}, bt[] = {1, 2, 0, 0, 1, 3};
    const float bias[] = {100, 200}, expected[] = {5, 11, 14, 23};

    (void)state;
    for (int kind = 0; kind < 8; kind++) {
        float c[] = {1, 1, 1, 1};
        bool ta = kind & 1, tb = kind & 2, more = kind & 4;
        ndm_gemm_args args = {.trans_a = ta,
                              .trans_b = tb,
                              .m = 2,
                              .n = 2,
                              .k = 3,
                              .alpha = more ? 2.0f : 1.0f,
                              .beta = more ? 10.0f : 0.0f,
                              .a = ta ? at : a,
                              .b = tb ? bt : b,
                              .bias = more ? bias : NULL,
                              .c = c};
        assert_ok(ndm_gemm(STREAM, &args));
        for (int i = 0; i < 4; i++)
            assert_near(c[i], more ? 2.0f * expected[i] + 10.0f + bias[i % 2] : expected[i], 0.0);
    }
}

/* beta 0 does not read C: what was there may be NaN. */
static void gemm_without_beta_ignores_c(void **state)
{
    const float a[] = {2}, b[] = {3};
    float c[] = {NAN};
    ndm_gemm_args args = {.m = 1, .n = 1, .k = 1, .alpha = 1.0f, .a = a, .b = b, .c = c};

    (void)state;
    assert_ok(ndm_gemm(STREAM, &args));
    assert_near(c[0], 6.0, 0.0);
}

/* Without terms the sum is 0: C becomes beta C + bias. */
static void gemm_without_terms_scales_c(void **state)
{
    const float bias[] = {1, 2};
    float c[] = {3, 4};
    ndm_gemm_args args = {
        .m = 1, .n = 2, .k = 0, .alpha = 1.0f, .beta = 0.5f, .bias = bias, .c = c};

    (void)state;
    assert_ok(ndm_gemm(STREAM, &args));
    assert_near(c[0], 2.5, 0.0);
    assert_near(c[1], 4.0, 0.0);
}

/* A bf16 weight is the number that its bits say. */
static void gemm_reads_bf16_weights(void **state)
{
    const uint16_t b[] = {ndm_f32_to_bf16(1.5f), ndm_f32_to_bf16(-0.25f), ndm_f32_to_bf16(0.1f)};
    const float a[] = {1, 4, 10};
    float c[1];
    ndm_gemm_args args = {.trans_b = true,
                          .m = 1,
                          .n = 1,
                          .k = 3,
                          .alpha = 1.0f,
                          .a = a,
                          .b = b,
                          .b_dtype = NDM_BF16,
                          .c = c};

    (void)state;
    assert_ok(ndm_gemm(STREAM, &args));
    assert_near(c[0], 0.5 + 10.0 * (double)ndm_bf16_to_f32(b[2]), 1e-7);
}

/* ---- embedding ------------------------------------------------------------------------------- */

static const float whole_table[12] = {0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51};

/* Two ranks that hold three rows each add up to the whole; nobody has -1 and 6. */
static void embedding_slices_add_up(void **state)
{
    const int32_t ids[] = {4, 0, 2, 3, -1, 6};
    const float expected[] = {40, 41, 0, 1, 20, 21, 30, 31, 0, 0, 0, 0};
    float low[12], high[12];
    ndm_embedding_args args = {
        .ids = ids, .table = whole_table, .scale = 1.0f, .n = 6, .width = 2, .rows = 3, .out = low};

    (void)state;
    assert_ok(ndm_embedding(STREAM, &args));
    args.first = 3;
    args.table = whole_table + 6;
    args.out = high;
    assert_ok(ndm_embedding(STREAM, &args));
    for (int i = 0; i < 12; i++) {
        assert_near(low[i] + high[i], expected[i], 0.0);
        assert_true(low[i] == 0.0f || high[i] == 0.0f);
    }
}

static void embedding_scales_rows_and_not_positions(void **state)
{
    const int32_t ids[] = {2, 5}, positions[] = {1, 0};
    const float places[] = {0.5f, 0.25f, 7, 8};
    float out[4];
    ndm_embedding_args args = {.ids = ids,
                               .table = whole_table,
                               .position_table = places,
                               .positions = positions,
                               .scale = 2.0f,
                               .n = 2,
                               .width = 2,
                               .rows = 6,
                               .out = out};

    (void)state;
    assert_ok(ndm_embedding(STREAM, &args));
    const float expected[] = {47, 50, 100.5f, 102.25f};
    for (int i = 0; i < 4; i++)
        assert_near(out[i], expected[i], 0.0);
}

static void embedding_backward_adds_repeats(void **state)
{
    const int32_t ids[] = {4, 3, 4, 9};
    const float dout[] = {1, 2, 3, 4, 5, 6, 7, 8};
    float dtable[] = {100, 100, 100, 100};
    ndm_embedding_backward_args args = {.ids = ids,
                                        .dout = dout,
                                        .scale = 1.0f,
                                        .n = 4,
                                        .width = 2,
                                        .first = 3,
                                        .rows = 2,
                                        .dtable = dtable};

    (void)state;
    assert_ok(ndm_embedding_backward(STREAM, &args));
    const float expected[] = {103, 104, 106, 108};
    for (int i = 0; i < 4; i++)
        assert_near(dtable[i], expected[i], 0.0);
    float stretch[] = {100, 100}; /* the second half of the first row, the first of the second */
    args.dtable = stretch;
    args.part_first = 1;
    args.part_count = 2;
    assert_ok(ndm_embedding_backward(STREAM, &args));
    assert_near(stretch[0], 104, 0.0);
    assert_near(stretch[1], 106, 0.0);
}

/* ---- norm ------------------------------------------------------------------------------------ */

/* x = (3, 4): the mean of squares is 12.5. */
static void rms_norm_by_hand(void **state)
{
    const float x[] = {1, 1}, residual[] = {2, 3}, weight[] = {2, 0};
    float sum[2], y[2], rstd[1];
    ndm_norm_args args = {.x = x,
                          .residual = residual,
                          .sum = sum,
                          .weight = weight,
                          .eps = 0.0f,
                          .weight_offset = 1.0f,
                          .n = 1,
                          .width = 2,
                          .y = y,
                          .rstd = rstd};

    (void)state;
    assert_ok(ndm_norm(STREAM, &args));
    assert_near(sum[0], 3.0, 0.0);
    assert_near(sum[1], 4.0, 0.0);
    assert_near(rstd[0], 1.0 / sqrt(12.5), 1e-7);
    assert_near(y[0], 9.0 / sqrt(12.5), 2e-7);
    assert_near(y[1], 4.0 / sqrt(12.5), 2e-7);
}

/* x = 1000 + (-1, 0, 1): a mean that is large beside the deviation must not swallow it. */
static void layer_norm_by_hand(void **state)
{
    const float x[] = {999, 1000, 1001}, weight[] = {1, 1, 2}, bias[] = {0, 5, 1};
    float y[3], mean[1], rstd[1];
    ndm_norm_args args = {.layer_norm = true,
                          .x = x,
                          .weight = weight,
                          .bias = bias,
                          .eps = 0.0f,
                          .n = 1,
                          .width = 3,
                          .y = y,
                          .mean = mean,
                          .rstd = rstd};

    (void)state;
    assert_ok(ndm_norm(STREAM, &args));
    assert_near(mean[0], 1000.0, 1e-7);
    assert_near(y[0], -sqrt(1.5), 1e-5);
    assert_near(y[1], 5.0, 1e-5);
    assert_near(y[2], 2.0 * sqrt(1.5) + 1.0, 1e-5);
}

/* eps keeps a row of zeros finite. */
static void norm_of_zeros_is_zero(void **state)
{
    const float x[4] = {0}, weight[] = {1, 1, 1, 1};
    float y[4], rstd[1];
    ndm_norm_args args = {
        .x = x, .weight = weight, .eps = 1e-6f, .n = 1, .width = 4, .y = y, .rstd = rstd};

    (void)state;
    assert_ok(ndm_norm(STREAM, &args));
    assert_near(rstd[0], 1000.0, 1e-6);
    for (int i = 0; i < 4; i++)
        assert_near(y[i], 0.0, 0.0);
}

/* ---- rotation -------------------------------------------------------------------------------- */

enum { ROPE_D = 8, ROPE_P = 40 };

static void rope_tables(float *cosines, float *sines)
{
    for (int p = 0; p < ROPE_P; p++)
        for (int i = 0; i < ROPE_D / 2; i++) {
            double angle = p * pow(10000.0, -2.0 * i / ROPE_D);
            cosines[p * ROPE_D / 2 + i] = (float)cos(angle);
            sines[p * ROPE_D / 2 + i] = (float)sin(angle);
        }
}

/* (x[i] + x[i + D/2] i) exp(i angle), and back. */
static void rope_by_definition(void **state)
{
    const int32_t positions[] = {0, 1, 39, 7};
    float c[ROPE_P * ROPE_D / 2], s[ROPE_P * ROPE_D / 2], x[4 * 2 * ROPE_D], before[4 * 2 * ROPE_D];
    ndm_rope_args args = {.x = x,
                          .n = 4,
                          .heads = 2,
                          .head_dim = ROPE_D,
                          .positions = positions,
                          .cos = c,
                          .sin = s,
                          .sign = 1.0f};

    (void)state;
    rope_tables(c, s);
    test_fill(before, 4 * 2 * ROPE_D, "x");
    memcpy(x, before, sizeof x);
    assert_ok(ndm_rope(STREAM, &args));
    for (int head = 0; head < 8; head++)
        for (int i = 0; i < ROPE_D / 2; i++) {
            double angle = positions[head / 2] * pow(10000.0, -2.0 * i / ROPE_D);
            double re = before[head * ROPE_D + i], im = before[head * ROPE_D + i + ROPE_D / 2];
            assert_near(x[head * ROPE_D + i], re * cos(angle) - im * sin(angle), 1e-6);
            assert_near(x[head * ROPE_D + i + ROPE_D / 2], im * cos(angle) + re * sin(angle), 1e-6);
        }
    args.sign = -1.0f;
    assert_ok(ndm_rope(STREAM, &args));
    for (int i = 0; i < 4 * 2 * ROPE_D; i++)
        assert_near(x[i], before[i], 1e-6);
}

/* ---- activation ------------------------------------------------------------------------------ */

/* Values of torch.nn.functional to nine digits. */
static void activations_by_value(void **state)
{
    const float x[] = {-3, -1, 0, 0.5f, 2};
    const double expected[3][5] = {
        {-0.142277620, -0.268941421, 0, 0.311229666, 1.761594156},
        {-0.003637392, -0.158808009, 0, 0.345714015, 1.954597694},
        {-0.004049694, -0.158655254, 0, 0.345731231, 1.954499736},
    };

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        float y[5];
        ndm_act_args args = {
            .activation = (ndm_activation)kind, .x = x, .y = y, .n = 1, .width = 5};
        assert_ok(ndm_act(STREAM, &args));
        for (int i = 0; i < 5; i++)
            assert_near(y[i], expected[kind][i], 5e-7);
    }
}

/* Far from 0 they are 0 or x, and never NaN. */
static void activations_saturate(void **state)
{
    const float x[] = {-1e10f, -200, 200, 1e10f};

    (void)state;
    for (int kind = 0; kind < 3; kind++) {
        float y[4], dx[4], dy[] = {1, 1, 1, 1};
        ndm_act_args args = {
            .activation = (ndm_activation)kind, .x = x, .y = y, .n = 1, .width = 4};
        ndm_act_backward_args back = {
            .activation = (ndm_activation)kind, .x = x, .dy = dy, .dx = dx, .n = 1, .width = 4};
        assert_ok(ndm_act(STREAM, &args));
        assert_ok(ndm_act_backward(STREAM, &back));
        for (int i = 0; i < 4; i++) {
            assert_near(y[i], x[i] > 0 ? x[i] : 0.0, 1e-6);
            assert_near(dx[i], x[i] > 0 ? 1.0 : 0.0, 1e-6);
        }
    }
}

static void gate_multiplies_the_other_half(void **state)
{
    const float x[] = {0.5f, 2, -3, 10};
    float y[2];
    ndm_act_args args = {.activation = NDM_SILU, .gated = true, .x = x, .y = y, .n = 1, .width = 2};

    (void)state;
    assert_ok(ndm_act(STREAM, &args));
    assert_near(y[0], -3.0 * 0.311229666, 5e-7);
    assert_near(y[1], 10.0 * 1.761594156, 5e-7);
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

/* amax 900 is 448 times a little more than 2: the scale is 4, and 900 is 225 of it, which lies
 * between 224 and 240. */
static void quantize_divides_by_a_power_of_two(void **state)
{
    const float x[6] = {900.0f, -3.0f, 0.0f, 1.0f, 4.5f, -900.0f};
    const uint8_t want[6] = {0x76, 0xb4, 0, 0x28, 0x39, 0xf6};
    float amax = 7.0f, scale = 0.0f;
    uint8_t bytes[6];

    (void)state;
    assert_ok(ndm_amax(STREAM, &(ndm_amax_args){.src = x, .m = 2, .width = 3, .out = &amax}));
    assert_true(amax == 900.0f);
    assert_ok(ndm_quantize(STREAM, &(ndm_quantize_args){.src = x,
                                                        .dst = bytes,
                                                        .dst_dtype = NDM_F8E4M3,
                                                        .m = 2,
                                                        .width = 3,
                                                        .amax = &amax,
                                                        .scale = &scale}));
    assert_true(scale == 4.0f);
    assert_memory_equal(bytes, want, sizeof want);
}

/* [1 2] [3 -1; 0.5 4] with the scales 2 and 0.25, and a bias. */
static void gemm_of_8_bits_counts_its_scales(void **state)
{
    const uint8_t a[2] = {0x3c, 0x40};             /* e5m2: 1, 2 */
    const uint8_t b[4] = {0x44, 0xb8, 0x30, 0x48}; /* e4m3: 3, -1, 0.5, 4 */
    const float a_scale = 2.0f, b_scale = 0.25f, bias[2] = {10.0f, 20.0f};
    float c[2] = {100.0f, 200.0f};
    ndm_gemm_args args = {.m = 1,
                          .n = 2,
                          .k = 2,
                          .alpha = 1.0f,
                          .beta = 1.0f,
                          .a = a,
                          .b = b,
                          .bias = bias,
                          .c = c,
                          .a_dtype = NDM_F8E5M2,
                          .b_dtype = NDM_F8E4M3,
                          .a_scale = &a_scale,
                          .b_scale = &b_scale};

    (void)state;
    assert_ok(ndm_gemm(STREAM, &args));
    assert_true(c[0] == 112.0f && c[1] == 223.5f);
    args.b_dtype = NDM_F32;
    assert_int_equal(ndm_gemm(STREAM, &args), NDM_ERR_USAGE);
}

const struct CMUnitTest answers_layers[] = {
    cmocka_unit_test(quantize_divides_by_a_power_of_two),
    cmocka_unit_test(gemm_of_8_bits_counts_its_scales),
    cmocka_unit_test(gemm_by_hand),
    cmocka_unit_test(gemm_without_beta_ignores_c),
    cmocka_unit_test(gemm_without_terms_scales_c),
    cmocka_unit_test(gemm_reads_bf16_weights),
    cmocka_unit_test(embedding_slices_add_up),
    cmocka_unit_test(embedding_scales_rows_and_not_positions),
    cmocka_unit_test(embedding_backward_adds_repeats),
    cmocka_unit_test(rms_norm_by_hand),
    cmocka_unit_test(layer_norm_by_hand),
    cmocka_unit_test(norm_of_zeros_is_zero),
    cmocka_unit_test(rope_by_definition),
    cmocka_unit_test(activations_by_value),
    cmocka_unit_test(activations_saturate),
    cmocka_unit_test(gate_multiplies_the_other_half),
};
const size_t answers_layers_count = sizeof answers_layers / sizeof answers_layers[0];
