/* SPDX-License-Identifier: Apache-2.0 */
/* The public interface in orders, and with arguments, that a model of ndmesh's own never takes. */
#include <math.h>

#include <mpi.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <ndmesh/trainer.h>

#include "core/rng.h"
#include "model/model.h"
#include "tests/mpi/harness.h"

enum { NUMEL = 96, SEED = 5, SEQ_LEN = 8, LATE_US = 50000 };

static const float STD = 0.5f;
static const char *const LOGITS = "test_misuse_logits.safetensors";

static ndm_context *open_context(ndm_axis axis, const char *collectives)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    int64_t n = ndm_world_size(world);
    ndm_context *context;

    p.dp_replicate = axis == NDM_DP_REPLICATE ? n : 1;
    p.dp_shard = axis == NDM_DP_SHARD ? n : 1;
    p.tp = axis == NDM_TP ? n : 1;
    o.device = "cpu";
    o.collectives = collectives;
    o.threads = 1;
    o.timeout_s = 30;
    must(ndm_context_create(&p, &o, &context));
    return context;
}

static ndm_unit *open_unit(ndm_context *context)
{
    const ndm_param_spec spec = {
        .name = "p", .ndim = 1, .shape = {NUMEL}, .head_local = true, .init_std = STD};
    ndm_unit *unit;

    must(ndm_unit_create(context, "unit", &spec, 1, NULL, &unit));
    must(ndm_unit_init(unit, SEED));
    return unit;
}

static bool is_last_rank(void)
{
    return ndm_world_rank(world) == ndm_world_size(world) - 1;
}

/* ---- units -------------------------------------------------------------------------------- */

static void a_refused_parameter_keeps_its_name(void **state)
{
    int64_t n = ndm_world_size(world);
    ndm_context *context = open_context(NDM_TP, "auto");
    ndm_param_spec spec = {
        .name = "heads", .ndim = 2, .shape = {6, 4}, .role = NDM_ROLE_COLUMN, .blocks = 3};
    ndm_unit *unit = NULL;

    (void)state;
    ndm_status status = ndm_unit_create(context, "unit", &spec, 1, NULL, &unit);
    check_all(status == (n == 1 ? NDM_OK : NDM_ERR_CONFIG));
    ndm_unit_destroy(unit);
    ndm_context_destroy(context);
}

static void what_is_not_there_is_null_and_what_was_not_begun_is_refused(void **state)
{
    const ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    ndm_context *context = open_context(NDM_DP_SHARD, "mpi");
    ndm_stream *stream = ndm_context_stream(context);
    ndm_unit *unit = open_unit(context);
    ndm_optimizer *optimizer;
    double norm;

    (void)state;
    check_all(ndm_world_size(world) == 1 || !ndm_unit_weight(unit, 0));
    check_all(ndm_world_size(world) == 1 || !ndm_unit_grad(unit, 0));
    check_all(ndm_unit_reshard(unit, stream) == NDM_ERR_STATE);
    check_all(ndm_unit_reduce_grads(unit, stream) == NDM_ERR_STATE);
    ok_all(ndm_optimizer_create(context, &unit, 1, &optimizer));
    check_all(ndm_optimizer_step(optimizer, &options, NULL, 0, &norm) == NDM_ERR_STATE);
    ndm_optimizer_destroy(optimizer);
    ndm_unit_destroy(unit);
    ndm_context_destroy(context);
}

static float drawn(uint64_t seed, int64_t i)
{
    return STD * ndm_rng_normal(seed, ndm_rng_stream("p"), (uint64_t)i);
}

