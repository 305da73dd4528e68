/* SPDX-License-Identifier: Apache-2.0 */
/* What a rank holds: gathered weights and gradients under reduction do not grow with the number of
 * layers, and sharded states fall as one over the ranks that shard them. */
#include <stdlib.h>

#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"

typedef struct usage {
    ndm_memory_stats memory;
    int64_t slices;  /* bytes of all slices of one array: weights */
    int64_t largest; /* bytes of the largest and of a layer's unit, gathered */
    int64_t layer;
    int64_t units;
} usage;

static void look(void *user, ndm_model *model)
{
    usage *u = user;
    ndm_unit *const *units = ndm_model_units(model, &u->units);

    u->memory = ndm_device_memory(ndm_context_device(ndm_model_context(model)));
    u->slices = u->largest = 0;
    for (int64_t i = 0; i < u->units; i++) {
        int64_t bytes = ndm_unit_numel(units[i]) * (int64_t)sizeof(float);
        u->slices += ndm_unit_slice_numel(units[i]) * (int64_t)sizeof(float);
        u->largest = bytes > u->largest ? bytes : u->largest;
    }
    u->layer = ndm_unit_numel(units[1]) * (int64_t)sizeof(float);
}

static usage measure(int64_t layers, const variant *v)
{
    problem p = problems[0];
    usage u = {0};
    record r;

    p.layers = layers;
    ok_all(run_variant(&p, v, &(setup){.comm = MPI_COMM_WORLD, .stepped = look, .user = &u}, &r));
    record_finish(&r);
    return u;
}

static variant on_mesh(int64_t replicate, int64_t shard)
{
    return (variant){.mesh = {replicate, shard, 1, 1},
                     .zero = 3,
                     .reshard = NDM_RESHARD_ALWAYS,
                     .accum = 3,
                     .collectives = "mpi",
                     .defer_replicas = true,
                     .sequence_parallel = true};
}

/* Peak of gradients beside the slices, which do grow with the model. */
static int64_t in_reduction(const usage *u)
{
    return u->memory.peak_bytes[NDM_MEMORY_GRADIENTS] - u->slices;
}

static void check_bounded(const variant *v)
{
    /* 4 layers: with fewer than live_units = 3 and the one before, not all that is allowed is used
     */
    usage few = measure(4, v), many = measure(12, v);
    int64_t live = 3;

    check_all(many.memory.peak_bytes[NDM_MEMORY_GATHERED] > 0);
    check_all(many.memory.peak_bytes[NDM_MEMORY_GATHERED] ==
              few.memory.peak_bytes[NDM_MEMORY_GATHERED]);
    check_all(many.memory.peak_bytes[NDM_MEMORY_GATHERED] <=
              live * many.layer + 2 * many.largest); /* embedding and head have other sizes */
    check_all(in_reduction(&many) > 0);
    check_all(in_reduction(&many) == in_reduction(&few));
}

static void case_32_peaks_do_not_depend_on_layers(void **state)
{
    int64_t n = ndm_world_size(world);
    variant v = on_mesh(1, n);

    (void)state;
    if (n == 1)
        return;
    check_bounded(&v);
    for (int recompute = 1; recompute <= NDM_RECOMPUTE_SELECTIVE; recompute++) {
        v.recompute = (ndm_recompute)recompute;
        check_bounded(&v);
    }
    if (n < 4)
        return;
    v = on_mesh(2, n / 2);
    check_bounded(&v);
    v.defer_replicas = false; /* a micro-batch's part beside the slice */
    check_bounded(&v);
}

/* Ranks of one node that share windows hold no gathered copies at all. */
static void windows_need_no_gathered_memory(void **state)
{
    variant v = on_mesh(1, ndm_world_size(world));

    (void)state;
    v.collectives = "shm";
    if (ndm_world_size(world) == 1)
        return;
    usage u = measure(4, &v);
    check_all(u.memory.peak_bytes[NDM_MEMORY_GATHERED] == 0);
}

/* Padding: each slice is a multiple of 64 elements. */
static void check_share(const usage *shared, const usage *whole, int64_t n)
{
    const ndm_memory_stats *s = &shared->memory, *w = &whole->memory;
    int64_t padding = shared->units * NDM_UNIT_ALIGN * (int64_t)sizeof(float);

    check_all(s->live_bytes[NDM_MEMORY_WEIGHTS] <= w->live_bytes[NDM_MEMORY_WEIGHTS] / n + padding);
    check_all(s->live_bytes[NDM_MEMORY_OPTIMIZER] <=
              w->live_bytes[NDM_MEMORY_OPTIMIZER] / n + 2 * padding + 256);
    check_all(shared->slices * n >= whole->slices);
}

static void sharded_memory_falls_as_one_over_dp_shard(void **state)
{
    int64_t n = ndm_world_size(world);
    variant whole_mesh = on_mesh(n, 1);
    usage whole = measure(8, &whole_mesh);

    (void)state;
    for (int64_t shard = 1; shard <= n; shard++) {
        variant v = on_mesh(n / shard, shard);
        if (n % shard)
            continue;
        usage u = measure(8, &v);
        print_message(
            "  dp_shard %lld: bytes a rank: weights %lld, optimizer %lld, gradient slices "
            "%lld, gathered peak %lld, gradients peak %lld\n",
            (long long)shard, (long long)u.memory.live_bytes[NDM_MEMORY_WEIGHTS],
            (long long)u.memory.live_bytes[NDM_MEMORY_OPTIMIZER], (long long)u.slices,
            (long long)u.memory.peak_bytes[NDM_MEMORY_GATHERED],
            (long long)u.memory.peak_bytes[NDM_MEMORY_GRADIENTS]);
        check_share(&u, &whole, shard);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_32_peaks_do_not_depend_on_layers),
        cmocka_unit_test(windows_need_no_gathered_memory),
        cmocka_unit_test(sharded_memory_falls_as_one_over_dp_shard),
    };

    return harness_run("memory", tests);
}
