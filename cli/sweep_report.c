/* SPDX-License-Identifier: Apache-2.0 */
/* What a sweep prints and writes at its end: the table, best first, and why shapes were invalid. */
#include <inttypes.h>

#include "cli/bench_facts.h"
#include "cli/sweep.h"
#include "core/file.h"

typedef struct view {
    const ndm_options *options;
    const ndm_sweep_plan *plan;
    const ndm_sweep_log *log;
    const char *key;
} view;

static void print_text(const view *s, const ndm_sweep_result *r, const ndm_table *t)
{
    ndm_bench_facts facts = {.ranks = 1, .local_ranks = 1, .threads = (int)ndm_bench_cores()};

    ndm_bench_facts_text(&facts, stdout);
    printf("# sweep          %s\n# fma peak       %.1f GFLOP/s\n", s->key, r->peak_gflops);
    ndm_table_print_heading(t, stdout);
    for (int64_t i = 0; i < ndm_table_rows(t); i++)
        ndm_table_print_row(t, i, stdout);
    for (int64_t i = 0; i < r->n; i++)
        if (r->rows[i].status != NDM_SWEEP_OK)
            printf("# %s: %s: %s\n", ndm_sweep_status_name(r->rows[i].status), r->rows[i].point->id,
                   r->rows[i].message);
    if (r->invalid > 0)
        printf("# %" PRId64 " shapes are invalid:\n", r->invalid);
    for (int64_t i = 0; i < r->n_rules; i++)
        printf("# %6" PRId64 "  %s\n", r->rules[i].count, r->rules[i].text);
}

static void write_rules(ndm_json *json, const ndm_sweep_result *r)
{
    ndm_json_key_int(json, "invalid", r->invalid);
    ndm_json_key(json, "rules");
    ndm_json_begin_array(json);
    for (int64_t i = 0; i < r->n_rules; i++) {
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "rule", r->rules[i].text);
        ndm_json_key_int(json, "count", r->rules[i].count);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

static ndm_status print_json(const view *s, const ndm_sweep_result *r, const ndm_table *t)
{
    ndm_bench_facts facts = {.ranks = 1, .local_ranks = 1, .threads = (int)ndm_bench_cores()};
    ndm_json json;

    ndm_json_init_file(&json, stdout, true);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "sweep", s->key);
    ndm_json_key(&json, "context");
    ndm_json_begin_object(&json);
    ndm_bench_facts_json(&facts, &json);
    ndm_json_end_object(&json);
    ndm_json_key_double(&json, "fma_peak_gflops", r->peak_gflops);
    ndm_json_key_int(&json, "points", s->plan->n);
    ndm_json_key_int(&json, "filtered", s->plan->filtered);
    ndm_json_key_int(&json, "runs", s->log->n);
    write_rules(&json, r);
    ndm_json_key(&json, "rows");
    ndm_table_write_json(t, &json);
    ndm_json_end_object(&json);
    return ndm_json_finish(&json);
}

static ndm_status write_file(const char *path, const ndm_table *t,
                             void (*write)(const ndm_table *, ndm_buffer *))
{
    ndm_buffer text = {0};

    if (path == NULL)
        return NDM_OK;
    write(t, &text);
    ndm_status status = ndm_buffer_status(&text);
    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}

static ndm_status write_result(const view *s, const ndm_sweep_result *r, const ndm_table *t)
{
    const char *svg = ndm_option_string(s->options, "svg");

    NDM_TRY(ndm_table_status(t));
    NDM_TRY(write_file(ndm_option_string(s->options, "csv"), t, ndm_table_write_csv));
    NDM_TRY(write_file(ndm_option_string(s->options, "markdown"), t, ndm_table_write_markdown));
    if (svg != NULL)
        NDM_TRY(ndm_sweep_draw(r, s->plan, s->options, svg));
    if (ndm_option_bool(s->options, "json"))
        return print_json(s, r, t);
    print_text(s, r, t);
    return NDM_OK;
}

/* The rows are out; a script asks for the exit code. */
static ndm_status some_ended_well(const ndm_sweep_result *r, const ndm_sweep_log *log)
{
    for (int64_t i = 0; i < r->n; i++)
        if (r->rows[i].status == NDM_SWEEP_OK)
            return NDM_OK;
    if (log->n == 0)
        return NDM_OK;
    NDM_FAIL(NDM_ERR_STATE, "sweep: none of %" PRId64 " runs ended well: %s", log->n,
             log->runs[0].message);
}

ndm_status ndm_sweep_report(const ndm_options *options, const ndm_sweep_plan *plan,
                            const ndm_sweep_log *log, const char *key)
{
    view v = {options, plan, log, key};
    ndm_sweep_result result;
    ndm_table t;

    NDM_TRY(ndm_sweep_result_make(plan, log, ndm_option_int64(options, "warmup-steps"),
                                  ndm_option_double(options, "max-loss-difference"), &result));
    ndm_sweep_result_table(&result, &t);
    ndm_status status = write_result(&v, &result, &t);
    if (status == NDM_OK)
        status = some_ended_well(&result, log);
    ndm_table_finish(&t);
    ndm_sweep_result_finish(&result);
    return status;
}
