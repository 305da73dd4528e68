/* SPDX-License-Identifier: Apache-2.0 */
/* The context: config -> mesh -> communicators, then the strategies that apply. Every step that can
 * fail on one rank alone is agreed over all before anybody goes on, so that a mistake is one
 * message and never a hang. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "core/given.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/sized.h"
#include "device/turn.h"
#include "mesh/machine.h"
#include "mesh/placement.h"
#include "strategies/internal.h"

int64_t ndm_context_coord(const ndm_context *context, ndm_axis axis)
{
    return ndm_mesh_coord(context->mesh, ndm_world_rank(context->world), axis);
}

int64_t ndm_context_axes_size(const ndm_context *context, ndm_axis_set axes)
{
    return ndm_mesh_size(context->mesh, axes);
}

bool ndm_context_sequence_parallel(const ndm_context *context)
{
    return ndm_context_axes_size(context, NDM_AXIS_TP) > 1 &&
           !context->parallelism.no_sequence_parallel;
}

static void name_rank_for_log(const ndm_context *c)
{
    char text[128];
    size_t n = 0;

    text[0] = 0;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (ndm_mesh_axis_size(c->mesh, (ndm_axis)a) > 1)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %lld", n ? " " : "",
                                  ndm_axis_table()[a].name,
                                  (long long)ndm_context_coord(c, (ndm_axis)a));
    ndm_log_set_rank(ndm_world_rank(c->world), text);
}

static ndm_status build_mesh(ndm_context *c)
{
    if ((unsigned)c->parallelism.cp_method > NDM_CP_METHOD_ULYSSES)
        NDM_FAIL(NDM_ERR_CONFIG, "cp_method=%d: no such method", c->parallelism.cp_method);
    NDM_TRY(ndm_mesh_create(&c->parallelism, ndm_world_size(c->world), &c->mesh));
    c->parallelism.dp_replicate = ndm_mesh_axis_size(c->mesh, NDM_DP_REPLICATE);
    c->parallelism.dp_shard = ndm_mesh_axis_size(c->mesh, NDM_DP_SHARD);
    c->parallelism.cp = ndm_mesh_axis_size(c->mesh, NDM_CP);
    c->parallelism.tp = ndm_mesh_axis_size(c->mesh, NDM_TP);
    c->parallelism.order = c->order;
    name_rank_for_log(c);
    return NDM_OK;
}

/* All ranks must have built the same mesh from the same configuration with the same binary. */
static ndm_status verify(ndm_context *c, const ndm_context_options *o)
{
    enum { OWN = 8 };
    const ndm_parallelism_config *p = &c->parallelism;
    size_t order_bytes = (size_t)ndm_world_size(c->world) * sizeof *c->order;
    long long sizes[] = {p->dp_replicate,
                         p->dp_shard,
                         p->cp,
                         p->tp,
                         p->cp_method,
                         p->no_sequence_parallel,
                         (long long)ndm_hash_64(c->order, order_bytes)};
    static const char *const names[] = {"dp_replicate", "dp_shard",  "cp",
                                        "tp",           "cp_method", "no_sequence_parallel",
                                        "order (hash)"};
    char text[OWN - 1][24];
    ndm_fact *facts = calloc((size_t)(OWN + o->n_facts), sizeof *facts);

    if (!facts)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to verify %lld facts", (long long)o->n_facts);
    facts[0] = (ndm_fact){"version", NDM_VERSION};
    for (int i = 0; i < OWN - 1; i++) {
        snprintf(text[i], sizeof text[i], "%lld", sizes[i]);
        facts[1 + i] = (ndm_fact){names[i], text[i]};
    }
    for (int64_t i = 0; i < o->n_facts; i++)
        facts[OWN + i] = (ndm_fact){o->facts[i].name, o->facts[i].value};
    ndm_status status = ndm_world_verify(c->world, facts, OWN + o->n_facts);
    free(facts);
    return status;
}

static int threads_per_rank(const ndm_context *c, const ndm_context_options *o)
{
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    int64_t share = processors / ndm_world_local_size(c->world);

    return o->threads > 0 ? o->threads : (int)(share > 1 ? share : 1);
}

/* Another machine's messages move on only while somebody calls MPI, which kernels do not. */
static ndm_status start_helper(const ndm_context *c, ndm_toggle wanted)
{
    bool can = c->device->ops->host_accessible && ndm_world_takes_helper(c->world);

    if (wanted == NDM_TOGGLE_ON && !can && ndm_world_size(c->world) > 1)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "progress_thread: on: device %s with %s has no use for it",
                 c->device->ops->name,
                 c->device->ops->host_accessible ? "an MPI that takes calls of one thread alone"
                                                 : "streams of its own");
    if (!can || wanted == NDM_TOGGLE_OFF ||
        (wanted == NDM_TOGGLE_AUTO && !ndm_world_wants_helper(c->world)))
        return NDM_OK;
    return ndm_host_help(c->device);
}

