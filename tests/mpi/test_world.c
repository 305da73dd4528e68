/* SPDX-License-Identifier: Apache-2.0 */
/* The world: exchange, agreement and comparison on the host; names and interning of groups. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/error.h"

static void exchange_gives_everyone_everything(void **state)
{
    int64_t n = ndm_world_size(world), rank = ndm_world_rank(world);
    bool good = true;

    (void)state;
    for (int64_t bytes = 1; bytes < 200000; bytes = bytes * 7 + 1) {
        unsigned char *mine = malloc((size_t)bytes), *all = malloc((size_t)(n * bytes));
        for (int64_t i = 0; i < bytes; i++)
            mine[i] = (unsigned char)(rank * 31 + i);
        must(ndm_world_exchange(world, mine, bytes, all));
        for (int64_t r = 0; r < n; r++)
            for (int64_t i = 0; i < bytes; i++)
                good &= all[r * bytes + i] == (unsigned char)(r * 31 + i);
        free(mine);
        free(all);
    }
    check_all(good);
}

static void ranks_of_one_host_are_numbered(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    check_all(ndm_world_node(world, 0) == 0);
    check_all(ndm_world_node(world, n - 1) == world->nodes - 1); /* ranks come sorted by host */
    check_all(world->nodes > 1 || ndm_world_local_size(world) == n);
    check_all(world->nodes > 1 || ndm_world_local_rank(world) == ndm_world_rank(world));
    check_all(strlen(ndm_world_host(world, n - 1)) > 0);
}

static ndm_status fail_on(int64_t rank, ndm_status code)
{
    if (ndm_world_rank(world) == rank)
        NDM_FAIL(code, "the disk of rank %lld is full", (long long)rank);
    return NDM_OK;
}

static void all_ranks_return_the_lowest_failure(void **state)
{
    int64_t n = ndm_world_size(world), low = n > 1 ? 1 : 0;
    char expected[128];
    ndm_status status;

    (void)state;
    check_all(ndm_world_agree(world, NDM_OK) == NDM_OK);
    status = fail_on(low, NDM_ERR_IO);
    if (n > 2 && status == NDM_OK)
        status = fail_on(n - 1, NDM_ERR_MEMORY);
    status = ndm_world_agree(world, status);
    snprintf(expected, sizeof expected,
             n > 1 ? "rank %lld: the disk of rank %lld is full" : "the disk of rank %lld is full",
             (long long)low, (long long)low);
    bool same = strcmp(ndm_error_message(), expected) == 0;
    check_all(status == NDM_ERR_IO);
    check_all(same);
    status = ndm_world_agree(world, status); /* the rank is named once */
    same = status == NDM_ERR_IO && strcmp(ndm_error_message(), expected) == 0;
    check_all(same);
    check_all(ndm_world_agree(world, NDM_OK) == NDM_OK);
}

/* A message may begin with a rank of something else, and an agreed error may be kept meanwhile. */
static void a_rank_is_named_by_agreement_not_by_the_text(void **state)
{
    int64_t n = ndm_world_size(world), low = n > 1 ? 1 : 0;
    char expected[128];
    ndm_error kept;
    ndm_status status = NDM_OK;

    (void)state;
    if (ndm_world_rank(world) == low)
        status = ndm_error_set(NDM_ERR_IO, "here.c", 7, "rank 9: its file is empty");
    status = ndm_world_agree(world, status);
    snprintf(expected, sizeof expected, "%srank 9: its file is empty", n > 1 ? "rank 1: " : "");
    bool same = strcmp(ndm_error_message(), expected) == 0;
    check_all(status == NDM_ERR_IO);
    check_all(same);
    same = strcmp(ndm_error_where(), "here.c:7") == 0;
    check_all(same);
    ndm_error_keep(&kept);
    (void)ndm_error_set(NDM_ERR_IO, "there.c", 8, "something else");
    ndm_error_restore(&kept);
    status = ndm_world_agree(world, status);
    same = status == NDM_ERR_IO && strcmp(ndm_error_message(), expected) == 0;
    check_all(same);
}

