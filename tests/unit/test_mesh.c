/* SPDX-License-Identifier: Apache-2.0 */
/* Every mesh of 1 to 64 ranks: coordinates round-trip, groups of every axis set partition the
 * world. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/rng.h"
#include <ndmesh/mesh.h>

/* MESHES: factorisations of 1..64 into four ordered factors, sum of d_4(n) */
enum { MAX_WORLD = 64, MESHES = 1824 };

static ndm_parallelism_config config_of(int64_t r, int64_t s, int64_t c, int64_t t)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    config.dp_replicate = r, config.dp_shard = s, config.cp = c, config.tp = t;
    return config;
}

static ndm_mesh *mesh_of(const ndm_parallelism_config *config, int64_t world)
{
    ndm_mesh *mesh = NULL;
    ndm_status status = ndm_mesh_create(config, world, &mesh);
    if (status != NDM_OK)
        fail_msg("%s", ndm_error_message());
    return mesh;
}

/* Runs check on every factorisation of every world up to MAX_WORLD; returns how many there were. */
static int for_all_meshes(void (*check)(ndm_mesh *mesh))
{
    int count = 0;
    for (int64_t n = 1; n <= MAX_WORLD; n++)
        for (int64_t r = 1; r <= n; r++)
            for (int64_t s = 1; n % r == 0 && s <= n / r; s++)
                for (int64_t c = 1; n / r % s == 0 && c <= n / r / s; c++) {
                    if (n / r / s % c != 0)
                        continue;
                    ndm_parallelism_config config = config_of(r, s, c, n / r / s / c);
                    ndm_mesh *mesh = mesh_of(&config, n);
                    check(mesh);
                    ndm_mesh_destroy(mesh);
                    count++;
                }
    return count;
}

static void check_coordinates(ndm_mesh *mesh)
{
    int64_t size[NDM_AXIS_COUNT], expected = 0;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        size[a] = ndm_mesh_axis_size(mesh, (ndm_axis)a);
    assert_int_equal(size[0] * size[1] * size[2] * size[3], ndm_mesh_world(mesh));
    int64_t at[NDM_AXIS_COUNT];
    for (at[0] = 0; at[0] < size[0]; at[0]++)
        for (at[1] = 0; at[1] < size[1]; at[1]++)
            for (at[2] = 0; at[2] < size[2]; at[2]++)
                for (at[3] = 0; at[3] < size[3]; at[3]++, expected++) {
                    assert_int_equal(ndm_mesh_rank(mesh, at), expected);
                    for (int a = 0; a < NDM_AXIS_COUNT; a++)
                        assert_int_equal(ndm_mesh_coord(mesh, expected, (ndm_axis)a), at[a]);
                }
}

/* Members agree on the axes outside the set and are in row-major order; each rank is in one group,
 * at its index. */
static void check_group(ndm_mesh *mesh, ndm_axis_set axes, int64_t rank)
{
    int64_t ranks[MAX_WORLD], last = -1;
    ndm_group group = ndm_mesh_group(mesh, axes, rank);
    assert_int_equal(group.axes, axes);
    assert_int_equal(group.size, ndm_mesh_size(mesh, axes));
    ndm_mesh_members(mesh, axes, rank, ranks);
    assert_int_equal(ranks[group.index], rank);
    for (int64_t i = 0; i < group.size; i++) {
        assert_int_equal(ndm_mesh_member(mesh, axes, rank, i), ranks[i]);
        assert_int_equal(ndm_mesh_group(mesh, axes, ranks[i]).index, i);
        assert_true(ndm_mesh_position(mesh, ranks[i]) > last);
        last = ndm_mesh_position(mesh, ranks[i]);
        for (int a = 0; a < NDM_AXIS_COUNT; a++)
            if ((axes & (1u << a)) == 0)
                assert_int_equal(ndm_mesh_coord(mesh, ranks[i], (ndm_axis)a),
                                 ndm_mesh_coord(mesh, rank, (ndm_axis)a));
    }
}

static void check_partition(ndm_mesh *mesh)
{
    int64_t world = ndm_mesh_world(mesh);
    for (ndm_axis_set axes = 0; axes <= NDM_AXES_ALL; axes++) {
        int64_t heads = 0;
        for (int64_t rank = 0; rank < world; rank++) {
            bool head = ndm_mesh_group(mesh, axes, rank).index == 0;
            if (head || rank % 5 == 3)
                check_group(mesh, axes, rank);
            heads += head;
        }
        assert_int_equal(heads * ndm_mesh_size(mesh, axes), world);
    }
}

