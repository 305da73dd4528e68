/* SPDX-License-Identifier: Apache-2.0 */
/* Placement on synthetic machines, even and uneven: the order is a permutation, and inner axes stay
 * near. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/rng.h"
#include "mesh/machine.h"
#include "mesh/placement.h"

enum { MAX_WORLD = 256 };

static ndm_parallelism_config config_of(int64_t r, int64_t s, int64_t c, int64_t t)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    config.dp_replicate = r, config.dp_shard = s, config.cp = c, config.tp = t;
    return config;
}

/* Facts of one rank a core on hosts of one kind, numbered host by host. Returns the world's size.
 */
static int64_t fill_hosts(const char *synthetic, int64_t hosts, ndm_place_facts *facts)
{
    ndm_machine *machine = NULL;
    if (ndm_machine_open(synthetic, &machine) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    int64_t cores = ndm_machine_cores(machine), n = 0;
    for (int64_t h = 0; h < hosts; h++)
        for (int64_t c = 0; c < cores; c++)
            assert_int_equal(ndm_machine_facts_of_cores(machine, h, c, 1, &facts[n++]), NDM_OK);
    ndm_machine_close(machine);
    return n;
}

static void shuffle(uint64_t seed, ndm_place_facts *facts, int64_t n)
{
    ndm_place_facts copy[MAX_WORLD];
    memcpy(copy, facts, (size_t)n * sizeof *copy);
    for (int64_t i = 0; i < n; i++)
        facts[ndm_rng_permute(seed, 7, (uint64_t)i, (uint64_t)n)] = copy[i];
}

/* The mesh under the order that placement chooses; creating it checks that the order is a
 * permutation. */
static ndm_mesh *place(ndm_parallelism_config config, int64_t world, const ndm_place_facts *facts)
{
    int64_t order[MAX_WORLD];
    ndm_mesh *mesh = NULL;
    assert_int_equal(ndm_placement_order(&config, world, facts, order), NDM_OK);
    config.order = order;
    if (ndm_mesh_create(&config, world, &mesh) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    return mesh;
}

static int64_t groups_within(const ndm_mesh *mesh, const ndm_place_facts *facts, ndm_axis_set axes,
                             ndm_place_level level)
{
    ndm_place_span span = ndm_placement_span(mesh, facts, axes);
    int64_t n = 0, all = span.across;
    for (int l = 0; l < NDM_PLACE_LEVELS; l++) {
        all += span.inside[l];
        n += l >= (int)level ? span.inside[l] : 0;
    }
    assert_int_equal(all, span.groups);
    return n;
}

typedef struct machine_case {
    const char *synthetic;
    int64_t hosts;
    int64_t size[NDM_AXIS_COUNT];
    ndm_axis_set axes;
    ndm_place_level level; /* all groups over axes fit inside one of these */
} machine_case;

static const machine_case even[] = {
    {"pack:2 l3:2 core:4 pu:1", 2, {1, 2, 4, 4}, NDM_AXIS_TP, NDM_PLACE_L3},
    {"pack:2 l3:2 core:4 pu:1", 2, {1, 2, 2, 8}, NDM_AXIS_TP, NDM_PLACE_PACKAGE},
    {"pack:2 l3:2 core:4 pu:1", 2, {2, 2, 2, 4}, NDM_AXIS_CP | NDM_AXIS_TP, NDM_PLACE_PACKAGE},
    {"pack:2 l3:2 core:4 pu:1",
     2,
     {2, 2, 2, 4},
     NDM_AXES_DP_SHARD_CP | NDM_AXIS_TP,
     NDM_PLACE_HOST},
    {"pack:1 l3:4 core:2 pu:2", 4, {1, 4, 4, 2}, NDM_AXIS_TP, NDM_PLACE_L3},
    {"pack:1 l3:4 core:2 pu:2", 4, {4, 1, 2, 4}, NDM_AXIS_CP | NDM_AXIS_TP, NDM_PLACE_HOST},
    {"pack:2 numa:2 l3:1 core:3 pu:1", 1, {1, 2, 2, 3}, NDM_AXIS_TP, NDM_PLACE_NUMA},
    {"pack:2 numa:2 l3:1 core:3 pu:1", 1, {1, 2, 1, 6}, NDM_AXIS_TP, NDM_PLACE_PACKAGE},
    {"core:2 pu:1", 8, {2, 2, 2, 2}, NDM_AXIS_TP, NDM_PLACE_HOST},
    {"pack:4 core:6 pu:1", 2, {1, 8, 2, 3}, NDM_AXIS_CP | NDM_AXIS_TP, NDM_PLACE_PACKAGE},
    /* three cores a cache and tp 2: one pair a cache, and the odd cores pair inside their package
     */
    {"pack:2 l3:2 core:3 pu:1", 2, {1, 12, 1, 2}, NDM_AXIS_TP, NDM_PLACE_PACKAGE},
};

static void inner_axes_stay_near_whatever_the_launcher_did(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)ndm_clock_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < sizeof even / sizeof even[0]; i++)
        for (int round = 0; round < 4; round++) {
            const machine_case *c = &even[i];
            ndm_place_facts facts[MAX_WORLD];
            int64_t world = fill_hosts(c->synthetic, c->hosts, facts);
            if (round > 0)
                shuffle(seed + (uint64_t)round, facts, world);
            ndm_mesh *mesh = place(config_of(c->size[0], c->size[1], c->size[2], c->size[3]), world,
                                   facts);
            int64_t groups = world / ndm_mesh_size(mesh, c->axes);
            assert_int_equal(groups_within(mesh, facts, c->axes, c->level), groups);
            ndm_mesh_destroy(mesh);
        }
}

