/* SPDX-License-Identifier: Apache-2.0 */
/* How often units are gathered and reduced, counted as the engine issues it, and the engine's own
 * account of the same. */
#include <stdlib.h>

#include "tests/mpi/harness.h"
#include "trace.h"

enum { LAYERS = 4 };

static variant on_mesh(int64_t replicate, int64_t shard, int64_t accum)
{
    return (variant){.mesh = {replicate, shard, 1, 1},
                     .zero = 3,
                     .reshard = NDM_RESHARD_ALWAYS,
                     .accum = accum,
                     .collectives = "mpi",
                     .defer_replicas = true,
                     .sequence_parallel = true};
}

/* Calls that each kind of unit must see in every step on a communicator. A step starts the first
 * gathers of the next one: the first step has them besides its own, and is left out. */
typedef struct expected {
    int64_t embed, layers, head;
} expected;

static void check_calls(const trace *t, ndm_collective kind, const void *comm, expected e)
{
    for (int64_t step = 1; step < STEPS; step++) {
        check_all(trace_count(t, step, kind, comm, t->embed.slice) == e.embed);
        check_all(trace_count(t, step, kind, comm, t->layer.slice) == e.layers);
        check_all(trace_count(t, step, kind, comm, t->head.slice) == e.head);
    }
}

static void check_fsdp(const variant *v, expected gathers, expected reductions)
{
    trace t;

    trace_run(LAYERS, v, &t);
    check_calls(&t, NDM_ALL_GATHER, t.shard, gathers);
    check_calls(&t, NDM_REDUCE_SCATTER, t.shard, reductions);
    trace_finish(&t);
}

/* Two gathers a layer and micro-batch, one in each direction; one for the layer that ends the
 * forward, as it begins the backward; one for the embedding, whose backward reads no weights, and
 * for the head, whose backward follows at once. */
static void case_31_two_gathers_a_unit_with_reshard(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int recompute = 0; n > 1 && recompute <= NDM_RECOMPUTE_SELECTIVE; recompute++)
        for (int64_t accum = 1; accum <= 3; accum += 2) {
            variant v = on_mesh(1, n, accum);
            v.recompute = (ndm_recompute)recompute;
            check_fsdp(&v, (expected){accum, accum * (2 * LAYERS - 1), accum},
                       (expected){accum, accum * LAYERS, accum});
        }
}

/* A unit of several layers is gathered for the first of them and held to the last; here the forward
 * ends and the backward begins with the same one. */
static void case_31_layers_of_one_unit_share_a_gather(void **state)
{
    int64_t n = ndm_world_size(world), accum = 3;
    variant v = on_mesh(1, n, accum);
    trace t;

    (void)state;
    if (n == 1)
        return;
    v.min_num_params = 1000000;
    trace_run(LAYERS, &v, &t);
    for (int64_t step = 1; step < STEPS; step++)
        check_all(trace_count(&t, step, NDM_ALL_GATHER, t.shard, -1) == accum);
    trace_finish(&t);
}

static void one_gather_a_unit_and_step_without_reshard(void **state)
{
    int64_t n = ndm_world_size(world), accum = 3;

    (void)state;
    if (n == 1)
        return;
    variant v = on_mesh(1, n, accum);
    v.reshard = NDM_RESHARD_NEVER;
    check_fsdp(&v, (expected){1, LAYERS, 1}, (expected){accum, accum * LAYERS, accum});
    v.zero = 2;
    check_fsdp(&v, (expected){1, LAYERS, 1}, (expected){accum, accum * LAYERS, accum});
    v.zero = 1; /* whole gradients, reduced once */
    check_fsdp(&v, (expected){1, LAYERS, 1}, (expected){1, LAYERS, 1});
}

/* In a window the gathered unit is always there: what is left is to wait, once a step, until all
 * have changed their masters. */
static void windows_gather_once_a_unit_and_step(void **state)
{
    int64_t n = ndm_world_size(world);
    variant v = on_mesh(1, n, 3);

    (void)state;
    v.collectives = "shm";
    if (n > 1)
        check_fsdp(&v, (expected){1, LAYERS, 1}, (expected){3, 3 * LAYERS, 3});
}

/* Accumulation without communication changes the number of reductions only. */
static void case_6_deferred_sync_reduces_once_a_step(void **state)
{
    int64_t n = ndm_world_size(world), accum = 3;
    variant v = on_mesh(1, n, accum);

    (void)state;
    v.defer_sync = true;
    if (n > 1)
        check_fsdp(&v, (expected){accum, accum * (2 * LAYERS - 1), accum},
                   (expected){1, LAYERS, 1});
}

/* What was kept over k ranks is gathered among these k; the shards are gathered again only when the
 * optimizer has changed them, or where nothing was kept: the head, and the layer that stays. */
static void reshard_to_k_gathers_within_blocks(void **state)
{
    int64_t n = ndm_world_size(world), k = 2;

    (void)state;
    for (int64_t accum = 1; n % k == 0 && n > k && accum <= 3; accum += 2) {
        variant v = on_mesh(1, n, accum);
        trace t;
        v.reshard = k;
        trace_run(LAYERS, &v, &t);
        check_calls(&t, NDM_ALL_GATHER, t.shard, (expected){1, LAYERS + accum - 1, accum});
        for (int64_t step = 0; step < STEPS; step++)
            check_all(trace_count(&t, step, NDM_ALL_GATHER, t.block, t.layer.numel / k) ==
                      (LAYERS - 1) * (2 * accum - 1));
        trace_finish(&t);
    }
}