/* Deadlines beyond what a clock counts are none that anybody sees. */
static int64_t timeout_ns(const ndm_context_options *o)
{
    const double longest_s = 1e9;

    return (int64_t)((o->timeout_s < longest_s ? o->timeout_s : longest_s) * 1e9);
}

static ndm_status check_given(const ndm_context *c, const ndm_context_options *o)
{
    if ((o->device_index >= 0 || o->compute_stream) && !c->device->ops->stream_native)
        NDM_FAIL(NDM_ERR_CONFIG, "%s was handed in, and device %s takes none; device cuda does",
                 o->compute_stream ? "compute_stream" : "device_index", c->device->ops->name);
    return NDM_OK;
}

static ndm_status open_device(ndm_context *c, const ndm_context_options *o)
{
    ndm_device_options device = {
        .timeout_ns = timeout_ns(o),
        .local_rank = (int)ndm_world_local_rank(c->world),
        .threads = threads_per_rank(c, o),
        .memory_limit_bytes = o->memory_limit_bytes,
        .sim = o->sim,
        .given = {o->device_index >= 0, o->device_index, o->compute_stream},
    };

    NDM_TRY(ndm_device_create(o->device, &device, &c->device));
    NDM_TRY(check_given(c, o));
    NDM_TRY(ndm_kernels_bind(c->device, o->kernels));
    NDM_TRY(ndm_stream_create(c->device, NDM_STREAM_COMPUTE, "compute", &c->compute));
    NDM_TRY(ndm_stream_create(c->device, NDM_STREAM_COMM, "gather", &c->gather));
    NDM_TRY(ndm_stream_create(c->device, NDM_STREAM_COMM, "reduce", &c->reduce));
    NDM_TRY(ndm_comms_create(c->world, c->mesh, c->device, o->collectives, &c->comms));
    return start_helper(c, o->progress_thread);
}

static bool strategy_applies(const ndm_context *c, const ndm_strategy *s)
{
    return !s->applies || s->applies(c, NULL);
}

static bool is_replaced(const ndm_context *c, const ndm_strategy *s)
{
    for (int64_t i = 0; ndm_strategy_at(i); i++) {
        const ndm_strategy *other = ndm_strategy_at(i);
        if (other->replaces && strcmp(other->replaces, s->name) == 0 && strategy_applies(c, other))
            return true;
    }
    return false;
}

static void choose_strategies(ndm_context *c)
{
    for (int64_t i = 0; ndm_strategy_at(i); i++) {
        const ndm_strategy *s = ndm_strategy_at(i);
        if (strategy_applies(c, s) && !is_replaced(c, s))
            c->strategies[c->n_strategies++] = s;
    }
}

static ndm_status copy_order(ndm_context *c, const ndm_parallelism_config *p)
{
    if (p->n_order && p->n_order != ndm_world_size(c->world))
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: an order of %lld ranks for a world of %lld",
                 (long long)p->n_order, (long long)ndm_world_size(c->world));
    memcpy(c->order, p->order, (size_t)ndm_world_size(c->world) * sizeof *c->order);
    return NDM_OK;
}

/* A process that may run anywhere on its host has no nearer place; asking hwloc would only take
 * time. */
static void place_of_self(const ndm_context *c, ndm_place_facts *facts)
{
    int64_t host = ndm_world_node(c->world, ndm_world_rank(c->world));
    ndm_machine *machine;

    for (int level = 0; level < NDM_PLACE_LEVELS; level++)
        facts->id[level] = NDM_PLACE_UNKNOWN;
    facts->id[NDM_PLACE_HOST] = host;
    if (!ndm_bind_is_set() || ndm_machine_open(NULL, &machine) != NDM_OK)
        return;
    ndm_machine_facts_of_self(machine, host, facts);
    ndm_machine_close(machine);
}

/* Inner axes share what is near: every rank tells where it is, and all compute the same order. */
static ndm_status compute_order(ndm_context *c, const ndm_parallelism_config *p)
{
    int64_t world = ndm_world_size(c->world);
    ndm_place_facts mine, *all = calloc((size_t)world, sizeof *all);

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the places of %lld ranks", (long long)world);
    place_of_self(c, &mine);
    ndm_status status = ndm_world_exchange(c->world, &mine, (int64_t)sizeof mine, all);
    if (status == NDM_OK)
        status = ndm_placement_order(p, world, all, c->order);
    free(all);
    return status;
}