static void an_even_machine_in_order_keeps_its_order(void **state)
{
    (void)state;
    ndm_place_facts facts[MAX_WORLD];
    int64_t order[MAX_WORLD];
    int64_t world = fill_hosts("pack:2 l3:2 core:4 pu:1", 4, facts);
    ndm_parallelism_config config = config_of(2, 2, 4, 4);
    assert_int_equal(ndm_placement_order(&config, world, facts, order), NDM_OK);
    for (int64_t p = 0; p < world; p++)
        assert_int_equal(order[p], p);
}

/* mpiexec -map-by node and Slurm's cyclic deal ranks like cards. */
static void cyclic_ranks_are_gathered_by_host(void **state)
{
    (void)state;
    ndm_place_facts facts[8];
    int64_t order[8];
    for (int64_t r = 0; r < 8; r++)
        facts[r] = (ndm_place_facts){{r % 2, -1, -1, -1, -1, -1}};
    ndm_parallelism_config config = config_of(1, 2, 2, 2);
    assert_int_equal(ndm_placement_order(&config, 8, facts, order), NDM_OK);
    assert_memory_equal(order, ((int64_t[]){0, 2, 4, 6, 1, 3, 5, 7}), sizeof order);
}

/* Hosts with 3, 2 and 3 ranks: three pairs fit, and only the two odd ranks meet across hosts.
 * Sorting by host would cut two. */
static void uneven_hosts_cut_as_few_tp_groups_as_possible(void **state)
{
    (void)state;
    static const int64_t host[] = {0, 0, 0, 1, 1, 2, 2, 2};
    ndm_place_facts facts[8];
    for (int64_t r = 0; r < 8; r++)
        facts[r] = (ndm_place_facts){{host[r], 0, 0, 0, 0, -1}};
    ndm_mesh *mesh = place(config_of(1, -1, 1, 2), 8, facts);
    static const int64_t expected[] = {0, 1, 3, 4, 5, 6, 2, 7};
    for (int64_t p = 0; p < 8; p++)
        assert_int_equal(ndm_mesh_rank_at(mesh, p), expected[p]);
    ndm_place_span span = ndm_placement_span(mesh, facts, NDM_AXIS_TP);
    assert_int_equal(span.groups, 4);
    assert_int_equal(span.inside[NDM_PLACE_L3], 3);
    assert_int_equal(span.across, 1);
    char text[128];
    assert_string_equal(ndm_placement_describe(mesh, facts, NDM_AXIS_TP, text, sizeof text),
                        "4 groups of 2: 3 inside one l3 cache, 1 across hosts");
    assert_string_equal(ndm_placement_describe(mesh, facts, NDM_AXES_ALL, text, sizeof text),
                        "1 group of 8: 1 across hosts");
    ndm_mesh_destroy(mesh);
}

