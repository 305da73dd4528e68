/* SPDX-License-Identifier: Apache-2.0 */
/* Units by themselves: any order of use, delayed collectives, odd sizes, gradients that are not
 * finite, weights that move by less than bf16 can hold. */
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

#include "core/rng.h"
#include "strategies/internal.h"
#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"

enum { UNITS = 6, ROWS = 13, COLUMNS = 7, NUMEL = ROWS * COLUMNS, SEED = 5, VISITS = 40 };

static const float STD = 0.5f;

typedef struct fleet {
    ndm_context *context;
    ndm_unit *units[UNITS]; /* a matrix, and a parameter of one element */
    char names[UNITS][2][16];
} fleet;

/* `mpi` gathers and reduces by messages, into buffers; the best there is may keep units in windows.
 */
static const char *const backends[] = {"mpi", "auto"};

static void open_fleet(fleet *f, int64_t replicate, int64_t shard, const char *collectives,
                       const ndm_fsdp_config *fsdp, int64_t delay)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;

    p.dp_replicate = replicate;
    p.dp_shard = shard;
    o.device = "cpu";
    o.collectives = collectives;
    o.threads = 1;
    o.timeout_s = 60;
    ok_all(ndm_context_create(&p, &o, &f->context));
    ndm_comms_delay(f->context->comms, delay, 99);
    for (int i = 0; i < UNITS; i++) {
        snprintf(f->names[i][0], sizeof f->names[i][0], "matrix.%d", i);
        snprintf(f->names[i][1], sizeof f->names[i][1], "one.%d", i);
        ndm_param_spec specs[] = {
            {.name = f->names[i][0], .ndim = 2, .shape = {ROWS, COLUMNS}, .init_std = STD},
            {.name = f->names[i][1], .ndim = 1, .shape = {1}, .init_std = STD}};
        ok_all(ndm_unit_create(f->context, "unit", specs, 2, fsdp, &f->units[i]));
        ok_all(ndm_unit_init(f->units[i], SEED));
    }
}

static void close_fleet(fleet *f)
{
    for (int i = 0; i < UNITS; i++)
        ndm_unit_destroy(f->units[i]);
    ndm_context_destroy(f->context);
}

static float drawn(const char *name, int64_t i)
{
    return STD * ndm_rng_normal(SEED, ndm_rng_stream(name), (uint64_t)i);
}

/* Whether the gathered parameter is what the generator gives. */
static bool gathered_right(fleet *f, int unit, int param, int64_t numel)
{
    ndm_stream *stream = ndm_context_stream(f->context);
    float host[NUMEL];

    must(ndm_copy(stream, host, ndm_unit_weight(f->units[unit], param),
                  numel * (int64_t)sizeof(float), NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(stream));
    for (int64_t i = 0; i < numel; i++)
        if (host[i] != drawn(f->names[unit][param], i))
            return false;
    return true;
}

static int64_t draw(uint64_t seed, int64_t i, int64_t n)
{
    return (int64_t)(ndm_rng_u64(seed, 1, (uint64_t)i) % (uint64_t)n);
}

/* Uses units in an order drawn from the seed, with hints about the next one that are mostly wrong.
 */
static void wander(fleet *f, uint64_t seed)
{
    ndm_stream *stream = ndm_context_stream(f->context);

    for (int64_t i = 0; i < VISITS; i++) {
        int unit = (int)draw(seed, 2 * i, UNITS), hint = (int)draw(seed, 2 * i + 1, UNITS);
        must(ndm_unit_unshard(f->units[unit], stream));
        must(ndm_unit_prefetch(f->units[hint], stream));
        bool right = gathered_right(f, unit, 0, NUMEL) && gathered_right(f, unit, 1, 1);
        must(ndm_unit_reshard(f->units[unit], stream));
        check_all(right);
    }
}

static void use_in_any_order(const char *collectives, int64_t reshard, uint64_t seed)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    fleet f;

    print_message("  %s, reshard %lld, seed %llu\n", collectives, (long long)reshard,
                  (unsigned long long)seed);
    fsdp.reshard_after_forward = reshard;
    open_fleet(&f, 1, ndm_world_size(world), collectives, &fsdp, seed > 1 ? 20 : 0);
    wander(&f, seed);
    close_fleet(&f);
}

static void case_34_units_may_be_used_in_any_order(void **state)
{
    const int64_t reshards[] = {NDM_RESHARD_ALWAYS, NDM_RESHARD_NEVER, 2};

    (void)state;
    for (int b = 0; b < 2; b++)
        for (int i = 0; i < 3; i++)
            for (uint64_t seed = 1; seed <= 3; seed++)
                if (reshards[i] <= 1 || ndm_world_size(world) % reshards[i] == 0)
                    use_in_any_order(backends[b], reshards[i], seed);
}