static void differing_facts_name_rank_field_and_values(void **state)
{
    int64_t n = ndm_world_size(world);
    bool last = ndm_world_rank(world) == n - 1;
    ndm_fact facts[] = {{"version", "0.1.0"}, {"mesh.tp", last ? "4" : "2"}, {"seed", "7"}};
    char expected[128];
    ndm_status status;

    (void)state;
    status = ndm_world_verify(world, facts, 1);
    check_all(status == NDM_OK);
    if (n == 1)
        return;
    status = ndm_world_verify(world, facts, 3);
    snprintf(expected, sizeof expected, "rank %lld differs from rank 0: mesh.tp is 4, not 2",
             (long long)n - 1);
    bool same = strcmp(ndm_error_message(), expected) == 0;
    check_all(status == NDM_ERR_MISMATCH && same);
}

static void different_numbers_of_facts_are_compared(void **state)
{
    int64_t n = ndm_world_size(world);
    bool last = ndm_world_rank(world) == n - 1;
    ndm_fact facts[] = {{"version", "0.1.0"}, {"mesh.tp", "2"}, {"seed", "7"}};

    (void)state;
    if (n == 1)
        return;
    ndm_status status = ndm_world_verify(world, facts, last ? 2 : 3);
    bool named = strstr(ndm_error_message(), "nothing, not seed") != NULL;
    check_all(status == NDM_ERR_MISMATCH && named);
    status = ndm_world_verify(world, facts, last ? 3 : 1);
    named = strstr(ndm_error_message(), "mesh.tp = 2, not nothing more") != NULL;
    check_all(status == NDM_ERR_MISMATCH && named);
    status = ndm_world_verify(world, facts, last ? 0 : 1);
    check_all(status == NDM_ERR_MISMATCH);
}

static ndm_comm *get(fixture *f, ndm_axis_set axes)
{
    ndm_comm *comm = NULL;

    must(ndm_comms_get(f->comms, axes, &comm));
    return comm;
}

static ndm_comm *get_block(fixture *f, ndm_axis_set axes, int64_t k)
{
    ndm_comm *comm = NULL;

    must(ndm_comms_get_block(f->comms, axes, k, &comm));
    return comm;
}

static void case_28_same_ranks_share_a_communicator(void **state)
{
    int64_t n;
    ndm_parallelism_config *meshes = harness_meshes(100, &n);
    fixture f;

    (void)state;
    for (int64_t m = 0; m < n; m++) {
        bool cp_one = meshes[m].cp == 1, outer_one = meshes[m].dp_replicate == 1;
        check_all(fixture_init(&f, &meshes[m], "auto"));
        ndm_comm *shard = get(&f, NDM_AXIS_DP_SHARD);
        check_all((get(&f, NDM_AXES_DP_SHARD_CP) == shard) ==
                  (cp_one || (meshes[m].dp_shard == 1 && meshes[m].cp == 1)));
        check_all(get(&f, NDM_AXES_DP) == shard || !outer_one);
        check_all(ndm_comm_size(get(&f, 0)) == 1);
        check_all(ndm_comm_size(get(&f, NDM_AXES_ALL)) == ndm_world_size(world));
        /* a block as large as the inner axis is that axis's group */
        check_all(get_block(&f, NDM_AXES_DP_SHARD_CP, meshes[m].cp) == get(&f, NDM_AXIS_CP));
        check_all(get_block(&f, NDM_AXES_ALL, 1) == get(&f, 0));
        fixture_finish(&f);
    }
    free(meshes);
}

static void blocks_hold_consecutive_members(void **state)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    int64_t size = ndm_world_size(world);
    fixture f;

    (void)state;
    check_all(fixture_init(&f, &config, "auto"));
    for (int64_t k = 1; k <= size; k++) {
        ndm_comm *comm;
        if (size % k != 0) {
            check_all(ndm_comms_get_block(f.comms, NDM_AXIS_DP_SHARD, k, &comm) == NDM_ERR_USAGE);
            continue;
        }
        comm = get_block(&f, NDM_AXIS_DP_SHARD, k);
        bool good = ndm_comm_size(comm) == k;
        for (int64_t i = 0; i < k; i++)
            good &= ndm_comm_world_rank(comm, i) == ndm_world_rank(world) / k * k + i;
        float x = (float)ndm_world_rank(world), sum = 0;
        for (int64_t i = 0; i < k; i++)
            sum += (float)ndm_comm_world_rank(comm, i);
        must(ndm_all_reduce(comm, &x, 1, NDM_F32, NDM_SUM, f.compute));
        check_all(good && x == sum);
    }
    fixture_finish(&f);
}

