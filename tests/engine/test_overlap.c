/* SPDX-License-Identifier: Apache-2.0 */
/* What runs beside other work: reductions beside the backward, for which two arrays of gradients
 * are enough, and the first gathers of the next step beside the updates of this one. */
#include "strategies/internal.h"
#include "tests/mpi/harness.h"

enum { UNITS = 4, NUMEL = 640, HELD_POLLS = 5000 };

/* Arrays of the units' gradients, in the order of a backward. */
static void walk_back(ndm_context *context, ndm_unit *const *units, const float **arrays)
{
    ndm_stream *stream = ndm_context_stream(context);

    for (int i = UNITS - 1; i >= 0; i--) {
        must(ndm_unit_grads_begin(units[i], stream));
        arrays[i] = ndm_unit_grad(units[i], 0);
        must(ndm_unit_reduce_grads(units[i], stream));
    }
}

static void two_arrays_take_turns(void **state)
{
    const ndm_param_spec spec = {.name = "p", .ndim = 1, .shape = {NUMEL}};
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    const float *first[UNITS], *second[UNITS];
    ndm_unit *units[UNITS];
    ndm_context *context;

    (void)state;
    p.dp_shard = ndm_world_size(world);
    o.threads = 1;
    must(ndm_context_create(&p, &o, &context));
    ndm_comms_delay(context->comms, HELD_POLLS, 1);
    for (int i = 0; i < UNITS; i++)
        must(ndm_unit_create(context, "unit", &spec, 1, NULL, &units[i]));
    ndm_context_micro_batch(context, 0, 2);
    walk_back(context, units, first);
    ndm_context_micro_batch(context, 1, 2);
    walk_back(context, units, second);
    check_all(first[3] != first[2] && second[3] != second[2]);
    if (ndm_world_size(world) > 1) /* alone, a unit's slice is the whole */
        check_all(first[1] == first[3] && first[0] == first[2]);
    for (int i = 0; i < UNITS; i++)
        ndm_unit_destroy(units[i]);
    ndm_context_destroy(context);
}

/* ---- gathers ahead ------------------------------------------------------------------------- */

typedef struct fleet {
    ndm_context *context;
    ndm_unit *units[UNITS];
    ndm_optimizer *optimizer;
} fleet;

/* Gathers are late, so that they are under way when the step is over. */
static fleet open_fleet(int zero, const char *collectives)
{
    const ndm_param_spec spec = {.name = "p", .ndim = 1, .shape = {NUMEL}, .init_std = 1.0f};
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    fleet f;

    p.dp_shard = ndm_world_size(world);
    o.threads = 1;
    o.collectives = collectives;
    fsdp.zero = zero;
    fsdp.live_units = UNITS - 1;
    must(ndm_context_create(&p, &o, &f.context));
    ndm_comms_delay(f.context->comms, HELD_POLLS, 1);
    for (int i = 0; i < UNITS; i++) {
        must(ndm_unit_create(f.context, "unit", &spec, 1, &fsdp, &f.units[i]));
        must(ndm_unit_init(f.units[i], 1));
    }
    must(ndm_optimizer_create(f.context, f.units, UNITS, &f.optimizer));
    return f;
}

static void close_fleet(fleet *f)
{
    ndm_optimizer_destroy(f->optimizer);
    for (int i = 0; i < UNITS; i++)
        ndm_unit_destroy(f->units[i]);
    ndm_context_destroy(f->context);
}

static void take_step(fleet *f)
{
    const ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    const float *arrays[UNITS];
    double norm;

    walk_back(f->context, f->units, arrays);
    must(ndm_optimizer_step(f->optimizer, &options, NULL, 0, &norm));
}

static int64_t gathers(const fleet *f)
{
    ndm_comm *comm;

    must(ndm_context_comm(f->context, NDM_AXES_DP_SHARD_CP, &comm));
    return ndm_comm_statistics(comm).calls[NDM_ALL_GATHER];
}

/* All gathered weights are what the slices are now: this rank's part of them. */
static bool all_are_new(fleet *f)
{
    ndm_stream *stream = ndm_context_stream(f->context);
    bool same = true;

    for (int i = 0; i < UNITS; i++) {
        ndm_unit *u = f->units[i];
        must(ndm_unit_unshard(u, stream));
        const float *whole = ndm_unit_weight(u, 0), *master = ndm_unit_master(u);
        for (int64_t j = 0; j < u->slice; j++)
            same = same && whole[u->index * u->slice + j] == master[j];
        must(ndm_unit_reshard(u, stream));
    }
    return same;
}

/* Of ZeRO-3 as many as may live at a time, of ZeRO-2 all; in windows there is nothing to gather. */
static void the_next_step_finds_its_first_units_gathered(void **state)
{
    bool alone = ndm_world_size(world) == 1;

    (void)state;
    for (int zero = 2; zero <= 3; zero++) {
        fleet f = open_fleet(zero, "mpi");
        check_all(all_are_new(&f));
        int64_t before = gathers(&f), ahead = zero == 3 ? UNITS - 1 : UNITS;
        take_step(&f);
        check_all(gathers(&f) - before == (alone ? 0 : ahead));
        check_all(all_are_new(&f));
        check_all(gathers(&f) - before == (alone ? 0 : UNITS));
        ndm_optimizer_set_ahead(f.optimizer, false);
        take_step(&f);
        check_all(gathers(&f) - before == (alone ? 0 : UNITS));
        close_fleet(&f);
    }
    fleet f = open_fleet(3, "auto");
    take_step(&f);
    check_all(f.units[0]->stale || alone);
    close_fleet(&f);
}

/* The gather that is under way still reads the old ones. */
static void weights_that_are_read_after_a_step_are_gathered_anew(void **state)
{
    fleet f = open_fleet(3, "mpi");

    (void)state;
    take_step(&f);
    bool under_way = ndm_world_size(world) == 1, done;
    for (int i = 0; i < UNITS; i++) {
        must(ndm_event_query(f.units[i]->gather_done, &done));
        under_way = under_way || !done;
    }
    check_all(under_way);
    for (int i = 0; i < UNITS; i++) {
        must(ndm_unit_init(f.units[i], 2));
        must(ndm_event_query(f.units[i]->gather_done, &done));
        check_all(done);
    }
    check_all(all_are_new(&f));
    close_fleet(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_arrays_take_turns),
        cmocka_unit_test(the_next_step_finds_its_first_units_gathered),
        cmocka_unit_test(weights_that_are_read_after_a_step_are_gathered_anew),
    };

    return harness_run("overlap", tests);
}