/* ---- gradients --------------------------------------------------------------------------------
 */

static void add_gradient(fleet *f, int unit, float value)
{
    ndm_stream *stream = ndm_context_stream(f->context);
    float host[NUMEL];

    for (int i = 0; i < NUMEL; i++)
        host[i] = value * (float)(i + 1);
    must(ndm_unit_grads_begin(f->units[unit], stream));
    must(ndm_copy(stream, ndm_unit_grad(f->units[unit], 0), host, sizeof host, NDM_HOST_TO_DEVICE));
    must(ndm_copy(stream, ndm_unit_grad(f->units[unit], 1), host, sizeof host[0],
                  NDM_HOST_TO_DEVICE));
    must(ndm_unit_reduce_grads(f->units[unit], stream));
}

static ndm_status check_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                              float *values)
{
    float *expected = user; /* [0]: the factor; [1]: whether all were right */

    (void)spec;
    for (int64_t i = 0; i < count; i++)
        if (values[i] != expected[0] * (float)(first + i + 1))
            expected[1] = 0;
    return NDM_OK;
}

/* Units reduced in an order of their own; every rank gives its number, so that the sum is known. */
static void check_sums(fleet *f, uint64_t seed)
{
    int64_t n = ndm_world_size(world);

    for (int i = 0; i < UNITS; i++) {
        int unit = (int)((seed + 5u * (unsigned)i) % UNITS);
        add_gradient(f, unit, (float)(ndm_world_rank(world) + 1));
    }
    for (int i = 0; i < UNITS; i++) {
        float expected[2] = {(float)(n * (n + 1) / 2), 1};
        must(ndm_unit_write(f->units[i], NDM_UNIT_GRADS, check_range, expected));
        check_all(expected[1] == 1);
    }
}

static void case_33_no_buffer_is_reused_before_its_collective_is_done(void **state)
{
    const ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int b = 0; b < 2; b++)
        for (int64_t replicate = 1; replicate <= n; replicate++)
            for (uint64_t seed = 1; n % replicate == 0 && seed <= 3; seed++) {
                fleet f;
                open_fleet(&f, replicate, n / replicate, backends[b], &fsdp, 200);
                check_sums(&f, seed);
                close_fleet(&f);
            }
}

/* The buffer that a rank takes for so many bytes, of its own or of comm, and gives back. */
static ndm_pool_buffer *borrow(const fleet *f, ndm_comm *comm, int64_t bytes)
{
    const ndm_memory_kind kind = NDM_MEMORY_GRADIENTS;
    ndm_stream *stream = ndm_context_stream(f->context);
    ndm_pool_buffer *b;

    must(comm ? ndm_pool_take_shared(f->context, comm, bytes, kind, stream, &b)
              : ndm_pool_take(f->context, bytes, kind, stream, &b));
    must(ndm_pool_give(b, stream));
    return b;
}

/* As the head's gradients and the embedding's, which are less by a norm. */
static void a_buffer_serves_what_is_a_little_smaller(void **state)
{
    const ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    fleet f;

    (void)state;
    open_fleet(&f, 1, ndm_world_size(world), backends[0], &fsdp, 0);
    const ndm_pool_buffer *head = borrow(&f, NULL, 1000000);
    check_all(borrow(&f, NULL, 999000) == head);
    check_all(borrow(&f, NULL, 1000001) != head);
    check_all(borrow(&f, NULL, 500000) != head);
    close_fleet(&f);
}

/* The gradients of a head, of layers and of an embedding: two buffers, of which layers take turns.
 * Where none is larger, layers have two of their own. */
static void a_larger_buffer_is_lent_instead_of_a_second(void **state)
{
    const ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    fleet f;

    (void)state;
    open_fleet(&f, 1, ndm_world_size(world), backends[0], &fsdp, 0);
    ndm_comm *comm = f.units[0]->shard;
    const ndm_pool_buffer *head = borrow(&f, comm, 1000000), *layer = borrow(&f, comm, 400000);
    check_all(layer != head && borrow(&f, comm, 400000) == head);
    check_all(borrow(&f, comm, 400000) == layer);
    check_all(borrow(&f, comm, 400000) == head);
    check_all(borrow(&f, comm, 999000) == head);
    const ndm_pool_buffer *large = borrow(&f, comm, 2000000), *next = borrow(&f, comm, 2000000);
    check_all(large != next && borrow(&f, comm, 2000000) == large);
    check_all(borrow(&f, comm, 2000000) == next);
    close_fleet(&f);
}

