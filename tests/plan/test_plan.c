/* SPDX-License-Identifier: Apache-2.0 */
/* What must hold of plans whatever the numbers are. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "core/json_read.h"
#include "tests/plan/request.h"

static const shape shapes[] = {{1, 8, 1, 1},  {8, 1, 1, 1}, {1, 16, 1, 1}, {2, 8, 1, 1},
                               {1, 2, 1, 8},  {1, 4, 4, 1}, {1, 2, 2, 4},  {2, 2, 2, 2},
                               {1, 32, 1, 1}, {4, 8, 1, 2}};

enum { SHAPES = sizeof shapes / sizeof *shapes };

static double step_on(const ndm_sim_machine *m, shape s)
{
    ndm_plan_request q = request_of(m, s);

    return run(&q).step_ns;
}

/* ---- time --------------------------------------------------------------------------------- */

/* Prices are set in the order of the program; so work that ends earlier may meet other work on its
 * link. What that can cost is far below a thousandth. */
static void more_bandwidth_is_never_slower(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        double before = step_on(&machine, shapes[i]);
        ndm_sim_machine m[5] = {machine, machine, machine, machine, machine};
        m[0].peak_flops *= 1.5;
        m[1].memory_bw *= 1.5;
        m[2].link_scale *= 1.5;
        m[3].network_bw *= 1.5;
        m[4].latency_scale *= 0.5;
        for (int k = 0; k < 5; k++)
            assert_true(step_on(&m[k], shapes[i]) <= before * 1.001);
    }
}

static ndm_sim_machine free_communication(void)
{
    ndm_sim_machine m = machine;

    m.link_scale = m.network_bw = INFINITY;
    m.latency_scale = m.contention = m.launch_ns = 0.0;
    m.spread = 0.0; /* nobody waits for a slower chip */
    return m;
}

static void free_communication_leaves_compute_alone(void **state)
{
    ndm_sim_machine m = free_communication();

    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        ndm_plan_request q = request_of(&m, shapes[i]);
        ndm_plan_result r = run(&q);
        double busy = 0.0;
        for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++)
            for (int c = 0; c < NDM_SIM_CATEGORY_COUNT; c++)
                busy += r.totals.busy[p][c];
        /* casts of weights and gradients run on the streams of collectives: they can be waited for
         */
        assert_true(ndm_sim_exposed(&r.totals) < 0.01 * busy);
        assert_true(fabs(r.step_ns - busy - ndm_sim_exposed(&r.totals)) < 1.0);
        assert_true(fabs(r.totals.slowed) < 1.0);
        assert_true(r.step_ns <= step_on(&machine, shapes[i]));
    }
}

static void replicas_double_speed_but_for_their_traffic(void **state)
{
    ndm_sim_machine free_machine = free_communication();
    shape one = {1, 8, 1, 1}, two = {2, 8, 1, 1}, four = {4, 8, 1, 1};

    (void)state;
    assert_true(fabs(step_on(&free_machine, two) / step_on(&free_machine, one) - 1.0) < 1e-3);
    double a = step_on(&machine, one), b = step_on(&machine, two), c = step_on(&machine, four);
    assert_true(b >= a && c >= b * 0.999);
    assert_true(b < 1.1 * a); /* an all-reduce of a slice, mostly hidden */
}

static void more_ranks_wait_for_a_slower_one(void **state)
{
    ndm_sim_machine unlike = free_communication(), alike = unlike;
    shape few = {1, 8, 1, 1}, many = {64, 8, 1, 1};

    (void)state;
    unlike.spread = 0.02;
    assert_true(step_on(&unlike, few) > step_on(&alike, few));
    assert_true(step_on(&unlike, many) > 1.01 * step_on(&unlike, few));
    assert_true(step_on(&unlike, many) < 1.08 * step_on(&alike, many));
}

static void parts_sum_to_the_step(void **state)
{
    (void)state;
    for (int i = 0; i < SHAPES; i++) {
        ndm_plan_request q = request_of(&machine, shapes[i]);
        ndm_plan_result r = run(&q);
        double phases = 0.0;
        for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++)
            phases += r.phase_ns[p];
        assert_true(fabs(phases - r.step_ns) < 10.0);
        assert_true(fabs(ndm_sim_total(&r.totals) - r.step_ns) < 10.0);
        assert_true(r.tokens == 2 * 2 * 4096 * shapes[i].replicate * shapes[i].shard);
    }
}

