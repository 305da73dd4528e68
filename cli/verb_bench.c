/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh bench collectives | kernels | step`: measured speed, checked results; and `ndmesh bench
 * profile`, which writes it down for plans. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/launch.h"

#define COLLECTIVES .group = "bench collectives"
#define KERNELS .group = "bench kernels"
#define CHECKED .group = "bench collectives, kernels and step"
#define PROFILE .group = "bench profile"
#define AT_LEAST(least) .min = (least), .max = INFINITY
#define AXIS .type = NDM_OPTION_INT, .map = "auto=-1", AT_LEAST(-1), .unit = "ranks", COLLECTIVES
#define FLAG .type = NDM_OPTION_BOOL, .initial = "false"

static const ndm_option options[] = {
    {.name = "rounds",
     .type = NDM_OPTION_INT,
     .initial = "5",
     .min = 1,
     .max = 99,
     .help = "parts that the timed calls are cut into: a row is their median",
     .group = "bench collectives, kernels and profile"},

    {.name = "json", FLAG, .help = "print one JSON document and nothing else", CHECKED},
    {.name = "csv", FLAG, .help = "print the rows as CSV and nothing else", CHECKED},
    {.name = "threads",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: cores over local ranks",
     .min = 0,
     .max = 4096,
     .help = "threads of a rank",
     CHECKED},
    {.name = "seed",
     .type = NDM_OPTION_INT,
     .initial = "1",
     AT_LEAST(0),
     .help = "of contents",
     CHECKED},
    {.name = "spoil",
     FLAG,
     .help = "change one result before it is checked, to see that the check sees it: exit 6",
     CHECKED},

    {.name = "iters",
     .type = NDM_OPTION_INT,
     .initial = "20",
     AT_LEAST(1),
     .help = "-n: timed calls of a row",
     .group = "bench collectives and profile"},

    {.name = "ranks",
     .type = NDM_OPTION_INT,
     AT_LEAST(1),
     .initially = "those of mpiexec",
     .help = "start mpiexec with this many ranks",
     COLLECTIVES},
    {.name = "op",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .value = "OP",
     .initially = "all",
     .help = "-o: all_gather, reduce_scatter, all_reduce, all_to_all, broadcast, send_recv, "
             "barrier; sum or max chooses the reduction",
     COLLECTIVES},
    {.name = "min-bytes",
     .type = NDM_OPTION_SIZE,
     .initial = "4K",
     .min = 1,
     .max = INFINITY,
     .help = "-b: first size",
     COLLECTIVES},
    {.name = "max-bytes",
     .type = NDM_OPTION_SIZE,
     .initial = "16M",
     .min = 1,
     .max = INFINITY,
     .help = "-e: last size",
     COLLECTIVES},
    {.name = "step-factor",
     .type = NDM_OPTION_INT,
     .initial = "4",
     .min = 2,
     .max = 1048576,
     .help = "-f: each size over the one before",
     COLLECTIVES},
    {.name = "warmup-iters",
     .type = NDM_OPTION_INT,
     .initial = "5",
     AT_LEAST(0),
     .help = "-w: calls before the timed ones",
     COLLECTIVES},
    {.name = "check",
     .type = NDM_OPTION_INT,
     .initial = "1",
     .min = 0,
     .max = 1000,
     .help = "-c: calls whose results are checked, in each row; 0 = none",
     COLLECTIVES},
    {.name = "datatype",
     .type = NDM_OPTION_ENUM,
     .choices = "fp32|bf16|fp16|fp64|int32|int64",
     .initial = "fp32",
     .map = "float=fp32 bfloat16=bf16 half=fp16 double=fp64",
     .help = "-d: type of the elements",
     COLLECTIVES},
    {.name = "in-place",
     FLAG,
     .help = "all_gather and reduce_scatter inside one buffer",
     COLLECTIVES},
    {.name = "work-us",
     .type = NDM_OPTION_DOUBLE,
     .initial = "0",
     AT_LEAST(0),
     .help = "each rank works for so many microseconds before a call; times are without them",
     COLLECTIVES},
    {.name = "apart",
     .type = NDM_OPTION_SIZE,
     .initial = "0",
     .value = "BYTES",
     .min = 0,
     .max = INFINITY,
     .help = "calls take buffers in turn that have so much room together: none finds its own in a "
             "cache",
     COLLECTIVES},
    {.name = "memory",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|plain|window",
     .initial = "auto",
     .help = "send from windows that others read in place, as the engine does where it can",
     COLLECTIVES},
    {.name = "axis",
     .type = NDM_OPTION_STRING,
     .initial = "world",
     .value = "AXES",
     .help = "all groups of these axes at once: dp_shard, tp, dp_shard_cp, ...",
     COLLECTIVES},
    {.name = "dp-replicate", AXIS, .initial = "1", .help = "size of the axis"},
    {.name = "dp-shard", AXIS, .initial = "-1", .help = "size of the axis; -1: the rest"},
    {.name = "cp", AXIS, .initial = "1", .help = "size of the axis"},
    {.name = "tp", AXIS, .initial = "1", .help = "size of the axis"},
    {.name = "collectives",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|self|mpi|shm|nccl",
     .initial = "auto",
     .help = "transport",
     COLLECTIVES},
    {.name = "backend",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|cpu|cuda",
     .initial = "auto",
     .help = "device whose memory is sent",
     COLLECTIVES},
    {.name = "timeout",
     .type = NDM_OPTION_DOUBLE,
     .initial = "600",
     AT_LEAST(0.1),
     .unit = "seconds",
     .help = "deadline of every wait for another rank",
     COLLECTIVES},

    {.name = "filter",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .value = "TEXT",
     .initially = "all",
     .help = "only cases whose label or table has this text",
     KERNELS},
    {.name = "model",
     .type = NDM_OPTION_STRING,
     .initial = "llama-s",
     .value = "DIR",
     .help = "folder, config.json or preset whose layers give the shapes",
     KERNELS},
    {.name = "tokens",
     .type = NDM_OPTION_INT,
     .initial = "256",
     AT_LEAST(8),
     .help = "rows of the activations",
     KERNELS},

#include "cli/bench_step_options.def"

    {.name = "min-ms",
     .type = NDM_OPTION_DOUBLE,
     .initial = "2",
     AT_LEAST(0),
     .unit = "ms",
     .help = "a round repeats a kernel for so long at least",
     .group = "bench kernels and profile"},

    {.name = "out",
     .type = NDM_OPTION_STRING,
     .value = "FILE.yaml",
     .initially = "stdout",
     .help = "where the profile goes, for --cluster of plan, mesh and train",
     PROFILE},
    {.name = "profile-ranks",
     .type = NDM_OPTION_INT,
     .initial = "8",
     .min = 1,
     .max = 64,
     .help = "collectives are measured among 2, 4, ... up to so many ranks",
     PROFILE},
};

static const ndm_option_table table = {
    .command = "bench",
    .usage = "collectives|kernels|step|profile [options]",
    .summary = "measured speed, checked results; 'bench step' takes the options of train",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

/* The one-letter flags of nccl-tests. */
static const char *const letters[][2] = {
    {"-b", "--min-bytes"},    {"-e", "--max-bytes"}, {"-f", "--step-factor"}, {"-n", "--iters"},
    {"-w", "--warmup-iters"}, {"-c", "--check"},     {"-o", "--op"},          {"-d", "--datatype"},
};

static const char *long_flag(const char *arg)
{
    for (size_t i = 0; i < sizeof letters / sizeof letters[0]; i++)
        if (strcmp(arg, letters[i][0]) == 0)
            return letters[i][1];
    return arg;
}

/* Whether options of this group, "bench kernels and profile", are of that benchmark. */
static bool belongs(const char *group, const char *bench)
{
    return group == NULL || strstr(group, bench + strlen("bench ")) != NULL;
}

/* A flag of another benchmark would be ignored in silence. */
static ndm_status refuse_foreign(const ndm_options *o, const char *bench)
{
    for (size_t i = 0; i < table.n_options; i++) {
        const ndm_option *option = &table.options[i];
        if (ndm_option_is_flag(o, option->name) && !belongs(option->group, bench))
            NDM_FAIL(NDM_ERR_USAGE, "%s has no option --%s; it belongs to %s", bench, option->name,
                     option->group);
    }
    if (ndm_option_bool(o, "json") && ndm_option_bool(o, "csv"))
        NDM_FAIL(NDM_ERR_USAGE, "%s: --json and --csv exclude each other", bench);
    return NDM_OK;
}

static ndm_status read_options(const char *group, int argc, const char *const *argv,
                               ndm_options **read)
{
    const char **args = calloc((size_t)argc + 1, sizeof *args);

    if (args == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    for (int i = 0; i < argc; i++)
        args[i] = long_flag(argv[i]);
    ndm_status status = ndm_cli_options(&table, argc, args, NULL, NULL, read);
    free(args);
    NDM_TRY(status);
    status = refuse_foreign(*read, group);
    if (status != NDM_OK)
        ndm_options_destroy(*read);
    return status;
}

static ndm_status collectives(int argc, const char *const *argv)
{
    static const char *const verb[] = {"bench", "collectives", NULL};
    ndm_options *o = NULL;

    NDM_TRY(read_options("bench collectives", argc, argv, &o));
    int64_t ranks = ndm_option_int64(o, "ranks");
    ndm_status status = ndm_cli_starts_ranks(ranks) ? ndm_cli_exec_ranks(ranks, verb, argc, argv)
                                                    : ndm_bench_collectives(o);
    ndm_options_destroy(o);
    return status;
}

/* Of several ranks that a launcher started, the first is enough. */
static ndm_status kernels(int argc, const char *const *argv)
{
    ndm_options *o = NULL;

    if (ndm_cli_launcher_rank() > 0)
        return NDM_OK;
    NDM_TRY(read_options("bench kernels", argc, argv, &o));
    ndm_status status = ndm_bench_kernels(o);
    ndm_options_destroy(o);
    return status;
}

static ndm_status profile(int argc, const char *const *argv)
{
    ndm_options *o = NULL;

    if (ndm_cli_launcher_rank() > 0)
        return NDM_OK;
    NDM_TRY(read_options("bench profile", argc, argv, &o));
    ndm_status status = ndm_bench_profile(o);
    ndm_options_destroy(o);
    return status;
}

static ndm_status bench(int argc, const char *const *argv)
{
    static const struct {
        const char *name;
        ndm_status (*run)(int argc, const char *const *argv);
    } benches[] = {{"collectives", collectives},
                   {"kernels", kernels},
                   {"step", ndm_bench_step},
                   {"profile", profile}};
    enum { N = sizeof benches / sizeof benches[0] };
    const char *names[N];

    if (argc > 0 && strcmp(argv[0], "--profile") == 0)
        return profile(argc - 1, argv + 1);
    if (argc < 1 || argv[0][0] == '-')
        NDM_FAIL(NDM_ERR_USAGE, "bench: say what: collectives, kernels, step or profile");
    for (size_t i = 0; i < N; i++) {
        names[i] = benches[i].name;
        if (strcmp(argv[0], names[i]) == 0)
            return benches[i].run(argc - 1, argv + 1);
    }
    const char *nearest = ndm_text_nearest(argv[0], names, N);
    NDM_FAIL(NDM_ERR_USAGE, "bench: there is no '%.64s'; %s%s", argv[0],
             nearest != NULL ? "did you mean " : "there are collectives, kernels, step and profile",
             nearest != NULL ? nearest : "");
}

static int run(int argc, const char *const *argv)
{
    ndm_cli_watch_signals("");
    ndm_status status = bench(argc, argv);

    /* All ranks have counted the same wrong results; the first says so. */
    if (status == NDM_ERR_CHECK && ndm_cli_launcher_rank() > 0)
        return ndm_status_exit_code(status);
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_bench = {&table, run, false};
