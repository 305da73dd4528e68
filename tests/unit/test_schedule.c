/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rates: those that torch.optim used in the golden cases, and the ends of each schedule.
 */
#include "scratch.h"

#include <math.h>

#include "golden_case.h"
#include "train/schedule.h"

static void golden_rates(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN_CASES; i++) {
        json_t *train = golden_json(golden_cases[i], "train.json");
        json_t *expected = golden_json(golden_cases[i], "expected.json"), *step;
        ndm_schedule s = {.lr = golden_double(train, "lr"),
                          .min_lr_ratio = golden_double(train, "min_lr_ratio"),
                          .warmup = golden_int(train, "warmup"),
                          .steps = golden_int(train, "steps")};
        size_t k;

        assert_int_equal(
            ndm_schedule_parse(json_string_value(json_object_get(train, "lr_schedule")), &s.kind),
            NDM_OK);
        assert_int_equal(ndm_schedule_check(&s), NDM_OK);
        json_array_foreach(json_object_get(expected, "steps"), k, step)
        {
            double want = golden_double(step, "lr");

            assert_true(fabs(ndm_schedule_lr(&s, (int64_t)k + 1) - want) <= 1e-15 * s.lr);
        }
        json_decref(train);
        json_decref(expected);
    }
}

static void ends_of_schedules(void **state)
{
    ndm_schedule s = {NDM_SCHEDULE_COSINE, 2.0, 0.25, 10, 110};

    (void)state;
    assert_true(ndm_schedule_lr(&s, 1) == 0.2);
    assert_true(ndm_schedule_lr(&s, 10) == 2.0);
    assert_true(fabs(ndm_schedule_lr(&s, 60) - 2.0 * (1 + 0.25) / 2) < 1e-12);
    assert_true(fabs(ndm_schedule_lr(&s, 110) - 0.5) < 1e-12);
    assert_true(fabs(ndm_schedule_lr(&s, 500) - 0.5) < 1e-12);
    s.kind = NDM_SCHEDULE_LINEAR;
    assert_true(fabs(ndm_schedule_lr(&s, 35) - 2.0 * (1 - 0.75 * 0.25)) < 1e-12);
    s.kind = NDM_SCHEDULE_CONSTANT;
    assert_true(ndm_schedule_lr(&s, 110) == 2.0);
    s = (ndm_schedule){NDM_SCHEDULE_LINEAR, 1.0, 0, 0, 1};
    assert_true(ndm_schedule_lr(&s, 1) == 0.0);
    s.warmup = 1; /* all of the run is warm-up */
    assert_true(ndm_schedule_lr(&s, 1) == 1.0);
    s = (ndm_schedule){NDM_SCHEDULE_COSINE, 2.0, 0.25, 8, 2}; /* and more than all */
    assert_int_equal(ndm_schedule_check(&s), NDM_OK);
    assert_true(ndm_schedule_lr(&s, 2) == 0.5);
}

static void refusals(void **state)
{
    ndm_schedule_kind kind;
    ndm_schedule s = {NDM_SCHEDULE_LINEAR, 1.0, 0, -1, 2};

    (void)state;
    assert_int_equal(ndm_schedule_parse("cosin", &kind), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "did you mean 'cosine'"));
    assert_int_equal(ndm_schedule_check(&s), NDM_ERR_CONFIG);
    s.warmup = 0, s.min_lr_ratio = 1.5;
    assert_int_equal(ndm_schedule_check(&s), NDM_ERR_CONFIG);
    s.min_lr_ratio = 0, s.lr = NAN;
    assert_int_equal(ndm_schedule_check(&s), NDM_ERR_CONFIG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_rates),
        cmocka_unit_test(ends_of_schedules),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