/* Whole steps with every collective held back: the same bits as without. */
static void hold_back(void *user, ndm_model *model)
{
    ndm_comms_delay(ndm_model_context(model)->comms, 50, *(const uint64_t *)user);
}

static void check_delayed(const problem *p, const variant *v)
{
    record prompt, late;
    uint64_t seed = 3;

    ok_all(run_variant(p, v, &(setup){.comm = MPI_COMM_WORLD}, &prompt));
    ok_all(run_variant(p, v, &(setup){.comm = MPI_COMM_WORLD, .opened = hold_back, .user = &seed},
                       &late));
    check_all(ndm_world_rank(world) != 0 || same_bits(&prompt, &late));
    record_finish(&prompt);
    record_finish(&late);
}

static void case_33_training_is_the_same_when_completion_is_late(void **state)
{
    variant_list meshes;

    (void)state;
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        variant_list list;
        list_variants(meshes.items[i].mesh, &list);
        list_draw(&list, 1, 500 + (uint64_t)i);
        list.items[0].collectives = i % 2 ? NULL : "mpi";
        if (!variant_refused(&problems[0], &list.items[0]))
            check_delayed(&problems[0], &list.items[0]);
        free(list.items);
    }
    free(meshes.items);
}

/* ---- the optimizer ----------------------------------------------------------------------------
 */

static void read_masters(fleet *f, float *out)
{
    ndm_stream *stream = ndm_context_stream(f->context);

    for (int i = 0; i < UNITS; i++) {
        int64_t slice = ndm_unit_slice_numel(f->units[i]);
        must(ndm_copy(stream, out, ndm_unit_master(f->units[i]), slice * (int64_t)sizeof *out,
                      NDM_DEVICE_TO_HOST));
        out += slice;
    }
    must(ndm_stream_synchronize(stream));
}

static float *new_masters(fleet *f)
{
    int64_t n = 0;

    for (int i = 0; i < UNITS; i++)
        n += ndm_unit_slice_numel(f->units[i]);
    float *values = calloc((size_t)n, sizeof *values);
    if (!values)
        die("no memory for masters");
    return values;
}

static bool masters_equal(fleet *f, const float *values)
{
    int64_t n = 0;
    float *now = new_masters(f);

    read_masters(f, now);
    for (int i = 0; i < UNITS; i++)
        n += ndm_unit_slice_numel(f->units[i]);
    bool equal = memcmp(now, values, (size_t)n * sizeof *now) == 0;
    free(now);
    return equal;
}

static void give_gradients(fleet *f, int bad_unit, float bad)
{
    bool last = ndm_world_rank(world) == ndm_world_size(world) - 1;

    for (int i = 0; i < UNITS; i++)
        add_gradient(f, i, last && i == bad_unit ? bad : 0.01f);
}

/* One rank's gradient, or its part of the loss, spoils the step of all before any weight moves. */
static void check_refusal(fleet *f, ndm_optimizer *optimizer, int bad_unit, float bad, double loss)
{
    const ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    float *before = new_masters(f);
    double norm;

    read_masters(f, before);
    give_gradients(f, bad_unit, bad);
    double sum = ndm_world_rank(world) == 0 ? loss : 1.0;
    check_all(ndm_optimizer_step(optimizer, &options, &sum, 1, &norm) == NDM_ERR_NONFINITE);
    check_all(ndm_optimizer_steps(optimizer) == 0);
    check_all(masters_equal(f, before));
    free(before);
}

static void case_11_not_finite_is_seen_by_all_before_the_update(void **state)
{
    const ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_optimizer *optimizer;
    double norm, sum = 0.0;
    fleet f;

    (void)state;
    open_fleet(&f, 1, ndm_world_size(world), "mpi", &fsdp, 0);
    ok_all(ndm_optimizer_create(f.context, f.units, UNITS, &optimizer));
    check_refusal(&f, optimizer, 2, NAN, 1.0);
    check_refusal(&f, optimizer, UNITS - 1, INFINITY, 1.0);
    check_refusal(&f, optimizer, -1, 0.0f, NAN);
    float *before = new_masters(&f);
    read_masters(&f, before);
    give_gradients(&f, -1, 0.0f);
    ok_all(ndm_optimizer_step(optimizer, &options, &sum, 1, &norm));
    check_all(!masters_equal(&f, before) || ndm_unit_slice_numel(f.units[0]) == 0 ||
              ndm_world_rank(world) > 1); /* the elements lie with the first two ranks */
    free(before);
    ndm_optimizer_destroy(optimizer);
    close_fleet(&f);
}

