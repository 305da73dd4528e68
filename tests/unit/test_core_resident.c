/* SPDX-License-Identifier: Apache-2.0 */
/* Resident memory: it grows with what is touched, and a process that is not there has none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <core/resident.h>

enum { BYTES = 16 * 1024 * 1024 };

static void grows_with_what_is_touched(void **state)
{
    int64_t before = ndm_resident_bytes(0);
    char *memory = malloc(BYTES);

    (void)state;
    assert_non_null(memory);
    memset(memory, 1, BYTES);
    int64_t after = ndm_resident_bytes(0);
    assert_true(before > 0);
    assert_in_range(after - before, BYTES / 10 * 9, BYTES / 10 * 11);
    assert_true(llabs(ndm_resident_bytes(getpid()) - after) < BYTES / 10);
    free(memory);
}

static void nobody_has_none(void **state)
{
    (void)state;
    assert_int_equal(ndm_resident_bytes((int64_t)1 << 40), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_with_what_is_touched),
        cmocka_unit_test(nobody_has_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
