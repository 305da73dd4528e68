/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls with arguments that cannot be: each is refused by name, none is followed. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <ndmesh/ndmesh.h>

#include "device/host.h"
#include "tests/mpi/harness.h"

enum { SEQ_LEN = 8 };

/* No pointer is given, and none that is given is looked behind. */
static bool says_null(ndm_status status)
{
    return status == NDM_ERR_USAGE && strstr(ndm_error_message(), "NULL") != NULL;
}

#define refused_null(call) check_all(says_null(call))
#define refused(call, status) check_all((call) == (status))

static ndm_context *open_context(void)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    ndm_context *context;

    o.device = "cpu";
    o.threads = 1;
    o.timeout_s = 30;
    must(ndm_context_create(&p, &o, &context));
    return context;
}

static ndm_unit *open_unit(ndm_context *context)
{
    const ndm_param_spec spec = {.name = "w", .ndim = 2, .shape = {8, 8}};
    ndm_unit *unit;

    must(ndm_unit_create(context, "unit", &spec, 1, NULL, &unit));
    return unit;
}

/* ---- NULL --------------------------------------------------------------------------------- */

static void objects_that_are_not_there(void **state)
{
    const ndm_param_spec spec = {.name = "w", .ndim = 1, .shape = {4}};
    ndm_linear linear = NDM_LINEAR_INIT(NULL, 0, -1);
    float x[4] = {0};
    int64_t n;
    double d;

    (void)state;
    refused_null(ndm_mesh_create(NULL, 1, NULL));
    refused_null(ndm_axis_set_parse(NULL, NULL));
    refused_null(ndm_context_create(NULL, NULL, NULL));
    refused_null(ndm_context_comm(NULL, 0, NULL));
    refused_null(ndm_context_agree(NULL, NDM_OK));
    refused_null(ndm_unit_create(NULL, "u", &spec, 1, NULL, NULL));
    refused_null(ndm_unit_init(NULL, 0));
    refused_null(ndm_unit_read(NULL, NULL, NULL));
    refused_null(ndm_unit_write(NULL, NDM_UNIT_WEIGHTS, NULL, NULL));
    refused_null(ndm_unit_unshard(NULL, NULL));
    refused_null(ndm_unit_prefetch(NULL, NULL));
    refused_null(ndm_unit_reshard(NULL, NULL));
    refused_null(ndm_unit_grads_begin(NULL, NULL));
    refused_null(ndm_unit_reduce_grads(NULL, NULL));
    refused_null(ndm_optimizer_create(NULL, NULL, 1, NULL));
    refused_null(ndm_optimizer_step(NULL, NULL, NULL, 0, &d));
    refused_null(ndm_optimizer_read(NULL, 0, NDM_EXP_AVG, NULL, NULL));
    refused_null(ndm_optimizer_write(NULL, 0, NDM_EXP_AVG, NULL, NULL));
    refused_null(ndm_linear_rows(NULL, 1, &n, &n));
    refused_null(ndm_linear_forward(NULL, 1, x, x, x));
    refused_null(ndm_linear_backward(&linear, 1, x, x, x, x));
    refused_null(ndm_all_gather(NULL, x, x, 1, NDM_F32, NULL));
    refused_null(ndm_reduce_scatter(NULL, x, x, 1, NDM_F32, NDM_F32, NDM_SUM, NULL));
    refused_null(ndm_all_to_all(NULL, x, x, 1, NDM_F32, NULL));
    refused_null(ndm_barrier(NULL, NULL));
    refused_null(ndm_device_alloc(NULL, 8, NDM_MEMORY_WEIGHTS, NULL));
    refused_null(ndm_copy(NULL, x, x, 4, NDM_HOST_TO_DEVICE));
    refused_null(ndm_zero(NULL, x, 4));
    refused_null(ndm_stream_create(NULL, NDM_STREAM_COMM, "s", NULL));
    refused_null(ndm_stream_wait(NULL, NULL));
    refused_null(ndm_stream_synchronize(NULL));
    refused_null(ndm_event_create(NULL, NULL));
    refused_null(ndm_event_record(NULL, NULL));
    refused_null(ndm_event_query(NULL, NULL));
}

