/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers: Random123's known answers, moments, permutations. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <core/rng.h>

static void philox_gives_the_known_answers(void **state)
{
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], out[4];
    } known[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        uint32_t out[4];
        ndm_philox4x32(known[i].counter, known[i].key, out);
        assert_memory_equal(out, known[i].out, sizeof out);
    }
}

/* Values that checkpoints and runs rely on: they must never change. */
static void streams_and_numbers_never_change(void **state)
{
    (void)state;
    assert_int_equal(ndm_rng_stream(""), 0xcbf29ce484222325u);
    assert_int_equal(ndm_rng_stream("a"), 0xaf63dc4c8601ec8cu);
    assert_int_equal(ndm_rng_stream("foobar"), 0x85944171f73967e8u);
    assert_int_equal(ndm_rng_u64(0, 0, 0), 0xe169c58d6627e8d5u);
}

static void normal_is_box_muller_of_its_block(void **state)
{
    (void)state;
    uint64_t seed = 7, stream = ndm_rng_stream("model.embed_tokens.weight");
    for (uint64_t i = 0; i < 4096; i++) {
        const uint32_t counter[4] = {(uint32_t)(i / 4), 0, (uint32_t)stream,
                                     (uint32_t)(stream >> 32)};
        const uint32_t key[2] = {7, 0};
        uint32_t w[4];
        ndm_philox4x32(counter, key, w);
        unsigned pair = i % 4 < 2 ? 0 : 2;
        double radius = sqrt(-2 * log((w[pair] + 0.5) / 4294967296.0));
        double angle = 2 * 3.14159265358979323846 * (w[pair + 1] / 4294967296.0);
        double want = radius * (i % 2 ? sin(angle) : cos(angle));
        assert_true(fabs((double)ndm_rng_normal(seed, stream, i) - want) < 1e-6);
    }
}

static void filling_equals_drawing_one_by_one(void **state)
{
    (void)state;
    for (uint64_t first = 0; first < 9; first++) {
        for (int64_t n = 0; n < 11; n++) {
            float out[16];
            memset(out, 0, sizeof out);
            out[n] = 77;
            ndm_rng_normal_fill(3, 4, first, n, out);
            for (int64_t i = 0; i < n; i++)
                assert_true(out[i] == ndm_rng_normal(3, 4, first + (uint64_t)i));
            assert_true(out[n] == 77);
        }
    }
}

static void moments_are_those_of_the_distributions(void **state)
{
    (void)state;
    enum { N = 200000 };
    const uint64_t seed = 12345, stream = 1;
    print_message("seed %llu\n", (unsigned long long)seed);
    double u1 = 0, u2 = 0, n1 = 0, n2 = 0, n3 = 0, n4 = 0, lag = 0, last = 0;
    for (uint64_t i = 0; i < N; i++) {
        double u = ndm_rng_uniform(seed, stream, i);
        double x = (double)ndm_rng_normal(seed, stream, i);
        assert_true(u >= 0 && u < 1 && isfinite(x));
        u1 += u, u2 += u * u;
        n1 += x, n2 += x * x, n3 += x * x * x, n4 += x * x * x * x;
        lag += x * last;
        last = x;
    }
    double tolerance = 5 / sqrt(N); /* five sigma of a mean of unit variance */
    assert_true(fabs(u1 / N - 0.5) < 0.29 * tolerance);
    assert_true(fabs(u2 / N - 1.0 / 3) < 0.3 * tolerance);
    assert_true(fabs(n1 / N) < tolerance);
    assert_true(fabs(n2 / N - 1) < 1.5 * tolerance);
    assert_true(fabs(n3 / N) < 4 * tolerance);
    assert_true(fabs(n4 / N - 3) < 10 * tolerance);
    assert_true(fabs(lag / N) < tolerance);
}

static void check_bijection(uint64_t seed, uint64_t n)
{
    unsigned char *seen = calloc(n, 1);
    assert_non_null(seen);
    for (uint64_t i = 0; i < n; i++) {
        uint64_t p = ndm_rng_permute(seed, 9, i, n);
        assert_true(p < n);
        assert_int_equal(seen[p], 0);
        seen[p] = 1;
    }
    free(seen);
}

static void permute_is_a_bijection(void **state)
{
    (void)state;
    for (uint64_t n = 1; n <= 200; n++)
        check_bijection(n % 7, n);
    check_bijection(1, 65536);
    check_bijection(2, 65537);
    check_bijection(3, 99991);
}

static void big_permutations_stay_in_range_without_repeats(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1ull << 32, (1ull << 40) + 1, 1ull << 63, UINT64_MAX};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint64_t got[500];
        for (uint64_t i = 0; i < 500; i++) {
            got[i] = ndm_rng_permute(4, 4, i < 250 ? i : sizes[s] - 1 - i, sizes[s]);
            assert_true(got[i] < sizes[s]);
            for (uint64_t j = 0; j < i; j++)
                assert_true(got[j] != got[i]);
        }
    }
}

/* Each place is taken about equally often over seeds: chi-squared of 7 degrees of freedom below 40.
 */
static void seeds_give_different_permutations(void **state)
{
    (void)state;
    enum { N = 8, SEEDS = 4000 };
    for (uint64_t i = 0; i < N; i++) {
        int count[N] = {0};
        double chi = 0;
        for (uint64_t seed = 0; seed < SEEDS; seed++)
            count[ndm_rng_permute(seed, 1, i, N)]++;
        for (int k = 0; k < N; k++)
            chi += pow(count[k] - SEEDS / N, 2) / (SEEDS / (double)N);
        assert_true(chi < 40);
    }
    int swapped = 0;
    for (uint64_t seed = 0; seed < 100; seed++)
        swapped += ndm_rng_permute(seed, 1, 0, 2) == 1;
    assert_in_range(swapped, 20, 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(streams_and_numbers_never_change),
        cmocka_unit_test(normal_is_box_muller_of_its_block),
        cmocka_unit_test(filling_equals_drawing_one_by_one),
        cmocka_unit_test(moments_are_those_of_the_distributions),
        cmocka_unit_test(permute_is_a_bijection),
        cmocka_unit_test(big_permutations_stay_in_range_without_repeats),
        cmocka_unit_test(seeds_give_different_permutations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
