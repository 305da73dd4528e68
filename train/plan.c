/* SPDX-License-Identifier: Apache-2.0 */
/* One planned run: two steps of the engine on the simulated device. The first starts from nothing;
 * the second is what every later one is like. */
#include "train/plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/comms.h"
#include "collectives/sim_cost.h"
#include "kernels/cost.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/model.h"
#include "strategies/internal.h"
#include "train/trainer.h"

typedef struct run {
    const ndm_plan_request *request;
    ndm_sim_machine machine; /* the request's, with the clock of its slowest rank */
    ndm_sim_stack stack;     /* the request's, for its micro-batch */
    ndm_sim_options sim;
    ndm_context *context;
    ndm_model *model;
    ndm_trainer *trainer;
    int32_t *tokens; /* zeros: inputs and targets alike */
    int64_t sequences;
} run;

/* Memory that allocations may take in all: beyond it, what does not fit is known at once. Not 0,
 * which is no limit. */
static int64_t allowance(const ndm_sim_machine *m)
{
    double room = m->memory_bytes - m->context_bytes - m->reserved_bytes;
    double bytes = room / m->reserved_share;

    return bytes > 1.0 ? (int64_t)bytes : 1;
}

/* The largest of n normal variables in standard deviations, as expected: Cramer, "Mathematical
 * Methods of Statistics", 1946, section 28.6. */
static double expected_largest(double n)
{
    const double PI4 = 12.566370614359172;
    double root = sqrt(2.0 * log(n));

    return n < 2.0 ? 0.0 : root - (log(log(n)) + log(PI4) - 2.0 * 0.5772156649) / (2.0 * root);
}

/* All ranks wait for the slowest in every step. */
static void slow_down(ndm_sim_machine *m, int64_t ranks)
{
    double most = expected_largest((double)ranks);

    if (most > 0.0)
        m->clock /= 1.0 + m->spread * most;
}

void ndm_plan_share_host(ndm_sim_machine *m, int64_t ranks, int64_t hosts)
{
    double each = (double)((ranks + hosts - 1) / hosts), cores = m->cores_per_host / each;

    if (m->cores_per_host <= 0.0)
        return;
    m->ranks_per_host = m->ranks_per_domain = (int64_t)each;
    m->memory_bytes /= each;
    m->peak_flops *= cores;
    m->memory_bw *= cores;
    m->host_bw *= cores;
    m->kernel_ns /= cores;
    m->launch_ns /= cores;
    for (int op = 0; op < NDM_OP_COUNT; op++)
        m->op_bw[op] *= cores;
}

static ndm_status open_context(run *r)
{
    const ndm_plan_request *q = r->request;
    ndm_context_options c = NDM_CONTEXT_OPTIONS_INIT;

    r->machine = *q->machine;
    slow_down(&r->machine, q->ranks);
    r->stack = *q->stack;
    if (q->options.micro_batch == 1)
        r->stack.tp_copy_bytes = 0.0; /* rows of one sequence are gathered where they belong */
    r->sim = (ndm_sim_options){.machine = &r->machine,
                               .stack = &r->stack,
                               .price = ndm_cost_price,
                               .ranks = q->ranks,
                               .rank = q->rank,
                               .trace = q->trace || q->svg};
    c.device = "sim";
    c.sim = &r->sim;
    if (q->refuse_large)
        c.memory_limit_bytes = allowance(q->machine);
    return ndm_context_create(&q->parallelism, &c, &r->context);
}

/* Logits that exist at a time: a device that computes in 16 bit has room for more, and products
 * that are too thin would slow it down. */
