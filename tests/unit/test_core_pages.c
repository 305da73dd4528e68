/* SPDX-License-Identifier: Apache-2.0 */
/* Large arrays begin with a large page and ask for large pages. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <core/pages.h>

/* The line `key` of the mapping that holds `at`; -1 = the kernel does not say. */
static int64_t mapping_says(const void *at, const char *key)
{
    FILE *maps = fopen("/proc/self/smaps", "r");
    char line[512];
    int64_t found = -1;
    int inside = 0;

    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t first, end;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &end) == 2)
            inside = (uintptr_t)at >= first && (uintptr_t)at < end;
        else if (inside && strncmp(line, key, strlen(key)) == 0)
            found = strtoll(line + strlen(key), NULL, 10);
    }
    if (maps)
        (void)fclose(maps);
    return found;
}

static int system_gives_them(void)
{
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "r");
    char line[128] = "";

    if (f) {
        (void)!fgets(line, sizeof line, f);
        (void)fclose(f);
    }
    return strstr(line, "[madvise]") || strstr(line, "[always]");
}

static void test_alignment(void **state)
{
    const int64_t sizes[] = {
        0, 1, 255, 4096, NDM_LARGE_PAGE - 1, NDM_LARGE_PAGE, 3 * NDM_LARGE_PAGE + 17};
    (void)state;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *memory = ndm_pages_alloc(sizes[i]);
        uintptr_t unit = sizes[i] >= NDM_LARGE_PAGE ? NDM_LARGE_PAGE : 256;
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % unit, 0);
        memset(memory, 7, (size_t)sizes[i]);
        free(memory);
    }
}

static void test_refused(void **state)
{
    (void)state;
    assert_null(ndm_pages_alloc(-1));
}

static void test_asks_for_large_pages(void **state)
{
    char *memory = ndm_pages_alloc(4 * NDM_LARGE_PAGE);
    int64_t eligible = mapping_says(memory + NDM_LARGE_PAGE, "THPeligible:");
    (void)state;

    assert_non_null(memory);
    free(memory);
    if (!system_gives_them() || eligible < 0)
        skip();
    assert_int_equal(eligible, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_asks_for_large_pages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