static void ddp_reduces_once_a_unit_and_step(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int64_t accum = 1; n > 1 && accum <= 3; accum += 2) {
        variant v = on_mesh(n, 1, accum);
        trace t;
        trace_run(LAYERS, &v, &t);
        check_calls(&t, NDM_ALL_REDUCE, t.replicas, (expected){1, LAYERS, 1});
        check_calls(&t, NDM_ALL_GATHER, t.replicas, (expected){0, 0, 0});
        check_calls(&t, NDM_ALL_GATHER, t.shard, (expected){0, 0, 0});
        check_calls(&t, NDM_REDUCE_SCATTER, t.shard, (expected){0, 0, 0});
        trace_finish(&t);
    }
}

static void hsdp_replicas_meet_once_a_step_unless_eager(void **state)
{
    int64_t n = ndm_world_size(world), accum = 3;

    (void)state;
    for (int eager = 0; n % 2 == 0 && n > 2 && eager <= 1; eager++) {
        variant v = on_mesh(2, n / 2, accum);
        int64_t times = eager ? accum : 1;
        trace t;
        v.defer_replicas = !eager;
        trace_run(LAYERS, &v, &t);
        check_calls(&t, NDM_ALL_REDUCE, t.replicas, (expected){times, times * LAYERS, times});
        check_calls(&t, NDM_REDUCE_SCATTER, t.shard, (expected){accum, accum * LAYERS, accum});
        trace_finish(&t);
    }
}

/* ---- the engine's account ---------------------------------------------------------------------
 */

static int64_t said(const trace *t, ndm_direction direction, ndm_collective kind)
{
    return t->embed.said.bytes[direction][kind] + LAYERS * t->layer.said.bytes[direction][kind] +
           t->head.said.bytes[direction][kind];
}

/* describe() accounts for a unit that is used in both directions: what is not gathered a second
 * time is left out here. */
static void units_receive_what_describe_says(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int64_t replicate = 1; replicate <= 2; replicate++) {
        variant v = on_mesh(replicate, n / replicate, 1);
        trace t;
        if (n % replicate || n / replicate == 1)
            continue;
        trace_run(LAYERS, &v, &t);
        int64_t once = t.embed.said.bytes[NDM_BACKWARD][NDM_ALL_GATHER] +
                       t.layer.said.bytes[NDM_BACKWARD][NDM_ALL_GATHER] +
                       t.head.said.bytes[NDM_BACKWARD][NDM_ALL_GATHER];
        int64_t gathers = said(&t, NDM_FORWARD, NDM_ALL_GATHER) +
                          said(&t, NDM_BACKWARD, NDM_ALL_GATHER) - once;
        check_all(once > 0);
        check_all(t.shard_bytes[NDM_ALL_GATHER] == (STEPS - 1) * gathers);
        check_all(t.shard_bytes[NDM_REDUCE_SCATTER] ==
                  (STEPS - 1) * said(&t, NDM_BACKWARD, NDM_REDUCE_SCATTER));
        check_all(t.layer.said.calls[NDM_FORWARD][NDM_ALL_GATHER] == 1);
        check_all(t.layer.said.calls[NDM_BACKWARD][NDM_ALL_REDUCE] == (replicate > 1));
        trace_finish(&t);
    }
}

static int64_t tp_calls_said(const trace *t, ndm_collective kind)
{
    return t->tp_said.calls[NDM_FORWARD][kind] + t->tp_said.calls[NDM_BACKWARD][kind];
}

/* Two regions a layer, and those of embedding and head. */
static void tp_regions_are_what_describe_says(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int sp = 0; (n == 2 || n == 4) && sp <= 1; sp++) {
        variant v = on_mesh(1, 1, 1);
        trace t;
        v.mesh[NDM_TP] = n;
        v.sequence_parallel = sp;
        trace_run(LAYERS, &v, &t);
        int64_t whole = t.rows * t.hidden, part = whole / n;
        int64_t gathers = trace_count(&t, 1, NDM_ALL_GATHER, t.tp, part);
        int64_t scatters = trace_count(&t, 1, NDM_REDUCE_SCATTER, t.tp, part);
        int64_t sums = trace_count(&t, 1, NDM_ALL_REDUCE, t.tp, whole);
        check_all(gathers == tp_calls_said(&t, NDM_ALL_GATHER));
        check_all(scatters == tp_calls_said(&t, NDM_REDUCE_SCATTER));
        check_all(sums == tp_calls_said(&t, NDM_ALL_REDUCE));
        check_all(gathers + scatters + sums == (sp ? 8 : 4) * LAYERS + (sp ? 4 : 2));
        check_all(t.tp_said.bytes[NDM_FORWARD][NDM_ALL_GATHER] ==
                  t.tp_said.calls[NDM_FORWARD][NDM_ALL_GATHER] * (n - 1) * part *
                      (int64_t)sizeof(float));
        trace_finish(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_31_two_gathers_a_unit_with_reshard),
        cmocka_unit_test(case_31_layers_of_one_unit_share_a_gather),
        cmocka_unit_test(one_gather_a_unit_and_step_without_reshard),
        cmocka_unit_test(windows_gather_once_a_unit_and_step),
        cmocka_unit_test(case_6_deferred_sync_reduces_once_a_step),
        cmocka_unit_test(reshard_to_k_gathers_within_blocks),
        cmocka_unit_test(ddp_reduces_once_a_unit_and_step),
        cmocka_unit_test(hsdp_replicas_meet_once_a_step_unless_eager),
        cmocka_unit_test(units_receive_what_describe_says),
        cmocka_unit_test(tp_regions_are_what_describe_says),
    };

    return harness_run("trace", tests);
}
