/* SPDX-License-Identifier: Apache-2.0 */
/* Prices by themselves: links, collectives, shapes, profiles. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "collectives/sim_cost.h"
#include "core/file.h"
#include "device/sim_links.h"
#include "kernels/cost.h"
#include "train/plan.h"

static ndm_sim_machine machine;

static void load(const char *name)
{
    char path[512];

    snprintf(path, sizeof path, "%s/clusters/%s.yaml", NDM_SHARE, name);
    if (ndm_plan_load_cluster(path, &machine) != NDM_OK)
        fail_msg("%s", ndm_error_message());
}

/* ---- links -------------------------------------------------------------------------------- */

static double take(ndm_sim_times *t, double from, double ns)
{
    double end = -1.0;

    assert_int_equal(ndm_sim_times_take(t, 0.0, from, ns, &end), NDM_OK);
    return end;
}

static void a_link_serves_one_after_another(void **state)
{
    ndm_sim_times t = {0};

    (void)state;
    assert_true(take(&t, 10, 5) == 15);
    assert_true(take(&t, 12, 4) == 19); /* waits for the first */
    assert_true(take(&t, 0, 4) == 4);   /* before both */
    assert_true(take(&t, 2, 10) == 23); /* 4..10 is free, then from 19 */
    assert_true(t.n - t.first == 1);    /* all of it is one busy time */
    assert_true(take(&t, 30, 0) == 30);
    ndm_sim_times_finish(&t);
}

static void work_on_a_link_is_conserved(void **state)
{
    uint64_t x = 12345; /* a fixed sequence */
    double busy = 0.0, work = 0.0;
    ndm_sim_times t = {0};

    (void)state;
    for (int i = 0; i < 2000; i++) {
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        double from = (double)(x >> 33 & 0xffff), ns = (double)(x >> 50 & 0x3f);
        work += ns;
        assert_true(take(&t, from, ns) >= from + ns);
    }
    for (int64_t i = t.first; i < t.n; i++) {
        busy += t.items[i].end - t.items[i].begin;
        assert_true(i == t.first || t.items[i].begin >= t.items[i - 1].end);
    }
    assert_true(fabs(busy - work) < 1e-6 * work);
    ndm_sim_times_finish(&t);
}

static void compute_is_slower_beside_a_collective_only(void **state)
{
    ndm_sim_times t = {0};

    (void)state;
    take(&t, 100, 50);
    assert_true(ndm_sim_times_slowed(&t, 0, 40, 0.25) == 40);
    assert_true(ndm_sim_times_slowed(&t, 100, 40, 0.25) == 150);
    assert_true(ndm_sim_times_slowed(&t, 90, 50, 0.25) == 150); /* 10 before, 40 at 4/5 */
    assert_true(ndm_sim_times_slowed(&t, 90, 60, 0.25) == 160);
    ndm_sim_times_finish(&t);
}

/* ---- collectives -------------------------------------------------------------------------- */

static const ndm_collective kinds[] = {NDM_ALL_GATHER, NDM_REDUCE_SCATTER, NDM_ALL_REDUCE,
                                       NDM_ALL_TO_ALL, NDM_BROADCAST,      NDM_SEND_RECV};

static void more_bytes_take_no_less_time(void **state)
{
    static const ndm_sim_group groups[] = {
        {2, 1, 2, 2}, {8, 1, 8, 8}, {16, 2, 8, 8}, {9, 2, 8, 1}, {64, 64, 1, 1}};

    (void)state;
    for (size_t g = 0; g < 5; g++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            double before = 0.0;
            for (int64_t bytes = 8; bytes < 100000000000; bytes = bytes * 17 / 10) {
                double ns = ndm_sim_collective_ns(&machine, &groups[g], kinds[k], (double)bytes);
                assert_true(ns >= before && isfinite(ns) && ns > 0.0);
                before = ns;
            }
        }
}