static bool weights_are(ndm_unit *unit, uint64_t seed)
{
    ndm_stream *stream = ndm_context_stream(unit->context);
    float host[NUMEL];
    bool right = true;

    must(ndm_copy(stream, host, ndm_unit_weight(unit, 0), sizeof host, NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(stream));
    for (int64_t i = 0; i < NUMEL; i++)
        right = right && host[i] == drawn(seed, i);
    return right;
}

/* One rank is early with new weights while the others still read the old ones. */
static void weights_in_use_are_not_overwritten(void **state)
{
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_stream *stream = ndm_context_stream(context);
    ndm_unit *unit = open_unit(context);
    bool old;

    (void)state;
    must(ndm_unit_unshard(unit, stream));
    if (ndm_world_rank(world) > 0)
        usleep(LATE_US);
    old = weights_are(unit, SEED);
    must(ndm_unit_reshard(unit, stream));
    must(ndm_unit_init(unit, SEED + 1));
    check_all(old);
    must(ndm_unit_unshard(unit, stream));
    check_all(weights_are(unit, SEED + 1));
    must(ndm_unit_reshard(unit, stream));
    ndm_unit_destroy(unit);
    ndm_context_destroy(context);
}

static void add_gradient(ndm_unit *unit, float value)
{
    ndm_stream *stream = ndm_context_stream(unit->context);
    float host[NUMEL];

    for (int64_t i = 0; i < NUMEL; i++)
        host[i] = value;
    must(ndm_unit_grads_begin(unit, stream));
    ndm_add_args args = {.y = ndm_unit_grad(unit, 0), .x = host, .factor = 1.0f, .n = NUMEL};
    must(ndm_add(stream, &args));
    must(ndm_unit_reduce_grads(unit, stream));
}

typedef struct expectation {
    float value;
    bool right;
} expectation;

static ndm_status compare_range(void *user, const ndm_param_spec *spec, int64_t first,
                                int64_t count, float *values)
{
    expectation *e = user;

    (void)spec, (void)first;
    for (int64_t i = 0; i < count; i++)
        e->right = e->right && values[i] == e->value;
    return NDM_OK;
}

static bool gradient_is(ndm_unit *unit, float value)
{
    expectation e = {value, true};

    must(ndm_unit_write(unit, NDM_UNIT_GRADS, compare_range, &e));
    return e.right;
}

/* All ranks but one have no use for the sum, and leave it under way. */
static void a_reduction_outlives_its_unit(void **state)
{
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_unit *unit = open_unit(context);
    bool right = true;

    (void)state;
    ndm_comms_delay(context->comms, 2000, SEED);
    add_gradient(unit, 1.0f);
    if (is_last_rank())
        right = gradient_is(unit, (float)ndm_world_size(world));
    ndm_unit_destroy(unit);
    ndm_context_destroy(context);
    check_all(right);
}

/* Buffers that units share go with the last of them, whatever comes next in the context. */
static void nothing_is_left_of_units_that_are_gone(void **state)
{
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_unit *units[2] = {open_unit(context), open_unit(context)};
    int64_t live = 0;

    (void)state;
    for (int i = 0; i < 2; i++) {
        must(ndm_unit_unshard(units[i], ndm_context_stream(context)));
        add_gradient(units[i], 1.0f);
    }
    ndm_unit_destroy(units[0]);
    check_all(gradient_is(units[1], (float)ndm_world_size(world)));
    ndm_unit_destroy(units[1]);
    ndm_memory_stats stats = ndm_device_memory(ndm_context_device(context));
    for (int kind = 0; kind < NDM_MEMORY_COMM; kind++)
        live += stats.live_bytes[kind];
    check_all(live == 0);
    ndm_context_destroy(context);
}

/* Gradients that nobody took a step with do not leak into the next step, whatever the mesh. */
static void the_first_micro_batch_begins_anew(void **state)
{
    const ndm_axis axes[] = {NDM_DP_REPLICATE, NDM_DP_SHARD, NDM_TP};
    float n = (float)ndm_world_size(world);

    (void)state;
    for (int i = 0; i < 3; i++) {
        ndm_context *context = open_context(axes[i], "auto");
        ndm_unit *unit = open_unit(context);
        ndm_comms_delay(context->comms, 200, SEED);
        add_gradient(unit, 1.0f);
        add_gradient(unit, 2.0f);
        check_all(gradient_is(unit, 2.0f * n));
        ndm_context_micro_batch(context, 0, 2);
        add_gradient(unit, 3.0f);
        ndm_context_micro_batch(context, 1, 2);
        add_gradient(unit, 4.0f);
        check_all(gradient_is(unit, 7.0f * n));
        ndm_unit_destroy(unit);
        ndm_context_destroy(context);
    }
}

/* ---- contexts ----------------------------------------------------------------------------- */

static void ranks_with_unlike_orders_are_refused(void **state)
{
    const int64_t usual[] = {0, 1, 2, 3}, other[] = {1, 0, 2, 3};
    int64_t n = ndm_world_size(world);
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context *context = NULL;

    (void)state;
    p.order = n > 1 && is_last_rank() ? other : usual;
    p.n_order = n;
    ndm_status status = ndm_context_create(&p, NULL, &context);
    check_all(status == (n > 1 ? NDM_ERR_MISMATCH : NDM_OK));
    ndm_context_destroy(context);
}

/* Both would be read beyond their end: a window is as long as its first member's unit. */
static void ranks_with_unlike_units_are_refused(void **state)
{
    static const ndm_axis axes[] = {NDM_DP_REPLICATE, NDM_DP_SHARD};
    ndm_status want = ndm_world_size(world) > 1 ? NDM_ERR_MISMATCH : NDM_OK;
    int64_t rows = is_last_rank() ? 1 << 20 : 8;
    ndm_param_spec spec = {.name = "w", .ndim = 2, .shape = {rows, NUMEL}};

    (void)state;
    for (int i = 0; i < 2; i++) {
        ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
        ndm_context *context = open_context(axes[i], "auto");
        ndm_unit *unit = NULL;

        check_all(ndm_unit_create(context, "u", &spec, 1, NULL, &unit) == want);
        check_all(want == NDM_OK || strstr(ndm_error_message(), "w is [1048576, 96]"));
        ndm_unit_destroy(unit);
        unit = NULL, spec.shape[0] = 8;
        fsdp.reduce_dtype = is_last_rank() ? NDM_BF16 : NDM_F32;
        check_all(ndm_unit_create(context, "u", &spec, 1, &fsdp, &unit) == want);
        ndm_unit_destroy(unit);
        ndm_context_destroy(context);
        spec.shape[0] = rows;
    }
}

static void bytes_that_cannot_be_are_refused(void **state)
{
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_device *d = ndm_context_device(context);
    void *memory;

    (void)state;
    check_all(ndm_device_alloc(d, -1, NDM_MEMORY_WORKSPACE, &memory) == NDM_ERR_USAGE);
    check_all(ndm_device_alloc(d, INT64_MAX, NDM_MEMORY_WORKSPACE, &memory) == NDM_ERR_MEMORY);
    ndm_context_destroy(context);
}

/* ---- models ------------------------------------------------------------------------------- */

static ndm_status open_model(ndm_context *context, int64_t micro_batch, int64_t seq_len,
                             const ndm_fsdp_config *fsdp, ndm_model **model)
{
    ndm_model_options o = NDM_MODEL_OPTIONS_INIT;

    o.micro_batch = micro_batch;
    o.seq_len = seq_len;
    return ndm_model_create(context, "llama-tiny", fsdp, &o, model);
}

static void a_token_in_the_wrong_place_on_one_rank_is_everybodys_error(void **state)
{
    const ndm_trainer_options options = NDM_TRAINER_OPTIONS_INIT;
    int32_t ids[SEQ_LEN] = {1, 2, 3, 4, 5, 6, 7, 8}, good[SEQ_LEN] = {0}, bad[SEQ_LEN] = {0};
    const ndm_batch right = {1, ids, ids, good, good}, far = {1, ids, ids, bad, good},
                    blind = {1, ids, ids, good, bad};
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_trainer *trainer;
    ndm_step_result result;
    ndm_model *model;

    (void)state;
    bad[2] = SEQ_LEN;
    must(open_model(context, 1, SEQ_LEN, NULL, &model));
    must(ndm_model_init(model, SEED));
    must(ndm_trainer_create(model, &options, &trainer));
    check_all(ndm_trainer_step(trainer, is_last_rank() ? &far : &right, &result) == NDM_ERR_CONFIG);
    check_all(ndm_trainer_step(trainer, is_last_rank() ? &blind : &right, &result) ==
              NDM_ERR_CONFIG);
    ok_all(ndm_trainer_step(trainer, &right, &result));
    check_all(ndm_model_train(model, is_last_rank() ? &far : &right, 1.0) == NDM_ERR_CONFIG);
    check_all(ndm_model_evaluate(model, is_last_rank() ? &blind : &right) == NDM_ERR_CONFIG);
    ok_all(ndm_model_evaluate(model, &right));
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    ndm_context_destroy(context);
}

static void ranks_with_unlike_trainers_are_refused(void **state)
{
    ndm_status want = ndm_world_size(world) > 1 ? NDM_ERR_MISMATCH : NDM_OK;
    ndm_context *context = open_context(NDM_DP_REPLICATE, "auto");
    ndm_trainer_options rate = NDM_TRAINER_OPTIONS_INIT, accum = NDM_TRAINER_OPTIONS_INIT;
    ndm_trainer *trainer = NULL;
    ndm_model *model;

    (void)state;
    rate.optimizer.lr = is_last_rank() ? 1e-2 : 1e-3;
    accum.grad_accum = is_last_rank() ? 2 : 1;
    must(open_model(context, 1, SEQ_LEN, NULL, &model));
    check_all(ndm_trainer_create(model, &rate, &trainer) == want);
    ndm_trainer_destroy(trainer);
    trainer = NULL;
    check_all(ndm_trainer_create(model, &accum, &trainer) == want);
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    ndm_context_destroy(context);
}

/* No deadline is a cast that overflows. */
static void deadlines_are_above_zero(void **state)
{
    static const double wrong[] = {0.0, -1.0, -INFINITY, NAN}, endless[] = {INFINITY, 1e300};
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    ndm_context *context;

    (void)state;
    o.device = "cpu", o.threads = 1;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        o.timeout_s = wrong[i];
        check_all(ndm_context_create(&p, &o, &context) == NDM_ERR_CONFIG);
    }
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        o.timeout_s = endless[i];
        ok_all(ndm_context_create(&p, &o, &context));
        ndm_context_destroy(context);
    }
}