static void coordinates_round_trip(void **state)
{
    (void)state;
    assert_int_equal(for_all_meshes(check_coordinates), MESHES);
}

static void groups_partition_the_world(void **state)
{
    (void)state;
    assert_int_equal(for_all_meshes(check_partition), MESHES);
}

static void tp_is_contiguous_and_dp_shard_strided(void **state)
{
    (void)state;
    ndm_parallelism_config config = config_of(2, 2, 2, 2);
    ndm_mesh *mesh = mesh_of(&config, 16);
    int64_t ranks[16];
    ndm_mesh_members(mesh, NDM_AXIS_TP, 7, ranks);
    assert_memory_equal(ranks, ((int64_t[]){6, 7}), 2 * sizeof *ranks);
    ndm_mesh_members(mesh, NDM_AXES_DP_SHARD_CP, 3, ranks);
    assert_memory_equal(ranks, ((int64_t[]){1, 3, 5, 7}), 4 * sizeof *ranks);
    ndm_mesh_members(mesh, NDM_AXES_DP, 3, ranks);
    assert_memory_equal(ranks, ((int64_t[]){3, 7, 11, 15}), 4 * sizeof *ranks);
    ndm_mesh_members(mesh, NDM_AXIS_DP_REPLICATE | NDM_AXIS_TP, 13, ranks);
    assert_memory_equal(ranks, ((int64_t[]){4, 5, 12, 13}), 4 * sizeof *ranks);
    assert_int_equal(ndm_mesh_group(mesh, NDM_AXES_ALL, 11).index, 11);
    assert_int_equal(ndm_mesh_group(mesh, 0, 11).size, 1);
    assert_int_equal(ndm_mesh_member(mesh, 0, 11, 0), 11);
    ndm_mesh_destroy(mesh);
}

static void one_size_may_be_auto(void **state)
{
    (void)state;
    for (int64_t world = 1; world <= MAX_WORLD; world++)
        for (int a = 0; a < NDM_AXIS_COUNT; a++)
            for (int64_t other = 1; other <= world; other++) {
                int64_t size[NDM_AXIS_COUNT] = {1, 1, 1, 1};
                size[a] = NDM_AUTO;
                size[(a + 1) % NDM_AXIS_COUNT] = other;
                ndm_parallelism_config config = config_of(size[0], size[1], size[2], size[3]);
                ndm_mesh *mesh = NULL;
                ndm_status status = ndm_mesh_create(&config, world, &mesh);
                assert_int_equal(status, world % other == 0 ? NDM_OK : NDM_ERR_CONFIG);
                if (mesh != NULL)
                    assert_int_equal(ndm_mesh_axis_size(mesh, (ndm_axis)a), world / other);
                ndm_mesh_destroy(mesh);
            }
}

static void defaults_shard_over_everything(void **state)
{
    (void)state;
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    ndm_mesh *mesh = mesh_of(&config, 12);
    assert_int_equal(ndm_mesh_axis_size(mesh, NDM_DP_SHARD), 12);
    assert_int_equal(ndm_mesh_size(mesh, NDM_AXES_ALL & ~NDM_AXIS_DP_SHARD), 1);
    ndm_mesh_destroy(mesh);
}

static void large_meshes_need_no_tables(void **state)
{
    (void)state;
    ndm_parallelism_config config = config_of(16, NDM_AUTO, 8, 8);
    ndm_mesh *mesh = mesh_of(&config, 131072);
    assert_int_equal(ndm_mesh_axis_size(mesh, NDM_DP_SHARD), 128);
    for (int64_t rank = 0; rank < 131072; rank += 997) {
        int64_t at[NDM_AXIS_COUNT];
        for (int a = 0; a < NDM_AXIS_COUNT; a++)
            at[a] = ndm_mesh_coord(mesh, rank, (ndm_axis)a);
        assert_int_equal(ndm_mesh_rank(mesh, at), rank);
        ndm_group group = ndm_mesh_group(mesh, NDM_AXES_DP_SHARD_CP, rank);
        assert_int_equal(group.size, 1024);
        assert_int_equal(ndm_mesh_member(mesh, NDM_AXES_DP_SHARD_CP, rank, group.index), rank);
    }
    ndm_mesh_destroy(mesh);
    config = config_of(1, NDM_AUTO, 1, 1);
    mesh = mesh_of(&config, 2147483647);
    assert_int_equal(ndm_mesh_rank_at(mesh, 2147483646), 2147483646);
    ndm_mesh_destroy(mesh);
}