typedef struct sums {
    double kernels, collectives, last;
} sums;

static sums sums_of_trace(const char *path)
{
    json_t *root;
    const json_t *events;
    sums s = {0};

    assert_int_equal(ndm_json_load_file(path, &root), NDM_OK);
    events = json_object_get(root, "traceEvents");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        bool compute = strcmp(json_string_value(json_object_get(e, "tid")), "compute") == 0;
        bool kernel = strcmp(json_string_value(json_object_get(e, "cat")), "kernel") == 0;
        double begin = json_number_value(json_object_get(e, "ts"));
        double ns = json_number_value(json_object_get(e, "dur"));
        assert_true(begin >= -1e-3 && ns >= 0.0);
        if (compute)
            *(kernel ? &s.kernels : &s.collectives) += ns * 1e3;
        if (compute && begin + ns > s.last)
            s.last = begin + ns;
    }
    json_decref(root);
    return s;
}

static void the_trace_agrees_with_the_totals(void **state)
{
    const char *path = "plan_trace_test.json";
    shape tp = {1, 2, 1, 4};
    ndm_plan_request q = request_of(&machine, tp);

    (void)state;
    q.trace = path;
    ndm_plan_result r = run(&q);
    sums s = sums_of_trace(path);
    double busy = 0.0;
    for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++)
        for (int c = 0; c < NDM_SIM_CATEGORY_COUNT; c++)
            busy += r.totals.busy[p][c];
    assert_true(fabs(s.kernels - busy) < 1e-6 * busy);
    assert_true(s.collectives > 0.0 && s.collectives <= ndm_sim_exposed(&r.totals) * (1 + 1e-9));
    assert_true(s.last * 1e3 <= r.step_ns + 1.0);
    remove(path);
}

/* ---- memory ------------------------------------------------------------------------------- */

static int64_t live_of(shape s)
{
    ndm_plan_request q = request_of(&machine, s);

    return run(&q).live;
}

static void memory_falls_along_every_axis_but_replicas(void **state)
{
    (void)state;
    for (int64_t n = 1; n <= 8; n *= 2) {
        assert_true(live_of((shape){1, 2 * n, 1, 1}) < live_of((shape){1, n, 1, 1}) || n == 1);
        assert_true(live_of((shape){1, 4, 1, 2 * n}) < live_of((shape){1, 4, 1, n}));
        assert_true(live_of((shape){1, 4, 2 * n, 1}) < live_of((shape){1, 4, n, 1}));
        assert_true(live_of((shape){2 * n, 4, 1, 1}) == live_of((shape){4 * n, 4, 1, 1}));
    }
}

/* Where tp gathers rows behind norms, and in stacks that keep the inputs of products. */
static void recompute_trades_memory_for_time(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){1, 4, 1, 2});
    ndm_plan_result none = run(&q), selective, full;

    (void)state;
    q.options.recompute = NDM_RECOMPUTE_SELECTIVE;
    selective = run(&q);
    q.options.recompute = NDM_RECOMPUTE_FULL;
    full = run(&q);
    assert_true(none.live > selective.live && selective.live > full.live);
    assert_true(none.step_ns < selective.step_ns && selective.step_ns < full.step_ns);
    assert_true(none.phase_ns[NDM_SIM_RECOMPUTE] == 0.0);
    assert_true(full.phase_ns[NDM_SIM_RECOMPUTE] > selective.phase_ns[NDM_SIM_RECOMPUTE]);
}

static void what_the_backward_makes_is_not_kept(void **state)
{
    ndm_plan_request q = request_of(&machine, shapes[0]);
    ndm_sim_stack keeping = *stack;
    ndm_plan_result none = run(&q), selective;

    (void)state;
    q.options.recompute = NDM_RECOMPUTE_SELECTIVE;
    selective = run(&q);
    assert_true(none.live == selective.live && none.step_ns == selective.step_ns);
    assert_true(selective.phase_ns[NDM_SIM_RECOMPUTE] == 0.0);
    keeping.keeps_inputs = true;
    q.stack = &keeping;
    selective = run(&q);
    assert_true(selective.phase_ns[NDM_SIM_RECOMPUTE] > 0.0);
    q.options.recompute = NDM_RECOMPUTE_NONE;
    /* outputs of two norms and of an activation, bf16, of 16 layers; selective: of one at a time */
    int64_t kept = 2 * 4096ll * (2 * 2048 + 8192) * 2;
    assert_true(run(&q).live - selective.live == 15 * kept);
    assert_true(selective.live - none.live >= kept);
}

