/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as text and as JSON. */
#include "cli/plan_view.h"

#include <string.h>

#include "core/dtype.h"

static const double GIB = 1073741824.0;

const char *ndm_plan_recompute_name(ndm_recompute recompute)
{
    static const char *const names[] = {"none", "full", "selective"};

    return names[recompute];
}

const char *ndm_plan_phase_name(int phase)
{
    static const char *const names[NDM_SIM_PHASE_COUNT] = {"forward", "head and loss", "recompute",
                                                           "backward", "optimizer"};
    return names[phase];
}

static const char *mesh_text(const int64_t *mesh, char *text, size_t bytes)
{
    size_t used = 0;

    text[0] = '\0';
    for (int a = 0; a < NDM_AXIS_COUNT && used < bytes; a++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s %lld", a ? " x " : "",
                                 ndm_axis_table()[a].name, (long long)mesh[a]);
    return text;
}

/* ---- the chain ---------------------------------------------------------------------------- */

static void print_comm(const ndm_plan_comm *c, FILE *out)
{
    int64_t calls = 0;

    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        calls += c->calls[k];
    if (calls == 0)
        return;
    fprintf(out, "  communicator  %s: %lld ranks, ", c->name, (long long)c->ranks);
    if (c->domains > 1)
        fprintf(out, "%lld domains of up to %lld;", (long long)c->domains, (long long)c->members);
    else
        fprintf(out, "one domain;");
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        if (c->calls[k] > 0)
            fprintf(out, " %s %lld x (%.3g GB)", ndm_collective_name((ndm_collective)k),
                    (long long)c->calls[k], c->received[k] * 1e-9);
    fprintf(out, "\n");
}

static void print_chain(const ndm_plan_view *v, FILE *out)
{
    const ndm_plan_request *q = v->request;
    const ndm_plan_result *p = v->result;
    char mesh[160];

    fprintf(out,
            "  config        %s, %.4g B parameters, %lld tokens a sequence, micro-batch %lld x "
            "%lld, recompute %s\n",
            q->model, (double)p->parameters * 1e-9, (long long)q->options.seq_len,
            (long long)q->options.micro_batch, (long long)q->grad_accum,
            ndm_plan_recompute_name(q->options.recompute));
    fprintf(out, "  mesh          %s\n", mesh_text(p->mesh, mesh, sizeof mesh));
    for (int i = 0; i < p->n_comms; i++)
        print_comm(&p->comms[i], out);
    fprintf(out, "  strategy      %s; zero %d, weights %s, gradients on the wire %s\n",
            p->strategies, q->fsdp.zero, ndm_dtype_name(q->fsdp.param_dtype),
            ndm_dtype_name(q->fsdp.reduce_dtype));
    fprintf(out, "  kernels       %lld launches, stack %s (%s)\n", (long long)p->totals.launches,
            q->stack->name, q->stack->summary);
    fprintf(out, "  cluster       %s: %s\n", q->machine->name, q->machine->summary);
}

/* ---- memory and time ---------------------------------------------------------------------- */

static void print_memory(const ndm_plan_view *v, FILE *out)
{
    const ndm_plan_result *p = v->result;

    fprintf(out, "memory of a rank, GiB\n");
    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++)
        fprintf(out, "  %-14s%8.2f\n", ndm_memory_kind_name((ndm_memory_kind)k),
                (double)p->memory.peak_bytes[k] / GIB);
    fprintf(out, "  %-14s%8.2f  (peak of all together)\n", "live", (double)p->live / GIB);
    fprintf(out, "  %-14s%8.2f  (with what the allocator keeps)\n", "reserved",
            (double)p->reserved / GIB);
    fprintf(out, "  %-14s%8.2f  of %.2f: %s\n", "needed", (double)p->needed / GIB,
            v->request->machine->memory_bytes / GIB, p->fits ? "fits" : "DOES NOT FIT");
    if (v->ranks_that_fit > 0)
        fprintf(out, "  %-14s--ranks %lld\n", "would fit", (long long)v->ranks_that_fit);
}