/* A forced order permutes ranks and changes nothing else: groups hold the same positions. */
static void an_order_maps_positions_to_ranks(void **state)
{
    (void)state;
    uint64_t seed = (uint64_t)ndm_clock_ns();
    print_message("seed %llu\n", (unsigned long long)seed);
    int64_t order[24];
    for (int64_t p = 0; p < 24; p++)
        order[p] = (int64_t)ndm_rng_permute(seed, 1, (uint64_t)p, 24);
    ndm_parallelism_config config = config_of(2, 3, 2, 2);
    ndm_mesh *plain = mesh_of(&config, 24);
    config.order = order;
    ndm_mesh *placed = mesh_of(&config, 24);
    int64_t given[24];
    memcpy(given, order, sizeof given);
    memset(order, 0, sizeof order); /* the mesh keeps a copy */
    for (int64_t p = 0; p < 24; p++) {
        assert_int_equal(ndm_mesh_rank_at(placed, p), given[p]);
        assert_int_equal(ndm_mesh_position(placed, given[p]), p);
        for (ndm_axis_set axes = 0; axes <= NDM_AXES_ALL; axes++) {
            check_group(placed, axes, given[p]);
            for (int64_t i = 0; i < ndm_mesh_size(plain, axes); i++)
                assert_int_equal(ndm_mesh_member(placed, axes, given[p], i),
                                 given[ndm_mesh_member(plain, axes, p, i)]);
        }
    }
    ndm_mesh_destroy(plain);
    ndm_mesh_destroy(placed);
}

static void axis_sets_round_trip(void **state)
{
    (void)state;
    for (ndm_axis_set axes = 0; axes <= NDM_AXES_ALL; axes++) {
        char name[64], again[64];
        ndm_axis_set parsed = ~0u;
        ndm_axis_set_name(axes, name, sizeof name);
        assert_int_equal(ndm_axis_set_parse(name, &parsed), NDM_OK);
        assert_int_equal(parsed, axes);
        for (ndm_axis_set other = 0; other < axes; other++)
            assert_string_not_equal(ndm_axis_set_name(other, again, sizeof again), name);
    }
}

static void axis_sets_have_known_names(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        ndm_axis_set axes;
        const char *name;
    } cases[] = {
        {"dp", NDM_AXES_DP, "dp"},
        {"DP-Shard-CP", NDM_AXES_DP_SHARD_CP, "dp_shard_cp"},
        {"dp_cp", NDM_AXES_DP_CP, "dp_cp"},
        {"world", NDM_AXES_ALL, "world"},
        {"dp_replicate x dp_shard x cp x tp", NDM_AXES_ALL, "world"},
        {"tp,dp-replicate", NDM_AXIS_TP | NDM_AXIS_DP_REPLICATE, "dp_replicate_tp"},
        {"cpxtp", NDM_AXIS_CP | NDM_AXIS_TP, "cp_tp"},
        {"dp_tp", NDM_AXES_DP | NDM_AXIS_TP, "dp_tp"},
        {"self", 0, "self"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char name[64];
        ndm_axis_set axes = ~0u;
        assert_int_equal(ndm_axis_set_parse(cases[i].text, &axes), NDM_OK);
        assert_int_equal(axes, cases[i].axes);
        assert_string_equal(ndm_axis_set_name(axes, name, sizeof name), cases[i].name);
    }
    assert_string_equal(ndm_axis_set_name(NDM_AXES_DP_SHARD_CP, (char[6]){0}, 6), "dp_sh");
}

static void the_axis_table_says_who_splits_tokens(void **state)
{
    (void)state;
    ndm_axis_set split = 0;
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        split |= ndm_axis_table()[a].splits_tokens ? 1u << a : 0;
        assert_true(strlen(ndm_axis_table()[a].summary) > 0);
    }
    assert_int_equal(split, NDM_AXES_DP_CP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(coordinates_round_trip),
        cmocka_unit_test(groups_partition_the_world),
        cmocka_unit_test(tp_is_contiguous_and_dp_shard_strided),
        cmocka_unit_test(one_size_may_be_auto),
        cmocka_unit_test(defaults_shard_over_everything),
        cmocka_unit_test(large_meshes_need_no_tables),
        cmocka_unit_test(an_order_maps_positions_to_ranks),
        cmocka_unit_test(axis_sets_round_trip),
        cmocka_unit_test(axis_sets_have_known_names),
        cmocka_unit_test(the_axis_table_says_who_splits_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
