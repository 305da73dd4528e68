/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: names, and conversions against slow references built on exact double arithmetic.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <core/dtype.h>
#include <core/rng.h>

static float of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* A 16-bit format: 1 sign bit, exponent bits, mantissa bits. */
typedef struct format {
    int exponent_bits, mantissa_bits;
} format;

static const format bf16 = {8, 7}, f16 = {5, 10};

static double slow_value(format f, uint16_t h)
{
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    int exponent = (h >> f.mantissa_bits) & ((1 << f.exponent_bits) - 1);
    int mantissa = h & ((1 << f.mantissa_bits) - 1);
    double sign = h & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << f.exponent_bits) - 1)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - f.mantissa_bits);
    return sign * ldexp(mantissa + (1 << f.mantissa_bits), exponent - bias - f.mantissa_bits);
}

/* Nearest of all values, ties to even, by bisection over the positive patterns (their order is the
 * numbers'). The pattern of infinity counts as the next power of two, as IEEE 754 rounds. */
static uint16_t slow_round(format f, double x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    uint16_t infinity = (uint16_t)(((1 << f.exponent_bits) - 1) << f.mantissa_bits);
    double a = fabs(x);
    int bias = (1 << (f.exponent_bits - 1)) - 1;
    double overflow = ldexp(1, bias + 1);
    if (a >= overflow)
        return sign | infinity;
    uint16_t low = 0, high = infinity;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (slow_value(f, middle) <= a)
            low = middle;
        else
            high = middle;
    }
    double above = high == infinity ? overflow : slow_value(f, high);
    double down = a - slow_value(f, low), up = above - a;
    if (down == up)
        return sign | (low & 1 ? high : low);
    return sign | (down < up ? low : high);
}

static void every_pattern_widens_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t p = 0; p < 65536; p++) {
        uint16_t h = (uint16_t)p;
        float b = ndm_bf16_to_f32(h), s = ndm_f16_to_f32(h);
        double want_b = slow_value(bf16, h), want_s = slow_value(f16, h);
        assert_int_equal(isnan(b) != 0, isnan(want_b) != 0);
        assert_int_equal(isnan(s) != 0, isnan(want_s) != 0);
        if (!isnan(b)) {
            assert_true((double)b == want_b && (signbit(b) != 0) == (p >> 15));
            assert_int_equal(ndm_f32_to_bf16(b), h);
        } else {
            assert_true(isnan(ndm_bf16_to_f32(ndm_f32_to_bf16(b))));
        }
        if (!isnan(s)) {
            assert_true((double)s == want_s && (signbit(s) != 0) == (p >> 15));
            assert_int_equal(ndm_f32_to_f16(s), h);
        } else {
            assert_true(isnan(ndm_f16_to_f32(ndm_f32_to_f16(s))));
        }
    }
}

static void check_rounding(float x)
{
    if (isnan(x)) {
        assert_true(isnan(ndm_bf16_to_f32(ndm_f32_to_bf16(x))));
        assert_true(isnan(ndm_f16_to_f32(ndm_f32_to_f16(x))));
        return;
    }
    assert_int_equal(ndm_f32_to_bf16(x), slow_round(bf16, (double)x));
    assert_int_equal(ndm_f32_to_f16(x), slow_round(f16, (double)x));
}

static void random_numbers_round_to_nearest(void **state)
{
    (void)state;
    const uint64_t seed = 20240611;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < 200000; i++) {
        uint32_t word = (uint32_t)ndm_rng_u64(seed, 1, i);
        check_rounding(of_bits(word));
        /* exponents where fp16 has numbers */
        check_rounding(of_bits((word & 0x80ffffffu) | 0x30000000u | (word & 0x0f000000u)));
    }
}

/* The midpoint between two neighbours, and one ulp of fp32 on both of its sides. */
static void ties_go_to_even(void **state)
{
    (void)state;
    for (uint32_t p = 0; p < 0x7c00; p++) {
        double next = p == 0x7bff ? 65536.0 : slow_value(f16, (uint16_t)(p + 1));
        float tie = (float)((slow_value(f16, (uint16_t)p) + next) / 2);
        check_rounding(tie);
        check_rounding(-tie);
        check_rounding(nextafterf(tie, INFINITY));
        check_rounding(nextafterf(tie, 0));
    }
    for (uint32_t p = 0; p < 0x7f80; p++) {
        float tie = of_bits(p << 16 | 0x8000u);
        check_rounding(tie);
        check_rounding(-tie);
        check_rounding(of_bits(bits_of(tie) + 1));
        check_rounding(of_bits(bits_of(tie) - 1));
    }
}

