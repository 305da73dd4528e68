/* SPDX-License-Identifier: Apache-2.0 */
/* Options structs of programs that were built before, with, and after the library. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "core/error.h"
#include "core/sized.h"

typedef struct before {
    size_t size;
    int steps;
} before;

typedef struct options {
    size_t size;
    int steps;
    double lr; /* added later */
} options;

typedef struct after {
    size_t size;
    int steps;
    double lr;
    double clip;
} after;

#define OPTIONS_INIT            \
    {                           \
        sizeof(options), 7, 0.5 \
    }

static void test_defaults(void **state)
{
    options mine;

    (void)state;
    assert_int_equal(NDM_SIZED_TAKE(options, &mine, OPTIONS_INIT, NULL), NDM_OK);
    assert_int_equal(mine.size, sizeof mine);
    assert_int_equal(mine.steps, 7);
    assert_true(mine.lr == 0.5);
}

static void test_of_this_version(void **state)
{
    options mine, given = {sizeof given, 3, 0.25};

    (void)state;
    assert_int_equal(NDM_SIZED_TAKE(options, &mine, OPTIONS_INIT, &given), NDM_OK);
    assert_memory_equal(&mine, &given, sizeof mine);
}

/* A block of its own: a byte behind it would be seen by the sanitizers. */
static void test_of_an_earlier_one(void **state)
{
    before *given = test_malloc(sizeof *given);
    options mine;

    (void)state;
    *given = (before){sizeof *given, 3};
    assert_int_equal(NDM_SIZED_TAKE(options, &mine, OPTIONS_INIT, given), NDM_OK);
    assert_int_equal(mine.size, sizeof mine);
    assert_int_equal(mine.steps, 3);
    assert_true(mine.lr == 0.5);
    test_free(given);
}

static void test_of_a_later_one(void **state)
{
    after given = {sizeof given, 3, 0.25, 1.0};
    options mine;

    (void)state;
    assert_int_equal(NDM_SIZED_TAKE(options, &mine, OPTIONS_INIT, &given), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "options"));
    assert_non_null(strstr(ndm_error_message(), "later"));
}

static void test_of_no_size(void **state)
{
    options mine, given = {.steps = 3};

    (void)state;
    assert_int_equal(NDM_SIZED_TAKE(options, &mine, OPTIONS_INIT, &given), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "start from OPTIONS_INIT"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),          cmocka_unit_test(test_of_this_version),
        cmocka_unit_test(test_of_an_earlier_one), cmocka_unit_test(test_of_a_later_one),
        cmocka_unit_test(test_of_no_size),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
