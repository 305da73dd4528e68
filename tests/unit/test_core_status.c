/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses: names, exit codes, and the message of each thread. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <ndmesh/status.h>

typedef struct status_case {
    ndm_status status;
    const char *name;
    int exit_code;
} status_case;

static const status_case cases[] = {
    {NDM_OK, "NDM_OK", 0},
    {NDM_ERR_USAGE, "NDM_ERR_USAGE", 2},
    {NDM_ERR_CONFIG, "NDM_ERR_CONFIG", 3},
    {NDM_ERR_STATE, "NDM_ERR_STATE", 1},
    {NDM_ERR_UNSUPPORTED, "NDM_ERR_UNSUPPORTED", 3},
    {NDM_ERR_MEMORY, "NDM_ERR_MEMORY", 5},
    {NDM_ERR_IO, "NDM_ERR_IO", 1},
    {NDM_ERR_FORMAT, "NDM_ERR_FORMAT", 3},
    {NDM_ERR_COMM, "NDM_ERR_COMM", 4},
    {NDM_ERR_TIMEOUT, "NDM_ERR_TIMEOUT", 4},
    {NDM_ERR_MISMATCH, "NDM_ERR_MISMATCH", 4},
    {NDM_ERR_DEVICE, "NDM_ERR_DEVICE", 5},
    {NDM_ERR_NONFINITE, "NDM_ERR_NONFINITE", 1},
    {NDM_ERR_CHECK, "NDM_ERR_CHECK", 6},
    {NDM_ERR_INTERRUPTED, "NDM_ERR_INTERRUPTED", 130},
    {NDM_ERR_INTERNAL, "NDM_ERR_INTERNAL", 1},
};

static void every_status_has_its_name_and_exit_code(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(ndm_status_name(cases[i].status), cases[i].name);
        assert_int_equal(ndm_status_exit_code(cases[i].status), cases[i].exit_code);
    }
    assert_string_equal(ndm_status_name((ndm_status)77), "NDM_ERR_UNKNOWN");
    assert_int_equal(ndm_status_exit_code((ndm_status)77), 1);
}

static ndm_status refuse(int number)
{
    NDM_FAIL(NDM_ERR_CONFIG, "tp=%d\ndoes not divide %d", number, 8);
}

static ndm_status relay(int number)
{
    NDM_TRY(refuse(number));
    return NDM_OK;
}

static void the_message_is_one_line_and_names_its_place(void **state)
{
    (void)state;
    assert_int_equal(relay(3), NDM_ERR_CONFIG);
    assert_string_equal(ndm_error_message(), "tp=3 does not divide 8");
    assert_non_null(strstr(ndm_error_where(), "unit/test_core_status.c:"));
    assert_true(strncmp(ndm_error_where(), "unit/", 5) == 0);
}

static void a_message_may_quote_the_one_before(void **state)
{
    (void)state;
    assert_int_equal(refuse(3), NDM_ERR_CONFIG);
    ndm_error_set(NDM_ERR_IO, "here.c", 7, "while loading: %s", ndm_error_message());
    assert_string_equal(ndm_error_message(), "while loading: tp=3 does not divide 8");
    assert_string_equal(ndm_error_where(), "here.c:7");
}

static void a_long_message_is_cut(void **state)
{
    (void)state;
    char text[10000];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    ndm_error_set(NDM_ERR_IO, "f", 1, "%s", text);
    assert_in_range(strlen(ndm_error_message()), 1000, sizeof text - 2);
}

static void *message_of_a_new_thread(void *first)
{
    *(int *)first = ndm_error_message()[0];
    *(int *)first += refuse(5) == NDM_OK;
    return NULL;
}

static void threads_have_their_own_message(void **state)
{
    (void)state;
    int first = -1;
    pthread_t thread;
    assert_int_equal(refuse(3), NDM_ERR_CONFIG);
    assert_int_equal(pthread_create(&thread, NULL, message_of_a_new_thread, &first), 0);
    pthread_join(thread, NULL);
    assert_int_equal(first, 0);
    assert_string_equal(ndm_error_message(), "tp=3 does not divide 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_its_name_and_exit_code),
        cmocka_unit_test(the_message_is_one_line_and_names_its_place),
        cmocka_unit_test(a_message_may_quote_the_one_before),
        cmocka_unit_test(a_long_message_is_cut),
        cmocka_unit_test(threads_have_their_own_message),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
