/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh plan`: what a run would take and how fast it would be, on a cluster that is not there. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/plan_view.h"
#include "kernels/cost.h"
#include "model/config.h"
#include "train/auto_mesh.h"
#include "train/options.h"
#include "train/run_setup.h"

#define COUNT_OF(array) (sizeof(array) / sizeof *(array))
#define SIZE_OPTION(option_name, default_text, text)                                             \
    {                                                                                            \
        .name = option_name, .type = NDM_OPTION_INT, .initial = default_text, .map = "auto=-1",  \
        .check = ndm_train_check_axis, .min = -1, .max = INFINITY, .help = text, .group = "Mesh" \
    }
#define COUNT_OPTION(option_name, default_text, group_name, text)                       \
    {                                                                                   \
        .name = option_name, .type = NDM_OPTION_INT, .initial = default_text, .min = 1, \
        .max = INFINITY, .help = text, .group = group_name                              \
    }
#define FLAG_OPTION(option_name, group_name, text)                                      \
    {                                                                                   \
        .name = option_name, .type = NDM_OPTION_BOOL, .initial = "false", .help = text, \
        .group = group_name                                                             \
    }

static const ndm_option options[] = {
    {.name = "model",
     .type = NDM_OPTION_STRING,
     .value = "NAME|DIR",
     .required = true,
     .help = "a preset, a folder with config.json, or a config.json",
     .group = "What"},
    {.name = "cluster",
     .type = NDM_OPTION_STRING,
     .value = "NAME|FILE.yaml",
     .required = true,
     .help = "profile of the machines, such as h100x8",
     .group = "What"},
    COUNT_OPTION("ranks", NULL, "What", "number of ranks"),
    COUNT_OPTION("seq-len", NULL, "What", "tokens of a sample; default: the model's"),
    COUNT_OPTION("micro-batch", NULL, "What",
                 "samples of a forward; default: open, the fastest that fits"),
    COUNT_OPTION("grad-accum", "1", "What", "micro-batches of a step"),
    {.name = "stack",
     .type = NDM_OPTION_STRING,
     .initial = "ndmesh",
     .value = "NAME",
     .help = "software: ndmesh, compiled, eager, xla, megatron, foundry, ...",
     .group = "What"},
    {.name = "set",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .value = "KEY=NUMBER",
     .help = "a number of the profile replaced",
     .group = "What"},
    FLAG_OPTION("fp8", "What", "matrix products of layers in 8 bit"),
    SIZE_OPTION("dp-replicate", "1", "replicas of the sharded group; -1 = the rest"),
    SIZE_OPTION("dp-shard", "-1", "ranks that shard the states; -1 = the rest"),
    SIZE_OPTION("cp", "1", "ranks that share one sequence"),
    SIZE_OPTION("tp", "1", "ranks that share one layer's matrix products"),
    {.name = "mesh",
     .type = NDM_OPTION_ENUM,
     .choices = "given|auto",
     .initial = "given",
     .help = "auto: the fastest for the sizes that are not given, as where several are -1",
     .group = "Mesh"},
    {.name = "cp-method",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|ring|all_gather|ulysses",
     .initial = "auto",
     .help = "how attention over a split sequence communicates",
     .group = "Mesh"},
    {.name = "sequence-parallel",
     .type = NDM_OPTION_BOOL,
     .initial = "true",
     .help = "split activations by token between the regions of tp",
     .group = "Mesh"},
    {.name = "zero",
     .type = NDM_OPTION_INT,
     .initial = "3",
     .min = 1,
     .max = 3,
     .help = "what is sharded: 1 optimizer state, 2 and gradients, 3 and weights",
     .group = "Sharding"},
    {.name = "reshard-after-forward",
     .type = NDM_OPTION_STRING,
     .value = "true|false|K",
     .initial = "true",
     .help = "free gathered weights after forward; K keeps a copy over K neighbours",
     .group = "Sharding"},
    {.name = "live-units",
     .type = NDM_OPTION_INT,
     .initial = "3",
     .min = 2,
     .max = INFINITY,
     .help = "gathered units held at a time",
     .group = "Sharding"},
    FLAG_OPTION("defer-sync", "Sharding", "reduce gradients at the last micro-batch only"),
    {.name = "dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "auto|fp32|bf16",
     .initial = "auto",
     .initially = "that of the cluster's activations",
     .help = "type of gathered weights",
     .group = "Numbers and memory"},
    {.name = "reduce-dtype",
     .type = NDM_OPTION_ENUM,
     .choices = "fp32|bf16",
     .initial = "fp32",
     .help = "type of gradients on the wire",
     .group = "Numbers and memory"},
    {.name = "recompute",
     .type = NDM_OPTION_ENUM,
     .choices = "none|full|selective",
     .initially = "open: the fastest that fits",
     .help = "activations that backward computes again",
     .group = "Numbers and memory"},
    {.name = "head-chunk",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .initially = "0: logits of 64 MiB in fp32, of 512 MiB in 16 bit",
     .min = 0,
     .max = INFINITY,
     .help = "tokens whose logits exist at a time",
     .group = "Numbers and memory"},
    {.name = "rank",
     .type = NDM_OPTION_INT,
     .initial = "0",
     .min = 0,
     .max = INFINITY,
     .help = "rank that is run; all others do as it does",
     .group = "Output"},
    FLAG_OPTION("search", "Output",
                "all meshes, micro-batches and recomputes that are not given; the fastest first"),
    {.name = "top",
     .needs = "search",
     .type = NDM_OPTION_INT,
     .initial = "10",
     .initially = "10; in JSON all",
     .min = 1,
     .max = INFINITY,
     .help = "rows of a search that are shown",
     .group = "Output"},
    FLAG_OPTION("explain", "Output", "also say what limits the step and what would move it"),
    {.name = "trace",
     .type = NDM_OPTION_STRING,
     .value = "FILE.json",
     .help = "time line of a step, for Chrome or Perfetto",
     .group = "Output"},
    {.name = "svg",
     .type = NDM_OPTION_STRING,
     .value = "FILE.svg",
     .help = "picture of memory by kind and of the time line of a step",
     .group = "Output"},
    FLAG_OPTION("json", "Output", "print one JSON document"),
};

static const ndm_option_table table = {
    .command = "plan",
    .usage = "[RUN.yaml] --model NAME --cluster NAME --ranks N [options]",
    .summary = "Plans a run: memory, time and speed on a cluster that is not there",
    .options = options,
    .n_options = COUNT_OF(options),
    .file = &ndm_train_option_table,
};

/* ---- from options to a request ------------------------------------------------------------ */

typedef struct plan {
    const ndm_options *options;
    ndm_sim_machine machine;
    ndm_sim_stack stack;
    ndm_plan_request request;
    ndm_plan_open open;
} plan;

static ndm_status read_machine(plan *p)
{
    const ndm_options *o = p->options;

    NDM_TRY(ndm_plan_load_cluster(ndm_option_string(o, "cluster"), &p->machine));
    NDM_TRY(ndm_cost_stack(ndm_option_string(o, "stack"), &p->stack));
    p->stack.fp8 = ndm_option_bool(o, "fp8");
    if (p->stack.fp8 && p->machine.fp8_speedup <= 0.0)
        NDM_FAIL(NDM_ERR_CONFIG, "plan: the chips of %s have no fp8", p->machine.name);
    for (size_t i = 0; i < ndm_option_count(o, "set"); i++)
        NDM_TRY(ndm_plan_set(&p->machine, &p->stack, ndm_option_item(o, "set", i)));
    if (ndm_option_int64(o, "ranks") > 0)
        ndm_plan_share_host(&p->machine, ndm_option_int64(o, "ranks"), 1);
    return NDM_OK;
}

static void read_mesh(plan *p)
{
    const ndm_options *o = p->options;
    ndm_parallelism_config m = NDM_PARALLELISM_CONFIG_INIT;
    bool search = ndm_option_bool(o, "search");

    m.dp_replicate = ndm_option_int64(o, "dp-replicate");
    m.dp_shard = ndm_option_int64(o, "dp-shard");
    m.cp = ndm_option_int64(o, "cp");
    m.tp = ndm_option_int64(o, "tp");
    m.cp_method = (ndm_cp_method)ndm_option_enum(o, "cp-method");
    m.no_sequence_parallel = !ndm_option_bool(o, "sequence-parallel");
    p->request.parallelism = m;
    p->open.mesh = ndm_auto_mesh_sizes(o, search, p->open.fixed) || search;
}

static ndm_status read_fsdp(plan *p)
{
    const ndm_options *o = p->options;
    const char *dtype = ndm_option_string(o, "dtype");
    ndm_fsdp_config f = NDM_FSDP_CONFIG_INIT;
    bool narrow = strcmp(dtype, "auto") == 0 ? p->machine.activation_bytes < 4
                                             : strcmp(dtype, "bf16") == 0;

    NDM_TRY(ndm_setup_sharding(o, &f));
    f.live_units = ndm_option_int64(o, "live-units");
    f.defer_sync = ndm_option_bool(o, "defer-sync");
    f.param_dtype = narrow ? NDM_BF16 : NDM_F32;
    f.reduce_dtype = ndm_option_enum(o, "reduce-dtype") == 1 ? NDM_BF16 : NDM_F32;
    p->request.fsdp = f;
    return NDM_OK;
}

static ndm_status read_model(plan *p)
{
    const ndm_options *o = p->options;
    ndm_model_config config = {0};
    ndm_model_options m = NDM_MODEL_OPTIONS_INIT;

    NDM_TRY(ndm_model_config_resolve(ndm_option_string(o, "model"), &config));
    m.seq_len = ndm_option_int64(o, "seq-len");
    if (m.seq_len == 0)
        m.seq_len = config.max_positions;
    m.micro_batch = ndm_option_int64(o, "micro-batch");
    m.recompute = (ndm_recompute)ndm_option_enum(o, "recompute");
    m.head_chunk = ndm_option_int64(o, "head-chunk");
    ndm_model_config_finish(&config);
    p->open.micro_batch = !ndm_option_has_value(o, "micro-batch");
    p->open.recompute = !ndm_option_has_value(o, "recompute");
    p->open.micro_batch_max = 16;
    if (p->open.micro_batch)
        m.micro_batch = 1;
    if (p->open.recompute)
        m.recompute = NDM_RECOMPUTE_NONE;
    p->request.options = m;
    return NDM_OK;
}

static ndm_status read_plan(plan *p)
{
    const ndm_options *o = p->options;

    NDM_TRY(read_machine(p));
    read_mesh(p);
    NDM_TRY(read_fsdp(p));
    NDM_TRY(read_model(p));
    p->request.model = ndm_option_string(o, "model");
    p->request.machine = &p->machine;
    p->request.stack = &p->stack;
    p->request.ranks = ndm_option_int64(o, "ranks");
    p->request.rank = ndm_option_int64(o, "rank");
    p->request.grad_accum = ndm_option_int64(o, "grad-accum");
    p->request.logits_bytes = 512 << 20;
    p->request.trace = ndm_option_string(o, "trace");
    p->request.svg = ndm_option_string(o, "svg");
    if (p->request.ranks < 1)
        NDM_FAIL(NDM_ERR_USAGE, "plan: --ranks is required");
    return NDM_OK;
}

/* ---- what is asked ------------------------------------------------------------------------ */

static ndm_status print_rows(const plan *p, const ndm_plan_rows *rows)
{
    int64_t ranks;

    ndm_plan_print_rows(&p->request, rows, ndm_option_int64(p->options, "top"), stdout);
    if (rows->fit > 0)
        return NDM_OK;
    NDM_TRY(ndm_plan_ranks_that_fit(&p->request, &p->open, &ranks));
    if (ranks > 0)
        printf("  with --ranks %lld some fit\n", (long long)ranks);
    return NDM_OK;
}

static ndm_status print_rows_json(const plan *p, ndm_plan_rows *rows)
{
    int64_t top = ndm_option_int64(p->options, "top");

    if (ndm_option_is_set(p->options, "top") && rows->n > top)
        rows->n = top;
    return ndm_plan_print_rows_json(&p->request, rows, stdout);
}

static ndm_status show_search(const plan *p)
{
    static const char *const of_one[] = {"trace", "svg", "explain"};
    const ndm_options *o = p->options;
    ndm_plan_rows rows;
    ndm_status status = NDM_OK;

    for (size_t i = 0; i < COUNT_OF(of_one); i++)
        if (ndm_option_is_set(o, of_one[i]))
            NDM_FAIL(NDM_ERR_USAGE, "plan: --%s is about one plan, --search ranks many", of_one[i]);
    NDM_TRY(ndm_plan_search(&p->request, &p->open, &rows));
    if (rows.n == 0)
        NDM_FAIL(NDM_ERR_CONFIG, "plan: no mesh of %lld ranks has the sizes that are given",
                 (long long)p->request.ranks);
    if (ndm_option_bool(o, "json"))
        status = print_rows_json(p, &rows);
    else
        status = print_rows(p, &rows);
    free(rows.items);
    return status;
}

static void name_open(const ndm_plan_open *open, char *text, size_t bytes)
{
    const struct {
        bool is;
        const char *name;
    } parts[] = {
        {open->mesh, "mesh"}, {open->micro_batch, "micro-batch"}, {open->recompute, "recompute"}};
    size_t used = 0;

    text[0] = '\0';
    for (size_t i = 0; i < COUNT_OF(parts); i++)
        if (parts[i].is && used < bytes)
            used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? ", " : "",
                                     parts[i].name);
}

/* The first row: the fastest that fits, or the one that splits most where none does. */
static void take(plan *p, const ndm_plan_rows *rows)
{
    if (p->open.mesh && rows->n > 0)
        ndm_plan_row_mesh(&rows->items[0], &p->request.parallelism);
    if (p->open.micro_batch)
        p->request.options.micro_batch = rows->fit ? rows->items[0].micro_batch : 1;
    if (p->open.recompute)
        p->request.options.recompute = rows->fit ? rows->items[0].recompute : NDM_RECOMPUTE_FULL;
}

/* Settles what is open: the fastest that fits, and the range of those that do. Where none does, the
 * least. */
static ndm_status settle(plan *p, ndm_plan_range *range)
{
    ndm_plan_rows rows;
    double ranks = (double)p->request.ranks;

    name_open(&p->open, range->what, sizeof range->what);
    NDM_TRY(ndm_plan_search(&p->request, &p->open, &rows));
    range->n = rows.fit;
    for (int64_t i = 0; i < rows.fit; i++) {
        const ndm_plan_row *r = &rows.items[i];
        double tokens = r->tokens_per_s / ranks;
        bool first = i == 0;
        range->tokens_low = first || tokens < range->tokens_low ? tokens : range->tokens_low;
        range->tokens_high = first || tokens > range->tokens_high ? tokens : range->tokens_high;
        range->needed_low = first || r->needed < range->needed_low ? r->needed : range->needed_low;
        range->needed_high = first || r->needed > range->needed_high ? r->needed
                                                                     : range->needed_high;
    }
    take(p, &rows);
    free(rows.items);
    return NDM_OK;
}

static ndm_status show_plan(plan *p)
{
    const ndm_options *o = p->options;
    bool open = p->open.mesh || p->open.micro_batch || p->open.recompute;
    ndm_plan_range range = {0};
    ndm_plan_result result;
    int64_t ranks_that_fit = 0;

    if (ndm_option_bool(o, "json") && ndm_option_bool(o, "explain"))
        NDM_FAIL(NDM_ERR_USAGE, "plan: --explain is text; --json has its shares of the step");
    if (open)
        NDM_TRY(settle(p, &range));
    NDM_TRY(ndm_plan_run(&p->request, &result));
    if (!result.fits)
        NDM_TRY(ndm_plan_ranks_that_fit(&p->request, &p->open, &ranks_that_fit));
    ndm_plan_view view = {&p->request, &result, open ? &range : NULL, false, ranks_that_fit};
    if (ndm_option_bool(o, "json"))
        return ndm_plan_print_json(&view, stdout);
    ndm_plan_print(&view, stdout);
    return ndm_option_bool(o, "explain") ? ndm_plan_explain(&view, stdout) : NDM_OK;
}

static int run(int argc, const char *const *argv)
{
    ndm_options *o = NULL;
    plan p = {0};
    ndm_status status = ndm_cli_options(&table, argc, argv, NULL, NULL, &o);

    p.options = o;
    if (status == NDM_OK)
        status = read_plan(&p);
    if (status == NDM_OK)
        status = ndm_option_bool(o, "search") ? show_search(&p) : show_plan(&p);
    ndm_options_destroy(o);
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_plan = {&table, run, true};