/* A pair that had to span hosts belongs to neither: cp joins the two whole pairs of host 0, though
 * the odd rank of host 0, in the first cache, sorts before both. */
static void what_spans_hosts_is_at_home_in_none(void **state)
{
    (void)state;
    static const int64_t host[] = {0, 0, 0, 0, 0, 1, 1, 1}, cache[] = {0, 1, 1, 2, 2, 0, 0, 0};
    ndm_place_facts facts[8];
    for (int64_t r = 0; r < 8; r++)
        facts[r] = (ndm_place_facts){{host[r], 0, 0, 0, cache[r], -1}};
    ndm_mesh *mesh = place(config_of(1, 2, 2, 2), 8, facts);
    assert_int_equal(groups_within(mesh, facts, NDM_AXIS_CP | NDM_AXIS_TP, NDM_PLACE_HOST), 1);
    assert_int_equal(groups_within(mesh, facts, NDM_AXIS_TP, NDM_PLACE_L3), 3);
    ndm_mesh_destroy(mesh);
}

/* Any crowd of processes on any hosts: whole tp groups per host are as many as arithmetic allows.
 */
static void random_hosts_hold_as_many_whole_groups_as_fit(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)ndm_clock_ns(), draw = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (int round = 0; round < 200; round++) {
        int64_t tp = 1 + (int64_t)(ndm_rng_u64(seed, 2, draw++) % 6);
        int64_t world = tp * (1 + (int64_t)(ndm_rng_u64(seed, 2, draw++) % 12));
        int64_t on_host[5] = {0}, fit = 0;
        ndm_place_facts facts[MAX_WORLD];
        for (int64_t r = 0; r < world; r++) {
            int64_t h = (int64_t)(ndm_rng_u64(seed, 2, draw++) % 5);
            facts[r] = (ndm_place_facts){{h, 0, -1, -1, -1, -1}};
            on_host[h]++;
        }
        for (int h = 0; h < 5; h++)
            fit += on_host[h] / tp;
        ndm_mesh *mesh = place(config_of(1, -1, 1, tp), world, facts);
        assert_int_equal(groups_within(mesh, facts, NDM_AXIS_TP, NDM_PLACE_HOST), fit);
        ndm_mesh_destroy(mesh);
    }
}

static void a_forced_order_wins(void **state)
{
    (void)state;
    static const int64_t forced[] = {3, 1, 2, 0};
    ndm_place_facts facts[4];
    int64_t order[4] = {0};
    for (int64_t r = 0; r < 4; r++)
        facts[r] = (ndm_place_facts){{r / 2, 0, 0, 0, 0, r}};
    ndm_parallelism_config config = config_of(1, 2, 1, 2);
    config.order = forced;
    assert_int_equal(ndm_placement_order(&config, 4, facts, order), NDM_OK);
    assert_memory_equal(order, forced, sizeof forced);
}

static void below_an_unknown_level_nothing_is_known(void **state)
{
    (void)state;
    ndm_place_facts facts = {{4, 0, NDM_PLACE_UNKNOWN, 1, 2, 3}};
    ndm_place_facts_settle(&facts);
    assert_memory_equal(facts.id, ((int64_t[]){4, 0, -1, -1, -1, -1}), sizeof facts.id);
}