static void models_that_are_not_there(void **state)
{
    ndm_checkpoint_state saved;
    ndm_step_result result;
    char path[8];
    double d;

    (void)state;
    refused_null(ndm_model_create(NULL, "llama-tiny", NULL, NULL, NULL));
    refused_null(ndm_model_from_pretrained(NULL, "x", NULL, NULL, NULL));
    refused_null(ndm_model_init(NULL, 0));
    refused_null(ndm_model_load(NULL, "x"));
    refused_null(ndm_model_save(NULL, "x", NDM_F32, 0));
    refused_null(ndm_model_save_grads(NULL, "x"));
    refused_null(ndm_model_save_logits(NULL, NULL, "x"));
    refused_null(ndm_model_train(NULL, NULL, 1.0));
    refused_null(ndm_model_evaluate(NULL, NULL));
    refused_null(ndm_model_take_loss(NULL, &d));
    refused_null(ndm_trainer_create(NULL, NULL, NULL));
    refused_null(ndm_trainer_step(NULL, NULL, &result));
    refused_null(ndm_trainer_evaluate(NULL, NULL, NULL, NULL));
    refused_null(ndm_saver_create(NULL, "x", NULL, NULL));
    refused_null(ndm_saver_begin(NULL, 0));
    refused_null(ndm_saver_poll(NULL, NULL));
    refused_null(ndm_saver_wait(NULL, NULL));
    refused_null(ndm_checkpoint_save(NULL, "x", NULL, 0));
    refused_null(ndm_checkpoint_load(NULL, "x", &saved));
    refused_null(ndm_checkpoint_latest(NULL, "x", path, sizeof path));
    refused_null(ndm_checkpoint_latest_local(NULL, "x", path, sizeof path));
}

static void what_is_not_there_has_no_value(void **state)
{
    ndm_context *context = open_context();
    const ndm_mesh *mesh = ndm_context_mesh(context);
    ndm_unit *unit = open_unit(context);
    const int64_t outside[NDM_AXIS_COUNT] = {0, 0, 0, INT64_MAX};
    ndm_comm *comm;

    (void)state;
    must(ndm_context_comm(context, NDM_AXES_ALL, &comm));
    check_all(!ndm_context_mesh(NULL) && !ndm_context_stream(NULL) && !ndm_unit_name(NULL));
    check_all(!ndm_unit_spec(unit, 1) && !ndm_unit_spec(unit, -1) &&
              !ndm_unit_local_shape(unit, 9));
    check_all(!ndm_unit_weight(unit, 1) && !ndm_unit_weight(NULL, 0) && !ndm_unit_grad(unit, -1));
    check_all(ndm_mesh_world(NULL) == 0 && ndm_mesh_axis_size(mesh, (ndm_axis)9) == 0);
    check_all(ndm_mesh_coord(mesh, INT64_MAX, NDM_TP) == -1 && ndm_mesh_position(mesh, -1) == -1);
    check_all(ndm_mesh_coord(mesh, 0, (ndm_axis)-1) == -1 && ndm_mesh_rank(mesh, outside) == -1);
    check_all(ndm_mesh_member(mesh, NDM_AXES_ALL, 0, INT64_MAX) == -1);
    check_all(ndm_mesh_group(mesh, NDM_AXES_ALL, INT64_MAX).size == 0);
    check_all(ndm_comm_world_rank(comm, -1) == -1 && ndm_comm_world_rank(comm, INT64_MAX) == -1);
    check_all(!ndm_model_units(NULL, NULL) && ndm_model_vocab(NULL) == 0 && !ndm_saver_busy(NULL));
    check_all(ndm_trainer_steps(NULL) == 0 && !ndm_stream_native(NULL) && !ndm_device_name(NULL));
    check_all(strcmp(ndm_memory_kind_name((ndm_memory_kind)-1), "unknown") == 0);
    ndm_trainer_request_stop(NULL);
    ndm_context_micro_batch(NULL, 0, 1);
    ndm_unit_destroy(unit);
    ndm_context_destroy(context);
}

