/* SPDX-License-Identifier: Apache-2.0 */
/* Saves on one mesh and loads on another, for first dimensions 1..17: weights, moments, step, token
 * count and data position come back bit for bit. Wants 4 ranks; a mesh takes the first of them.
 *
 * Values are functions of (tensor, element), so what a mesh holds can be judged without another. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <mpi.h>

#include <ndmesh/interop_mpi.h>

#include "core/hash.h"
#include "train/checkpoint_files.h"
#include "train/trainer.h"
#include <ndmesh/checkpoint.h>

enum { SIZES = 17, STEP = 1234, TOKENS = 987654321, SAMPLES = 555, BLOCK_BYTES = 512 };

typedef struct mesh {
    const char *name;
    int64_t sizes[NDM_AXIS_COUNT];
} mesh;

/* dp_replicate, dp_shard, cp, tp */
static const mesh meshes[] = {
    {"1.1.1.1", {1, 1, 1, 1}}, {"1.2.1.1", {1, 2, 1, 1}}, {"1.1.1.2", {1, 1, 1, 2}},
    {"1.1.2.1", {1, 1, 2, 1}}, {"1.3.1.1", {1, 3, 1, 1}}, {"2.2.1.1", {2, 2, 1, 1}},
    {"1.2.1.2", {1, 2, 1, 2}}, {"1.1.2.2", {1, 1, 2, 2}}, {"1.1.1.4", {1, 1, 1, 4}},
    {"2.1.1.2", {2, 1, 1, 2}}, {"2.1.2.1", {2, 1, 2, 1}}, {"1.4.1.1", {1, 4, 1, 1}},
};
enum { MESHES = sizeof meshes / sizeof meshes[0] };

/* Saved on the first, loaded on the others: 12 pairs, every axis on both sides. */
static const int plan[][4] = {{6, 7, 4, 8}, {7, 0, 5, 9}, {0, 6, 11, 2}, {10, 8, 1, 3}};

static int rank;
static long long failures;

static _Noreturn void die(const char *what)
{
    fprintf(stderr, "meshes: %s: %s\n", what, ndm_error_message());
    MPI_Abort(MPI_COMM_WORLD, 1);
    _exit(1);
}

#define MUST(call)            \
    do {                      \
        if ((call) != NDM_OK) \
            die(#call);       \
    } while (0)

/* ---- values ---- */

/* Any bits are values, but moments and weights of a run are finite. */
static float value_of(const char *name, int stem, int64_t i)
{
    struct {
        uint64_t name;
        int64_t stem, i;
    } key = {ndm_hash_64(name, strlen(name)), stem, i};

    return (float)(int32_t)ndm_hash_64(&key, sizeof key) * 0x1p-31f;
}

static ndm_status give(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                       float *values)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = value_of(spec->name, *(const int *)user, first + i);
    return NDM_OK;
}

typedef struct tally {
    int stem;
    int64_t seen;
} tally;

static ndm_status judge(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                        float *values)
{
    tally *t = user;

    for (int64_t i = 0; i < count; i++) {
        int64_t at = first + i;
        float want = value_of(spec->name, t->stem, at);
        if (memcmp(&values[i], &want, sizeof want) == 0)
            continue;
        if (failures++ < 5)
            fprintf(stderr, "meshes: rank %d: %s%s[%lld] is %a, not %a\n", rank, spec->name,
                    ndm_checkpoint_stems[t->stem].suffix, (long long)at, (double)values[i],
                    (double)want);
    }
    t->seen += count;
    return NDM_OK;
}

/* ---- a run on a mesh ---- */

typedef struct place {
    MPI_Comm comm;
    ndm_context *context;
    ndm_model *model;
    ndm_trainer *trainer;
} place;

static int64_t ranks_of(const mesh *m)
{
    return m->sizes[0] * m->sizes[1] * m->sizes[2] * m->sizes[3];
}