static void print_time(const ndm_plan_view *v, FILE *out)
{
    const ndm_plan_result *p = v->result;
    char axes[48];
    double host = 0.0;

    fprintf(out, "time of a step, ms\n");
    for (int i = 0; i < NDM_SIM_PHASE_COUNT; i++)
        fprintf(out, "  %-14s%10.2f\n", ndm_plan_phase_name(i), p->phase_ns[i] * 1e-6);
    fprintf(out, "  %-14s%10.2f\n", "step", p->step_ns * 1e-6);
    for (unsigned c = 0; c < NDM_SIM_CAUSES; c++)
        if (p->totals.collectives[c] > 0)
            fprintf(out, "  exposed communication over %s: %.2f of %.2f\n",
                    ndm_axis_set_name(c, axes, sizeof axes), p->exposed_ns[c] * 1e-6,
                    p->totals.collective_ns[c] * 1e-6);
    for (int i = 0; i < NDM_SIM_PHASE_COUNT; i++)
        host += p->totals.host[i];
    fprintf(out, "  waiting for launches: %.2f\n", host * 1e-6);
}

static void print_rates(const ndm_plan_view *v, FILE *out)
{
    const ndm_plan_result *p = v->result;
    double ranks = (double)v->request->ranks;

    fprintf(out, "rates\n");
    fprintf(out, "  %.5g tokens/s, %.5g a %s; %lld tokens a step\n", p->tokens_per_s,
            p->tokens_per_s / ranks, v->request->machine->unit, (long long)p->tokens);
    fprintf(out,
            "  %.4g TFLOP/s a %s, MFU %.1f %% (6 (N - input embedding) + causal attention, no "
            "recompute)\n",
            p->model_flops * 1e-12, v->request->machine->unit, p->mfu * 100.0);
    fprintf(out, "  %.4g TFLOP/s executed, HFU %.1f %% (all products, recompute included)\n",
            p->executed_flops * 1e-12, p->hfu * 100.0);
    if (v->range && v->range->n > 1)
        fprintf(out,
                "  open: %s; %lld ways that fit: %.5g to %.5g tokens/s a %s, %.1f to %.1f GiB\n",
                v->range->what, (long long)v->range->n, v->range->tokens_low, v->range->tokens_high,
                v->request->machine->unit, (double)v->range->needed_low / GIB,
                (double)v->range->needed_high / GIB);
}

void ndm_plan_print(const ndm_plan_view *view, FILE *out)
{
    fprintf(out, "plan: %lld ranks\n", (long long)view->request->ranks);
    print_chain(view, out);
    print_memory(view, out);
    print_time(view, out);
    print_rates(view, out);
}

/* ---- JSON --------------------------------------------------------------------------------- */

static void write_mesh(ndm_json *j, const int64_t *mesh)
{
    ndm_json_key(j, "mesh");
    ndm_json_begin_object(j);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_json_key_int(j, ndm_axis_table()[a].name, mesh[a]);
    ndm_json_end_object(j);
}

static void write_memory(ndm_json *j, const ndm_plan_view *v)
{
    const ndm_plan_result *p = v->result;

    ndm_json_key(j, "memory_bytes");
    ndm_json_begin_object(j);
    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++)
        ndm_json_key_int(j, ndm_memory_kind_name((ndm_memory_kind)k), p->memory.peak_bytes[k]);
    ndm_json_key_int(j, "live", p->live);
    ndm_json_key_int(j, "reserved", p->reserved);
    ndm_json_key_int(j, "needed", p->needed);
    ndm_json_key_bool(j, "fits", p->fits);
    if (v->ranks_that_fit > 0)
        ndm_json_key_int(j, "ranks_that_fit", v->ranks_that_fit);
    ndm_json_end_object(j);
}