static void hosts_and_slow_networks_cost(void **state)
{
    const ndm_sim_group near = {8, 1, 8, 8}, far = {8, 8, 1, 1}, one = {1, 1, 1, 1};
    ndm_sim_machine fast = machine;

    (void)state;
    fast.network_bw *= 2.0;
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        double ns = ndm_sim_collective_ns(&machine, &far, kinds[k], 1e9);
        assert_true(ns > ndm_sim_collective_ns(&machine, &near, kinds[k], 1e9));
        assert_true(ndm_sim_collective_ns(&fast, &far, kinds[k], 1e9) < ns);
        assert_true(ndm_sim_collective_ns(&machine, &one, kinds[k], 1e9) == 0.0);
    }
}

/* 8 GPUs of one host gather a GiB at the bus bandwidth that the table was measured with. */
static void tables_are_met_at_their_points(void **state)
{
    const ndm_sim_curve *c = &machine.curves[0];

    (void)state;
    for (int i = 0; i < c->n; i++) {
        ndm_sim_group g = {c->ranks, 1, c->ranks, c->ranks};
        double ns = ndm_sim_collective_ns(&machine, &g, (ndm_collective)c->op, c->bytes[i]);
        assert_true(fabs(ns / c->ns[i] - 1.0) < 1e-9);
    }
}

/* Eight ranks take turns on two cores: two of them wait for one another as long as all eight would,
 * and while they are alone on the host, no longer than a pair does. */
static void a_rendezvous_lasts_until_each_had_its_turn(void **state)
{
    static ndm_sim_machine host; /* static: large */
    const ndm_sim_group pair = {2, 1, 2, 2};

    (void)state;
    host = (ndm_sim_machine){.ranks_per_host = 8,
                             .ranks_per_domain = 8,
                             .cores_per_host = 2,
                             .link_scale = 1,
                             .latency_scale = 1,
                             .n_curves = 2,
                             .curves = {{NDM_ALL_REDUCE, 2, 2, {1e3, 1e6}, {1e3, 50e3}},
                                        {NDM_ALL_REDUCE, 8, 2, {1e3, 1e6}, {80e3, 400e3}}}};
    assert_true(ndm_sim_collective_ns(&host, &pair, NDM_ALL_REDUCE, 8.0) == 80e3);
    /* beyond the latency, the work of four pairs on two cores */
    assert_true(fabs(ndm_sim_collective_ns(&host, &pair, NDM_ALL_REDUCE, 1e6) - 276e3) < 1.0);
    host.ranks_per_host = 2;
    assert_true(ndm_sim_collective_ns(&host, &pair, NDM_ALL_REDUCE, 8.0) == 1e3);
}

/* All bytes of a ring pass the links of each host: one rank alone is as slow as many. */
static void a_host_with_few_members_slows_all(void **state)
{
    const ndm_sim_group even = {16, 2, 8, 8}, uneven = {9, 2, 8, 1};

    (void)state;
    for (int k = 0; k < 3; k++)
        assert_true(ndm_sim_collective_ns(&machine, &uneven, kinds[k], 1e9) >
                    4.0 * ndm_sim_collective_ns(&machine, &even, kinds[k], 1e9));
}

static void members_are_counted_by_domain(void **state)
{
    const int64_t strided[] = {0, 8, 16, 24}, inside[] = {0, 1, 2, 3}, both[] = {6, 7, 8, 9, 10};
    ndm_sim_group g = ndm_sim_place(strided, 4, 8);

    (void)state;
    assert_true(g.ranks == 4 && g.domains == 4 && g.members == 1 && g.fewest == 1);
    g = ndm_sim_place(inside, 4, 8);
    assert_true(g.domains == 1 && g.members == 4 && g.fewest == 4);
    g = ndm_sim_place(both, 5, 8);
    assert_true(g.domains == 2 && g.members == 3 && g.fewest == 2);
}