/* ---- numbers ------------------------------------------------------------------------------ */

static ndm_status create(ndm_context *context, ndm_param_spec spec)
{
    ndm_unit *unit = NULL;
    ndm_status status = ndm_unit_create(context, "unit", &spec, 1, NULL, &unit);

    ndm_unit_destroy(unit);
    return status;
}

static ndm_status open_with(const ndm_context_options *o, ndm_cp_method method)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context *context = NULL;

    p.cp_method = method;
    ndm_status status = ndm_context_create(&p, o, &context);
    ndm_context_destroy(context);
    return status;
}

static void contexts_that_cannot_be(void **state)
{
    const ndm_context_options good = NDM_CONTEXT_OPTIONS_INIT;
    const ndm_named_value nameless = {NULL, "1"};
    ndm_context_options o = good;

    (void)state;
    refused(open_with(&o, (ndm_cp_method)4), NDM_ERR_CONFIG);
    o.device = NULL;
    refused(open_with(&o, NDM_CP_METHOD_AUTO), NDM_ERR_USAGE);
    o = good, o.facts = &nameless, o.n_facts = 1;
    refused(open_with(&o, NDM_CP_METHOD_AUTO), NDM_ERR_USAGE);
    o = good, o.threads = -1;
    refused(open_with(&o, NDM_CP_METHOD_AUTO), NDM_ERR_CONFIG);
    o = good, o.bind = (ndm_bind)3;
    refused(open_with(&o, NDM_CP_METHOD_AUTO), NDM_ERR_CONFIG);
}

/* The first would be a small unit whose weights lie anywhere, if products could wrap. */
static void parameters_that_cannot_be(void **state)
{
    const int64_t wraps = (int64_t)1 << 32, huge = (int64_t)1 << 60;
    ndm_context *context = open_context();
    ndm_param_spec half = {.name = "a", .ndim = 1, .shape = {INT64_MAX / 64}}, many[8];
    ndm_unit *unit = NULL;

    (void)state;
    for (int i = 0; i < 8; i++)
        many[i] = half;
    refused(create(context, (ndm_param_spec){.name = "w", .ndim = 2, .shape = {wraps, wraps}}),
            NDM_ERR_CONFIG);
    refused(create(context, (ndm_param_spec){.name = "w", .ndim = 1, .shape = {huge}}),
            NDM_ERR_CONFIG);
    refused(ndm_unit_create(context, "u", many, 8, NULL, &unit), NDM_ERR_CONFIG);
    refused(create(context, (ndm_param_spec){.name = "w", .ndim = 1, .shape = {4}, .role = 7}),
            NDM_ERR_CONFIG);
    refused(create(context, (ndm_param_spec){.name = "w", .ndim = 1, .shape = {4}, .blocks = -1}),
            NDM_ERR_CONFIG);
    refused(create(context, (ndm_param_spec){.name = "w", .ndim = 1, .shape = {4}, .parts = -1}),
            NDM_ERR_CONFIG);
    refused(
        create(context, (ndm_param_spec){.name = "w", .ndim = 1, .shape = {4}, .init_std = NAN}),
        NDM_ERR_CONFIG);
    ndm_context_destroy(context);
}

static ndm_status step_with(ndm_optimizer *optimizer, double *field, double value,
                            ndm_step_options *options)
{
    double norm;

    *options = (ndm_step_options)NDM_STEP_OPTIONS_INIT;
    *field = value;
    return ndm_optimizer_step(optimizer, options, NULL, 0, &norm);
}

