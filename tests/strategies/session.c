/* SPDX-License-Identifier: Apache-2.0 */
/* Small training runs. */
#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"

enum { SEED = 31 };

static const double LIMIT = 1e-5; /* sums in another order; tests/equiv says why not less */

task task_default(void)
{
    ndm_fsdp_config fsdp = NDM_FSDP_CONFIG_INIT;
    ndm_trainer_options trainer = NDM_TRAINER_OPTIONS_INIT;

    trainer.optimizer.lr = 1e-2;
    trainer.optimizer.eps = 1e-3; /* so that rounding noise is no whole step */
    return (task){.shape = {.hidden = 16,
                            .layers = 2,
                            .heads = 4,
                            .kv_heads = 2,
                            .head_dim = 4,
                            .ffn = 22,
                            .vocab = 37,
                            .pad_token = -1},
                  .mesh = {1, 1, 1, 1},
                  .collectives = "auto",
                  .fsdp = fsdp,
                  .seq_len = 12,
                  .batch = 12,
                  .accum = 1,
                  .steps = 1,
                  .trainer = trainer};
}

task task_on(task t, int64_t dp_replicate, int64_t dp_shard, int64_t cp, int64_t tp)
{
    t.mesh[NDM_DP_REPLICATE] = dp_replicate;
    t.mesh[NDM_DP_SHARD] = dp_shard;
    t.mesh[NDM_CP] = cp;
    t.mesh[NDM_TP] = tp;
    return t;
}

bool task_refused(const task *t)
{
    int64_t tp = t->mesh[NDM_TP], cp = t->mesh[NDM_CP], heads = t->shape.heads,
            kv_heads = t->shape.kv_heads;

    if (heads % tp || (kv_heads % tp && tp % kv_heads))
        return true;
    int64_t local = kv_heads > tp ? kv_heads / tp : 1;
    return t->cp_method == NDM_CP_METHOD_ULYSSES && cp > 1 &&
           (heads / tp % cp || (local % cp && cp % local));
}

void task_sequence(const task *t, int64_t step, int64_t index, sequence *s)
{
    uint64_t stream = ndm_rng_stream("sequence"),
             first = (uint64_t)((step * t->batch + index) * (MAX_SEQ + 1)),
             vocab = t->preset ? 256 : (uint64_t)t->shape.vocab;

    for (int64_t i = 0; i < t->seq_len; i++) {
        s->inputs[i] = (int32_t)(ndm_rng_u64(SEED, stream, first + (uint64_t)i) % vocab);
        s->targets[i] = (int32_t)(ndm_rng_u64(SEED, stream, first + (uint64_t)i + 1) % vocab);
        s->positions[i] = (int32_t)i;
        s->first[i] = 0;
    }
    if (t->fill)
        t->fill(t, step, index, s);
}

/* ---- sessions --------------------------------------------------------------------------------
 */

static void write_config(const shape *s, char *path, size_t path_bytes)
{
    const char *folder = getenv("TMPDIR");
    int fd;
    FILE *f;

    snprintf(path, path_bytes, "%s/ndm-task-XXXXXX.json", folder ? folder : "/tmp");
    fd = mkstemps(path, 5);
    f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        die("%s cannot be written", path);
    fprintf(f,
            "{\"model_type\": \"%s\", \"hidden_size\": %lld, \"num_hidden_layers\": %lld,\n"
            " \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"head_dim\": %lld,\n"
            " \"intermediate_size\": %lld, \"vocab_size\": %lld, \"hidden_act\": \"silu\",\n"
            " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"max_position_embeddings\": 64,\n"
            " \"initializer_range\": 0.2, \"tie_word_embeddings\": %s",
            s->window ? "mistral" : "llama", (long long)s->hidden, (long long)s->layers,
            (long long)s->heads, (long long)s->kv_heads, (long long)s->head_dim, (long long)s->ffn,
            (long long)s->vocab, s->tied ? "true" : "false");
    if (s->window)
        fprintf(f, ", \"sliding_window\": %lld", (long long)s->window);
    if (s->pad_token >= 0)
        fprintf(f, ", \"pad_token_id\": %lld", (long long)s->pad_token);
    fprintf(f, "}\n");
    if (fclose(f))
        die("%s cannot be written", path);
}