/* ---- shapes and profiles ------------------------------------------------------------------ */

static void shares_stay_within_the_table(void **state)
{
    double low = 1.0, high = 0.0;

    (void)state;
    for (int i = 0; i < machine.n_gemms; i++) {
        const ndm_sim_gemm *g = &machine.gemms[i];
        low = fmin(low, g->share);
        high = fmax(high, g->share);
        assert_true(fabs(ndm_cost_gemm_share(&machine, g->m, g->n, g->k, false) / g->share - 1.0) <
                    0.02);
    }
    for (int64_t m = 1; m < 10000000; m *= 3) {
        double share = ndm_cost_gemm_share(&machine, (double)m, 4096, 4096, false);
        assert_true(share >= low - 1e-12 && share <= high + 1e-12);
    }
}

/* Instead of rows; gradients of weights have a line of their own, or none. */
static void a_line_gives_shares(void **state)
{
    const ndm_sim_machine m = {.gemm_share = 0.5, .gemm_line = {1.25, 10.0, 20.0, 40.0}};
    ndm_sim_machine both = m;

    (void)state;
    both.gemm_grad_line[0] = 4.0;
    assert_true(fabs(ndm_cost_gemm_share(&m, 10, 20, 40, false) - 1.0 / 4.25) < 1e-12);
    assert_true(ndm_cost_gemm_share(&m, 10, 20, 40, true) == 0.5);
    assert_true(ndm_cost_gemm_share(&both, 10, 20, 40, true) == 0.25);
    assert_true(ndm_cost_gemm_share(&both, 10, 20, 40, false) < 0.25);
}

static void every_profile_is_complete(void **state)
{
    static const char *const names[] = {"a100x8",        "a100x8-40gb", "h100x8",
                                        "h100x8-vboost", "h100x8-500w", "h200x8",
                                        "b200x8",        "gb200x4",     "cpu-cluster"};

    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        load(names[i]);
        assert_string_equal(machine.name, names[i]);
        assert_true(machine.ranks_per_domain >= machine.ranks_per_host || machine.n_curves == 0);
    }
    load("h100x8");
}

static void refuse(const char *text, const char *words)
{
    const char *path = "plan_profile_test.yaml";

    assert_int_equal(ndm_file_write_atomic(path, text, strlen(text)), NDM_OK);
    ndm_sim_machine m;
    assert_int_equal(ndm_plan_load_cluster(path, &m), NDM_ERR_FORMAT);
    if (!strstr(ndm_error_message(), words))
        fail_msg("'%s' does not say '%s'", ndm_error_message(), words);
    remove(path);
}

static void refusals_name_file_line_and_key(void **state)
{
    (void)state;
    refuse("name: x\npeak_tflop: 3\n", ":2: unknown key 'peak_tflop'");
    refuse("peak_tflops: fast\n", "peak_tflops is not a number");
    refuse("peak_tflops: -1\n", ":1: peak_tflops is -1; it is 1e-06 to 1e+09");
    refuse("peak_tflops: inf\n", "peak_tflops is not a number");
    refuse("ranks_per_host: 0\n", "ranks_per_host is 0");
    refuse("memory_share: 1.2\n", "memory_share is 1.2; it is 0.01 to 1");
    refuse("name: x\n", "peak_tflops is missing");
    refuse("gemm:\n- [1, 2, 3]\n", ":2: a row of 4 numbers");
    refuse("collectives:\n  gather: {2: [[1, 2]]}\n", "no collective 'gather'");
    refuse("collectives:\n  all_gather: {2: [[8, 2], [4, 3]]}\n", "do not ascend");
    refuse("collectives:\n  all_gather: {2: [[1, 1e308], [2, 1e308]]}\n", "1e-09 to 1e+15");
    refuse("collectives:\n  all_gather: {1e30: [[1, 2]]}\n", "'1e30' is no number of ranks");
    refuse("kernels: {norm: 1e-300}\n", "1e-09 to 1e+15");
    refuse("clock: 1\nspread: 0\nclock: 0.5\n", ":3: key 'clock' is already given at line 1");
    refuse("collectives:\n  all_gather: {2: [[1, 2]], 2: [[1, 3]]}\n", "key '2' is already");
    refuse("[1, 2]\n", "a mapping is expected");
    ndm_sim_machine m;
    assert_int_equal(ndm_plan_load_cluster("h100x9", &m), NDM_ERR_CONFIG);
    assert_non_null(strstr(ndm_error_message(), "h100x8"));
}