static ndm_status number_in_order(ndm_context *c)
{
    for (int64_t r = 0; r < ndm_world_size(c->world); r++)
        c->order[r] = r;
    return NDM_OK;
}

static ndm_status find_order(ndm_context *c, const ndm_parallelism_config *p)
{
    c->order = calloc((size_t)ndm_world_size(c->world), sizeof *c->order);
    if (!c->order)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an order of %lld ranks",
                 (long long)ndm_world_size(c->world));
    if (ndm_world_is_simulated(c->world) && !p->order)
        return number_in_order(c); /* ranks that are not there have no places to tell */
    return p->order ? copy_order(c, p) : compute_order(c, p);
}

/* Rank 0 chooses, all take what it chose. */
static ndm_status choose_mesh(ndm_context *c, const ndm_context_options *o)
{
    ndm_world *w = c->world;
    ndm_parallelism_config chosen = c->parallelism;
    ndm_parallelism_config *all = calloc((size_t)ndm_world_size(w), sizeof *all);
    ndm_status status = NDM_OK;
    int64_t hosts = 0;

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the meshes of %lld ranks",
                 (long long)ndm_world_size(w));
    for (int64_t r = 0; r < ndm_world_size(w); r++)
        hosts = ndm_world_node(w, r) >= hosts ? ndm_world_node(w, r) + 1 : hosts;
    if (ndm_world_rank(w) == 0)
        status = o->choose_mesh(o->choose_user, ndm_world_size(w), hosts, &chosen);
    NDM_TRY_OR(status, ndm_world_agree(w, status), done);
    status = ndm_world_exchange(w, &chosen, (int64_t)sizeof chosen, all);
    c->parallelism.dp_replicate = all[0].dp_replicate;
    c->parallelism.dp_shard = all[0].dp_shard;
    c->parallelism.cp = all[0].cp;
    c->parallelism.tp = all[0].tp;
done:
    free(all);
    return status;
}

static ndm_status check_ranks(const ndm_context *c, const ndm_context_options *o)
{
    int64_t there = ndm_world_size(c->world);

    if (o->ranks > 0 && o->ranks != there)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "ranks: %lld are asked for, and the launcher has started %lld; give both the same "
                 "number, or leave ranks out",
                 (long long)o->ranks, (long long)there);
    return NDM_OK;
}

/* Before there is a world. */
static ndm_status check_options(const ndm_context_options *o)
{
    if (!(o->timeout_s > 0.0))
        NDM_FAIL(NDM_ERR_CONFIG, "timeout_s %g is not above 0", o->timeout_s);
    if (!o->device || !o->collectives || !o->kernels)
        NDM_FAIL(NDM_ERR_USAGE, "ndm_context_options: %s is NULL; \"auto\" is the default",
                 !o->device        ? "device"
                 : !o->collectives ? "collectives"
                                   : "kernels");
    if (o->threads < 0 || o->memory_limit_bytes < 0 || o->ranks < 0)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "threads=%d, memory_limit_bytes=%lld, ranks=%lld; none is negative", o->threads,
                 (long long)o->memory_limit_bytes, (long long)o->ranks);
    if ((unsigned)o->progress_thread > NDM_TOGGLE_OFF || (unsigned)o->bind > NDM_BIND_CORES)
        NDM_FAIL(NDM_ERR_CONFIG, "progress_thread=%d, bind=%d: no such choice", o->progress_thread,
                 o->bind);
    if (o->n_facts < 0 || (o->n_facts > 0 && !o->facts))
        NDM_FAIL(NDM_ERR_USAGE, "ndm_context_options: %lld facts, and they are %s",
                 (long long)o->n_facts, o->facts ? "there" : "NULL");
    for (int64_t i = 0; i < o->n_facts; i++)
        if (!o->facts[i].name || !o->facts[i].value)
            NDM_FAIL(NDM_ERR_USAGE, "ndm_context_options: fact %lld: its name or value is NULL",
                     (long long)i);
    return NDM_OK;
}

static ndm_status build(ndm_context *c, const ndm_parallelism_config *p,
                        const ndm_context_options *o)
{
    ndm_world_options world = {"auto", o->mpi_comm, timeout_ns(o), o->sim};

    NDM_TRY(check_options(o));
    NDM_TRY(ndm_world_join(&world, &c->world));
    NDM_TRY(ndm_world_agree(c->world, check_ranks(c, o)));
    c->parallelism = *p;
    if (o->choose_mesh)
        NDM_TRY(choose_mesh(c, o));
    NDM_TRY(ndm_world_agree(c->world, ndm_bind_self(c, o->bind, threads_per_rank(c, o))));
    NDM_TRY(ndm_world_agree(c->world, find_order(c, &c->parallelism)));
    NDM_TRY(ndm_world_agree(c->world, build_mesh(c)));
    NDM_TRY(verify(c, o));
    NDM_TRY(ndm_world_agree(c->world, open_device(c, o)));
    choose_strategies(c);
    c->micro_batches = 1;
    return NDM_OK;
}

