/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that share the work of a save, and copies past the caches. */
#include "core/tasks.h"
#include "train/checkpoint_copy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdatomic.h>
#include <string.h>

static ndm_status count_or_fail(void *user, int64_t i, int thread)
{
    atomic_int *counts = user;

    if (thread < 0 || thread >= NDM_TASK_THREADS)
        return ndm_error_set(NDM_ERR_INTERNAL, __FILE__, __LINE__, "thread %d", thread);
    atomic_fetch_add(&counts[i], 1);
    if (i == 70)
        NDM_FAIL(NDM_ERR_FORMAT, "task %d is the one that fails", (int)i);
    return NDM_OK;
}

/* Each task runs once; a failure is the outcome, with the message of its thread. */
static void tasks_run_once_and_fail_with_their_message(void **state)
{
    (void)state;
    for (int threads = 0; threads < 7; threads++) {
        atomic_int counts[100] = {0};

        assert_int_equal(ndm_tasks_run(70, threads, count_or_fail, counts), NDM_OK);
        for (int i = 0; i < 70; i++)
            assert_int_equal(counts[i], 1);
        assert_int_equal(ndm_tasks_run(100, threads, count_or_fail, counts), NDM_ERR_FORMAT);
        assert_non_null(strstr(ndm_error_message(), "task 70 is the one that fails"));
    }
    assert_int_equal(ndm_tasks_run(0, 3, count_or_fail, NULL), NDM_OK);
}

static void copies_are_exact_at_any_alignment(void **state)
{
    static const int64_t sizes[] = {0, 1, 63, 4095, 4096, 4097, 5000, 9999};
    static unsigned char from[10064], to[10080];

    (void)state;
    for (size_t i = 0; i < sizeof from; i++)
        from[i] = (unsigned char)(i * 7 + i / 256);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (int a = 0; a < 64; a++) {
            int b = a * 5 % 64;
            memset(to, 0xee, sizeof to);
            ndm_copy_past_caches(to + a + 8, from + b, sizes[s]);
            assert_memory_equal(to + a + 8, from + b, (size_t)sizes[s]);
            assert_true(to[a + 7] == 0xee && to[a + 8 + sizes[s]] == 0xee);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_run_once_and_fail_with_their_message),
        cmocka_unit_test(copies_are_exact_at_any_alignment),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
