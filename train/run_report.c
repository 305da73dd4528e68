/* SPDX-License-Identifier: Apache-2.0 */
/* What a run tells: lines of metrics, and progress. */
#include <math.h>

#include "core/clock.h"
#include "core/log.h"
#include "train/run_internal.h"
#include "train/versions.h"

void ndm_training_add_mesh(const ndm_training *r, ndm_json *json)
{
    const ndm_mesh *mesh = ndm_context_mesh(r->context);

    ndm_json_key(json, "mesh");
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "ranks", ndm_context_size(r->context));
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_json_key_int(json, ndm_axis_table()[a].name, ndm_mesh_axis_size(mesh, (ndm_axis)a));
    ndm_json_end_object(json);
}

static void write_run_line(ndm_training *r)
{
    ndm_json *json = ndm_metrics_begin(r->metrics, "run");

    ndm_metrics_add_host(json);
    ndm_json_key(json, "versions");
    ndm_versions_write_json(json, ndm_context_device(r->context));
    ndm_json_key(json, "config");
    ndm_options_write_json(r->options, json);
    ndm_training_add_mesh(r, json);
    ndm_json_key_int(json, "parameters", ndm_model_parameters(r->model));
    if (r->resumed[0]) {
        ndm_json_key_string(json, "resumed_from", r->resumed);
        ndm_json_key_int(json, "resumed_step", ndm_trainer_steps(r->trainer));
    }
    if (r->load_ms > 0.0)
        ndm_json_key_double(json, "load_ms", r->load_ms);
}

ndm_status ndm_training_open_metrics(ndm_training *r)
{
    const char *path = ndm_option_string(r->options, "metrics");

    if (ndm_context_rank(r->context) != 0 || !path)
        return NDM_OK;
    NDM_TRY(ndm_metrics_open(path, r->resumed[0] != '\0', &r->metrics));
    write_run_line(r);
    return ndm_metrics_end(r->metrics);
}

/* Units in the order of the forward; a run of layers with the same size is one entry. */
static void print_units(const ndm_training *r, FILE *out)
{
    int64_t n;
    ndm_unit *const *units = ndm_model_units(r->model, &n);

    fprintf(out, "ndmesh: units:");
    for (int64_t i = 0, last; i < n; i = last + 1) {
        for (last = i; last + 1 < n && ndm_unit_numel(units[last + 1]) == ndm_unit_numel(units[i]);)
            last++;
        fprintf(out, "%s %s", i > 0 ? "," : "", ndm_unit_name(units[i]));
        if (last > i)
            fprintf(out, " to %s", ndm_unit_name(units[last]));
        fprintf(out, " (%lld%s)", (long long)ndm_unit_numel(units[i]), last > i ? " each" : "");
    }
    fprintf(out, "\n");
}

static void print_resumed(const ndm_training *r, FILE *out)
{
    int64_t done = ndm_trainer_steps(r->trainer), steps = ndm_option_int64(r->options, "steps");

    fprintf(out, "ndmesh: goes on from %s, after step %lld%s\n", r->resumed, (long long)done,
            done < steps ? "" : ": no step is left to train (--steps counts those before, too)");
}

void ndm_training_report_start(const ndm_training *r)
{
    const ndm_mesh *mesh = ndm_context_mesh(r->context);
    FILE *out = r->progress.stream;

    if (ndm_context_rank(r->context) != 0 || !out)
        return;
    fprintf(out,
            "ndmesh: %s: %lld parameters on %lld ranks =", ndm_option_string(r->options, "model"),
            (long long)ndm_model_parameters(r->model), (long long)ndm_context_size(r->context));
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        fprintf(out, "%s %s %lld", a > 0 ? " x" : "", ndm_axis_table()[a].name,
                (long long)ndm_mesh_axis_size(mesh, (ndm_axis)a));
    fprintf(out, "\n");
    print_units(r, out);
    if (r->resumed[0])
        print_resumed(r, out);
}

ndm_status ndm_training_report_step(ndm_training *r)
{
    const ndm_step_result *s = &r->last;
    ndm_step_metrics m = {
        .step = s->step,
        .loss = s->loss,
        .grad_norm = s->grad_norm,
        .lr = s->lr,
        .tokens = s->tokens,
        .tokens_total = s->tokens_total,
        .step_ms = s->step_ms,
        .tokens_per_s = (double)s->tokens / s->step_ms * 1e3,
        .tflops = ndm_model_flops_per_token(r->model) * (double)s->tokens / s->step_ms * 1e-9,
        .mfu = NAN,
        .comm_exposed_ms = s->comm_exposed_ms,
        .mem_peak_bytes = s->mem_peak_bytes,
    };

    if (ndm_context_rank(r->context) != 0)
        return NDM_OK;
    ndm_training_sum_step(r);
    ndm_progress_step(&r->progress, &m);
    return r->metrics ? ndm_metrics_step(r->metrics, &m) : NDM_OK;
}

