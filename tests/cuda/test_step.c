/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training steps in the cuda world: the same bits on every run whatever streams are late, and
 * a host that waits for the device once, at the end of a step, however many micro-batches it has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/module.h"
#include "strategies/internal.h"
#include "tests/cuda/gpu.h"
#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"

/* For what a step reports, and whether it was taken. */
enum { WAITS_OF_A_STEP = 1 };

typedef void (*reseed_fn)(unsigned seed);

typedef int64_t (*waits_fn)(const ndm_device *device);

typedef struct waits {
    waits_fn count;
    int64_t before, steps, wrong, free_steps; /* free_steps: the first ones may wait as they like */
} waits;

static void opened(void *user, ndm_model *model)
{
    waits *w = user;

    w->before = w->count(ndm_model_context(model)->device);
}

static void stepped(void *user, ndm_model *model)
{
    waits *w = user;
    int64_t now = w->count(ndm_model_context(model)->device);

    if (w->steps >= w->free_steps && now - w->before != WAITS_OF_A_STEP) {
        fprintf(stderr, "step %lld: the host waited %lld times\n", (long long)w->steps,
                (long long)(now - w->before));
        w->wrong++;
    }
    w->before = now;
    w->steps++;
}

static record good; /* of one micro-batch: the first test makes it, others compare with it */

static variant sharded(int64_t accum)
{
    return (variant){.mesh = {1, ndm_world_size(world), 1, 1},
                     .zero = 3,
                     .reshard = NDM_RESHARD_ALWAYS,
                     .accum = accum,
                     .defer_replicas = true,
                     .sequence_parallel = true};
}

/* Runs the first problem and counts. */
static void count_waits(const variant *v, ndm_toggle graphs, int64_t free_steps, record *r)
{
    char why[256] = "";
    union {
        const void *address;
        waits_fn call;
    } symbol = {ndm_module_symbol("cuda", "ndm_cuda_host_waits", why, sizeof why)};
    waits w = {.count = symbol.call, .free_steps = free_steps};

    check_all(symbol.address != NULL);
    ok_all(run_variant(&problems[0], v,
                       &(setup){.comm = MPI_COMM_WORLD,
                                .device = "cuda",
                                .graphs = graphs,
                                .opened = opened,
                                .stepped = stepped,
                                .user = &w},
                       r));
    check_all(w.steps == STEPS && w.wrong == 0);
}

static void no_wait_on_the_way(void **state)
{
    variant once = sharded(1), thrice = sharded(3);
    record r;

    (void)state;
    count_waits(&once, NDM_TOGGLE_OFF, 0, &good);
    count_waits(&thrice, NDM_TOGGLE_OFF, 0, &r);
    record_finish(&r);
}

/* ---- graphs -----------------------------------------------------------------------------------
 */

enum { GRAPH_MADE = 3 }; /* steps until then */

static void graphs_change_no_bit(void **state)
{
    variant v = sharded(1);
    record r;

    (void)state;
    count_waits(&v, NDM_TOGGLE_ON, GRAPH_MADE, &r);
    check_all(ndm_world_rank(world) != 0 || same_bits(&good, &r));
    record_finish(&r);
}

typedef struct evaluations {
    double loss[STEPS];
    int64_t n;
} evaluations;

/* With the weights that the step left: those that were gathered before it are old. */
static void evaluate(void *user, ndm_model *model)
{
    enum { TOKENS = GLOBAL_BATCH * SEQ_LEN };
    static int32_t inputs[TOKENS], targets[TOKENS];
    evaluations *e = user;
    const ndm_batch batch = {ndm_model_get_options(model)->micro_batch, inputs, targets, NULL,
                             NULL};

    for (int i = 0; i < TOKENS; i++) {
        inputs[i] = i * 7 % 10;
        targets[i] = i * 3 % 10;
    }
    must(ndm_model_evaluate(model, &batch));
    must(ndm_model_take_loss(model, &e->loss[e->n++]));
}

static void evaluation_between_graphs_sees_new_weights(void **state)
{
    variant v = sharded(1);
    evaluations e[2] = {0};
    record r;

    (void)state;
    v.zero = 2;
    for (int graphs = 0; graphs < 2; graphs++) {
        ok_all(run_variant(&problems[2], &v,
                           &(setup){.comm = MPI_COMM_WORLD,
                                    .device = "cuda",
                                    .graphs = graphs ? NDM_TOGGLE_ON : NDM_TOGGLE_OFF,
                                    .stepped = evaluate,
                                    .user = &e[graphs]},
                           &r));
        record_finish(&r);
    }
    check_all(e[0].n == STEPS && e[0].loss[STEPS - 1] != e[0].loss[STEPS - 2]);
    check_all(memcmp(e[0].loss, e[1].loss, sizeof e[0].loss) == 0);
}