static void edges_are_exact(void **state)
{
    (void)state;
    assert_int_equal(ndm_f32_to_bf16(1.0f), 0x3f80);
    assert_int_equal(ndm_f32_to_bf16(-0.0f), 0x8000);
    assert_int_equal(ndm_f32_to_bf16(INFINITY), 0x7f80);
    assert_int_equal(ndm_f32_to_bf16(3.4028235e38f), 0x7f80);
    assert_int_equal(ndm_f32_to_bf16(of_bits(0x7f800001)) & 0x7fc0, 0x7fc0);
    assert_int_equal(ndm_f32_to_f16(65504.0f), 0x7bff);
    assert_int_equal(ndm_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(ndm_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(ndm_f32_to_f16(0x1p-24f), 0x0001);
    assert_int_equal(ndm_f32_to_f16(0x1p-25f), 0x0000);
    assert_int_equal(ndm_f32_to_f16(-0x1.8p-25f), 0x8001);
}

/* One rounding, not two: 1 + 2^-8 + 2^-40 is above bf16's tie, but fp32 in between would make it
 * the tie. */
static void fp64_rounds_once(void **state)
{
    (void)state;
    const uint64_t seed = 99;
    print_message("seed %llu\n", (unsigned long long)seed);
    double above = 1.0 + 0x1p-8 + 0x1p-40;
    uint16_t h;
    ndm_convert(&above, NDM_F64, &h, NDM_BF16, 1);
    assert_int_equal(h, 0x3f81);
    for (uint64_t i = 0; i < 100000; i++) {
        double x = ldexp(ndm_rng_uniform(seed, 2, i) - 0.5,
                         (int)(ndm_rng_u64(seed, 3, i) % 60) - 40);
        ndm_convert(&x, NDM_F64, &h, NDM_BF16, 1);
        assert_int_equal(h, slow_round(bf16, x));
        ndm_convert(&x, NDM_F64, &h, NDM_F16, 1);
        assert_int_equal(h, slow_round(f16, x));
    }
    double edges[] = {1e300, -1e300, INFINITY, 0x1.ffffffffp127, 1e-300, -0.0};
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        ndm_convert(&edges[i], NDM_F64, &h, NDM_BF16, 1);
        assert_int_equal(h, slow_round(bf16, edges[i]));
    }
}

/* All pairs agree with going through double, which holds every value of the others. */
static void all_pairs_convert(void **state)
{
    (void)state;
    enum { N = 37 };
    static const ndm_dtype types[] = {NDM_F32, NDM_BF16, NDM_F16, NDM_F64};
    double start[N];
    for (int i = 0; i < N; i++)
        start[i] = (double)ndm_rng_normal(5, 5, (uint64_t)i);
    for (int a = 0; a < 4; a++) {
        for (int b = 0; b < 4; b++) {
            unsigned char from[N * 8], direct[N * 8], through[N * 8];
            double wide[N];
            ndm_convert(start, NDM_F64, from, types[a], N);
            memset(direct, 0xee, sizeof direct);
            ndm_convert(from, types[a], direct, types[b], N);
            ndm_convert(from, types[a], wide, NDM_F64, N);
            ndm_convert(wide, NDM_F64, through, types[b], N);
            assert_memory_equal(direct, through, N * ndm_dtype_bytes(types[b]));
            for (size_t i = N * ndm_dtype_bytes(types[b]); i < sizeof direct; i++)
                assert_int_equal(direct[i], 0xee);
        }
    }
    int64_t numbers[2] = {-5, 1LL << 40}, copy[2] = {0, 0};
    ndm_convert(numbers, NDM_I64, copy, NDM_I64, 2);
    assert_memory_equal(numbers, copy, sizeof copy);
}

/* ---- 8 bits ---------------------------------------------------------------------------------- */

static const ndm_dtype f8_types[] = {NDM_F8E4M3, NDM_F8E5M2};

/* Definition of a pattern: e4m3 gives up all special values but one NaN of each sign. */
static double f8_value(ndm_dtype dtype, int byte)
{
    int bits = dtype == NDM_F8E4M3 ? 3 : 2, bias = dtype == NDM_F8E4M3 ? 7 : 15;
    int exponent = (byte & 0x7f) >> bits, mantissa = byte & ((1 << bits) - 1);
    double sign = byte & 0x80 ? -1.0 : 1.0;

    if (dtype == NDM_F8E4M3 && (byte & 0x7f) == 0x7f)
        return NAN;
    if (dtype == NDM_F8E5M2 && exponent == 31)
        return mantissa ? NAN : sign * INFINITY;
    return sign * (exponent ? ldexp(mantissa + (1 << bits), exponent - bias - bits)
                            : ldexp(mantissa, 1 - bias - bits));
}

static void every_8_bit_pattern_widens_and_comes_back(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int byte = 0; byte < 256; byte++) {
            double want = f8_value(f8_types[t], byte);
            float got = ndm_f8_to_f32((uint8_t)byte, f8_types[t]);
            if (isnan(want)) {
                assert_true(isnan(got));
                assert_int_equal(ndm_f32_to_f8(got, f8_types[t]), 0x7f);
                continue;
            }
            assert_true((double)got == want && !signbit(got) == (byte < 128));
            int back = isinf(want) ? byte - 1 : byte; /* infinities saturate */
            assert_int_equal(ndm_f32_to_f8(got, f8_types[t]), back);
        }
}

