/* SPDX-License-Identifier: Apache-2.0 */
/* Prints a dry run: the chain from config to kernel, and bytes per rank. */
#include <inttypes.h>

#include "collectives/count.h"
#include "core/text.h"
#include "model/model.h"
#include "train/run_dry.h"

enum { RANKS_SHOWN = 16 };

static int64_t global_batch(const ndm_training *r)
{
    return ndm_data_global_batch(&r->split);
}

/* ---- text --------------------------------------------------------------------------------- */

static void text_config(const ndm_training *r, FILE *out)
{
    const ndm_model_config *c = &r->model->config;
    const ndm_model_options *o = ndm_model_get_options(r->model);

    fprintf(out, "config         %s: %s, %" PRId64 " parameters\n",
            ndm_option_string(r->options, "model"), ndm_family_table(c->family)->model_type,
            ndm_model_parameters(r->model));
    fprintf(out,
            "               layers %" PRId64 "  hidden %" PRId64 "  heads %" PRId64
            "  kv_heads %" PRId64 "  ffn %" PRId64 "  vocabulary %" PRId64 "\n",
            c->layers, c->hidden, c->heads, c->kv_heads, c->ffn, c->vocab);
    fprintf(out,
            "               seq_len %" PRId64 "  micro_batch %" PRId64 "  grad_accum %" PRId64
            "  global batch %" PRId64 " samples, %" PRId64 " tokens\n",
            o->seq_len, r->split.micro_batch, r->split.grad_accum, global_batch(r),
            global_batch(r) * o->seq_len);
    if (r->resumed[0])
        fprintf(out, "               goes on from %s\n", r->resumed);
}

static void text_mesh(const ndm_training *r, FILE *out)
{
    const ndm_mesh *mesh = ndm_context_mesh(r->context);

    fprintf(out, "mesh           %" PRId64 " ranks =", ndm_mesh_world(mesh));
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        fprintf(out, "%s %s %" PRId64, a ? " x" : "", ndm_axis_table()[a].name,
                ndm_mesh_axis_size(mesh, (ndm_axis)a));
    fputc('\n', out);
}

static void text_comms(const ndm_training *r, FILE *out)
{
    const ndm_comm *comm;
    const char *head = "communicators";

    for (int64_t i = 0; (comm = ndm_comms_at(r->context->comms, i)) != NULL; i++) {
        if (ndm_comm_size(comm) == 1)
            continue;
        fprintf(out, "%-14s %s (%s): ranks", head, ndm_comm_name(comm), ndm_count_mimicked(comm));
        for (int64_t m = 0; m < ndm_comm_size(comm) && m < RANKS_SHOWN; m++)
            fprintf(out, " %" PRId64, ndm_comm_world_rank(comm, m));
        fputs(ndm_comm_size(comm) > RANKS_SHOWN ? " ...\n" : "\n", out);
        head = "";
    }
    if (head[0])
        fprintf(out, "%-14s none: one rank\n", head);
}

static void text_strategies(const ndm_training *r, FILE *out)
{
    for (int64_t i = 0; i < r->context->n_strategies; i++)
        fprintf(out, "%-14s %s: %s\n", i ? "" : "strategy", r->context->strategies[i]->name,
                r->context->strategies[i]->summary);
}

static void text_units(const ndm_training *r, FILE *out)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(r->model, &n);

    for (int64_t i = 0; i < n; i++)
        fprintf(out,
                "%-14s %s: %" PRId64 " parameters, %" PRId64 " elements gathered, %" PRId64
                " a rank\n",
                i ? "" : "unit", ndm_unit_name(units[i]), ndm_unit_params(units[i]),
                ndm_unit_numel(units[i]), ndm_unit_slice_numel(units[i]));
}

static void text_ops(const ndm_training *r, FILE *out)
{
    fprintf(out, "%-14s embed", "op");
    for (int i = 0; i < ndm_decoder_op_count; i++)
        fprintf(out, "%s %s", i ? "," : " | layer:", ndm_decoder_ops[i].name);
    fputs(" | norm, head, loss\n", out);
    for (int op = 0; op < NDM_OP_COUNT; op++)
        fprintf(out, "%-14s %-18s %s\n", op ? "" : "kernel", ndm_op_name((ndm_op)op),
                ndm_kernels_chosen(r->context->device, (ndm_op)op));
}

static void text_memory(const ndm_dry_report *d, FILE *out)
{
    char text[32];

    fprintf(out, "\npeak bytes of a rank (the worst of %" PRId64 ")\n",
            ndm_context_size(d->run->context));
    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++)
        fprintf(out, "  %-14s %16" PRId64 "  %s\n", ndm_memory_kind_name((ndm_memory_kind)k),
                d->worst.bytes[k], ndm_text_of_bytes(d->worst.bytes[k], text));
    fprintf(out, "  %-14s %16" PRId64 "  %s\n", "all at a time", d->worst.device,
            ndm_text_of_bytes(d->worst.device, text));
    if (d->worst.host)
        fprintf(out, "  %-14s %16" PRId64 "  %s, in host memory\n", "copy for saves", d->worst.host,
                ndm_text_of_bytes(d->worst.host, text));
    if (d->worst.program > 0)
        fprintf(out, "  %-14s %16" PRId64 "  %s, resident before there is a model\n", "program",
                d->worst.program, ndm_text_of_bytes(d->worst.program, text));
}