ndm_status ndm_training_report_eval(ndm_training *r, double loss, int64_t tokens)
{
    if (ndm_context_rank(r->context) != 0)
        return NDM_OK;
    NDM_TRY(ndm_training_sum_eval(r, loss, tokens));
    ndm_progress_finish(&r->progress);
    if (r->progress.stream)
        fprintf(r->progress.stream, "eval after step %lld  loss %.4f  %lld tokens\n",
                (long long)ndm_trainer_steps(r->trainer), ndm_text_unsigned_nan(loss),
                (long long)tokens);
    if (!r->metrics)
        return NDM_OK;
    ndm_json *json = ndm_metrics_begin(r->metrics, "eval");
    ndm_json_key_int(json, "step", ndm_trainer_steps(r->trainer));
    ndm_json_key_double(json, "loss", loss);
    ndm_json_key_int(json, "tokens", tokens);
    return ndm_metrics_end(r->metrics);
}

static void tell_save(ndm_training *r, const ndm_save_result *save)
{
    ndm_progress_finish(&r->progress);
    if (save->status == NDM_OK && r->progress.stream)
        fprintf(r->progress.stream, "saved %s  %.1f MiB  pause %.0f ms  total %.0f ms\n",
                save->path, (double)save->bytes / (1 << 20), save->pause_ms, save->total_ms);
}

ndm_status ndm_training_report_save(ndm_training *r, const ndm_save_result *save)
{
    if (ndm_context_rank(r->context) != 0)
        return NDM_OK;
    ndm_training_sum_save(r, save);
    tell_save(r, save);
    if (!r->metrics)
        return NDM_OK;
    ndm_json *json = ndm_metrics_begin(r->metrics, "save");
    ndm_json_key_int(json, "step", save->step);
    ndm_json_key_string(json, "status", save->status == NDM_OK ? "complete" : "failed");
    ndm_json_key_string(json, "path", save->path);
    if (save->status != NDM_OK)
        ndm_json_key_string(json, "message", save->message);
    ndm_json_key_int(json, "bytes", save->bytes);
    ndm_json_key_double(json, "pause_ms", save->pause_ms);
    ndm_json_key_double(json, "copy_ms", save->copy_ms);
    ndm_json_key_double(json, "total_ms", save->total_ms);
    return ndm_metrics_end(r->metrics);
}

/* Of a world that keeps memory for reuse: what of its peak was idle is lost to fragmentation. */
void ndm_training_add_pool(const ndm_training *r, ndm_json *json)
{
    ndm_memory_pool p;

    if (!ndm_device_pool(r->context->device, &p))
        return;
    ndm_json_key(json, "memory_pool");
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "peak_reserved_bytes", p.peak_reserved_bytes);
    ndm_json_key_int(json, "peak_used_bytes", p.peak_used_bytes);
    ndm_json_key_int(json, "largest_free_bytes", p.largest_free_bytes);
    ndm_json_key_double(json, "fragmentation",
                        p.peak_reserved_bytes > 0
                            ? 1.0 - (double)p.peak_used_bytes / (double)p.peak_reserved_bytes
                            : 0.0);
    ndm_json_end_object(json);
}

void ndm_training_report_failure(ndm_json *json, ndm_status failure, const char *reason)
{
    ndm_json_key_string(json, "status", "failed");
    ndm_json_key_int(json, "code", ndm_status_exit_code(failure));
    ndm_json_key_string(json, "reason", reason);
}

static ndm_status write_totals(const ndm_training *r, ndm_json *json)
{
    ndm_json_key_int(json, "steps", ndm_trainer_steps(r->trainer));
    ndm_json_key_int(json, "tokens_total", ndm_trainer_tokens_total(r->trainer));
    ndm_json_key_double(json, "seconds", ndm_clock_s() - r->start_s);
    ndm_training_add_pool(r, json);
    return ndm_metrics_end(r->metrics);
}

ndm_status ndm_training_report_end(ndm_training *r, const char *status)
{
    if (!r->metrics)
        return NDM_OK;
    ndm_json *json = ndm_metrics_begin(r->metrics, "end");
    ndm_json_key_string(json, "status", status);
    r->ended = true;
    return write_totals(r, json);
}

ndm_status ndm_training_report_failed(ndm_training *r, ndm_status failure, const char *reason)
{
    if (!r->metrics || r->ended)
        return NDM_OK;
    ndm_json *json = ndm_metrics_begin(r->metrics, "end");
    ndm_training_report_failure(json, failure, reason);
    return write_totals(r, json);
}
