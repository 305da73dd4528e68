/* SPDX-License-Identifier: Apache-2.0 */
/* Declares a mesh as a struct and trains a small Llama over it.
 *
 *     ./declare                                     one rank
 *     mpiexec.mpich -n 4 ./declare                  FSDP over 4
 *     mpiexec.mpich -n 4 ./declare 2 1 2            dp_replicate 2 x cp 1 x tp 2; dp_shard takes
 * the rest */
#include <stdio.h>
#include <stdlib.h>

#include <ndmesh/ndmesh.h>

enum { SEQUENCES = 4, TOKENS = 64, STEPS = 5 };

/* A text that is easy to learn: every token is followed by the next byte, within a hundred. */
static void fill(int64_t rank, int64_t ranks, int32_t *inputs, int32_t *targets)
{
    for (int64_t i = 0; i < SEQUENCES / ranks * TOKENS; i++) {
        int64_t sequence = rank * (SEQUENCES / ranks) + i / TOKENS;
        inputs[i] = (int32_t)((sequence * 31 + i % TOKENS) % 100);
        targets[i] = (inputs[i] + 1) % 100;
    }
}

static ndm_status train(ndm_context *context, const ndm_fsdp_config *fsdp)
{
    ndm_group dp = ndm_mesh_group(ndm_context_mesh(context), NDM_AXES_DP,
                                  ndm_context_rank(context));
    ndm_model_options shape = NDM_MODEL_OPTIONS_INIT;
    ndm_trainer_options options = NDM_TRAINER_OPTIONS_INIT;
    int32_t inputs[SEQUENCES * TOKENS], targets[SEQUENCES * TOKENS];
    ndm_batch batch = {SEQUENCES / dp.size, inputs, targets, NULL, NULL};
    ndm_model *model = NULL;
    ndm_trainer *trainer = NULL;
    ndm_step_result result;
    ndm_status status;

    shape.seq_len = TOKENS, shape.micro_batch = batch.sequences;
    options.steps = STEPS, options.optimizer.lr = 3e-3;
    fill(dp.index, dp.size, inputs, targets);
    NDM_TRY_OR(status, ndm_model_create(context, "llama-tiny", fsdp, &shape, &model), done);
    NDM_TRY_OR(status, ndm_model_init(model, 1), done);
    NDM_TRY_OR(status, ndm_trainer_create(model, &options, &trainer), done);
    for (int step = 0; step < STEPS; step++) {
        NDM_TRY_OR(status, ndm_trainer_step(trainer, &batch, &result), done);
        if (ndm_context_rank(context) == 0)
            printf("step %d  loss %.7f  grad_norm %.7f\n", step + 1, result.loss, result.grad_norm);
    }
done:
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    return status;
}

int main(int argc, char **argv)
{
    ndm_parallelism_config mesh = NDM_PARALLELISM_CONFIG_INIT; /* dp_shard takes all ranks */
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_context *context;

    mesh.dp_replicate = argc > 1 ? atoi(argv[1]) : 1;
    mesh.cp = argc > 2 ? atoi(argv[2]) : 1;
    mesh.tp = argc > 3 ? atoi(argv[3]) : 1;
    fsdp.wrap = NDM_WRAP_TRANSFORMER,
    fsdp.wrap_classes = (const char *[]){"LlamaDecoderLayer", NULL};
    ndm_status status = ndm_context_create(&mesh, NULL, &context);
    if (status == NDM_OK) {
        status = train(context, &fsdp);
        status == NDM_OK ? ndm_context_destroy(context) : ndm_context_abandon(context);
    }
    if (status != NDM_OK)
        fprintf(stderr, "declare: %s\n", ndm_error_message());
    return ndm_status_exit_code(status);
}