static void text_host(const ndm_fit *f, FILE *out)
{
    char needed[NDM_TEXT_BYTES_BYTES], limit[NDM_TEXT_BYTES_BYTES];

    if (f->limit == 0)
        return;
    fprintf(out, "\nmemory of host %s: %s of %s, %" PRId64 " rank%s: %s\n", f->host,
            ndm_text_of_bytes(f->needed, needed), ndm_text_of_bytes(f->limit, limit), f->ranks,
            f->ranks > 1 ? "s" : "", f->needed > f->limit ? "does not fit" : "fits");
}

void ndm_dry_print_text(const ndm_dry_report *report, FILE *out)
{
    text_config(report->run, out);
    text_mesh(report->run, out);
    text_comms(report->run, out);
    text_strategies(report->run, out);
    text_units(report->run, out);
    text_ops(report->run, out);
    text_memory(report, out);
    text_host(&report->fit, out);
}

/* ---- JSON --------------------------------------------------------------------------------- */

static void json_config(const ndm_training *r, ndm_json *json)
{
    ndm_json_key(json, "config");
    ndm_options_write_json(r->options, json);
    ndm_json_key(json, "model");
    ndm_json_begin_object(json);
    ndm_json_key_string(json, "type", ndm_family_table(r->model->config.family)->model_type);
    ndm_json_key_int(json, "parameters", ndm_model_parameters(r->model));
    ndm_json_key_int(json, "seq_len", ndm_model_get_options(r->model)->seq_len);
    ndm_json_key_int(json, "global_batch", global_batch(r));
    ndm_json_end_object(json);
}

static void json_mesh(const ndm_training *r, ndm_json *json)
{
    const ndm_mesh *mesh = ndm_context_mesh(r->context);

    ndm_json_key(json, "mesh");
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "ranks", ndm_mesh_world(mesh));
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_json_key_int(json, ndm_axis_table()[a].name, ndm_mesh_axis_size(mesh, (ndm_axis)a));
    ndm_json_end_object(json);
}

static void json_comms(const ndm_training *r, ndm_json *json)
{
    const ndm_comm *comm;

    ndm_json_key(json, "communicators");
    ndm_json_begin_array(json);
    for (int64_t i = 0; (comm = ndm_comms_at(r->context->comms, i)) != NULL; i++) {
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "name", ndm_comm_name(comm));
        ndm_json_key_string(json, "backend", ndm_count_mimicked(comm));
        ndm_json_key(json, "ranks");
        ndm_json_begin_array(json);
        for (int64_t m = 0; m < ndm_comm_size(comm); m++)
            ndm_json_int(json, ndm_comm_world_rank(comm, m));
        ndm_json_end_array(json);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

static void json_strategies(const ndm_training *r, ndm_json *json)
{
    ndm_json_key(json, "strategies");
    ndm_json_begin_array(json);
    for (int64_t i = 0; i < r->context->n_strategies; i++)
        ndm_json_string(json, r->context->strategies[i]->name);
    ndm_json_end_array(json);
}

static void json_units(const ndm_training *r, ndm_json *json)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(r->model, &n);

    ndm_json_key(json, "units");
    ndm_json_begin_array(json);
    for (int64_t i = 0; i < n; i++) {
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "name", ndm_unit_name(units[i]));
        ndm_json_key_int(json, "parameters", ndm_unit_params(units[i]));
        ndm_json_key_int(json, "numel", ndm_unit_numel(units[i]));
        ndm_json_key_int(json, "slice_numel", ndm_unit_slice_numel(units[i]));
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

static void json_ops(const ndm_training *r, ndm_json *json)
{
    ndm_json_key(json, "ops");
    ndm_json_begin_array(json);
    for (int i = 0; i < ndm_decoder_op_count; i++)
        ndm_json_string(json, ndm_decoder_ops[i].name);
    ndm_json_end_array(json);
    ndm_json_key(json, "kernels");
    ndm_json_begin_object(json);
    for (int op = 0; op < NDM_OP_COUNT; op++)
        ndm_json_key_string(json, ndm_op_name((ndm_op)op),
                            ndm_kernels_chosen(r->context->device, (ndm_op)op));
    ndm_json_end_object(json);
}

/* Of the host where least is left. */
static void json_host(const ndm_fit *f, ndm_json *json)
{
    if (f->limit == 0)
        return;
    ndm_json_key(json, "host_memory");
    ndm_json_begin_object(json);
    ndm_json_key_string(json, "host", f->host);
    ndm_json_key_int(json, "ranks", f->ranks);
    ndm_json_key_int(json, "needed", f->needed);
    ndm_json_key_int(json, "limit", f->limit);
    ndm_json_key_bool(json, "fits", f->needed <= f->limit);
    ndm_json_end_object(json);
}

static void json_memory(const ndm_dry_report *d, ndm_json *json)
{
    ndm_json_key(json, "memory");
    ndm_json_begin_object(json);
    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++)
        ndm_json_key_int(json, ndm_memory_kind_name((ndm_memory_kind)k), d->worst.bytes[k]);
    ndm_json_key_int(json, "peak", d->worst.device);
    ndm_json_key_int(json, "host_copy", d->worst.host);
    ndm_json_key_int(json, "program", d->worst.program);
    ndm_json_end_object(json);
}

ndm_status ndm_dry_print_json(const ndm_dry_report *report, FILE *out)
{
    ndm_json json;

    ndm_json_init_file(&json, out, true);
    ndm_json_begin_object(&json);
    json_config(report->run, &json);
    json_mesh(report->run, &json);
    json_comms(report->run, &json);
    json_strategies(report->run, &json);
    json_units(report->run, &json);
    json_ops(report->run, &json);
    json_memory(report, &json);
    json_host(&report->fit, &json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}