static ndm_status choose_head_chunk(const run *r, ndm_model_options *options)
{
    const ndm_plan_request *q = r->request;
    int64_t tp = ndm_mesh_axis_size(r->context->mesh, NDM_TP);
    ndm_model_config config = {0};

    if (options->head_chunk > 0 || q->logits_bytes <= 0 || r->machine.activation_bytes >= 4)
        return NDM_OK;
    NDM_TRY(ndm_model_config_resolve(q->model, &config));
    int64_t rows = q->logits_bytes / r->machine.activation_bytes / ((config.vocab + tp - 1) / tp);
    options->head_chunk = rows > 128 ? rows / 128 * 128 : 128;
    ndm_model_config_finish(&config);
    return NDM_OK;
}

static ndm_status open(run *r)
{
    const ndm_plan_request *q = r->request;
    ndm_trainer_options t = NDM_TRAINER_OPTIONS_INIT;
    ndm_model_options options = q->options;

    NDM_TRY(open_context(r));
    NDM_TRY(choose_head_chunk(r, &options));
    NDM_TRY(ndm_model_create(r->context, q->model, &q->fsdp, &options, &r->model));
    t.grad_accum = q->grad_accum;
    t.steps = 2;
    NDM_TRY(ndm_trainer_create(r->model, &t, &r->trainer));
    if (q->stack->gradient_bytes >
        0.0) /* slices have been made, arrays of units come in the step */
        ndm_context_device(r->context)->gradient_bytes = (int)q->stack->gradient_bytes;
    ndm_sim_hold(ndm_context_device(r->context),
                 (int64_t)(q->stack->keep_bytes * (double)r->model->size.rows) *
                     r->model->config.layers);
    const ndm_model_options *o = ndm_model_get_options(r->model);
    r->sequences = o->micro_batch * q->grad_accum;
    r->tokens = calloc((size_t)(r->sequences * o->seq_len), sizeof *r->tokens);
    if (!r->tokens)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a batch of %lld tokens",
                 (long long)(r->sequences * o->seq_len));
    return NDM_OK;
}

static void close_run(run *r)
{
    free(r->tokens);
    ndm_trainer_destroy(r->trainer);
    ndm_model_destroy(r->model);
    ndm_context_destroy(r->context);
}

static ndm_status step(run *r)
{
    ndm_batch batch = {r->sequences, r->tokens, r->tokens, NULL, NULL};
    ndm_step_result result;

    return ndm_trainer_step(r->trainer, &batch, &result);
}

/* ---- what came of it ------------------------------------------------------------------------ */

static void sum_times(ndm_plan_result *p)
{
    for (int i = 0; i < NDM_SIM_PHASE_COUNT; i++) {
        p->phase_ns[i] = p->totals.host[i];
        for (int c = 0; c < NDM_SIM_CATEGORY_COUNT; c++)
            p->phase_ns[i] += p->totals.busy[i][c];
        for (int c = 0; c < NDM_SIM_CAUSES; c++) {
            p->phase_ns[i] += p->totals.exposed[i][c];
            p->exposed_ns[c] += p->totals.exposed[i][c];
        }
    }
}

static void collect_rates(const run *r, ndm_plan_result *p)
{
    const ndm_sim_machine *m = r->request->machine;
    double seconds = p->step_ns * 1e-9, ranks = (double)r->request->ranks;

    p->parameters = ndm_model_parameters(r->model);
    p->tokens = r->sequences * ndm_model_get_options(r->model)->seq_len *
                ndm_context_axes_size(r->context, NDM_AXES_DP);
    p->tokens_per_s = (double)p->tokens / seconds;
    p->model_flops = ndm_model_flops_per_token(r->model) * p->tokens_per_s / ranks;
    p->executed_flops = p->totals.flops / seconds;
    p->mfu = p->model_flops / m->peak_flops;
    p->hfu = p->executed_flops / m->peak_flops;
}

static void collect_memory(const run *r, ndm_plan_result *p)
{
    const ndm_sim_machine *m = r->request->machine;
    const ndm_device *device = ndm_context_device(r->context);

    p->memory = ndm_device_memory(device);
    p->live = p->memory.peak_total_bytes;
    p->reserved = (int64_t)(m->reserved_share * (double)ndm_sim_peak_rounded(device) +
                            m->reserved_bytes);
    p->needed = p->reserved + (int64_t)m->context_bytes;
    p->fits = (double)p->needed <= m->memory_bytes;
}