/* n is the first dimension of the vocabulary's tables and of gate and up. */
static void write_config(const char *path, int n)
{
    FILE *f = fopen(path, "w");

    if (!f)
        die(path);
    fprintf(f,
            "{\"model_type\": \"llama\", \"hidden_size\": 8, \"num_hidden_layers\": 2,\n"
            " \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 2,\n"
            " \"intermediate_size\": %d, \"vocab_size\": %d, \"hidden_act\": \"silu\",\n"
            " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"max_position_embeddings\": 8,\n"
            " \"tie_word_embeddings\": %s, \"torch_dtype\": \"float32\"}\n",
            n, n, n % 2 ? "true" : "false");
    fclose(f);
}

static void open_place(const mesh *m, const char *config, place *p)
{
    ndm_parallelism_config pc = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options co = NDM_CONTEXT_OPTIONS_INIT;
    ndm_model_options mo = NDM_MODEL_OPTIONS_INIT;
    ndm_trainer_options to = NDM_TRAINER_OPTIONS_INIT;

    pc.dp_replicate = m->sizes[0], pc.dp_shard = m->sizes[1];
    pc.cp = m->sizes[2], pc.tp = m->sizes[3];
    ndm_context_options_take_mpi(&co, &p->comm);
    co.threads = 1;
    co.timeout_s = 60;
    mo.seq_len = 8;
    MUST(ndm_context_create(&pc, &co, &p->context));
    MUST(ndm_model_create(p->context, config, NULL, &mo, &p->model));
    MUST(ndm_trainer_create(p->model, &to, &p->trainer));
}

static void close_place(place *p)
{
    ndm_trainer_destroy(p->trainer);
    ndm_model_destroy(p->model);
    ndm_context_destroy(p->context);
}

/* The state of every stem from values, or judged against them. */
static void fill(const place *p)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(p->model, &n);
    ndm_optimizer *optimizer = ndm_trainer_optimizer(p->trainer);

    for (int64_t u = 0; u < n; u++) {
        int stems[] = {0, 1, 2};
        MUST(ndm_unit_read(units[u], give, &stems[0]));
        MUST(ndm_optimizer_read(optimizer, u, NDM_EXP_AVG, give, &stems[1]));
        MUST(ndm_optimizer_read(optimizer, u, NDM_EXP_AVG_SQ, give, &stems[2]));
    }
    ndm_trainer_set_progress(p->trainer, STEP, TOKENS);
}

/* Every element is judged by the one rank that would write it, so all are seen once. */
static void check(const place *p)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(p->model, &n);
    ndm_optimizer *optimizer = ndm_trainer_optimizer(p->trainer);
    tally t[] = {{.stem = 0}, {.stem = 1}, {.stem = 2}};

    for (int64_t u = 0; u < n; u++) {
        MUST(ndm_unit_write(units[u], NDM_UNIT_WEIGHTS, judge, &t[0]));
        MUST(ndm_optimizer_write(optimizer, u, NDM_EXP_AVG, judge, &t[1]));
        MUST(ndm_optimizer_write(optimizer, u, NDM_EXP_AVG_SQ, judge, &t[2]));
    }
    for (int s = 0; s < NDM_CHECKPOINT_STEMS; s++) {
        MPI_Allreduce(MPI_IN_PLACE, &t[s].seen, 1, MPI_INT64_T, MPI_SUM, p->comm);
        if (t[s].seen != ndm_model_parameters(p->model) && failures++ == 0)
            fprintf(stderr, "meshes: %lld elements were seen, not %lld\n", (long long)t[s].seen,
                    (long long)ndm_model_parameters(p->model));
    }
}

static void check_state(const place *p, const ndm_checkpoint_state *state)
{
    bool good = state->step == STEP && state->tokens_total == TOKENS && state->samples == SAMPLES &&
                state->seed == 77 && ndm_trainer_steps(p->trainer) == STEP &&
                ndm_trainer_tokens_total(p->trainer) == TOKENS;

    if (!good && failures++ < 5)
        fprintf(stderr, "meshes: step %lld, tokens %lld, samples %lld, seed %llu came back\n",
                (long long)state->step, (long long)state->tokens_total, (long long)state->samples,
                (unsigned long long)state->seed);
}

