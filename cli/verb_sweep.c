/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh sweep`: trains a few steps on every mesh shape of N ranks, each in a process of its own,
 * round after round in another order, and says which is best. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_facts.h"
#include "cli/bench_peak.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "cli/sweep.h"
#include "core/file.h"
#include "core/rng.h"
#include "model/config.h"
#include "train/options.h"

#define AT_LEAST(least) .min = (least), .max = INFINITY
#define FLAG .type = NDM_OPTION_BOOL, .initial = "false"
#define SHAPES .group = "Meshes"
#define RUNS .group = "Runs"
#define OUTPUT .group = "Output"

static const ndm_option options[] = {
    {.name = "ranks",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .required = true,
     .value = "N,N,...",
     .help = "numbers of ranks whose shapes are run",
     SHAPES},
    {.name = "filter",
     .type = NDM_OPTION_STRING,
     .value = "EXPR",
     .initially = "all",
     .help =
         "only shapes for which this holds: \"tp<=2 && dp_shard>1\"; also cp, dp, dp_replicate, "
         "ranks, micro_batch",
     SHAPES},
    {.name = "axes",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .value = "AXIS,...",
     .initially = "all",
     .help = "axes that may be above 1",
     SHAPES},
    {.name = "micro-batch",
     .type = NDM_OPTION_LIST,
     .initial = "1",
     .commas = true,
     .value = "N,N,...",
     .help = "samples of a data-parallel rank and forward pass",
     SHAPES},
    {.name = "recompute",
     .type = NDM_OPTION_LIST,
     .initial = "none",
     .commas = true,
     .value = "KIND,...",
     .help = "none, full, selective",
     SHAPES},
    {.name = "global-batch",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: the most ranks times the largest micro-batch",
     AT_LEAST(0),
     .unit = "samples",
     .help = "samples of a step, the same for every shape",
     SHAPES},

    {.name = "model",
     .type = NDM_OPTION_STRING,
     .required = true,
     .value = "DIR",
     .help = "folder, config.json or preset, as train takes it",
     RUNS},
    {.name = "data",
     .type = NDM_OPTION_STRING,
     .value = "FILE",
     .initially = "drawn tokens",
     .help = "training data",
     RUNS},
    {.name = "seq-len",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: the model's, at most 512",
     AT_LEAST(0),
     .unit = "tokens",
     .help = "length of a sample",
     RUNS},
    {.name = "steps",
     .type = NDM_OPTION_INT,
     .initial = "10",
     AT_LEAST(1),
     .help = "measured steps of a run",
     RUNS},
    {.name = "warmup-steps",
     .type = NDM_OPTION_INT,
     .initial = "2",
     AT_LEAST(0),
     .help = "steps before them",
     RUNS},
    {.name = "rounds",
     .type = NDM_OPTION_INT,
     .initial = "3",
     AT_LEAST(1),
     .help = "runs of every shape, all shapes in turn",
     RUNS},
    {.name = "seed",
     .type = NDM_OPTION_INT,
     .initial = "1",
     AT_LEAST(0),
     .help = "of order, tokens "
             "and weights",
     RUNS},
    {.name = "threads",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: cores over ranks",
     .min = 0,
     .max = 4096,
     .help = "threads of a rank",
     RUNS},
    {.name = "timeout",
     .type = NDM_OPTION_DOUBLE,
     .initial = "300",
     AT_LEAST(0.1),
     .unit = "seconds",
     .help = "a run that takes longer is ended and costs its row",
     RUNS},
    {.name = "reference",
     .type = NDM_OPTION_BOOL,
     .initial = "true",
     .help = "also run one rank, which losses and times are compared with",
     RUNS},
    {.name = "max-loss-difference",
     .needs = "reference",
     .type = NDM_OPTION_DOUBLE,
     .initial = "1e-4",
     AT_LEAST(0),
     .help = "rows that differ by so much from one rank are marked",
     RUNS},

    {.name = "out",
     .type = NDM_OPTION_STRING,
     .initial = "sweep.jsonl",
     .value = "FILE.jsonl",
     .help = "one line a run, kept as it ends",
     OUTPUT},
    {.name = "resume", FLAG, .help = "go on with that file: runs it has are not repeated", OUTPUT},
    {.name = "retry-failed",
     .needs = "resume",
     FLAG,
     .help = "with resume: repeat runs that failed",
     OUTPUT},
    {.name = "csv",
     .type = NDM_OPTION_STRING,
     .value = "FILE",
     .help = "write the rows as CSV",
     OUTPUT},
    {.name = "markdown",
     .type = NDM_OPTION_STRING,
     .value = "FILE",
     .help = "write the rows as a Markdown table",
     OUTPUT},
    {.name = "svg",
     .type = NDM_OPTION_STRING,
     .value = "DIR",
     .help = "draw a heat map, scaling, and bars of the step",
     OUTPUT},
    {.name = "json", FLAG, .help = "print one JSON document and nothing else", OUTPUT},
    {.name = "quiet", FLAG, .help = "no line a run on stderr", OUTPUT},
};

static const ndm_option_table table = {
    .command = "sweep",
    .usage = "--ranks N --model M [options] [-- more options of train]",
    .summary = "trains on every mesh shape of N ranks and compares",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

typedef struct sweep {
    ndm_options *options;
    const char **extra; /* [n_extra] for train */
    int n_extra;
    ndm_sweep_plan plan;
    ndm_sweep_log log;
    ndm_sweep_setting setting;
    char program[4096], folder[1024], data[1100];
    char *key;
    int64_t done, all; /* runs */
} sweep;

/* ---- set up
 * -------------------------------------------------------------------------------------- */

/* Tokens that depend on (seed, place) alone, enough for a run without repetition. */
static ndm_status draw_tokens(sweep *s, int64_t vocab)
{
    int64_t n = s->plan.global_batch * s->setting.steps * s->setting.seq_len + 1;
    ndm_status status;

    if (n > (int64_t)1 << 26)
        n = (int64_t)1 << 26; /* beyond, samples repeat */
    uint16_t *tokens = malloc((size_t)n * sizeof *tokens);
    if (tokens == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " tokens", n);
    if (vocab > UINT16_MAX)
        vocab = UINT16_MAX;
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (uint16_t)(ndm_rng_u64((uint64_t)s->setting.seed, 1, (uint64_t)i) %
                               (uint64_t)vocab);
    snprintf(s->data, sizeof s->data, "%s/tokens.bin", s->folder);
    status = ndm_file_write_atomic(s->data, tokens, (size_t)n * sizeof *tokens);
    free(tokens);
    s->setting.data = s->data;
    return status;
}

static ndm_status make_folder(sweep *s)
{
    const char *parent = getenv("TMPDIR") != NULL ? getenv("TMPDIR") : "/tmp";
    int n = snprintf(s->folder, sizeof s->folder, "%s/ndmesh-sweep-XXXXXX", parent);

    if (n < 0 || n >= (int)sizeof s->folder || mkdtemp(s->folder) == NULL) {
        s->folder[0] = '\0';
        NDM_FAIL(NDM_ERR_IO, "cannot make a folder in %s: %s", parent, strerror(errno));
    }
    s->setting.folder = s->folder;
    return NDM_OK;
}

static void remove_folder(const sweep *s)
{
    static const char *const names[] = {"metrics.jsonl", "output.txt", "tokens.bin"};
    char path[1100];

    if (s->folder[0] == '\0')
        return;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        snprintf(path, sizeof path, "%s/%s", s->folder, names[i]);
        unlink(path);
    }
    rmdir(s->folder);
}

static ndm_status set_up(sweep *s)
{
    enum { SEQ_LEN_MOST = 512 };
    const ndm_options *o = s->options;
    ndm_model_config model;

    NDM_TRY(ndm_sweep_plan_make(o, &s->plan));
    NDM_TRY(ndm_model_config_resolve(ndm_option_string(o, "model"), &model));
    NDM_TRY(ndm_cli_self(s->program, sizeof s->program));
    s->setting.program = s->program;
    s->setting.model = ndm_option_string(o, "model");
    s->setting.data = ndm_option_string(o, "data");
    s->setting.seq_len = ndm_option_int64(o, "seq-len");
    if (s->setting.seq_len == 0)
        s->setting.seq_len = model.max_positions < SEQ_LEN_MOST ? model.max_positions
                                                                : SEQ_LEN_MOST;
    s->setting.steps = ndm_option_int64(o, "steps") + ndm_option_int64(o, "warmup-steps");
    s->setting.seed = ndm_option_int64(o, "seed");
    s->setting.timeout_s = ndm_option_double(o, "timeout");
    s->setting.extra = s->extra;
    s->setting.n_extra = s->n_extra;
    NDM_TRY(make_folder(s));
    return s->setting.data == NULL ? draw_tokens(s, model.vocab) : NDM_OK;
}

/* What runs must have in common to be rows of one table. */
static ndm_status make_key(sweep *s)
{
    ndm_buffer key = {0};

    ndm_buffer_printf(&key,
                      "model %s, data %s, seq_len %" PRId64 ", global_batch %" PRId64
                      ", steps %" PRId64 " after %" PRId64 ", seed %" PRId64 ", threads %" PRId64,
                      s->setting.model, s->setting.data == s->data ? "drawn" : s->setting.data,
                      s->setting.seq_len, s->plan.global_batch,
                      ndm_option_int64(s->options, "steps"),
                      ndm_option_int64(s->options, "warmup-steps"), s->setting.seed,
                      ndm_option_int64(s->options, "threads"));
    for (int i = 0; i < s->n_extra; i++)
        ndm_buffer_printf(&key, " %s", s->extra[i]);
    NDM_TRY(ndm_buffer_status(&key));
    s->key = key.data; /* freed by the caller */
    return NDM_OK;
}

/* ---- runs
 * ---------------------------------------------------------------------------------------- */

/* Runs of a point end with one that did not end well. */
static bool wanted(const sweep *s, const ndm_sweep_point *p, int64_t round)
{
    if (ndm_sweep_log_find(&s->log, p->id, round) != NULL)
        return false;
    for (int64_t i = 0; i < s->log.n; i++)
        if (strcmp(s->log.runs[i].id, p->id) == 0 && s->log.runs[i].status != NDM_SWEEP_OK)
            return false;
    return true;
}

static void say(const sweep *s, const ndm_sweep_run *run)
{
    if (ndm_option_bool(s->options, "quiet"))
        return;
    fprintf(stderr, "[%" PRId64 "/%" PRId64 "] %s: ", s->done, s->all, run->id);
    if (run->status == NDM_SWEEP_OK)
        fprintf(stderr, "%.1f ms, loss %.6f\n", run->step_ms[run->n_steps - 1],
                run->loss[run->n_steps - 1]);
    else
        fprintf(stderr, "%s: %s\n", ndm_sweep_status_name(run->status), run->message);
}

static ndm_status run_point(sweep *s, const ndm_sweep_point *p, int64_t round)
{
    enum { PEAK_NS = 10000000 };
    ndm_sweep_run run = {.round = round};
    ndm_status status = NDM_OK;

    s->done++;
    if (!wanted(s, p, round))
        return NDM_OK;
    memcpy(run.id, p->id, sizeof run.id);
    s->setting.watch_memory = round == 0;
    if (p->grad_accum == 0) {
        run.status = NDM_SWEEP_INVALID;
        snprintf(run.message, sizeof run.message,
                 "sweep: global batch %" PRId64 " is no multiple of dp %" PRId64
                 " x micro-batch %" PRId64,
                 s->plan.global_batch, p->sizes[NDM_DP_REPLICATE] * p->sizes[NDM_DP_SHARD],
                 p->micro_batch);
    } else {
        run.peak_gflops = ndm_peak_fma_gflops((int)ndm_bench_cores(), PEAK_NS);
        status = ndm_sweep_child_run(&s->setting, p, &run);
    }
    if (status != NDM_OK) {
        ndm_sweep_run_finish(&run);
        return status;
    }
    say(s, &run);
    return ndm_sweep_log_add(&s->log, &run);
}

/* Without a model that one rank accepts, every row would be lost. */
static ndm_status run_reference(sweep *s)
{
    const ndm_sweep_point *one = &s->plan.points[0];

    NDM_TRY(run_point(s, one, 0));
    s->done--; /* its turn comes */
    const ndm_sweep_run *run = ndm_sweep_log_find(&s->log, one->id, 0);
    if (run != NULL && run->status == NDM_SWEEP_INVALID)
        NDM_FAIL(NDM_ERR_CONFIG, "sweep: the run on one rank is invalid: %s", run->message);
    if (run != NULL && run->status != NDM_SWEEP_OK)
        fprintf(stderr, "ndmesh: warning: sweep: no losses to compare with: one rank %s: %s\n",
                ndm_sweep_status_name(run->status), run->message);
    return NDM_OK;
}

static ndm_status run_rounds(sweep *s)
{
    int64_t rounds = ndm_option_int64(s->options, "rounds");
    uint64_t n = (uint64_t)s->plan.n, seed = (uint64_t)s->setting.seed;

    s->all = rounds * s->plan.n;
    if (s->plan.points[0].reference)
        NDM_TRY(run_reference(s));
    for (int64_t round = 0; round < rounds; round++)
        for (uint64_t i = 0; i < n; i++) {
            uint64_t at = ndm_rng_permute(seed, (uint64_t)round, i, n);
            NDM_TRY(run_point(s, &s->plan.points[at], round));
        }
    return NDM_OK;
}

/* ---- the verb
 * ------------------------------------------------------------------------------------ */

static ndm_status run_all(sweep *s)
{
    NDM_TRY(set_up(s));
    NDM_TRY(make_key(s));
    NDM_TRY(ndm_sweep_log_open(ndm_option_string(s->options, "out"), s->key,
                               ndm_option_bool(s->options, "resume"),
                               ndm_option_bool(s->options, "retry-failed"), &s->log));
    ndm_sweep_watch_signals();
    ndm_status status = run_rounds(s);
    if (status == NDM_OK || status == NDM_ERR_INTERRUPTED) {
        ndm_status reported = ndm_sweep_report(s->options, &s->plan, &s->log, s->key);
        status = status == NDM_OK ? reported : status;
    }
    return status;
}

/* Flags that the sweep gives itself, and those that leave it without results: the last of several
 * wins, and rows would tell of runs that were not. */
static ndm_status refuse_own_flags(const ndm_options *train)
{
    static const char *const own[] = {
        "ranks",        "model",     "data",    "seq-len", "steps",   "seed",
        "dp-replicate", "dp-shard",  "cp",      "tp",      "mesh",    "micro-batch",
        "grad-accum",   "recompute", "metrics", "quiet",   "dry-run", "print-config"};

    for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
        if (ndm_option_is_flag(train, own[i]))
            NDM_FAIL(NDM_ERR_USAGE, "sweep: --%s behind -- is not taken: the sweep says it itself",
                     own[i]);
    return NDM_OK;
}

static ndm_status check_extra(const sweep *s)
{
    const char **files = calloc((size_t)s->n_extra + 1, sizeof *files);
    ndm_options *train = NULL;
    int n_files;

    if (files == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", s->n_extra);
    ndm_status status = ndm_options_create(&ndm_train_option_table, &train);
    if (status == NDM_OK)
        status = ndm_options_load_args(train, s->n_extra, s->extra, files, &n_files);
    if (status == NDM_OK)
        status = refuse_own_flags(train);
    ndm_options_destroy(train);
    free(files);
    return status;
}

/* Threads and the flags behind `--` go to train. */
static ndm_status read_arguments(sweep *s, int argc, const char *const *argv)
{
    NDM_TRY(ndm_cli_options(&table, argc, argv, s->extra, &s->n_extra, &s->options));
    NDM_TRY(check_extra(s));
    if (ndm_option_int64(s->options, "threads") > 0) {
        s->extra[s->n_extra++] = "--threads";
        s->extra[s->n_extra++] = ndm_option_string(s->options, "threads");
    }
    return NDM_OK;
}

static ndm_status start(int argc, const char *const *argv)
{
    sweep s = {.log.fd = -1};

    s.extra = calloc((size_t)argc + 3, sizeof *s.extra);
    if (s.extra == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    ndm_status status = read_arguments(&s, argc, argv);
    if (status == NDM_OK)
        status = run_all(&s);
    remove_folder(&s);
    ndm_sweep_log_close(&s.log);
    ndm_sweep_plan_finish(&s.plan);
    ndm_options_destroy(s.options);
    free(s.key);
    free(s.extra);
    return status;
}

static int run(int argc, const char *const *argv)
{
    ndm_status status = start(argc, argv);

    if (status == NDM_ERR_INTERRUPTED) {
        ndm_cli_report(status);
        return 128 + ndm_sweep_signal();
    }
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_sweep = {&table, run, true};