static void steps_that_would_spoil_weights(void **state)
{
    ndm_context *context = open_context();
    ndm_unit *unit = open_unit(context), *twice[2] = {unit, unit};
    ndm_optimizer *optimizer, *none;
    ndm_step_options o;
    double norm;

    (void)state;
    refused(ndm_optimizer_create(context, twice, 2, &none), NDM_ERR_USAGE);
    must(ndm_optimizer_create(context, &unit, 1, &optimizer));
    refused(step_with(optimizer, &o.lr, NAN, &o), NDM_ERR_CONFIG);
    refused(step_with(optimizer, &o.beta1, 1.0, &o), NDM_ERR_CONFIG);
    refused(step_with(optimizer, &o.beta2, -0.1, &o), NDM_ERR_CONFIG);
    refused(step_with(optimizer, &o.eps, NAN, &o), NDM_ERR_CONFIG);
    refused(step_with(optimizer, &o.weight_decay, INFINITY, &o), NDM_ERR_CONFIG);
    refused(step_with(optimizer, &o.grad_clip, -1.0, &o), NDM_ERR_CONFIG);
    refused(ndm_optimizer_step(optimizer, NULL, NULL, 2, &norm), NDM_ERR_USAGE);
    refused(ndm_optimizer_write(optimizer, 1, NDM_EXP_AVG, NULL, NULL), NDM_ERR_USAGE);
    ndm_optimizer_destroy(optimizer);
    ndm_unit_destroy(unit);
    ndm_context_destroy(context);
}

static void lengths_and_kinds_that_cannot_be(void **state)
{
    ndm_context *context = open_context();
    ndm_stream *stream = ndm_context_stream(context), *made;
    ndm_comm *comm;
    float x[4] = {0};
    void *memory;

    (void)state;
    must(ndm_context_comm(context, NDM_AXES_ALL, &comm));
    refused(ndm_copy(stream, x, x, -1, NDM_HOST_TO_DEVICE), NDM_ERR_USAGE);
    refused(ndm_copy(stream, x, NULL, 4, NDM_HOST_TO_DEVICE), NDM_ERR_USAGE);
    refused(ndm_copy(stream, x, x, 4, (ndm_copy_kind)3), NDM_ERR_USAGE);
    refused(ndm_zero(stream, NULL, 4), NDM_ERR_USAGE);
    refused(ndm_device_alloc(ndm_context_device(context), 8, (ndm_memory_kind)-1, &memory),
            NDM_ERR_USAGE);
    refused(ndm_stream_create(ndm_context_device(context), (ndm_stream_kind)2, "s", &made),
            NDM_ERR_USAGE);
    refused(ndm_all_reduce(comm, x, INT64_MAX, NDM_F32, NDM_SUM, stream), NDM_ERR_USAGE);
    refused(ndm_all_gather(comm, x, x, 1, NDM_F32, NULL), NDM_ERR_USAGE);
    ndm_context_destroy(context);
}

static void orders_are_as_long_as_they_say(void **state)
{
    const int64_t order[2] = {1, 0};
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_mesh *mesh;

    (void)state;
    p.order = order;
    p.n_order = 2;
    refused(ndm_mesh_create(&p, 4, &mesh), NDM_ERR_CONFIG);
}

/* ---- models ------------------------------------------------------------------------------- */

static ndm_status train_with(ndm_model *model, const ndm_trainer_options *options)
{
    ndm_trainer *trainer = NULL;
    ndm_status status = ndm_trainer_create(model, options, &trainer);

    ndm_trainer_destroy(trainer);
    return status;
}

static void options_of_trainers_that_cannot_be(ndm_model *model)
{
    const ndm_trainer_options good = NDM_TRAINER_OPTIONS_INIT;
    ndm_trainer_options o = good;

    o.optimizer.beta1 = 1.0;
    refused(train_with(model, &o), NDM_ERR_CONFIG);
    o = good, o.lr_schedule = (ndm_lr_schedule)3;
    refused(train_with(model, &o), NDM_ERR_CONFIG);
    o = good, o.steps = -1;
    refused(train_with(model, &o), NDM_ERR_CONFIG);
    o = good, o.graphs = (ndm_toggle)3;
    refused(train_with(model, &o), NDM_ERR_CONFIG);
    o = good, o.optimizer.size = 0;
    refused(train_with(model, &o), NDM_ERR_USAGE);
}

