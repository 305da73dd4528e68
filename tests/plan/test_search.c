/* SPDX-License-Identifier: Apache-2.0 */
/* Searches over many plans, and what is said where none fits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/plan/request.h"

static void a_search_finds_what_single_plans_find(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){1, 8, 1, 1});
    ndm_plan_open open = {
        .mesh = true, .micro_batch = true, .recompute = true, .micro_batch_max = 4};
    ndm_plan_rows rows;

    (void)state;
    q.model = "qwen2-0.5b"; /* 14 heads: tp is 1 or 2 */
    assert_int_equal(ndm_plan_search(&q, &open, &rows), NDM_OK);
    assert_true(rows.fit > 0 && rows.n > rows.fit);
    for (int64_t i = 1; i < rows.fit; i++)
        assert_true(rows.items[i].tokens_per_s <= rows.items[i - 1].tokens_per_s);
    const ndm_plan_row *best = &rows.items[0];
    ndm_plan_request again = request_of(
        &machine, (shape){best->mesh[0], best->mesh[1], best->mesh[2], best->mesh[3]});
    again.model = q.model;
    again.options.micro_batch = best->micro_batch;
    again.options.recompute = best->recompute;
    ndm_plan_result r = run(&again);
    assert_true(r.tokens_per_s == best->tokens_per_s && r.needed == best->needed);
    for (int64_t i = rows.fit; i < rows.n; i++)
        assert_true(rows.items[i].why[0] != '\0');
    free(rows.items);
}

static void a_search_keeps_the_sizes_that_are_given(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){1, 8, 1, 1});
    ndm_plan_open open = {.mesh = true, .fixed = {[NDM_DP_REPLICATE] = 2, [NDM_TP] = 2}};
    ndm_plan_rows rows;

    (void)state;
    q.ranks = 16;
    assert_int_equal(ndm_plan_search(&q, &open, &rows), NDM_OK);
    assert_int_equal(rows.n, 3); /* the other 4 ranks: dp_shard x cp */
    for (int64_t i = 0; i < rows.n; i++) {
        const int64_t *mesh = rows.items[i].mesh;
        assert_true(mesh[NDM_DP_REPLICATE] == 2 && mesh[NDM_TP] == 2);
        assert_int_equal(mesh[NDM_DP_SHARD] * mesh[NDM_CP], 4);
    }
    free(rows.items);
}

/* Sizes and micro-batch decide how many logits exist at a time, and what copies tp makes. */
static void rows_of_a_search_are_single_plans(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){1, 8, 1, 1});
    ndm_plan_open open = {.mesh = true, .micro_batch = true, .micro_batch_max = 2};
    ndm_plan_rows rows;

    (void)state;
    q.stack = ndm_cost_stack_at(1);
    q.options.head_chunk = 0;
    q.logits_bytes = 64 << 20;
    assert_int_equal(ndm_plan_search(&q, &open, &rows), NDM_OK);
    for (int64_t i = 0; i < rows.fit; i++) {
        ndm_plan_row_mesh(&rows.items[i], &q.parallelism);
        q.options.micro_batch = rows.items[i].micro_batch;
        ndm_plan_result r = run(&q);
        assert_true(r.tokens_per_s == rows.items[i].tokens_per_s);
        assert_int_equal(r.needed, rows.items[i].needed);
    }
    assert_true(rows.fit > 4);
    free(rows.items);
}

static void one_sequence_needs_no_copies_for_tp(void **state)
{
    ndm_sim_stack copies = *stack, none = *stack;
    ndm_plan_request q = request_of(&machine, (shape){1, 2, 1, 4});

    (void)state;
    copies.tp_copy_bytes = 4.0;
    none.tp_copy_bytes = 0.0;
    for (q.options.micro_batch = 1; q.options.micro_batch <= 2; q.options.micro_batch++) {
        q.stack = &copies;
        double with = run(&q).step_ns;
        q.stack = &none;
        assert_int_equal(with > run(&q).step_ns, q.options.micro_batch > 1);
    }
}

/* ---- what does not fit -------------------------------------------------------------------- */

static int64_t ranks_that_fit(const ndm_plan_request *q, const ndm_plan_open *open)
{
    int64_t ranks;

    assert_int_equal(ndm_plan_ranks_that_fit(q, open, &ranks), NDM_OK);
    return ranks;
}

static bool fits_on(ndm_plan_request q, int64_t ranks)
{
    q.ranks = ranks;
    return run(&q).fits;
}