static void write_times(ndm_json *j, const ndm_plan_result *p)
{
    static const char *const keys[] = {"forward", "head", "recompute", "backward", "optimizer"};
    static const char *const categories[] = {"gemm", "attention", "memory"};
    char axes[48];

    ndm_json_key_double(j, "step_ms", p->step_ns * 1e-6);
    ndm_json_key(j, "phases_ms");
    ndm_json_begin_object(j);
    for (int i = 0; i < NDM_SIM_PHASE_COUNT; i++)
        ndm_json_key_double(j, keys[i], p->phase_ns[i] * 1e-6);
    ndm_json_end_object(j);
    ndm_json_key(j, "compute_ms");
    ndm_json_begin_object(j);
    for (int c = 0; c < NDM_SIM_CATEGORY_COUNT; c++) {
        double sum = 0.0;
        for (int i = 0; i < NDM_SIM_PHASE_COUNT; i++)
            sum += p->totals.busy[i][c];
        ndm_json_key_double(j, categories[c], sum * 1e-6);
    }
    ndm_json_end_object(j);
    ndm_json_key(j, "exposed_ms");
    ndm_json_begin_object(j);
    for (unsigned c = 0; c < NDM_SIM_CAUSES; c++)
        if (p->totals.collectives[c] > 0)
            ndm_json_key_double(j, ndm_axis_set_name(c, axes, sizeof axes),
                                p->exposed_ns[c] * 1e-6);
    ndm_json_end_object(j);
    ndm_json_key_double(j, "exposed_total_ms", ndm_sim_exposed(&p->totals) * 1e-6);
    ndm_json_key_int(j, "launches", p->totals.launches);
}

static void write_comms(ndm_json *j, const ndm_plan_result *p)
{
    ndm_json_key(j, "communicators");
    ndm_json_begin_array(j);
    for (int i = 0; i < p->n_comms; i++) {
        const ndm_plan_comm *c = &p->comms[i];
        ndm_json_begin_object(j);
        ndm_json_key_string(j, "name", c->name);
        ndm_json_key_int(j, "ranks", c->ranks);
        ndm_json_key_int(j, "domains", c->domains);
        for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
            if (c->calls[k] > 0)
                ndm_json_key_int(j, ndm_collective_name((ndm_collective)k), c->calls[k]);
        ndm_json_key(j, "received_bytes");
        ndm_json_begin_object(j);
        for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
            if (c->calls[k] > 0)
                ndm_json_key_int(j, ndm_collective_name((ndm_collective)k),
                                 (int64_t)c->received[k]);
        ndm_json_end_object(j);
        ndm_json_end_object(j);
    }
    ndm_json_end_array(j);
}

static void write_range(ndm_json *j, const ndm_plan_range *r)
{
    ndm_json_key(j, "open");
    ndm_json_begin_object(j);
    ndm_json_key_string(j, "what", r->what);
    ndm_json_key_int(j, "ways", r->n);
    ndm_json_key_double(j, "tokens_per_s_per_rank_low", r->tokens_low);
    ndm_json_key_double(j, "tokens_per_s_per_rank_high", r->tokens_high);
    ndm_json_key_int(j, "needed_bytes_low", r->needed_low);
    ndm_json_key_int(j, "needed_bytes_high", r->needed_high);
    ndm_json_end_object(j);
}

ndm_status ndm_plan_print_json(const ndm_plan_view *view, FILE *out)
{
    const ndm_plan_request *q = view->request;
    const ndm_plan_result *p = view->result;
    ndm_json j;

    ndm_json_init_file(&j, out, true);
    ndm_json_begin_object(&j);
    ndm_json_key_string(&j, "model", q->model);
    ndm_json_key_int(&j, "parameters", p->parameters);
    ndm_json_key_string(&j, "cluster", q->machine->name);
    ndm_json_key_string(&j, "stack", q->stack->name);
    ndm_json_key_int(&j, "ranks", q->ranks);
    write_mesh(&j, p->mesh);
    ndm_json_key_int(&j, "micro_batch", q->options.micro_batch);
    ndm_json_key_int(&j, "grad_accum", q->grad_accum);
    ndm_json_key_string(&j, "recompute", ndm_plan_recompute_name(q->options.recompute));
    ndm_json_key_string(&j, "strategies", p->strategies);
    write_memory(&j, view);
    write_times(&j, p);
    write_comms(&j, p);
    ndm_json_key_int(&j, "tokens", p->tokens);
    ndm_json_key_double(&j, "tokens_per_s", p->tokens_per_s);
    ndm_json_key_double(&j, "tokens_per_s_per_rank", p->tokens_per_s / (double)q->ranks);
    ndm_json_key_double(&j, "tflops_per_rank", p->model_flops * 1e-12);
    ndm_json_key_double(&j, "executed_tflops_per_rank", p->executed_flops * 1e-12);
    ndm_json_key_double(&j, "mfu", p->mfu);
    ndm_json_key_double(&j, "hfu", p->hfu);
    if (view->range)
        write_range(&j, view->range);
    ndm_json_end_object(&j);
    return ndm_json_finish(&j);
}