/* Average over this rank's part of the matrices; 0 where it has none. */
static double mean_of(fleet *f)
{
    float *values = new_masters(f);
    double sum = 0.0, n = 0.0;

    read_masters(f, values);
    for (int64_t i = 0; i < UNITS * ndm_unit_slice_numel(f->units[0]); i++)
        if (values[i] != 0.0f) {
            sum += (double)values[i];
            n++;
        }
    free(values);
    return n > 0.0 ? sum / n : 0.0;
}

/* lr 1e-6 is far below half a unit in the last place of bf16 at 0.5 (1e-3): added to bf16 weights
 * it would be lost each time. With a constant gradient Adam moves by lr a step. */
static void case_14_masters_are_fp32(void **state)
{
    enum { MANY = 1000 };
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    ndm_optimizer *optimizer;
    double norm;
    fleet f;

    (void)state;
    fsdp.param_dtype = fsdp.reduce_dtype = NDM_BF16;
    options.lr = 1e-6;
    options.weight_decay = 0.0;
    open_fleet(&f, 1, ndm_world_size(world), "auto", &fsdp, 0);
    ok_all(ndm_optimizer_create(f.context, f.units, UNITS, &optimizer));
    double before = mean_of(&f);
    for (int i = 0; i < MANY; i++) {
        give_gradients(&f, -1, 0.0f);
        ok_all(ndm_optimizer_step(optimizer, &options, NULL, 0, &norm));
    }
    double moved = before - mean_of(&f);
    check_all(before == 0.0 || fabs(moved - 1e-6 * MANY) < 1e-5);
    ndm_optimizer_destroy(optimizer);
    close_fleet(&f);
}

/* eps 0: an element that never had a gradient stays, and is a number. */
static void case_16a_eps_0_leaves_elements_without_gradient(void **state)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    ndm_optimizer *optimizer;
    double norm;
    fleet f;

    (void)state;
    options.eps = options.weight_decay = 0.0;
    open_fleet(&f, 1, ndm_world_size(world), "auto", &fsdp, 0);
    ok_all(ndm_optimizer_create(f.context, f.units, UNITS, &optimizer));
    float *before = new_masters(&f);
    read_masters(&f, before);
    for (int i = 0; i < UNITS; i++)
        add_gradient(&f, i, 0.0f);
    ok_all(ndm_optimizer_step(optimizer, &options, NULL, 0, &norm));
    check_all(norm == 0.0 && masters_equal(&f, before));
    free(before);
    ndm_optimizer_destroy(optimizer);
    close_fleet(&f);
}

/* ---- initial weights --------------------------------------------------------------------------
 */

typedef struct numbers {
    float values[UNITS][NUMEL + 1];
} numbers;

static ndm_status keep_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                             float *values)
{
    float *to = user;

    memcpy(to + (spec->ndim == 1 ? NUMEL : 0) + first, values, (size_t)count * sizeof *values);
    return NDM_OK;
}

static void case_41_initial_weights_are_the_same_on_every_mesh(void **state)
{
    const ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int64_t replicate = 1; replicate <= n; replicate++) {
        numbers mine = {0}, sum;
        fleet f;
        if (n % replicate)
            continue;
        open_fleet(&f, replicate, n / replicate, "auto", &fsdp, 0);
        for (int i = 0; i < UNITS; i++)
            must(ndm_unit_write(f.units[i], NDM_UNIT_WEIGHTS, keep_range, mine.values[i]));
        MPI_Allreduce(&mine, &sum, UNITS * (NUMEL + 1), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        bool right = true;
        for (int i = 0; i < UNITS; i++)
            for (int j = 0; j <= NUMEL; j++)
                right = right &&
                        sum.values[i][j] == drawn(f.names[i][j == NUMEL], j == NUMEL ? 0 : j);
        check_all(right);
        close_fleet(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_41_initial_weights_are_the_same_on_every_mesh),
        cmocka_unit_test(case_14_masters_are_fp32),
        cmocka_unit_test(case_16a_eps_0_leaves_elements_without_gradient),
        cmocka_unit_test(case_34_units_may_be_used_in_any_order),
        cmocka_unit_test(case_33_no_buffer_is_reused_before_its_collective_is_done),
        cmocka_unit_test(a_buffer_serves_what_is_a_little_smaller),
        cmocka_unit_test(a_larger_buffer_is_lent_instead_of_a_second),
        cmocka_unit_test(case_33_training_is_the_same_when_completion_is_late),
        cmocka_unit_test(case_11_not_finite_is_seen_by_all_before_the_update),
    };

    return harness_run("units", tests);
}
