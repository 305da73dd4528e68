/* SPDX-License-Identifier: Apache-2.0 */
/* The words of every refusal: the rule, the numbers that clash, and what would do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "mesh/rules.h"

typedef struct refusal {
    int64_t world, size[NDM_AXIS_COUNT];
    const char *message;
} refusal;

static ndm_status build(int64_t world, const int64_t *size, const int64_t *order, ndm_mesh **mesh)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    config.dp_replicate = size[0], config.dp_shard = size[1], config.cp = size[2];
    config.tp = size[3], config.order = order;
    return ndm_mesh_create(&config, world, mesh);
}

static void case_26_sizes_are_refused_with_their_rule(void **state)
{
    (void)state;
    static const refusal cases[] = {
        {8,
         {1, 3, 1, 1},
         "mesh: dp_shard 3 does not divide the 8 ranks left by dp_replicate 1, cp 1, tp 1; try 1, "
         "2, 4, 8"},
        {8,
         {1, -1, 1, 3},
         "mesh: tp 3 does not divide the 8 ranks left by dp_replicate 1, cp 1; try 1, 2, 4, 8"},
        {12,
         {-1, 1, 2, 4},
         "mesh: cp 2 does not divide the 3 ranks left by dp_shard 1, tp 4; try 1, 3"},
        {1,
         {1, 1, 1, 2},
         "mesh: tp 2 does not divide the 1 rank left by dp_replicate 1, dp_shard 1, cp 1; try 1"},
        {8,
         {4, -1, 4, 4},
         "mesh: dp_replicate 4 x cp 4 x tp 4 = 64 does not divide the 8 ranks; try a product of 1, "
         "2, 4, 8"},
        {8,
         {1, 2, 1, 2},
         "mesh: dp_replicate 1 x dp_shard 2 x cp 1 x tp 2 = 4 is not the 8 ranks of the world; try "
         "dp_replicate 2, dp_shard 4, cp 2 or tp 4"},
        {8, {1, 0, 1, 1}, "mesh: dp_shard is 0; a size is 1 or more, or -1 (auto) for the rest"},
        {8, {1, 1, -2, 1}, "mesh: cp is -2; a size is 1 or more, or -1 (auto) for the rest"},
        {8,
         {-1, 1, 1, -1},
         "mesh: dp_replicate and tp are both -1 (auto); one axis takes the rest"},
        {0, {1, -1, 1, 1}, "mesh: 0 ranks; a world has 1 to 2147483647"},
        {2147483648, {1, -1, 1, 1}, "mesh: 2147483648 ranks; a world has 1 to 2147483647"},
        {8,
         {3037000500, 3037000500, 1, -1},
         "mesh: dp_replicate 3037000500 x dp_shard 3037000500 x cp 1 = over 2305843009213693951 "
         "does not divide the 8 ranks; try a product of 1, 2, 4, 8"},
        {131072,
         {1, -1, 1, 96},
         "mesh: tp 96 does not divide the 131072 ranks left by dp_replicate 1, cp 1; try 1, 2, 4, "
         "8, 16, 32, 64, 128"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ndm_mesh *mesh = NULL;
        assert_int_equal(build(cases[i].world, cases[i].size, NULL, &mesh), NDM_ERR_CONFIG);
        assert_string_equal(ndm_error_message(), cases[i].message);
        assert_null(mesh);
    }
}

/* A size that a refusal recommends is one that works with the others as they are, when an axis is
 * auto. */
static void recommended_sizes_are_valid(void **state)
{
    (void)state;
    int64_t size[NDM_AXIS_COUNT] = {1, NDM_AUTO, 1, 7};
    ndm_mesh *mesh = NULL;
    assert_int_equal(build(720, size, NULL, &mesh), NDM_ERR_CONFIG);
    const char *at = strstr(ndm_error_message(), "try ");
    assert_non_null(at);
    char tries[128];
    strncpy(tries, at + 4, sizeof tries - 1);
    tries[sizeof tries - 1] = '\0';
    int n = 0;
    for (char *end = tries, *p = tries; *end != '\0'; p = end + 1, n++) {
        size[NDM_TP] = strtol(p, &end, 10);
        assert_int_equal(build(720, size, NULL, &mesh), NDM_OK);
        ndm_mesh_destroy(mesh);
    }
    assert_int_equal(n, 8);
}