static void the_ranks_that_fit_do_and_half_of_them_do_not(void **state)
{
    ndm_sim_machine small = machine;
    ndm_plan_request q = request_of(&small, (shape){1, NDM_AUTO, 1, 1});
    ndm_plan_open open = {.mesh = false};

    (void)state;
    q.ranks = 3;
    for (double gib = 16.0; gib < 32.0; gib += 4.0) {
        small.memory_bytes = gib * 1073741824.0;
        int64_t ranks = ranks_that_fit(&q, &open);
        assert_true(ranks == 0 || (fits_on(q, ranks) && (ranks == 6 || !fits_on(q, ranks / 2))));
    }
    q.parallelism.dp_shard = 3;
    assert_int_equal(ranks_that_fit(&q, &open), 0); /* no size is open */
    q.parallelism = (ndm_parallelism_config)NDM_PARALLELISM_CONFIG_INIT;
    q.parallelism.dp_shard = 1;
    q.parallelism.dp_replicate = NDM_AUTO;
    small.memory_bytes = 8.0 * 1073741824.0;
    assert_int_equal(ranks_that_fit(&q, &open), 0); /* replicas hold no less */
}

static void ranks_of_one_host_do_not_gain_memory(void **state)
{
    ndm_sim_machine host = machine;
    ndm_plan_request q = request_of(&host, (shape){1, NDM_AUTO, 1, 1});
    ndm_plan_open open = {.mesh = false};

    (void)state;
    q.ranks = 2;
    host.cores_per_host = 2;
    host.memory_bytes = 2.0 * 20.0 * 1073741824.0;
    ndm_plan_share_host(&host, q.ranks, 1);
    assert_false(fits_on(q, q.ranks));
    assert_int_equal(ranks_that_fit(&q, &open), 0);
}

static void less_memory_than_a_context_takes_is_too_little(void **state)
{
    ndm_sim_machine small = machine;
    ndm_plan_request q = request_of(&small, (shape){1, 8, 1, 1});
    ndm_plan_open open = {.recompute = true};
    ndm_plan_rows rows;
    const double room[] = {0.0, -0.5, -1.0};

    (void)state;
    for (int i = 0; i < 3; i++) {
        small.memory_bytes = small.context_bytes + small.reserved_bytes + room[i] * 1073741824.0;
        assert_int_equal(ndm_plan_search(&q, &open, &rows), NDM_OK);
        assert_int_equal(rows.fit, 0);
        assert_int_equal(rows.n, 3);
        for (int k = 0; k < 3; k++)
            assert_string_equal(rows.items[k].why, "more memory than there is");
        free(rows.items);
    }
}

static void the_first_of_what_does_not_fit_splits_most(void **state)
{
    ndm_sim_machine small = machine;
    ndm_plan_request q = request_of(&small, (shape){1, 8, 1, 1});
    ndm_plan_open open = {.mesh = true};
    ndm_plan_rows rows;

    (void)state;
    q.model = "qwen2-0.5b"; /* 14 heads: tp 4 and 8 are refused */
    small.memory_bytes = small.context_bytes + small.reserved_bytes + 1e6;
    assert_int_equal(ndm_plan_search(&q, &open, &rows), NDM_OK);
    assert_int_equal(rows.fit, 0);
    assert_false(rows.items[0].refused);
    assert_int_equal(rows.items[0].mesh[NDM_DP_REPLICATE], 1);
    assert_int_equal(rows.items[0].mesh[NDM_TP], 2);
    assert_true(rows.items[rows.n - 1].refused);
    free(rows.items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_search_finds_what_single_plans_find),
        cmocka_unit_test(a_search_keeps_the_sizes_that_are_given),
        cmocka_unit_test(rows_of_a_search_are_single_plans),
        cmocka_unit_test(one_sequence_needs_no_copies_for_tp),
        cmocka_unit_test(the_ranks_that_fit_do_and_half_of_them_do_not),
        cmocka_unit_test(ranks_of_one_host_do_not_gain_memory),
        cmocka_unit_test(less_memory_than_a_context_takes_is_too_little),
        cmocka_unit_test(the_first_of_what_does_not_fit_splits_most),
    };
    char path[512];

    snprintf(path, sizeof path, "%s/clusters/h100x8.yaml", NDM_SHARE);
    if (ndm_plan_load_cluster(path, &machine) != NDM_OK)
        return 1;
    stack = ndm_cost_stack_at(0);
    return cmocka_run_group_tests_name("search", tests, NULL, NULL);
}
