/* SPDX-License-Identifier: Apache-2.0 */
/* Training over split sequences against the same training on one rank: loss, tokens and gradient
 * norm of some steps. Every rank also is a world of one, where it makes what is expected. */
#include <ndmesh/interop_mpi.h>

#include "harness.h"

#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ndmesh/trainer.h>

#include "core/rng.h"

enum { STEPS = 3, SEQUENCES = 2, MAX_SEQ = 64, VOCAB = 256 };

static const char *const methods[] = {"auto", "ring", "all_gather", "ulysses"};
enum { METHODS = sizeof methods / sizeof methods[0] };

static uint64_t seed(void)
{
    const char *text = getenv("NDM_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20240731;
}

typedef struct job {
    const char *name, *model;
    int64_t seq_len;
    int64_t documents;   /* starts in a sequence, about */
    int64_t valid_first; /* tokens from here on have labels ... */
    int64_t valid_count; /* ... this many */
    ndm_recompute recompute;
} job;

static const job jobs[] = {
    {"whole chunks", "llama-tiny", 48, 1, 0, 64, NDM_RECOMPUTE_NONE},
    {"a length that nothing divides", "llama-tiny", 37, 1, 0, 64, NDM_RECOMPUTE_NONE},
    {"fewer tokens than chunks", "llama-tiny", 3, 1, 0, 64, NDM_RECOMPUTE_NONE},
    {"learned positions, odd", "gpt2-tiny", 29, 1, 0, 64, NDM_RECOMPUTE_NONE},
    {"documents, odd, all made again", "llama-tiny", 41, 4, 0, 64, NDM_RECOMPUTE_FULL},
    {"labels of the first rank alone", "llama-tiny", 48, 1, 0, 6, NDM_RECOMPUTE_NONE},
    {"labels of the last tokens alone", "llama-tiny", 45, 2, 43, 2, NDM_RECOMPUTE_NONE},
    {"no labels", "llama-tiny", 24, 1, 0, 0, NDM_RECOMPUTE_NONE},
};
enum { JOBS = sizeof jobs / sizeof jobs[0] };

typedef struct outcome {
    ndm_status status;
    char message[256];
    ndm_step_result steps[STEPS];
} outcome;

/* The batch of a step: the same on all ranks. */
typedef struct data {
    int32_t inputs[SEQUENCES * MAX_SEQ], targets[SEQUENCES * MAX_SEQ],
        positions[SEQUENCES * MAX_SEQ], first[SEQUENCES * MAX_SEQ];
} data;

static void make_data(const job *j, uint64_t step, data *d)
{
    for (int64_t i = 0, start = 0; i < SEQUENCES * j->seq_len; i++) {
        int64_t place = i % j->seq_len;
        uint64_t random = ndm_rng_u64(seed(), step, (uint64_t)i);
        if (place == 0)
            start = 0;
        else if (j->documents > 1 && random % (uint64_t)(j->seq_len / j->documents) == 0)
            start = place;
        d->inputs[i] = (int32_t)(random >> 20) & (VOCAB - 1);
        d->targets[i] = (int32_t)(random >> 40) & (VOCAB - 1);
        if (place < j->valid_first || place >= j->valid_first + j->valid_count)
            d->targets[i] = -100;
        d->positions[i] = (int32_t)(place - start);
        d->first[i] = (int32_t)start;
    }
}

static ndm_status run_steps(const job *j, ndm_trainer *trainer, outcome *o)
{
    data d;

    for (int64_t step = 0; step < STEPS; step++) {
        make_data(j, (uint64_t)step, &d);
        ndm_batch batch = {SEQUENCES, d.inputs, d.targets, d.positions,
                           j->documents > 1 ? d.first : NULL};
        NDM_TRY(ndm_trainer_step(trainer, &batch, &o->steps[step]));
    }
    return NDM_OK;
}

static ndm_status train(const job *j, ndm_context *context, outcome *o)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_model_options options = NDM_MODEL_OPTIONS_INIT;
    ndm_trainer_options training = NDM_TRAINER_OPTIONS_INIT;
    ndm_model *model;
    ndm_trainer *trainer;

    options.micro_batch = SEQUENCES;
    options.seq_len = j->seq_len;
    options.recompute = j->recompute;
    training.steps = STEPS;
    NDM_TRY(ndm_model_create(context, j->model, &fsdp, &options, &model));
    NDM_TRY(ndm_model_init(model, seed()));
    NDM_TRY(ndm_trainer_create(model, &training, &trainer));
    ndm_status status = run_steps(j, trainer, o);
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    return status;
}

/* comm: MPI_COMM_SELF for what is expected, MPI_COMM_WORLD for what is tested. */
static outcome run(const job *j, const ndm_parallelism_config *mesh, MPI_Comm comm)
{
    ndm_context_options options = NDM_CONTEXT_OPTIONS_INIT;
    ndm_context *context;
    outcome o = {0};

    options.device = "cpu";
    options.kernels = "ref"; /* LeakSanitizer crashes once a gemm library is loaded */
    options.threads = 1;
    options.timeout_s = 60;
    ndm_context_options_take_mpi(&options, &comm);
    must(ndm_context_create(mesh, &options, &context));
    o.status = train(j, context, &o);
    if (o.status != NDM_OK)
        snprintf(o.message, sizeof o.message, "%s", ndm_error_message());
    ndm_context_destroy(context);
    return o;
}

static bool near(double x, double expected)
{
    return fabs(x - expected) <= 2e-5 * fabs(expected);
}

static bool same(const outcome *a, const outcome *b)
{
    bool good = a->status == NDM_OK && b->status == NDM_OK;

    for (int64_t i = 0; i < STEPS; i++) {
        const ndm_step_result *x = &a->steps[i], *y = &b->steps[i];
        good &= near(x->loss, y->loss) && near(x->grad_norm, y->grad_norm) &&
                x->tokens == y->tokens && x->tokens_total == y->tokens_total;
    }
    return good;
}

static void every_method_trains_like_one_rank(void **state)
{
    ndm_parallelism_config one = NDM_PARALLELISM_CONFIG_INIT, mesh = one;
    char text[400];

    (void)state;
    one.dp_shard = 1;
    mesh.dp_shard = 1;
    mesh.cp = ndm_world_size(world);
    for (int64_t i = 0; i < JOBS; i++) {
        outcome expected = run(&jobs[i], &one, MPI_COMM_SELF);
        for (int m = 0; m < METHODS; m++) {
            mesh.cp_method = (ndm_cp_method)m;
            outcome o = run(&jobs[i], &mesh, MPI_COMM_WORLD);
            snprintf(text, sizeof text, "%s: %s, seed %llu %s", jobs[i].name, methods[m],
                     (unsigned long long)seed(), o.message);
            if (mesh.cp == 3 && mesh.cp_method == NDM_CP_METHOD_ULYSSES) /* 4 heads */
                check_all_at(o.status == NDM_ERR_CONFIG, text, __FILE__, __LINE__);
            else
                check_all_at(same(&o, &expected), text, __FILE__, __LINE__);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_trains_like_one_rank),
    };

    return harness_run("cp_train", tests);
}