/* What a program's own micro-batches added, and nobody took, is no part of them. */
static void steps_and_evaluations_have_losses_of_their_own(void **state)
{
    int32_t ids[SEQ_LEN] = {1, 2, 3, 4, 5, 6, 7, 8};
    const ndm_batch batch = {1, ids, ids, NULL, NULL};
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_trainer_options still = NDM_TRAINER_OPTIONS_INIT;
    double own, again, sum;
    ndm_step_result result;
    ndm_trainer *trainer;
    ndm_model *model;
    int64_t tokens;

    (void)state;
    still.optimizer.lr = 0.0;
    must(open_model(context, 1, SEQ_LEN, NULL, &model));
    must(ndm_model_init(model, SEED));
    must(ndm_trainer_create(model, &still, &trainer));
    ok_all(ndm_trainer_evaluate(trainer, &batch, &own, &tokens));
    ok_all(ndm_model_evaluate(model, &batch));
    ok_all(ndm_trainer_evaluate(trainer, &batch, &again, &tokens));
    check_all(again == own);
    ok_all(ndm_model_train(model, &batch, 1.0));
    ok_all(ndm_trainer_step(trainer, &batch, &result));
    check_all(fabs(result.loss * (double)tokens - own) < 1e-5 * own);
    ok_all(ndm_model_evaluate(model, &batch));
    ok_all(ndm_model_save_logits(model, &batch, LOGITS));
    (void)unlink(LOGITS);
    ok_all(ndm_model_take_loss(model, &sum));
    check_all(fabs(sum * (double)ndm_world_size(world) - own) < 1e-5 * own);
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    ndm_context_destroy(context);
}