/* A save that went on would have taken the place of a good checkpoint of the same step. */
static void saves_that_no_load_would_take(ndm_trainer *trainer)
{
    ndm_checkpoint_options o = NDM_CHECKPOINT_OPTIONS_INIT;

    refused(ndm_checkpoint_save(trainer, "build-not-made", NULL, -1), NDM_ERR_USAGE);
    o.options_json = "no json";
    refused(ndm_checkpoint_save(trainer, "build-not-made", &o, 0), NDM_ERR_USAGE);
    o.options_json = "[1]";
    refused(ndm_checkpoint_save(trainer, "build-not-made", &o, 0), NDM_ERR_USAGE);
}

static void batches_and_files_that_cannot_be(void **state)
{
    static const int32_t tokens[SEQ_LEN];
    ndm_context *context = open_context();
    ndm_model_options o = NDM_MODEL_OPTIONS_INIT;
    ndm_batch batch = {.sequences = 1, .inputs = tokens};
    ndm_trainer *trainer;
    ndm_model *model;
    ndm_step_result result;

    (void)state;
    o.seq_len = SEQ_LEN, o.tp_overlap_chunks = 17;
    refused(ndm_model_create(context, "llama-tiny", NULL, &o, &model), NDM_ERR_CONFIG);
    o.tp_overlap_chunks = 0, o.head_chunk = -1;
    refused(ndm_model_create(context, "llama-tiny", NULL, &o, &model), NDM_ERR_CONFIG);
    o.head_chunk = 0, o.recompute = (ndm_recompute)3;
    refused(ndm_model_create(context, "llama-tiny", NULL, &o, &model), NDM_ERR_CONFIG);
    o.recompute = NDM_RECOMPUTE_NONE;
    must(ndm_model_create(context, "llama-tiny", NULL, &o, &model));
    options_of_trainers_that_cannot_be(model);
    must(ndm_trainer_create(model, NULL, &trainer));
    refused_null(ndm_trainer_step(trainer, NULL, &result));
    refused_null(ndm_trainer_step(trainer, &batch, &result));
    batch.targets = tokens;
    refused_null(ndm_trainer_step(trainer, &batch, NULL));
    saves_that_no_load_would_take(trainer);
    refused(ndm_model_save(model, "build-not-made", (ndm_dtype)55, 0), NDM_ERR_USAGE);
    refused(ndm_model_save(model, "build-not-made", NDM_F32, -1), NDM_ERR_USAGE);
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    ndm_context_destroy(context);
}

/* ---- streams ------------------------------------------------------------------------------ */

static ndm_status spoil(ndm_task *task)
{
    (void)task;
    NDM_FAIL(NDM_ERR_COMM, "spoiled");
}

static void keep(ndm_task *task)
{
    (void)task;
}

/* Whoever asks a stream again hears why it failed, not what else went wrong since. */
static void a_stream_that_failed_says_so_again(void **state)
{
    ndm_context *context = open_context();
    ndm_task task = {.start = spoil, .release = keep};
    ndm_stream *stream;

    (void)state;
    must(ndm_stream_create(ndm_context_device(context), NDM_STREAM_COMM, "s", &stream));
    refused(ndm_host_submit(stream, &task), NDM_ERR_COMM);
    refused(ndm_axis_set_parse("nothing", &(ndm_axis_set){0}), NDM_ERR_USAGE);
    check_all(ndm_stream_synchronize(stream) == NDM_ERR_COMM &&
              strcmp(ndm_error_message(), "spoiled") == 0);
    ndm_stream_destroy(stream);
    ndm_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_that_are_not_there),
        cmocka_unit_test(models_that_are_not_there),
        cmocka_unit_test(what_is_not_there_has_no_value),
        cmocka_unit_test(contexts_that_cannot_be),
        cmocka_unit_test(parameters_that_cannot_be),
        cmocka_unit_test(steps_that_would_spoil_weights),
        cmocka_unit_test(lengths_and_kinds_that_cannot_be),
        cmocka_unit_test(orders_are_as_long_as_they_say),
        cmocka_unit_test(batches_and_files_that_cannot_be),
        cmocka_unit_test(a_stream_that_failed_says_so_again),
    };

    return harness_run("arguments", tests);
}
