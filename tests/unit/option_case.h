/* SPDX-License-Identifier: Apache-2.0 */
/* Loads options in one call and checks refusals by their message. A test includes this once. */
#ifndef NDM_TESTS_UNIT_OPTION_CASE_H
#define NDM_TESTS_UNIT_OPTION_CASE_H

#include "scratch.h"

#include <core/option.h>

static inline ndm_options *fresh(const ndm_option_table *table)
{
    ndm_options *options = NULL;
    assert_int_equal(ndm_options_create(table, &options), NDM_OK);
    ndm_options_set_silent(options, true);
    return options;
}

static inline ndm_status load_yaml(ndm_options *options, const char *text)
{
    return ndm_options_load_yaml_text(options, text, strlen(text), "run.yaml");
}

/* Flags separated by single spaces. */
static inline ndm_status load_flags(ndm_options *options, const char *line)
{
    static char copy[1024];
    const char *argv[64], *positional[64];
    int argc = 0, n = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return ndm_options_load_args(options, argc, argv, positional, &n);
}

static inline void expect_message(ndm_status got, ndm_status want, const char *message)
{
    if (got != want || strcmp(ndm_error_message(), message) != 0)
        fail_msg("%s '%s', not %s '%s'", ndm_status_name(got),
                 got == NDM_OK ? "" : ndm_error_message(), ndm_status_name(want), message);
}

static inline void expect_ok(ndm_status got)
{
    if (got != NDM_OK)
        fail_msg("%s: %s", ndm_status_name(got), ndm_error_message());
}

static inline void yaml_refused(const ndm_option_table *table, const char *text, ndm_status want,
                                const char *message)
{
    ndm_options *options = fresh(table);
    expect_message(load_yaml(options, text), want, message);
    ndm_options_destroy(options);
}

static inline void flags_refused(const ndm_option_table *table, const char *line,
                                 const char *message)
{
    ndm_options *options = fresh(table);
    expect_message(load_flags(options, line), NDM_ERR_USAGE, message);
    ndm_options_destroy(options);
}

#endif
