/* SPDX-License-Identifier: Apache-2.0 */
/* A strategy from outside the tree: local SGD (Stich, "Local SGD Converges Fast and Communicates
 * Little", 2019). Replicas train on their own for EVERY steps, then average their weights over
 * dp_replicate. It takes the place of the built-in ddp.
 *
 *     mpiexec.mpich -n 2 ./strategy_plugin */
#include <math.h>
#include <stdio.h>

#include <ndmesh/ndmesh.h>

enum { SEQUENCES = 4, TOKENS = 64, STEPS = 6, EVERY = 3 };

static bool applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    const ndm_parallelism_config *mesh = ndm_context_parallelism(context);

    (void)fsdp;
    return mesh->dp_replicate > 1 && mesh->dp_shard * mesh->cp == 1;
}

static ndm_status enter(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    return ndm_unit_unshard(unit, stream);
}

static ndm_status leave(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    return ndm_unit_reshard(unit, stream);
}

/* Our kernel: x /= n. On the cpu device it may touch device memory once the stream has passed. */
static ndm_status divide(float *x, int64_t count, float n, ndm_stream *stream)
{
    NDM_TRY(ndm_stream_synchronize(stream));
    for (int64_t i = 0; i < count; i++)
        x[i] /= n;
    return NDM_OK;
}

static ndm_status average(ndm_context *context, ndm_unit *const *units, int64_t n_units,
                          int64_t step)
{
    ndm_stream *stream = ndm_context_stream(context);
    ndm_comm *replicas;

    if (step % EVERY)
        return NDM_OK;
    NDM_TRY(ndm_context_comm(context, NDM_AXIS_DP_REPLICATE, &replicas));
    for (int64_t i = 0; i < n_units; i++) {
        float *weights = ndm_unit_master(units[i]);
        int64_t count = ndm_unit_slice_numel(units[i]);
        NDM_TRY(ndm_all_reduce(replicas, weights, count, NDM_F32, NDM_SUM, stream));
        NDM_TRY(divide(weights, count, (float)ndm_comm_size(replicas), stream));
    }
    return NDM_OK;
}

static const ndm_strategy local_sgd = {
    .name = "local_sgd",
    .summary = "train replicas apart, average their weights every few steps",
    .axes = NDM_AXIS_DP_REPLICATE,
    .replaces = "ddp",
    .applies = applies,
    .unit_enter = enter,
    .unit_leave = leave,
    .step_end = average,
};

/* How far apart the replicas are: the largest |w - w of the first replica|, the same on all ranks.
 */
static ndm_status spread(ndm_context *context, ndm_unit *unit, float *distance)
{
    int64_t count = ndm_unit_slice_numel(unit), bytes = count * (int64_t)sizeof(float);
    ndm_stream *stream = ndm_context_stream(context);
    ndm_device *device = ndm_context_device(context);
    const float *mine = ndm_unit_master(unit);
    ndm_comm *replicas;
    void *memory;

    NDM_TRY(ndm_context_comm(context, NDM_AXIS_DP_REPLICATE, &replicas));
    NDM_TRY(ndm_device_alloc(device, bytes, NDM_MEMORY_WORKSPACE, &memory));
    float *first = memory;
    ndm_status status = ndm_copy(stream, first, mine, bytes, NDM_DEVICE_TO_DEVICE);
    if (status == NDM_OK)
        status = ndm_broadcast(replicas, first, count, NDM_F32, 0, stream);
    if (status == NDM_OK)
        status = ndm_stream_synchronize(stream);
    *distance = 0.0f;
    for (int64_t i = 0; i < count && status == NDM_OK; i++)
        *distance = fmaxf(*distance, fabsf(mine[i] - first[i]));
    first[0] = *distance;
    if (status == NDM_OK)
        status = ndm_all_reduce(replicas, first, 1, NDM_F32, NDM_MAX, stream);
    if (status == NDM_OK)
        status = ndm_copy(stream, distance, first, sizeof *distance, NDM_DEVICE_TO_HOST);
    if (status == NDM_OK)
        status = ndm_stream_synchronize(stream);
    ndm_device_free(device, memory);
    return status;
}

static ndm_status train(ndm_context *context)
{
    int64_t rank = ndm_context_rank(context), n_units;
    int32_t inputs[SEQUENCES * TOKENS], targets[SEQUENCES * TOKENS];
    ndm_batch batch = {SEQUENCES, inputs, targets, NULL, NULL};
    ndm_model_options shape = NDM_MODEL_OPTIONS_INIT;
    ndm_trainer_options options = NDM_TRAINER_OPTIONS_INIT;
    ndm_model *model = NULL;
    ndm_trainer *trainer = NULL;
    ndm_step_result result;
    ndm_status status;
    float distance;

    for (int i = 0; i < SEQUENCES * TOKENS; i++) {
        inputs[i] = (int32_t)((rank * 17 + i) % 100);
        targets[i] = (inputs[i] + 1) % 100;
    }
    shape.seq_len = TOKENS, shape.micro_batch = SEQUENCES, options.steps = STEPS;
    NDM_TRY_OR(status, ndm_model_create(context, "llama-tiny", NULL, &shape, &model), done);
    NDM_TRY_OR(status, ndm_model_init(model, 1), done);
    NDM_TRY_OR(status, ndm_trainer_create(model, &options, &trainer), done);
    for (int step = 0; step < STEPS; step++) {
        NDM_TRY_OR(status, ndm_trainer_step(trainer, &batch, &result), done);
        NDM_TRY_OR(status, spread(context, ndm_model_units(model, &n_units)[0], &distance), done);
        if (rank == 0)
            printf("step %d  loss %.7f  replicas %s\n", step + 1, result.loss,
                   distance > 0.0f ? "apart" : "equal");
    }
done:
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    return status;
}

int main(void)
{
    ndm_parallelism_config mesh = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context *context = NULL;

    mesh.dp_replicate = NDM_AUTO, mesh.dp_shard = 1;
    ndm_status status = ndm_strategy_register(&local_sgd);
    if (status == NDM_OK)
        status = ndm_context_create(&mesh, NULL, &context);
    if (status == NDM_OK) {
        status = train(context);
        status == NDM_OK ? ndm_context_destroy(context) : ndm_context_abandon(context);
    }
    if (status != NDM_OK)
        fprintf(stderr, "strategy_plugin: %s\n", ndm_error_message());
    return ndm_status_exit_code(status);
}