static void orders_must_be_permutations(void **state)
{
    (void)state;
    static const struct {
        int64_t order[4];
        const char *message;
    } cases[] = {
        {{0, 1, 1, 3}, "mesh: order: rank 1 stands at positions 1 and 2; rank 2 is missing"},
        {{3, 3, 3, 3}, "mesh: order: rank 3 stands at positions 0 and 1; rank 0 is missing"},
        {{0, 1, 2, 4}, "mesh: order: position 3 has rank 4, outside 0..3"},
        {{-1, 1, 2, 3}, "mesh: order: position 0 has rank -1, outside 0..3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ndm_mesh *mesh = NULL;
        const int64_t size[] = {1, 2, 1, 2};
        assert_int_equal(build(4, size, cases[i].order, &mesh), NDM_ERR_CONFIG);
        assert_string_equal(ndm_error_message(), cases[i].message);
        assert_null(mesh);
    }
}

static void an_uninitialised_config_is_refused(void **state)
{
    (void)state;
    ndm_parallelism_config config = {0};
    ndm_mesh *mesh = NULL;
    assert_int_equal(ndm_mesh_create(&config, 1, &mesh), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "NDM_PARALLELISM_CONFIG_INIT"));
}

static void unknown_axis_sets_name_the_nearest(void **state)
{
    (void)state;
    ndm_axis_set axes = 99;
    assert_int_equal(ndm_axis_set_parse("dp_shrad", &axes), NDM_ERR_USAGE);
    assert_string_equal(ndm_error_message(),
                        "mesh: unknown axis set 'dp_shrad'; did you mean 'dp_shard'?");
    static const char *const bad[] = {"", "tp_", "_tp", "tp x", "dp_rep", "quux", "tp;cp"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
        assert_int_equal(ndm_axis_set_parse(bad[i], &axes), NDM_ERR_USAGE);
    assert_int_equal(axes, 99);
}

typedef struct rule_case {
    int64_t size[NDM_AXIS_COUNT];
    ndm_mesh_demands demands;
    const char *message; /* NULL = holds */
} rule_case;

static void check_rule(const rule_case *c)
{
    ndm_mesh *mesh = NULL;
    assert_int_equal(build(c->size[0] * c->size[1] * c->size[2] * c->size[3], c->size, NULL, &mesh),
                     NDM_OK);
    ndm_status status = ndm_mesh_check(mesh, &c->demands);
    if (c->message == NULL && status != NDM_OK)
        fail_msg("refused: %s", ndm_error_message());
    assert_int_equal(status, c->message == NULL ? NDM_OK : NDM_ERR_CONFIG);
    if (c->message != NULL)
        assert_string_equal(ndm_error_message(), c->message);
    ndm_mesh_destroy(mesh);
}

static void case_26_models_are_checked_against_the_mesh(void **state)
{
    (void)state;
    static const rule_case cases[] = {
        {{1, 1, 1, 3}, {.heads = 8}, "mesh: tp 3 does not divide heads 8; try 1, 2, 4, 8"},
        {{1, 1, 1, 4}, {.heads = 8, .kv_heads = 2}, NULL},
        {{1, 1, 1, 2}, {.heads = 8, .kv_heads = 4}, NULL},
        {{1, 1, 1, 4},
         {.heads = 24, .kv_heads = 6},
         "mesh: tp 4 does not divide kv_heads 6 and is no multiple of it; try 1, 2, 3, 6, or a "
         "multiple of 6"},
        {{1, 1, 1, 4}, {.ffn = 10}, "mesh: tp 4 does not divide ffn 10; try 1, 2, 5, 10"},
        {{1, 1, 1, 4}, {.ffn = 10, .padded = NDM_PAD_FFN}, NULL},
        {{1, 1, 1, 3}, {.vocab = 10}, "mesh: tp 3 does not divide vocab 10; try 1, 2, 5, 10"},
        {{1, 1, 1, 3}, {.vocab = 10, .padded = NDM_PAD_VOCAB}, NULL},
        {{1, 1, 4, 1},
         {.seq_len = 60},
         "mesh: seq_len 60 is no multiple of 8 (2 * cp 4); try 56, 64"},
        {{1, 1, 4, 1}, {.seq_len = 3}, "mesh: seq_len 3 is no multiple of 8 (2 * cp 4); try 8"},
        {{1, 1, 4, 1}, {.seq_len = 60, .padded = NDM_PAD_SEQ}, NULL},
        {{1, 1, 4, 1}, {.seq_len = 60, .cp_method = NDM_CP_METHOD_ALL_GATHER}, NULL},
        {{1, 1, 1, 1}, {.seq_len = 61}, NULL},
        {{1, 1, 4, 1},
         {.seq_len = 61, .cp_method = NDM_CP_METHOD_ULYSSES},
         "mesh: seq_len 61 is no multiple of 4 (cp 4); try 60, 64"},
        {{1, 1, 4, 2},
         {.heads = 12, .cp_method = NDM_CP_METHOD_ULYSSES},
         "mesh: cp 4 does not divide the 6 heads left by tp 2, as ulysses needs; try 1, 2, 3, 6"},
        {{1, 1, 3, 2}, {.heads = 12, .cp_method = NDM_CP_METHOD_ULYSSES}, NULL},
        {{1, 1, 1, 4},
         {.seq_len = 6, .sequence_parallel = true},
         "mesh: tp 4 does not divide the 6 tokens of a rank (seq_len 6, cp 1), as sequence "
         "parallelism needs; set sequence_parallel false or another seq_len"},
        {{1, 1, 1, 4}, {.seq_len = 6, .micro_batch = 2, .sequence_parallel = true}, NULL},
        {{1, 1, 1, 4}, {.seq_len = 6, .sequence_parallel = true, .padded = NDM_PAD_TOKENS}, NULL},
        {{2, 3, 1, 1},
         {.global_batch = 32, .micro_batch = 2},
         "mesh: global batch 32 is no multiple of 12 (dp 6 x micro_batch 2); try 24, 36"},
        {{2, 4, 2, 2}, {.global_batch = 32, .micro_batch = 2}, NULL},
        {{1, 4, 1, 3},
         {.heads = 8, .vocab = 10, .global_batch = 6},
         "mesh: tp 3 does not divide heads 8; try 1, 2, 4, 8 (2 more rules fail: vocab, batch)"},
        {{1, 4, 1, 3},
         {.heads = 8, .global_batch = 6},
         "mesh: tp 3 does not divide heads 8; try 1, 2, 4, 8 (1 more rule fails: batch)"},
        {{2, 2, 2, 2}, {.heads = 0}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        check_rule(&cases[i]);
}

static void every_rule_has_a_name(void **state)
{
    (void)state;
    for (int i = 0; i < ndm_mesh_rule_count(); i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(ndm_mesh_rule_name(i), ndm_mesh_rule_name(j));
    assert_string_equal(ndm_mesh_rule_name(0), "heads");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_26_sizes_are_refused_with_their_rule),
        cmocka_unit_test(recommended_sizes_are_valid),
        cmocka_unit_test(orders_must_be_permutations),
        cmocka_unit_test(an_uninitialised_config_is_refused),
        cmocka_unit_test(unknown_axis_sets_name_the_nearest),
        cmocka_unit_test(case_26_models_are_checked_against_the_mesh),
        cmocka_unit_test(every_rule_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
