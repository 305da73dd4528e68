/* SPDX-License-Identifier: Apache-2.0 */
/* A run as one JSON document: what `train --json` prints when it has ended. */
#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "train/run_internal.h"
#include "train/versions.h"

void ndm_training_sum_step(ndm_training *r)
{
    ndm_run_summary *s = &r->summary;

    s->steps++;
    s->tokens += r->last.tokens;
    s->steps_ms += r->last.step_ms;
    if (r->last.mem_peak_bytes > s->mem_peak_bytes)
        s->mem_peak_bytes = r->last.mem_peak_bytes;
}

ndm_status ndm_training_sum_eval(ndm_training *r, double loss, int64_t tokens)
{
    ndm_run_summary *s = &r->summary;
    ndm_run_eval *evals = realloc(s->evals, (size_t)(s->n_evals + 1) * sizeof *evals);

    if (!evals)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld evaluations", (long long)s->n_evals + 1);
    s->evals = evals;
    evals[s->n_evals++] = (ndm_run_eval){ndm_trainer_steps(r->trainer), tokens, loss};
    return NDM_OK;
}

void ndm_training_sum_save(ndm_training *r, const ndm_save_result *save)
{
    if (save->status == NDM_OK)
        snprintf(r->summary.checkpoint, sizeof r->summary.checkpoint, "%s", save->path);
}

static void add_evals(const ndm_run_summary *s, ndm_json *json)
{
    ndm_json_key(json, "evals");
    ndm_json_begin_array(json);
    for (int64_t i = 0; i < s->n_evals; i++) {
        ndm_json_begin_object(json);
        ndm_json_key_int(json, "step", s->evals[i].step);
        ndm_json_key_double(json, "loss", s->evals[i].loss);
        ndm_json_key_int(json, "tokens", s->evals[i].tokens);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

/* Of the last step, and means over all that were made. */
static void add_numbers(const ndm_training *r, ndm_json *json)
{
    const ndm_run_summary *s = &r->summary;
    bool any = s->steps > 0;
    double per_s = any ? (double)s->tokens / s->steps_ms * 1e3 : NAN;

    ndm_json_key_int(json, "steps", ndm_trainer_steps(r->trainer));
    ndm_json_key_int(json, "steps_run", s->steps);
    ndm_json_key_int(json, "tokens", s->tokens);
    ndm_json_key_int(json, "tokens_total", ndm_trainer_tokens_total(r->trainer));
    ndm_json_key_double(json, "loss", any ? r->last.loss : NAN);
    ndm_json_key_double(json, "grad_norm", any ? r->last.grad_norm : NAN);
    add_evals(s, json);
    ndm_json_key_double(json, "seconds", ndm_clock_s() - r->start_s);
    ndm_json_key_double(json, "step_ms", any ? s->steps_ms / (double)s->steps : NAN);
    ndm_json_key_double(json, "tokens_per_s", per_s);
    ndm_json_key_double(json, "tflops", ndm_model_flops_per_token(r->model) * per_s * 1e-12);
    ndm_json_key_int(json, "mem_peak_bytes", s->mem_peak_bytes);
    ndm_training_add_pool(r, json);
}

static void add_files(const ndm_training *r, ndm_json *json)
{
    const ndm_options *o = r->options;
    const char *checkpoint = r->summary.checkpoint;

    ndm_json_key_string(json, "resumed_from", r->resumed[0] ? r->resumed : NULL);
    ndm_json_key_string(json, "checkpoint", checkpoint[0] ? checkpoint : NULL);
    ndm_json_key_string(json, "export", ndm_option_string(o, "export-hf"));
    ndm_json_key_string(json, "metrics", ndm_option_string(o, "metrics"));
    ndm_json_key_string(json, "trace", ndm_option_string(o, "trace"));
}

ndm_status ndm_training_print_summary(ndm_training *r, const char *status, FILE *out)
{
    ndm_json json;

    if (ndm_context_rank(r->context) != 0 || !ndm_option_bool(r->options, "json"))
        return NDM_OK;
    ndm_json_init_file(&json, out, true);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "status", status);
    add_numbers(r, &json);
    add_files(r, &json);
    ndm_training_add_mesh(r, &json);
    ndm_json_key_int(&json, "parameters", ndm_model_parameters(r->model));
    ndm_metrics_add_host(&json);
    ndm_json_key(&json, "versions");
    ndm_versions_write_json(&json, ndm_context_device(r->context));
    ndm_json_key(&json, "config");
    ndm_options_write_json(r->options, &json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

void ndm_training_close_summary(ndm_training *r)
{
    free(r->summary.evals);
}