ndm_status ndm_context_create(const ndm_parallelism_config *parallelism,
                              const ndm_context_options *options, ndm_context **context)
{
    ndm_parallelism_config sizes;
    ndm_context_options mine;
    ndm_context *c;

    NDM_NEED(context);
    NDM_TRY(
        NDM_SIZED_TAKE(ndm_parallelism_config, &sizes, NDM_PARALLELISM_CONFIG_INIT, parallelism));
    NDM_TRY(NDM_SIZED_TAKE(ndm_context_options, &mine, NDM_CONTEXT_OPTIONS_INIT, options));
    c = calloc(1, sizeof *c);
    if (!c)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a context");
    ndm_status status = build(c, &sizes, &mine);
    if (status != NDM_OK) {
        ndm_context_abandon(c);
        return status;
    }
    *context = c;
    return NDM_OK;
}

static void stop_helper(const ndm_context *c)
{
    if (c->device && c->device->ops->host_accessible)
        ndm_host_unhelp(c->device);
}

static void free_parts(ndm_context *c)
{
    stop_helper(c);
    if (c->device) {
        ndm_pool_finish(c);
        ndm_cp_finish(c);
        ndm_fp8_finish(c);
        ndm_stream_destroy(c->reduce);
        ndm_stream_destroy(c->gather);
        ndm_stream_destroy(c->compute);
    }
    ndm_comms_destroy(c->comms);
    ndm_device_destroy(c->device);
    ndm_mesh_destroy(c->mesh);
    free(c->order);
}

void ndm_context_settle(ndm_context *c)
{
    ndm_stream *const streams[] = {c->compute, c->gather, c->reduce};
    ndm_status status = NDM_OK;
    ndm_error kept;

    ndm_error_keep(&kept);
    for (int i = 0; i < 3 && status == NDM_OK; i++)
        status = ndm_stream_synchronize(streams[i]);
    if (status != NDM_OK)
        ndm_error_restore(&kept);
}

void ndm_context_destroy(ndm_context *context)
{
    if (!context)
        return;
    ndm_context_settle(context);
    free_parts(context);
    ndm_world_leave(context->world);
    free(context);
}

void ndm_context_abandon(ndm_context *context)
{
    if (!context)
        return;
    stop_helper(context);
    if (context->world)
        ndm_world_abandon(
            context->world); /* the rest may be under a collective; the process ends soon */
    else
        free_parts(context);
    free(context);
}

int64_t ndm_context_rank(const ndm_context *context)
{
    return context ? ndm_world_rank(context->world) : 0;
}

int64_t ndm_context_size(const ndm_context *context)
{
    return context ? ndm_world_size(context->world) : 0;
}

const ndm_mesh *ndm_context_mesh(const ndm_context *context)
{
    return context ? context->mesh : NULL;
}

ndm_device *ndm_context_device(const ndm_context *context)
{
    return context ? context->device : NULL;
}

const ndm_parallelism_config *ndm_context_parallelism(const ndm_context *context)
{
    return context ? &context->parallelism : NULL;
}

ndm_stream *ndm_context_stream(const ndm_context *context)
{
    return context ? context->compute : NULL;
}

ndm_status ndm_context_comm(ndm_context *context, ndm_axis_set axes, ndm_comm **comm)
{
    NDM_NEED(context);
    NDM_NEED(comm);
    return ndm_comms_get(context->comms, axes, comm);
}

ndm_status ndm_context_agree(ndm_context *context, ndm_status mine)
{
    NDM_NEED(context);
    return ndm_world_agree(context->world, mine);
}

void ndm_context_micro_batch(ndm_context *context, int64_t index, int64_t count)
{
    if (!context)
        return;
    context->latest = NULL;
    context->micro_batch = index;
    context->micro_batches = count;
}

bool ndm_context_last_micro_batch(const ndm_context *context)
{
    return context && context->micro_batch + 1 == context->micro_batches;
}

ndm_status ndm_context_sum(ndm_context *context, double *value)
{
    int64_t n = ndm_context_size(context);
    double *all = calloc((size_t)n, sizeof *all), sum = 0.0;

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to sum over %lld ranks", (long long)n);
    ndm_status status = ndm_world_exchange(context->world, value, (int64_t)sizeof *value, all);
    for (int64_t i = 0; i < n; i++)
        sum += all[i];
    free(all);
    if (status == NDM_OK)
        *value = sum;
    return status;
}