static void sizes_beyond_what_places_can_count_are_refused(void **state)
{
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_model *model;

    (void)state;
    check_all(open_model(context, 1, (int64_t)1 << 40, NULL, &model) == NDM_ERR_CONFIG);
    check_all(open_model(context, (int64_t)1 << 40, SEQ_LEN, NULL, &model) == NDM_ERR_CONFIG);
    check_all(open_model(context, INT64_MAX, SEQ_LEN, NULL, &model) == NDM_ERR_CONFIG);
    ndm_context_destroy(context);
}

static ndm_unit *const *wrap(ndm_context *context, const char *const *classes, ndm_model **model,
                             int64_t *n)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;

    fsdp.wrap = NDM_WRAP_TRANSFORMER;
    fsdp.wrap_classes = classes;
    must(open_model(context, 1, SEQ_LEN, &fsdp, model));
    return ndm_model_units(*model, n);
}

/* As in a file of Accelerate that leaves the class to the model: the layers, and all else. */
static void without_classes_the_layers_are_wrapped(void **state)
{
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_model *model;
    int64_t n;

    (void)state;
    ndm_unit *const *units = wrap(context, NULL, &model, &n);
    check_all(n > 1 && strcmp(ndm_unit_name(units[1]), "layers.0") == 0);
    ndm_model_destroy(model);
    ndm_context_destroy(context);
}

/* The embedding in a unit of its own, all else in another. */
static void a_class_is_wrapped_whatever_the_others_are(void **state)
{
    const char *const classes[] = {ndm_family_table(NDM_LLAMA)->embedding_class, NULL};
    ndm_context *context = open_context(NDM_DP_SHARD, "auto");
    ndm_model *model;
    int64_t n;

    (void)state;
    ndm_unit *const *units = wrap(context, classes, &model, &n);
    check_all(n == 2 && strcmp(ndm_unit_name(units[0]), "embed") == 0);
    ndm_model_destroy(model);
    ndm_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_refused_parameter_keeps_its_name),
        cmocka_unit_test(what_is_not_there_is_null_and_what_was_not_begun_is_refused),
        cmocka_unit_test(weights_in_use_are_not_overwritten),
        cmocka_unit_test(a_reduction_outlives_its_unit),
        cmocka_unit_test(nothing_is_left_of_units_that_are_gone),
        cmocka_unit_test(the_first_micro_batch_begins_anew),
        cmocka_unit_test(ranks_with_unlike_orders_are_refused),
        cmocka_unit_test(ranks_with_unlike_units_are_refused),
        cmocka_unit_test(bytes_that_cannot_be_are_refused),
        cmocka_unit_test(a_token_in_the_wrong_place_on_one_rank_is_everybodys_error),
        cmocka_unit_test(ranks_with_unlike_trainers_are_refused),
        cmocka_unit_test(deadlines_are_above_zero),
        cmocka_unit_test(steps_and_evaluations_have_losses_of_their_own),
        cmocka_unit_test(sizes_beyond_what_places_can_count_are_refused),
        cmocka_unit_test(a_class_is_wrapped_whatever_the_others_are),
        cmocka_unit_test(without_classes_the_layers_are_wrapped),
    };

    return harness_run("misuse", tests);
}