/* As the profiles' README says: a new machine is a copy, wherever it is. */
static void a_copied_profile_finds_its_tables(void **state)
{
    const char *path = "plan_profile_copy.yaml";
    ndm_buffer text = {0};
    ndm_sim_machine copy;

    (void)state;
    load("h100x8");
    assert_int_equal(ndm_file_read(NDM_SHARE "/clusters/h100x8.yaml", &text), NDM_OK);
    assert_int_equal(ndm_file_write_atomic(path, text.data, text.length), NDM_OK);
    ndm_buffer_finish(&text);
    assert_int_equal(ndm_plan_load_cluster(path, &copy), NDM_OK);
    assert_true(copy.n_gemms == machine.n_gemms && copy.n_curves == machine.n_curves);
    remove(path);
    refuse("tables: nope\n", ":1: there is no nope.yaml");
}

static void numbers_can_be_set_by_key(void **state)
{
    ndm_sim_machine m = machine;
    ndm_sim_stack s = *ndm_cost_stack_at(0);

    (void)state;
    assert_int_equal(ndm_plan_set(&m, &s, "clock=0.5"), NDM_OK);
    assert_true(m.clock == 0.5);
    assert_int_equal(ndm_plan_set(&m, &s, "network_gbps=25"), NDM_OK);
    assert_true(m.network_bw == 25e9);
    assert_int_equal(ndm_plan_set(&m, &s, "stack.overlap=0.2"), NDM_OK);
    assert_true(s.overlap == 0.2);
    assert_int_equal(ndm_plan_set(&m, &s, "clocks=0.5"), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "'clock'"));
    assert_int_equal(ndm_plan_set(&m, &s, "clock"), NDM_ERR_USAGE);
    static const char *const absurd[] = {"clock=-1",         "clock=0",          "clock=5",
                                         "network_gbps=0",   "ranks_per_host=0", "peak_tflops=inf",
                                         "memory_share=1.5", "stack.launches=-1"};
    for (size_t i = 0; i < sizeof absurd / sizeof *absurd; i++)
        assert_int_equal(ndm_plan_set(&m, &s, absurd[i]), NDM_ERR_USAGE);
    assert_int_equal(ndm_cost_stack("compild", &s), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "compiled"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_link_serves_one_after_another),
        cmocka_unit_test(work_on_a_link_is_conserved),
        cmocka_unit_test(compute_is_slower_beside_a_collective_only),
        cmocka_unit_test(more_bytes_take_no_less_time),
        cmocka_unit_test(hosts_and_slow_networks_cost),
        cmocka_unit_test(tables_are_met_at_their_points),
        cmocka_unit_test(a_rendezvous_lasts_until_each_had_its_turn),
        cmocka_unit_test(a_host_with_few_members_slows_all),
        cmocka_unit_test(members_are_counted_by_domain),
        cmocka_unit_test(shares_stay_within_the_table),
        cmocka_unit_test(a_line_gives_shares),
        cmocka_unit_test(every_profile_is_complete),
        cmocka_unit_test(refusals_name_file_line_and_key),
        cmocka_unit_test(a_copied_profile_finds_its_tables),
        cmocka_unit_test(numbers_can_be_set_by_key),
    };

    load("h100x8");
    return cmocka_run_group_tests_name("plan_cost", tests, NULL, NULL);
}
