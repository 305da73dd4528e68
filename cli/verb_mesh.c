/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh mesh`: the mesh of any number of ranks, without starting any. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/mesh_view.h"
#include "core/file.h"
#include "mesh/machine.h"
#include "mesh/rules.h"
#include "mesh/shape.h"
#include "train/auto_mesh.h"
#include "train/options.h"

#define SIZE_OPTION(option_name, default_text, text)                                            \
    {                                                                                           \
        .name = option_name, .type = NDM_OPTION_INT, .initial = default_text, .map = "auto=-1", \
        .help = text, .group = "mesh"                                                           \
    }
#define COUNT_OPTION(option_name, group_name, text)                                           \
    {                                                                                         \
        .name = option_name, .type = NDM_OPTION_INT, .min = 1, .max = INFINITY, .help = text, \
        .group = group_name                                                                   \
    }

static const char *check_rank(const char *text)
{
    char *end;
    strtoll(text, &end, 10);
    return end == text || *end != '\0' ? "a list of ranks such as 1,0,3,2" : NULL;
}

static const ndm_option options[] = {
    {.name = "ranks",
     .type = NDM_OPTION_INT,
     .required = true,
     .help = "number of ranks",
     .group = "mesh"},
    SIZE_OPTION("dp-replicate", "1", "replicas of the sharded group; -1 = the rest"),
    SIZE_OPTION("dp-shard", "-1", "ranks that shard parameters; -1 = the rest"),
    SIZE_OPTION("cp", "1", "ranks that share one sequence; -1 = the rest"),
    SIZE_OPTION("tp", "1", "ranks that share one layer's GEMMs; -1 = the rest"),
    {.name = "mesh",
     .type = NDM_OPTION_ENUM,
     .choices = "given|auto",
     .initial = "given",
     .help = "auto: the planner's fastest for the sizes that are not given; takes a model",
     .group = "mesh"},
    {.name = "order",
     .type = NDM_OPTION_LIST,
     .commas = true,
     .value = "RANKS",
     .check = check_rank,
     .help = "rank at each position, a permutation: forces the placement",
     .group = "placement"},
    COUNT_OPTION("hosts", "placement", "number of hosts that the ranks run on"),
    COUNT_OPTION("ranks-per-host", "placement", "ranks a host; default: the ranks spread evenly"),
    {.name = "map",
     .needs = "hosts|ranks-per-host|machine",
     .type = NDM_OPTION_ENUM,
     .choices = "block|cyclic",
     .initial = "block",
     .help = "how the launcher numbers ranks: host by host, or in turn",
     .group = "placement"},
    {.name = "machine",
     .type = NDM_OPTION_STRING,
     .value = "SYNTHETIC",
     .help = "a host as hwloc describes one, e.g. \"pack:2 l3:2 core:4 pu:1\"; ranks "
             "are bound to its cores in turn",
     .group = "placement"},
    {.name = "model",
     .type = NDM_OPTION_STRING,
     .value = "NAME|DIR",
     .help = "a preset, a folder with config.json, or a config.json: for sizes that are open",
     .group = "model"},
    {.name = "cluster",
     .type = NDM_OPTION_STRING,
     .value = "NAME|FILE.yaml",
     .initially = "the CPUs of this machine",
     .help = "profile of the machines that open sizes are planned for",
     .group = "model"},
    COUNT_OPTION("heads", "model", "attention heads; checked against the mesh"),
    COUNT_OPTION("kv-heads", "model", "heads of keys and values"),
    COUNT_OPTION("ffn", "model", "width of the feed-forward layer"),
    COUNT_OPTION("vocab", "model", "size of the vocabulary"),
    COUNT_OPTION("seq-len", "model", "tokens of a sample"),
    COUNT_OPTION("micro-batch", "model", "samples per data-parallel rank and forward"),
    COUNT_OPTION("global-batch", "model", "samples per optimizer step"),
    {.name = "json",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .help = "print one JSON document",
     .group = "output"},
    {.name = "svg",
     .type = NDM_OPTION_STRING,
     .value = "FILE",
     .help = "also draw the mesh",
     .group = "output"},
};

static const ndm_option_table table = {
    .command = "mesh",
    .usage = "[RUN.yaml] --ranks N [options]",
    .summary = "coordinates, groups and placement of a mesh",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
    .file = &ndm_train_option_table,
};

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* Hosts and ranks a host, from whichever are given; false when neither is. */
static ndm_status read_hosts(const ndm_options *o, int64_t world, int64_t cores, int64_t *hosts,
                             int64_t *per_host)
{
    *hosts = ndm_option_int64(o, "hosts");
    *per_host = ndm_option_int64(o, "ranks-per-host");
    if (*hosts == 0 && *per_host == 0)
        *per_host = cores;
    if (*hosts == 0)
        *hosts = ceil_div(world, *per_host);
    if (*per_host == 0)
        *per_host = ceil_div(world, *hosts);
    if (*hosts > world)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "mesh: %" PRId64 " hosts for %" PRId64 " ranks; some would be empty", *hosts,
                 world);
    if (*per_host < ceil_div(world, *hosts))
        NDM_FAIL(NDM_ERR_CONFIG,
                 "mesh: %" PRId64 " hosts of %" PRId64 " ranks do not hold %" PRId64
                 " ranks; try hosts %" PRId64 " or ranks_per_host %" PRId64,
                 *hosts, *per_host, world, ceil_div(world, *per_host), ceil_div(world, *hosts));
    return NDM_OK;
}

/* Facts of the ranks of one host, [per_host]: its cores are dealt out evenly, and shared when there
 * are too few. */
static ndm_status fill_host(const ndm_machine *machine, int64_t per_host, ndm_place_facts *facts)
{
    int64_t cores = ndm_machine_cores(machine);
    int64_t each = cores > per_host ? cores / per_host : 1;
    for (int64_t i = 0; i < per_host; i++)
        NDM_TRY(ndm_machine_facts_of_cores(machine, 0, i * each % cores, each, &facts[i]));
    return NDM_OK;
}

/* Facts of every rank as the launcher's map and the machine give them. The view owns them. */
static ndm_status make_facts(const ndm_options *o, const ndm_machine *machine, int64_t world,
                             ndm_mesh_view *view)
{
    int64_t per_host;
    bool cyclic = ndm_option_enum(o, "map") == 1;
    NDM_TRY(read_hosts(o, world, machine != NULL ? ndm_machine_cores(machine) : 1, &view->hosts,
                       &per_host));
    ndm_place_facts *host = calloc((size_t)per_host, sizeof *host);
    view->facts = calloc((size_t)world, sizeof *view->facts);
    if (view->facts == NULL || host == NULL) {
        free(host);
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory to place %" PRId64 " ranks", world);
    }
    for (int64_t i = 0; i < per_host; i++)
        host[i].id[NDM_PLACE_ISLAND] = NDM_PLACE_UNKNOWN;
    ndm_status status = machine != NULL ? fill_host(machine, per_host, host) : NDM_OK;
    for (int64_t r = 0; r < world; r++) {
        view->facts[r] = host[cyclic ? r / view->hosts : r % per_host];
        view->facts[r].id[NDM_PLACE_HOST] = cyclic ? r % view->hosts : r / per_host;
        ndm_place_facts_settle(&view->facts[r]);
        view->cores = view->cores || view->facts[r].id[NDM_PLACE_CORE] != NDM_PLACE_UNKNOWN;
    }
    free(host);
    return status;
}

static ndm_status read_placement(const ndm_options *o, int64_t world, ndm_mesh_view *view)
{
    const char *synthetic = ndm_option_string(o, "machine");
    ndm_machine *machine = NULL;
    if (synthetic == NULL && !ndm_option_is_set(o, "hosts") &&
        !ndm_option_is_set(o, "ranks-per-host"))
        return NDM_OK;
    if (synthetic != NULL)
        NDM_TRY(ndm_machine_open(synthetic, &machine));
    ndm_status status = make_facts(o, machine, world, view);
    ndm_machine_close(machine);
    return status;
}

static ndm_status read_order(const ndm_options *o, int64_t world, int64_t *order)
{
    size_t n = ndm_option_count(o, "order");
    if (n != (size_t)world)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: order: %zu entries for %" PRId64 " ranks", n, world);
    for (size_t i = 0; i < n; i++)
        order[i] = strtoll(ndm_option_item(o, "order", i), NULL, 10);
    return NDM_OK;
}

/* The order is forced, chosen from the facts, or none; then the mesh is made with it. */
static ndm_status make_mesh(const ndm_options *o, ndm_parallelism_config *config, int64_t world,
                            int64_t *order, ndm_mesh_view *view)
{
    if (view->forced) {
        NDM_TRY(read_order(o, world, order));
        config->order = order;
    } else if (view->facts != NULL) {
        NDM_TRY(ndm_placement_order(config, world, view->facts, order));
        config->order = order;
    }
    NDM_TRY(ndm_mesh_create(config, world, &view->mesh));
    const ndm_mesh_demands demands = {
        .heads = ndm_option_int64(o, "heads"),
        .kv_heads = ndm_option_int64(o, "kv-heads"),
        .ffn = ndm_option_int64(o, "ffn"),
        .vocab = ndm_option_int64(o, "vocab"),
        .seq_len = ndm_option_int64(o, "seq-len"),
        .micro_batch = ndm_option_int64(o, "micro-batch"),
        .global_batch = ndm_option_int64(o, "global-batch"),
        .padded = NDM_PAD_FFN | NDM_PAD_VOCAB | NDM_PAD_SEQ,
    };
    return ndm_mesh_check(view->mesh, &demands);
}

/* Flags that are for sizes that are open alone; files are of train, which takes them anyhow. */
static ndm_status refuse_idle(const ndm_options *o)
{
    static const char *const names[] = {"model", "cluster"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (ndm_option_is_flag(o, names[i]))
            NDM_TRY(ndm_auto_mesh_refuse_idle(o, names[i]));
    return NDM_OK;
}

/* Sizes that are open, by the planner. */
static ndm_status choose_sizes(const ndm_options *o, int64_t world, ndm_parallelism_config *config)
{
    int64_t hosts = ndm_option_int64(o, "hosts"), sizes[NDM_AXIS_COUNT];
    ndm_plan_request q = {.model = ndm_option_string(o, "model"),
                          .ranks = world,
                          .parallelism = *config,
                          .fsdp = NDM_FSDP_CONFIG_INIT,
                          .options = NDM_MODEL_OPTIONS_INIT,
                          .grad_accum = 1};
    char why[400];

    if (!ndm_auto_mesh_sizes(o, false, sizes) || (!q.model && ndm_option_enum(o, "mesh") == 0))
        return NDM_OK;
    if (!q.model)
        NDM_FAIL(NDM_ERR_USAGE, "mesh: --mesh auto takes a --model to plan");
    q.options.seq_len = ndm_option_int64(o, "seq-len");
    if (ndm_option_int64(o, "micro-batch") > 0)
        q.options.micro_batch = ndm_option_int64(o, "micro-batch");
    NDM_TRY(ndm_auto_mesh_choose(&q, ndm_option_string(o, "cluster"), hosts > 0 ? hosts : 1, sizes,
                                 why, sizeof why));
    fprintf(stderr, "ndmesh: mesh: %s\n", why);
    *config = q.parallelism;
    return NDM_OK;
}

static ndm_status build(const ndm_options *o, ndm_mesh_view *view)
{
    int64_t world = ndm_option_int64(o, "ranks"), sizes[NDM_AXIS_COUNT];
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    config.dp_replicate = ndm_option_int64(o, "dp-replicate");
    config.dp_shard = ndm_option_int64(o, "dp-shard");
    config.cp = ndm_option_int64(o, "cp");
    config.tp = ndm_option_int64(o, "tp");
    NDM_TRY(refuse_idle(o));
    NDM_TRY(choose_sizes(o, world, &config));
    NDM_TRY(ndm_shape_resolve(&config, world, sizes)); /* before anything of the world's size */
    NDM_TRY(read_placement(o, world, view));
    view->forced = ndm_option_is_set(o, "order");
    int64_t *order = NULL;
    if (view->forced || view->facts != NULL) {
        order = calloc((size_t)world, sizeof *order);
        if (order == NULL)
            NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory for the order of %" PRId64 " ranks", world);
    }
    ndm_status status = make_mesh(o, &config, world, order, view);
    free(order);
    return status;
}

static ndm_status write_svg(const ndm_mesh_view *view, const char *path)
{
    ndm_buffer svg = {0};
    ndm_mesh_view_svg(view, &svg);
    ndm_status status = ndm_buffer_status(&svg);
    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, svg.data, svg.length);
    ndm_buffer_finish(&svg);
    return status;
}

static ndm_status show(const ndm_options *o, const ndm_mesh_view *view)
{
    const char *svg = ndm_option_string(o, "svg");
    if (svg != NULL)
        NDM_TRY(write_svg(view, svg));
    if (!ndm_option_bool(o, "json")) {
        ndm_mesh_view_text(view, stdout);
        return NDM_OK;
    }
    ndm_json json;
    ndm_json_init_file(&json, stdout, true);
    ndm_mesh_view_json(view, &json);
    return ndm_json_finish(&json);
}

static int run(int argc, const char *const *argv)
{
    ndm_options *o = NULL;
    ndm_mesh_view view = {0};
    ndm_status status = ndm_cli_options(&table, argc, argv, NULL, NULL, &o);
    if (status == NDM_OK)
        status = build(o, &view);
    if (status == NDM_OK)
        status = show(o, &view);
    ndm_mesh_destroy(view.mesh);
    free(view.facts);
    ndm_options_destroy(o);
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_mesh = {&table, run, true};