static void collect_comm(const ndm_comm *comm, const ndm_comm_stats *before, ndm_plan_comm *c)
{
    ndm_sim_group g = ndm_sim_group_of(comm);

    *c = (ndm_plan_comm){.ranks = g.ranks, .domains = g.domains, .members = g.members};
    memcpy(c->name, comm->name, sizeof c->name);
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
        c->calls[k] = comm->stats.calls[k] - before->calls[k];
        c->received[k] = (double)(comm->stats.received_bytes[k] - before->received_bytes[k]);
    }
}

static void collect_chain(const run *r, const ndm_comm_stats *before, int64_t n_before,
                          ndm_plan_result *p)
{
    static const ndm_comm_stats none;
    const ndm_context *c = r->context;
    size_t used = 0;

    for (int64_t i = 0; i < c->n_strategies && used < sizeof p->strategies; i++)
        used += (size_t)snprintf(p->strategies + used, sizeof p->strategies - used, "%s%s",
                                 i ? " + " : "", c->strategies[i]->name);
    for (int64_t i = 0; ndm_comms_at(c->comms, i) && p->n_comms < NDM_PLAN_COMMS_MAX; i++)
        collect_comm(ndm_comms_at(c->comms, i), i < n_before ? &before[i] : &none,
                     &p->comms[p->n_comms++]);
}

static int64_t remember_comms(const run *r, ndm_comm_stats *stats)
{
    int64_t n = 0;

    for (; n < NDM_PLAN_COMMS_MAX && ndm_comms_at(r->context->comms, n); n++)
        stats[n] = ndm_comm_statistics(ndm_comms_at(r->context->comms, n));
    return n;
}

/* One step, and what was before it. */
static ndm_status watched_step(run *r, double *from, ndm_comm_stats *before, int64_t *n_before)
{
    ndm_device *device = ndm_context_device(r->context);

    ndm_sim_reset(device);
    *from = ndm_sim_now(device);
    *n_before = remember_comms(r, before);
    return step(r);
}

static ndm_status write_files(const run *r, double from, const ndm_plan_result *p)
{
    const ndm_plan_request *q = r->request;
    int64_t n;
    const ndm_sim_span *spans = ndm_sim_trace(ndm_context_device(r->context), &n);

    if (q->trace)
        NDM_TRY(ndm_plan_write_trace(spans, n, from, q->trace));
    return q->svg ? ndm_plan_write_svg(q, p, spans, n, from, q->svg) : NDM_OK;
}

static ndm_status measure(run *r, ndm_plan_result *p)
{
    ndm_device *device = ndm_context_device(r->context);
    ndm_comm_stats before[NDM_PLAN_COMMS_MAX];
    int64_t n_before;
    double from;

    NDM_TRY(watched_step(r, &from, before, &n_before));
    collect_memory(r, p);
    if (!r->request->brief || p->fits)
        NDM_TRY(watched_step(r, &from, before, &n_before));
    p->totals = ndm_sim_get_totals(device);
    p->step_ns = ndm_sim_now(device) - from;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        p->mesh[a] = ndm_mesh_axis_size(r->context->mesh, (ndm_axis)a);
    sum_times(p);
    collect_rates(r, p);
    collect_memory(r, p);
    collect_chain(r, before, n_before, p);
    return write_files(r, from, p);
}

ndm_status ndm_plan_run(const ndm_plan_request *request, ndm_plan_result *result)
{
    run r = {.request = request};
    ndm_status status = open(&r);

    memset(result, 0, sizeof *result);
    if (status == NDM_OK)
        status = measure(&r, result);
    close_run(&r);
    return status;
}