static ndm_status open_context(const task *t, const MPI_Comm *comm, ndm_context **context)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;

    p.dp_replicate = t->mesh[NDM_DP_REPLICATE];
    p.dp_shard = t->mesh[NDM_DP_SHARD];
    p.cp = t->mesh[NDM_CP];
    p.tp = t->mesh[NDM_TP];
    p.cp_method = t->cp_method;
    p.no_sequence_parallel = t->no_sequence_parallel;
    o.device = "cpu";
    o.collectives = t->collectives;
    o.threads = 1;
    o.timeout_s = 60;
    o.mpi_comm = comm;
    return ndm_context_create(&p, &o, context);
}

static int64_t data_ranks(const task *t)
{
    return t->mesh[NDM_DP_REPLICATE] * t->mesh[NDM_DP_SHARD];
}

static ndm_status open_model(session *s)
{
    const task *t = &s->task;
    ndm_model_options o = NDM_MODEL_OPTIONS_INIT;
    char path[512] = "";

    o.micro_batch = t->batch / data_ranks(t) / t->accum;
    o.seq_len = t->seq_len;
    o.recompute = t->recompute;
    o.fp8 = t->fp8;
    o.label_smoothing = t->label_smoothing;
    o.tp_overlap_chunks = t->tp_overlap_chunks;
    o.head_chunk = t->preset ? 0 : 17;
    if (!t->preset)
        write_config(&t->shape, path, sizeof path);
    ndm_status status = ndm_model_create(s->context, t->preset ? t->preset : path, &t->fsdp, &o,
                                         &s->model);
    if (!t->preset)
        unlink(path);
    return status;
}

static ndm_status open_parts(session *s)
{
    ndm_trainer_options o = s->task.trainer;

    o.grad_accum = s->task.accum;
    if (o.steps < s->task.steps)
        o.steps = s->task.steps;
    NDM_TRY(open_model(s));
    NDM_TRY(ndm_model_init(s->model, 7));
    return ndm_trainer_create(s->model, &o, &s->trainer);
}

ndm_status session_open(const task *t, const MPI_Comm *comm, session *s)
{
    *s = (session){.task = *t};
    NDM_TRY(open_context(t, comm, &s->context));
    ndm_status status = open_parts(s);
    if (status != NDM_OK)
        session_close(s);
    return status;
}

void session_close(session *s)
{
    ndm_trainer_destroy(s->trainer);
    ndm_model_destroy(s->model);
    ndm_context_destroy(s->context);
    *s = (session){0};
}

/* The sequences of a step that are this data-parallel rank's: [n, seq_len] arrays. */
typedef struct arrays {
    int32_t *inputs, *targets, *positions, *first;
} arrays;

static void fill_arrays(const session *s, int64_t step, const arrays *a)
{
    const task *t = &s->task;
    ndm_group dp = ndm_mesh_group(ndm_context_mesh(s->context), NDM_AXES_DP,
                                  ndm_context_rank(s->context));
    int64_t micro = t->batch / dp.size / t->accum;

    for (int64_t i = 0; i < micro * t->accum; i++) {
        size_t bytes = (size_t)t->seq_len * sizeof *a->inputs;
        int64_t index = (i / micro * dp.size + dp.index) * micro + i % micro;
        sequence q;
        task_sequence(t, step, index, &q);
        memcpy(a->inputs + i * t->seq_len, q.inputs, bytes);
        memcpy(a->targets + i * t->seq_len, q.targets, bytes);
        memcpy(a->positions + i * t->seq_len, q.positions, bytes);
        memcpy(a->first + i * t->seq_len, q.first, bytes);
    }
}