static void synthetic_cores_have_their_places(void **state)
{
    (void)state;
    ndm_machine *machine = NULL;
    ndm_place_facts facts;
    assert_int_equal(ndm_machine_open("pack:2 l3:2 core:4 pu:2", &machine), NDM_OK);
    assert_int_equal(ndm_machine_cores(machine), 16);
    assert_int_equal(ndm_machine_facts_of_cores(machine, 5, 13, 1, &facts), NDM_OK);
    assert_int_equal(facts.id[NDM_PLACE_HOST], 5);
    assert_int_equal(facts.id[NDM_PLACE_ISLAND], NDM_PLACE_NONE);
    assert_int_equal(facts.id[NDM_PLACE_PACKAGE], 1);
    assert_int_equal(facts.id[NDM_PLACE_L3], 3);
    assert_int_equal(facts.id[NDM_PLACE_CORE], 13);
    char text[160];
    ndm_machine_summary(machine, text, sizeof text);
    assert_non_null(strstr(text, "2 packages"));
    assert_non_null(strstr(text, "16 cores, 32 hardware threads"));
    ndm_machine_close(machine);
}

/* Two packages of two NUMA nodes of four cores: what a range of cores spans is unknown below what
 * holds it. */
static void a_binding_over_several_places_leaves_them_open(void **state)
{
    (void)state;
    static const struct {
        int64_t first, n, package, numa;
    } cases[] = {{0, 4, 0, 0}, {12, 2, 1, 3}, {8, 8, 1, -1}, {2, 4, 0, -1}, {4, 8, -1, -1}};
    ndm_machine *machine = NULL;
    assert_int_equal(ndm_machine_open("pack:2 numa:2 core:4 pu:1", &machine), NDM_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ndm_place_facts f;
        assert_int_equal(ndm_machine_facts_of_cores(machine, 1, cases[i].first, cases[i].n, &f),
                         NDM_OK);
        assert_int_equal(f.id[NDM_PLACE_HOST], 1);
        assert_int_equal(f.id[NDM_PLACE_PACKAGE], cases[i].package);
        assert_int_equal(f.id[NDM_PLACE_NUMA], cases[i].numa);
        assert_int_equal(f.id[NDM_PLACE_CORE], NDM_PLACE_UNKNOWN);
    }
    ndm_machine_close(machine);
}

static void this_machine_can_be_read(void **state)
{
    (void)state;
    ndm_machine *machine = NULL;
    ndm_place_facts facts;
    assert_int_equal(ndm_machine_open(NULL, &machine), NDM_OK);
    assert_true(ndm_machine_cores(machine) >= 1);
    ndm_machine_facts_of_self(machine, 2, &facts);
    assert_int_equal(facts.id[NDM_PLACE_HOST], 2);
    ndm_machine_close(machine);
}

/* A level that the machine lacks separates nothing, and is not what groups are said to share. */
static void missing_levels_are_not_named(void **state)
{
    (void)state;
    ndm_place_facts facts[MAX_WORLD];
    int64_t world = fill_hosts("core:4 pu:1", 2, facts);
    ndm_mesh *mesh = place(config_of(1, 2, 1, 4), world, facts);
    char text[128];
    assert_int_equal(facts[0].id[NDM_PLACE_L3], NDM_PLACE_NONE);
    assert_string_equal(ndm_placement_describe(mesh, facts, NDM_AXIS_TP, text, sizeof text),
                        "2 groups of 4: 2 inside one numa node");
    ndm_mesh_destroy(mesh);
}

static void nonsense_is_no_machine(void **state)
{
    (void)state;
    ndm_machine *machine = NULL;
    assert_int_equal(ndm_machine_open("pack:two", &machine), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "'pack:two'"));
    assert_null(machine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(inner_axes_stay_near_whatever_the_launcher_did),
        cmocka_unit_test(an_even_machine_in_order_keeps_its_order),
        cmocka_unit_test(cyclic_ranks_are_gathered_by_host),
        cmocka_unit_test(uneven_hosts_cut_as_few_tp_groups_as_possible),
        cmocka_unit_test(what_spans_hosts_is_at_home_in_none),
        cmocka_unit_test(random_hosts_hold_as_many_whole_groups_as_fit),
        cmocka_unit_test(a_forced_order_wins),
        cmocka_unit_test(below_an_unknown_level_nothing_is_known),
        cmocka_unit_test(synthetic_cores_have_their_places),
        cmocka_unit_test(a_binding_over_several_places_leaves_them_open),
        cmocka_unit_test(this_machine_can_be_read),
        cmocka_unit_test(missing_levels_are_not_named),
        cmocka_unit_test(nonsense_is_no_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