/* Around the middle between each two neighbours. */
static void eight_bits_round_to_nearest_even(void **state)
{
    (void)state;
    for (int t = 0; t < 2; t++)
        for (int byte = 0; f8_value(f8_types[t], byte + 1) <= ndm_f8_most(f8_types[t]); byte++) {
            float low = ndm_f8_to_f32((uint8_t)byte, f8_types[t]);
            float high = ndm_f8_to_f32((uint8_t)(byte + 1), f8_types[t]);
            float middle = (low + high) / 2; /* exact */
            int even = byte + byte % 2;
            assert_int_equal(ndm_f32_to_f8(middle, f8_types[t]), even);
            assert_int_equal(ndm_f32_to_f8(-middle, f8_types[t]), even | 0x80);
            assert_int_equal(ndm_f32_to_f8(nextafterf(middle, 0.0f), f8_types[t]), byte);
            assert_int_equal(ndm_f32_to_f8(nextafterf(middle, 1e9f), f8_types[t]), byte + 1);
        }
    assert_int_equal(ndm_f32_to_f8(1e9f, NDM_F8E4M3), 0x7e); /* 448 */
    assert_int_equal(ndm_f32_to_f8(-INFINITY, NDM_F8E5M2), 0xfb);
    assert_int_equal(ndm_f32_to_f8(1e-30f, NDM_F8E4M3), 0);
    assert_int_equal(ndm_f32_to_f8(-0.0f, NDM_F8E4M3), 0x80);
}

/* Through every other float type and back: all of them hold 8 bits. fp64 rounds once. */
static void eight_bits_convert_with_all_types(void **state)
{
    static const ndm_dtype wide[] = {NDM_F32, NDM_BF16, NDM_F16, NDM_F64};
    uint8_t all[0x7b], back[sizeof all];
    uint64_t room[sizeof all];
    double tie = f8_value(NDM_F8E4M3, 0x38) * 1.0625 * (1.0 + 1e-12);

    (void)state;
    for (size_t i = 0; i < sizeof all; i++)
        all[i] = (uint8_t)i;
    for (int t = 0; t < 2; t++)
        for (int w = 0; w < 4; w++) {
            memset(back, 0xff, sizeof back);
            ndm_convert(all, f8_types[t], room, wide[w], (int64_t)sizeof all);
            ndm_convert(room, wide[w], back, f8_types[t], (int64_t)sizeof all);
            assert_memory_equal(all, back, sizeof all);
        }
    ndm_convert(&tie, NDM_F64, back, NDM_F8E4M3, 1); /* as fp32 it would be a tie */
    assert_int_equal(back[0], 0x39);
}

static void names_are_read_in_all_spellings(void **state)
{
    (void)state;
    static const size_t bytes[NDM_DTYPE_COUNT] = {4, 2, 2, 8, 4, 8, 1, 2, 1, 1};
    for (int i = 0; i < NDM_DTYPE_COUNT; i++) {
        ndm_dtype got;
        assert_int_equal(ndm_dtype_bytes((ndm_dtype)i), bytes[i]);
        assert_int_equal(ndm_dtype_parse(ndm_dtype_name((ndm_dtype)i), &got), NDM_OK);
        assert_int_equal(got, i);
        assert_int_equal(ndm_dtype_parse(ndm_dtype_safetensors((ndm_dtype)i), &got), NDM_OK);
        assert_int_equal(got, i);
    }
    ndm_dtype got = NDM_U8;
    assert_int_equal(ndm_dtype_parse("torch.bfloat16", &got), NDM_OK);
    assert_int_equal(got, NDM_BF16);
    assert_int_equal(ndm_dtype_parse("float32", &got), NDM_OK);
    assert_int_equal(got, NDM_F32);
    assert_int_equal(ndm_dtype_parse("fp8", &got), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "'fp8'"));
    assert_int_equal(got, NDM_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pattern_widens_and_comes_back),
        cmocka_unit_test(random_numbers_round_to_nearest),
        cmocka_unit_test(ties_go_to_even),
        cmocka_unit_test(edges_are_exact),
        cmocka_unit_test(fp64_rounds_once),
        cmocka_unit_test(all_pairs_convert),
        cmocka_unit_test(every_8_bit_pattern_widens_and_comes_back),
        cmocka_unit_test(eight_bits_round_to_nearest_even),
        cmocka_unit_test(eight_bits_convert_with_all_types),
        cmocka_unit_test(names_are_read_in_all_spellings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