static void expect_no_graphs(const variant *v, const char *on)
{
    record r;

    check_all(run_variant(&problems[3], v,
                          &(setup){.comm = MPI_COMM_WORLD, .device = on, .graphs = NDM_TOGGLE_ON},
                          &r) == NDM_ERR_UNSUPPORTED);
    record_finish(&r);
}

static void graphs_that_cannot_be_are_refused(void **state)
{
    variant once = sharded(1), thrice = sharded(3), staged = sharded(1);

    (void)state;
    staged.collectives = "mpi";
    expect_no_graphs(&once, "cpu");
    expect_no_graphs(&thrice, "cuda");
    expect_no_graphs(&staged, "cuda");
}

/* ---- weights gathered as 8-bit numbers ---------------------------------------------------------
 */

/* Layers are, the embedding and the head are not. */
static void check_eight(void *user, ndm_model *model)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(model, &n);

    (void)user;
    check_all(n > 2 && !units[0]->eight && units[1]->eight && !units[n - 1]->eight);
}

static void run_eight(variant *v, const char *on)
{
    record whole, bytes;

    v->fp8_gather = false;
    ok_all(run_variant(&problems[1], v, &(setup){.comm = MPI_COMM_WORLD, .device = on}, &whole));
    v->fp8_gather = true;
    ok_all(run_variant(&problems[1], v,
                       &(setup){.comm = MPI_COMM_WORLD, .device = on, .opened = check_eight},
                       &bytes));
    check_all(ndm_world_rank(world) != 0 || same_bits(&whole, &bytes));
    record_finish(&whole);
    record_finish(&bytes);
}

static void gathered_bytes_change_no_bit(void **state)
{
    variant v = sharded(1);

    (void)state;
    v.fp8 = true;
    run_eight(&v, "cpu");
    v.bf16 = true;
    run_eight(&v, "cuda");
}

static void gathered_bytes_are_for_products_of_them(void **state)
{
    variant v = sharded(1);
    record r;

    (void)state;
    v.fp8_gather = true;
    check_all(run_variant(&problems[3], &v, &(setup){.comm = MPI_COMM_WORLD}, &r) ==
              NDM_ERR_CONFIG);
    record_finish(&r);
}

/* Other streams are late, by other times; and each rank has a seed of its own. */
static void late_streams_change_no_bit(void **state)
{
    enum { SEEDS = 6 };
    const problem *small = &problems[2];
    union {
        const void *address;
        reseed_fn call;
    } symbol = {ndm_module_symbol("cuda", "cuemu_reseed", (char[256]){""}, 256)};
    variant v = sharded(1);
    record first, other;

    (void)state;
    check_all(symbol.address != NULL);
    for (unsigned i = 0; i < SEEDS; i++) {
        symbol.call(100 + 10 * i + (unsigned)ndm_world_rank(world));
        ok_all(run_variant(small, &v, &(setup){.comm = MPI_COMM_WORLD, .device = "cuda"},
                           i ? &other : &first));
        check_all(i == 0 || ndm_world_rank(world) != 0 || same_bits(&first, &other));
        if (i)
            record_finish(&other);
    }
    record_finish(&first);
}

/* ---- an engine whose compute stream does not wait for others ----------------------------------
 */

static bool omit_waits;
static const ndm_device_ops *real;

static ndm_status wait_or_not(ndm_stream *stream, ndm_event *event)
{
    if (omit_waits && stream->kind == NDM_STREAM_COMPUTE)
        return NDM_OK;
    return real->stream_wait(stream, event);
}

/* Stands in front of the real world under the same name. */
static void register_wrapper(void)
{
    static ndm_device_ops ops;
    char why[256];

    real = ndm_module_symbol("cuda", "ndm_cuda_device", why, sizeof why);
    if (!real) {
        fprintf(stderr, "%s\n", why);
        exit(1);
    }
    ops = *real;
    ops.stream_wait = wait_or_not;
    must(ndm_device_register(&ops));
}

static void a_step_that_omits_waits_is_seen(void **state)
{
    variant v = sharded(1);
    record bad;

    (void)state;
    if (ndm_world_size(world) < 2)
        skip();
    omit_waits = true;
    ndm_status status = run_variant(&problems[0], &v,
                                    &(setup){.comm = MPI_COMM_WORLD, .device = "cuda"}, &bad);
    omit_waits = false;
    check_all(ndm_world_rank(world) != 0 || status != NDM_OK || !same_bits(&good, &bad));
    record_finish(&bad);
}

/* An argument is a pattern of names: those tests alone. */
int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_wait_on_the_way),
        cmocka_unit_test(graphs_change_no_bit),
        cmocka_unit_test(evaluation_between_graphs_sees_new_weights),
        cmocka_unit_test(graphs_that_cannot_be_are_refused),
        cmocka_unit_test(gathered_bytes_change_no_bit),
        cmocka_unit_test(gathered_bytes_are_for_products_of_them),
        cmocka_unit_test(late_streams_change_no_bit),
        cmocka_unit_test(a_step_that_omits_waits_is_seen),
    };

    register_wrapper();
    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return harness_run("cuda step", tests);
}