static void what_does_not_fit_is_refused_early(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){1, 8, 1, 1});
    ndm_plan_result r;

    (void)state;
    q.model = "llama-3-70b";
    assert_int_equal(ndm_plan_run(&q, &r), NDM_OK);
    assert_false(r.fits);
    q.refuse_large = true;
    assert_int_equal(ndm_plan_run(&q, &r), NDM_ERR_MEMORY);
}

/* ---- size --------------------------------------------------------------------------------- */

static void a_hundred_thousand_ranks_are_one(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){25, 500, 1, 8});
    struct rusage usage;

    (void)state;
    assert_true(q.ranks == 100000);
    q.model = "llama-3-70b";
    q.options.micro_batch = 1;
    ndm_plan_result r = run(&q);
    assert_true(r.tokens == 2 * 4096ll * 12500);
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    assert_true(usage.ru_maxrss < 500 * 1024); /* KiB, of all tests so far */
}

static void other_ranks_plan_alike(void **state)
{
    ndm_plan_request q = request_of(&machine, (shape){2, 2, 2, 2});
    ndm_plan_result first = run(&q);

    (void)state;
    for (q.rank = 1; q.rank < q.ranks; q.rank += 7) {
        ndm_plan_result r = run(&q);
        assert_true(fabs((double)r.live / (double)first.live - 1.0) < 0.01);
        assert_true(fabs(r.step_ns / first.step_ns - 1.0) < 0.01);
    }
    q.rank = q.ranks;
    ndm_plan_result r;
    assert_int_equal(ndm_plan_run(&q, &r), NDM_ERR_USAGE);
}

/* Of 9 ranks the last is alone on its host: some groups cross hosts, and all wait for them. */
static void groups_that_cross_hosts_slow_those_that_do_not(void **state)
{
    static const shape over_hosts[] = {{3, 3, 1, 1}, {2, 6, 1, 1}, {2, 3, 2, 1}};

    (void)state;
    for (int i = 0; i < 3; i++) {
        ndm_plan_request q = request_of(&machine, over_hosts[i]);
        ndm_plan_result first = run(&q);
        q.rank = q.ranks - 1;
        ndm_plan_result last = run(&q);
        assert_true(fabs(last.step_ns / first.step_ns - 1.0) < 0.02);
        for (int c = 0; c < first.n_comms; c++)
            assert_int_equal(first.comms[c].domains, last.comms[c].domains);
    }
}

static void no_more_is_asked_for_than_is_executed(void **state)
{
    static const char *const models[] = {"gpt2-124m", "gpt2-tiny", "llama-1b"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        ndm_plan_request q = request_of(&machine, (shape){1, 8, 1, 1});
        q.model = models[i];
        q.options.seq_len = 128;
        ndm_plan_result r = run(&q);
        assert_true(r.mfu <= r.hfu && r.hfu <= 1.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(more_bandwidth_is_never_slower),
        cmocka_unit_test(free_communication_leaves_compute_alone),
        cmocka_unit_test(replicas_double_speed_but_for_their_traffic),
        cmocka_unit_test(more_ranks_wait_for_a_slower_one),
        cmocka_unit_test(parts_sum_to_the_step),
        cmocka_unit_test(the_trace_agrees_with_the_totals),
        cmocka_unit_test(memory_falls_along_every_axis_but_replicas),
        cmocka_unit_test(recompute_trades_memory_for_time),
        cmocka_unit_test(what_the_backward_makes_is_not_kept),
        cmocka_unit_test(what_does_not_fit_is_refused_early),
        cmocka_unit_test(a_hundred_thousand_ranks_are_one),
        cmocka_unit_test(other_ranks_plan_alike),
        cmocka_unit_test(groups_that_cross_hosts_slow_those_that_do_not),
        cmocka_unit_test(no_more_is_asked_for_than_is_executed),
    };
    char path[512];

    snprintf(path, sizeof path, "%s/clusters/h100x8.yaml", NDM_SHARE);
    if (ndm_plan_load_cluster(path, &machine) != NDM_OK)
        return 1;
    stack = ndm_cost_stack_at(0);
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
