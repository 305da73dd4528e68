/* SPDX-License-Identifier: Apache-2.0 */
/* A golden case's JSON files, for unit tests. */
#ifndef NDM_TESTS_UNIT_GOLDEN_CASE_H
#define NDM_TESTS_UNIT_GOLDEN_CASE_H

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

static const char *const golden_cases[] = {
    "gpt2_packed",        "gpt2_tiny",    "llama3_rope", "llama_accum",  "llama_basic",
    "llama_bf16_weights", "llama_masked", "llama_mqa",   "llama_packed", "llama_tied_oddvocab",
    "mistral_swa",        "qwen2_bias",   "qwen3_qknorm"};
enum { GOLDEN_CASES = sizeof golden_cases / sizeof *golden_cases };

/* Path of a file of a case; the four latest stay valid. */
static inline const char *golden_path(const char *name, const char *file)
{
    static char paths[4][4096];
    static int next;
    char *path = paths[next++ % 4];

    snprintf(path, sizeof paths[0], "%s/%s/%s", NDM_GOLDEN, name, file);
    return path;
}

static inline json_t *golden_json(const char *name, const char *file)
{
    json_t *root = json_load_file(golden_path(name, file), 0, NULL);

    assert_non_null(root);
    return root;
}

static inline int64_t golden_int(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static inline double golden_double(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}

#endif
