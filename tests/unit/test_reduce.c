/* SPDX-License-Identifier: Apache-2.0 */
/* The local sum of collectives: the bits of a sum in slice order, wherever it goes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "collectives/reduce.h"

enum { MOST_SLICES = 9, MOST = 4099, LARGE = 64 * 1024 * 1024 };

static float slices[MOST_SLICES][MOST], want[MOST], out[MOST];
static const int64_t counts[] = {1, 15, 16, 17, 2048, MOST};
enum { N_COUNTS = sizeof counts / sizeof counts[0] };

/* Of all magnitudes, so that another order gives other bits. */
static void fill(int64_t n)
{
    for (int64_t k = 0; k < n; k++)
        for (int64_t i = 0; i < MOST; i++)
            slices[k][i] = ldexpf((float)((k * 37 + i * 11) % 101) - 50.5f, (int)((k + i) % 19));
    for (int64_t i = 0; i < MOST; i++) {
        want[i] = slices[0][i];
        for (int64_t k = 1; k < n; k++)
            want[i] += slices[k][i];
    }
}

static void one_sum(int64_t n, int64_t count, float *to, int64_t result_bytes)
{
    const void *from[MOST_SLICES];

    fill(n);
    for (int64_t k = 0; k < n; k++)
        from[k] = slices[k];
    ndm_reduce_slices(to, NDM_F32, from, n, count, NDM_F32, NDM_SUM, result_bytes);
    assert_memory_equal(to, want, (size_t)count * sizeof *to);
}

static void sums_are_made_in_slice_order(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= MOST_SLICES; n++)
        for (int64_t c = 0; c < N_COUNTS; c++)
            one_sum(n, counts[c], out, 0);
}

/* From places that are no multiples of a cache line too; what lies behind stays. */
static void a_part_of_a_large_result_is_the_same(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= MOST_SLICES; n++)
        for (int64_t first = 0; first < 3; first++)
            for (int64_t c = 0; c < N_COUNTS - 1; c++) {
                float *behind = out + first + counts[c];
                *behind = -7.0f;
                one_sum(n, counts[c], out + first, LARGE);
                assert_true(*behind == -7.0f);
            }
}

static void a_sum_may_go_where_a_slice_is(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= MOST_SLICES; n++)
        for (int64_t k = 0; k < n; k++)
            one_sum(n, MOST, slices[k], k % 2 ? LARGE : 0);
}

static void every_slice_gets_the_sum(void **state)
{
    void *to[MOST_SLICES];

    (void)state;
    for (int64_t n = 1; n <= MOST_SLICES; n++)
        for (int64_t c = 0; c < N_COUNTS; c++) {
            fill(n);
            for (int64_t k = 0; k < n; k++)
                to[k] = slices[k];
            float behind = counts[c] < MOST ? slices[0][counts[c]] : 0.0f;
            ndm_reduce_slices_to_all(to, n, counts[c], NDM_F32, NDM_SUM);
            for (int64_t k = 0; k < n; k++)
                assert_memory_equal(slices[k], want, (size_t)counts[c] * sizeof(float));
            if (counts[c] < MOST)
                assert_true(slices[0][counts[c]] == behind);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_made_in_slice_order),
        cmocka_unit_test(a_part_of_a_large_result_is_the_same),
        cmocka_unit_test(a_sum_may_go_where_a_slice_is),
        cmocka_unit_test(every_slice_gets_the_sum),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
