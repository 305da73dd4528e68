/* SPDX-License-Identifier: Apache-2.0 */
/* One run: a context over a communicator, a model, STEPS steps, and what they leave behind. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "equiv.h"
#include <ndmesh/trainer.h>

_Noreturn void die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fprintf(stderr, "equiv: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

void record_finish(record *r)
{
    free(r->tensors);
    free(r->start);
    free(r->end);
    *r = (record){0};
}

/* Messages between host memories: in the cuda world that takes staging. */
static const char *collectives_of(const variant *v, const char *device)
{
    if (!v->collectives)
        return "auto";
    return strcmp(device, "cuda") == 0 ? "staged" : v->collectives;
}

static ndm_status open_context(const variant *v, const setup *s, ndm_context **context)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;

    p.dp_replicate = v->mesh[NDM_DP_REPLICATE];
    p.dp_shard = v->mesh[NDM_DP_SHARD];
    p.cp = v->mesh[NDM_CP];
    p.tp = v->mesh[NDM_TP];
    p.cp_method = v->cp_method;
    p.no_sequence_parallel = !v->sequence_parallel;
    o.device = s->device ? s->device : "cpu";
    o.collectives = collectives_of(v, o.device);
    o.threads = 1;
    o.timeout_s = 60;
    o.mpi_comm = &s->comm;
    return ndm_context_create(&p, &o, context);
}

static ndm_status open_model(const problem *p, const variant *v, const setup *s,
                             ndm_context *context, ndm_model **model)
{
    ndm_fsdp_config f = NDM_FSDP_CONFIG_INIT;
    ndm_model_options m = NDM_MODEL_OPTIONS_INIT;
    char path[512];

    f.zero = v->zero;
    f.reshard_after_forward = v->reshard;
    f.defer_sync = v->defer_sync;
    f.defer_replicas = v->defer_replicas;
    f.fp8_gather = v->fp8_gather;
    f.wrap = v->min_num_params > 0 ? NDM_WRAP_SIZE : NDM_WRAP_AUTO;
    f.min_num_params = v->min_num_params > 0 ? v->min_num_params : f.min_num_params;
    f.param_dtype = v->bf16 ? NDM_BF16 : NDM_F32;
    f.reduce_dtype = v->bf16 ? NDM_BF16 : NDM_F32;
    m.activation_dtype = v->bf16_activations ? NDM_BF16 : NDM_DTYPE_COUNT;
    m.fp8 = v->fp8;
    m.seq_len = SEQ_LEN;
    m.micro_batch = GLOBAL_BATCH / variant_size(v, NDM_AXES_DP) / v->accum;
    m.recompute = v->recompute;
    m.head_chunk = s->head_chunk ? s->head_chunk : 17;
    problem_write_config(p, path, sizeof path);
    ndm_status status = ndm_model_create(context, path, &f, &m, model);
    unlink(path);
    return status;
}

/* eps 1e-3: with 1e-8, Adam's first steps have the size lr whatever the gradient, and what is
 * rounding noise in a gradient becomes a whole step. lr 1e-2 and initial weights of 0.2 make
 * updates large beside the rounding of weights. */
static ndm_status open_trainer(const variant *v, const setup *s, ndm_model *model,
                               ndm_trainer **trainer)
{
    ndm_trainer_options t = NDM_TRAINER_OPTIONS_INIT;

    t.grad_accum = v->accum;
    t.graphs = s->graphs;
    t.steps = STEPS;
    t.lr_schedule = NDM_LR_COSINE;
    t.warmup = 2;
    t.min_lr_ratio = 0.1;
    t.optimizer.lr = 1e-2;
    t.optimizer.eps = 1e-3;
    return ndm_trainer_create(model, &t, trainer);
}

/* The samples of a step that are this data-parallel rank's. */
static void fill_batch(const problem *p, const variant *v, ndm_context *context, int64_t step,
                       int32_t *inputs, int32_t *targets)
{
    ndm_group dp = ndm_mesh_group(ndm_context_mesh(context), NDM_AXES_DP,
                                  ndm_context_rank(context));
    int64_t micro = GLOBAL_BATCH / dp.size / v->accum;

    for (int64_t a = 0; a < v->accum; a++)
        for (int64_t i = 0; i < micro; i++) {
            int64_t sample = (a * dp.size + dp.index) * micro + i;
            int64_t at = (a * micro + i) * SEQ_LEN;
            problem_sample(p, step, sample, inputs + at, targets + at);
        }
}

static ndm_status train(const problem *p, const variant *v, const setup *s, ndm_trainer *trainer,
                        ndm_model *model, record *out)
{
    static int32_t inputs[GLOBAL_BATCH * SEQ_LEN], targets[GLOBAL_BATCH * SEQ_LEN];
    int64_t sequences = GLOBAL_BATCH / variant_size(v, NDM_AXES_DP);
    bool replicas = variant_size(v, NDM_AXIS_DP_REPLICATE | NDM_AXIS_TP) > 1;

    for (int64_t step = 0; step < STEPS; step++) {
        ndm_batch batch = {sequences, inputs, targets, NULL, NULL};
        ndm_step_result result = {0};
        fill_batch(p, v, ndm_model_context(model), step, inputs, targets);
        NDM_TRY(ndm_trainer_step(trainer, &batch, &result));
        out->loss[step] = result.loss;
        out->norm[step] = result.grad_norm;
        out->tokens[step] = result.tokens;
        if (replicas && !replicas_equal(model, s->comm))
            out->replicas_differ = true;
        if (s->stepped)
            s->stepped(s->user, model);
    }
    return NDM_OK;
}

static ndm_status run_model(const problem *p, const variant *v, const setup *s, ndm_model *model,
                            record *out)
{
    ndm_trainer *trainer;

    tensors_of(model, out);
    out->start = calloc((size_t)out->total, sizeof *out->start);
    out->end = calloc((size_t)out->total, sizeof *out->end);
    if (!out->start || !out->end)
        die("no memory for a record");
    NDM_TRY(ndm_model_init(model, 7));
    weights_collect(model, out, s->comm, out->start);
    NDM_TRY(open_trainer(v, s, model, &trainer));
    if (s->opened)
        s->opened(s->user, model);
    ndm_status status = train(p, v, s, trainer, model, out);
    if (status == NDM_OK)
        weights_collect(model, out, s->comm, out->end);
    ndm_trainer_destroy(trainer);
    return status;
}

ndm_status run_variant(const problem *p, const variant *v, const setup *s, record *out)
{
    ndm_context *context;
    ndm_model *model;

    *out = (record){0};
    NDM_TRY(open_context(v, s, &context));
    ndm_status status = open_model(p, v, s, context, &model);
    if (status == NDM_OK) {
        status = run_model(p, v, s, model, out);
        ndm_model_destroy(model);
    }
    ndm_context_destroy(context);
    return status;
}