static void count_call(void *user, const ndm_collective_call *call)
{
    int64_t *counts = user;

    counts[call->kind] += call->count;
}

static void calls_are_counted_and_observed(void **state)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    int64_t n = ndm_world_size(world), counts[NDM_COLLECTIVE_COUNT] = {0};
    float *x = calloc((size_t)n * 12, sizeof *x), *y = calloc((size_t)n * 12, sizeof *y);
    fixture f;

    (void)state;
    check_all(fixture_init(&f, &config, "auto"));
    ndm_comms_observe(f.comms, count_call, counts);
    ndm_comm *comm = get(&f, NDM_AXES_ALL);
    must(ndm_all_gather(comm, x, y, 12, NDM_F32, f.compute));
    must(ndm_reduce_scatter(comm, y, x, 12, NDM_F32, NDM_F32, NDM_SUM, f.compute));
    must(ndm_all_reduce(comm, x, 12 * n, NDM_F32, NDM_SUM, f.compute));
    must(ndm_barrier(comm, f.compute));
    ndm_comm_stats stats = ndm_comm_statistics(comm);
    check_all(stats.calls[NDM_ALL_GATHER] == 1 && stats.calls[NDM_BARRIER] == 1);
    check_all(stats.received_bytes[NDM_ALL_GATHER] == (n - 1) * 48);
    check_all(stats.received_bytes[NDM_REDUCE_SCATTER] == (n - 1) * 48);
    check_all(stats.received_bytes[NDM_ALL_REDUCE] == 2 * (n - 1) * 48);
    check_all(counts[NDM_ALL_GATHER] == 12 && counts[NDM_ALL_REDUCE] == 12 * n);
    fixture_finish(&f);
    free(x);
    free(y);
}

static void flight_records_are_dumped(void **state)
{
    char path[64], line[4096];
    bool seen = false;

    (void)state;
    snprintf(path, sizeof path, "/tmp/ndmesh-flight-%lld-%lld.json", (long long)ndm_clock_ns(),
             (long long)ndm_world_rank(world));
    must(ndm_world_dump_flight(world, path));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        seen |= strstr(line, "\"rank\"") != NULL;
    if (file)
        fclose(file);
    remove(path);
    check_all(seen);
    check_all(ndm_world_dump_flight(world, "/nonexistent/x.json") == NDM_ERR_IO);
}

/* Printed, not judged: machines differ. */
static void the_cost_of_a_barrier_is_printed(void **state)
{
    enum { ROUNDS = 50 };
    const char *const *list = harness_backends();
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    fixture f;

    (void)state;
    for (; *list; list++) {
        if (!fixture_init(&f, &config, *list))
            continue;
        ndm_comm *comm = get(&f, NDM_AXES_ALL);
        must(ndm_barrier(comm, f.compute));
        int64_t start = ndm_clock_ns();
        for (int i = 0; i < ROUNDS; i++)
            must(ndm_barrier(comm, f.compute));
        printf("    barrier of %lld ranks by %s: %.1f us\n", (long long)ndm_comm_size(comm),
               comm->backend->name, (double)(ndm_clock_ns() - start) / ROUNDS / 1e3);
        check_all(ndm_comm_statistics(comm).calls[NDM_BARRIER] == ROUNDS + 1);
        fixture_finish(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchange_gives_everyone_everything),
        cmocka_unit_test(ranks_of_one_host_are_numbered),
        cmocka_unit_test(all_ranks_return_the_lowest_failure),
        cmocka_unit_test(a_rank_is_named_by_agreement_not_by_the_text),
        cmocka_unit_test(differing_facts_name_rank_field_and_values),
        cmocka_unit_test(different_numbers_of_facts_are_compared),
        cmocka_unit_test(case_28_same_ranks_share_a_communicator),
        cmocka_unit_test(blocks_hold_consecutive_members),
        cmocka_unit_test(calls_are_counted_and_observed),
        cmocka_unit_test(flight_records_are_dumped),
        cmocka_unit_test(the_cost_of_a_barrier_is_printed),
    };

    return harness_run("world", tests);
}