static ndm_batch make_batch(const session *s, int64_t step)
{
    int64_t sequences = s->task.batch / data_ranks(&s->task), n = sequences * s->task.seq_len;
    int32_t *memory = calloc((size_t)(4 * n), sizeof *memory);

    if (!memory)
        die("no memory for a batch");
    arrays a = {memory, memory + n, memory + 2 * n, memory + 3 * n};
    fill_arrays(s, step, &a);
    return (ndm_batch){sequences, a.inputs, a.targets, a.positions, a.first};
}

ndm_status session_step(session *s, int64_t step, ndm_step_result *result)
{
    ndm_batch batch = make_batch(s, step);
    ndm_status status = ndm_trainer_step(s->trainer, &batch, result);

    free((void *)batch.inputs);
    return status;
}

ndm_status session_evaluate(session *s, int64_t step, double *sum, int64_t *tokens)
{
    ndm_batch batch = make_batch(s, step);
    ndm_status status = ndm_trainer_evaluate(s->trainer, &batch, sum, tokens);

    free((void *)batch.inputs);
    return status;
}

/* ---- runs ------------------------------------------------------------------------------------
 */

static ndm_status train(session *s, MPI_Comm comm, record *out)
{
    weights_collect(s->model, out, comm, out->start);
    for (int64_t step = 0; step < s->task.steps; step++) {
        ndm_step_result result = {0};
        NDM_TRY(session_step(s, step, &result));
        out->loss[step] = result.loss;
        out->norm[step] = result.grad_norm;
        out->tokens[step] = result.tokens;
        if (!replicas_equal(s->model, comm))
            out->replicas_differ = true;
    }
    weights_collect(s->model, out, comm, out->end);
    return NDM_OK;
}

ndm_status task_run(const task *t, MPI_Comm comm, record *out)
{
    session s;

    *out = (record){0};
    NDM_TRY(session_open(t, &comm, &s));
    tensors_of(s.model, out);
    out->start = calloc((size_t)out->total, sizeof *out->start);
    out->end = calloc((size_t)out->total, sizeof *out->end);
    if (!out->start || !out->end)
        die("no memory for a record");
    ndm_status status = train(&s, comm, out);
    session_close(&s);
    return status;
}

bool alike(const record *got, const record *want)
{
    errors e = compare(got, want);
    bool good = e.loss <= LIMIT && e.norm <= LIMIT && e.update <= LIMIT && !got->replicas_differ;

    if (!good)
        fprintf(stderr, "errors: loss %.1e norm %.1e update %.1e (%s)%s\n", e.loss, e.norm,
                e.update, e.tensor ? e.tensor : "-", got->replicas_differ ? ", replicas" : "");
    return good;
}

static void print_task(const task *t)
{
    print_message("  mesh %lld.%lld.%lld.%lld, cp method %d, %s\n", (long long)t->mesh[0],
                  (long long)t->mesh[1], (long long)t->mesh[2], (long long)t->mesh[3],
                  (int)t->cp_method, t->no_sequence_parallel ? "no sp" : "sp");
}

void check_like_one_rank(const task *t)
{
    task alone = task_on(*t, 1, 1, 1, 1);
    record got, want = {0};

    print_task(t);
    ndm_status status = task_run(t, MPI_COMM_WORLD, &got);
    if (task_refused(t)) {
        check_all(status == NDM_ERR_CONFIG);
        record_finish(&got);
        return;
    }
    ok_all(status);
    if (ndm_world_rank(world) == 0)
        must(task_run(&alone, MPI_COMM_SELF, &want));
    check_all(ndm_world_rank(world) != 0 || alike(&got, &want));
    record_finish(&got);
    record_finish(&want);
}

void check_every_mesh(task t)
{
    variant_list meshes;

    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        const int64_t *mesh = meshes.items[i].mesh;
        t = task_on(t, mesh[0], mesh[1], mesh[2], mesh[3]);
        check_like_one_rank(&t);
    }
    free(meshes.items);
}