static void save(const mesh *m, const char *config, const char *folder, MPI_Comm comm)
{
    ndm_checkpoint_options o = NDM_CHECKPOINT_OPTIONS_INIT;
    place p = {.comm = comm};

    open_place(m, config, &p);
    fill(&p);
    o.block_bytes = BLOCK_BYTES; /* many blocks: whole ones, and ones that ranks share */
    o.shard_bytes = 2048;
    o.seed = 77;
    MUST(ndm_checkpoint_save(p.trainer, folder, &o, SAMPLES));
    check(&p); /* saving changed nothing */
    close_place(&p);
}

static void load(const mesh *m, const char *config, const char *folder, MPI_Comm comm)
{
    ndm_checkpoint_state state;
    char path[4096];
    place p = {.comm = comm};

    open_place(m, config, &p);
    MUST(ndm_checkpoint_latest(p.context, folder, path, sizeof path));
    MUST(ndm_checkpoint_load(p.trainer, path, &state));
    check(&p);
    check_state(&p, &state);
    close_place(&p);
}

typedef void (*step_fn)(const mesh *m, const char *config, const char *folder, MPI_Comm comm);

/* The first ranks of the world do it, the others wait. */
static void on_mesh(int index, step_fn step, const char *config, const char *folder)
{
    const mesh *m = &meshes[index];
    MPI_Comm comm;

    MPI_Comm_split(MPI_COMM_WORLD, rank < ranks_of(m) ? 0 : MPI_UNDEFINED, rank, &comm);
    if (comm != MPI_COMM_NULL) {
        step(m, config, folder, comm);
        MPI_Comm_free(&comm);
    }
    MPI_Barrier(MPI_COMM_WORLD);
}

static void try_size(const char *scratch, int n)
{
    char config[4096], folder[4096], path[4160];

    snprintf(config, sizeof config, "%s/config.json", scratch);
    if (rank == 0)
        write_config(config, n);
    MPI_Barrier(MPI_COMM_WORLD);
    for (size_t i = 0; i < sizeof plan / sizeof plan[0]; i++) {
        snprintf(folder, sizeof folder, "%s/%d-%zu", scratch, n, i);
        on_mesh(plan[i][0], save, config, folder);
        for (int j = 1; j < 4; j++) {
            long long before = failures;
            on_mesh(plan[i][j], load, config, folder);
            if (failures != before)
                fprintf(stderr, "meshes: rank %d: size %d, saved on %s, loaded on %s: differs\n",
                        rank, n, meshes[plan[i][0]].name, meshes[plan[i][j]].name);
        }
        snprintf(path, sizeof path, "%s/step-%08d", folder, STEP);
        if (rank == 0 && (ndm_checkpoint_remove(path) != NDM_OK || rmdir(folder) != 0))
            die(path);
    }
}

int main(int argc, char **argv)
{
    const char *base = getenv("TMPDIR");
    char scratch[2048];
    int size;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (size != 4)
        die("4 ranks are needed");
    snprintf(scratch, sizeof scratch, "%s/ndm-meshes-XXXXXX", base ? base : "/tmp");
    if (rank == 0 && !mkdtemp(scratch))
        die(scratch);
    MPI_Bcast(scratch, sizeof scratch, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int n = 1; n <= SIZES; n++)
        try_size(scratch, n);
    MPI_Allreduce(MPI_IN_PLACE, &failures, 1, MPI_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
    if (rank == 0 && ndm_checkpoint_remove(scratch) != NDM_OK)
        die(scratch);
    if (rank == 0)
        printf("12 pairs of meshes, first dimensions 1 to %d: %lld elements differ\n", SIZES,
               failures);
    MPI_Finalize();
    return failures ? 1 : 0;
}
