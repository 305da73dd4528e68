/* SPDX-License-Identifier: Apache-2.0 */
/* From runs to rows: medians over the steps of all rounds, losses against one rank, best first. */
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_peak.h"
#include "cli/sweep.h"

const char *ndm_sweep_status_name(ndm_sweep_status status)
{
    static const char *const names[NDM_SWEEP_STATUS_COUNT] = {
        "ok", "invalid", "failed", "comm", "memory", "crashed", "timeout", "stopped"};

    return names[status];
}

/* All runs of a point. */
typedef struct runs {
    const ndm_sweep_run **run; /* [n] */
    int64_t n;
} runs;

static int64_t runs_of(const ndm_sweep_log *log, const ndm_sweep_point *point,
                       const ndm_sweep_run **found)
{
    int64_t n = 0;

    for (int64_t i = 0; i < log->n; i++)
        if (strcmp(log->runs[i].id, point->id) == 0)
            found[n++] = &log->runs[i];
    return n;
}

/* ---- numbers of a row
 * ---------------------------------------------------------------------------- */

/* Measured steps of the runs that ended well, one after another; returns how many. */
static int64_t collect(const runs *r, int64_t warmup, bool exposed, double *values)
{
    int64_t n = 0;

    for (int64_t i = 0; i < r->n; i++)
        for (int64_t s = warmup; s < r->run[i]->n_steps && r->run[i]->status == NDM_SWEEP_OK; s++)
            values[n++] = exposed ? r->run[i]->exposed_ms[s] : r->run[i]->step_ms[s];
    return n;
}

static int64_t count_steps(const runs *r)
{
    int64_t n = 0;

    for (int64_t i = 0; i < r->n; i++)
        n += r->run[i]->n_steps;
    return n;
}

static double loss_difference(const runs *r, const ndm_sweep_run *reference)
{
    double most = NAN;

    if (reference == NULL)
        return NAN;
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t s = 0; s < r->run[i]->n_steps && s < reference->n_steps; s++) {
            double d = fabs(r->run[i]->loss[s] - reference->loss[s]);
            most = isnan(most) || d > most ? d : most;
        }
    return most;
}

static ndm_status fill_row(const runs *r, const ndm_sweep_run *reference, int64_t warmup,
                           ndm_sweep_row *row)
{
    double *values = malloc((size_t)(count_steps(r) + 1) * sizeof *values);
    const ndm_sweep_run *good = NULL;

    if (values == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the steps of %" PRId64 " runs", r->n);
    for (int64_t i = 0; i < r->n; i++) {
        const ndm_sweep_run *run = r->run[i];
        if (run->status == NDM_SWEEP_OK)
            good = run;
        else if (row->status == NDM_SWEEP_OK)
            row->status = run->status, row->message = run->message;
        row->pss_bytes = fmax(row->pss_bytes, (double)run->pss_bytes);
        row->mem_peak_bytes = fmax(row->mem_peak_bytes, (double)run->mem_peak_bytes);
    }
    int64_t n = collect(r, warmup, true, values);
    row->exposed_ms = ndm_peak_median(values, n);
    n = collect(r, warmup, false, values);
    row->p50_ms = ndm_peak_median(values, n);
    row->p95_ms = ndm_peak_quantile(values, n, 0.95);
    free(values);
    row->tokens_per_s = good != NULL ? (double)good->tokens / row->p50_ms * 1e3 : NAN;
    row->tflops = good != NULL ? good->flop_per_token * row->tokens_per_s * 1e-12 : NAN;
    row->loss_difference = loss_difference(r, reference);
    row->runs = r->n;
    return NDM_OK;
}

/* ---- rules
 * --------------------------------------------------------------------------------------- */

const char *ndm_sweep_rule_of(const char *message, char text[NDM_SWEEP_MESSAGE])
{
    size_t n = 0, rank = strspn(message, "rank 0123456789");

    if (strncmp(message, "rank ", 5) == 0 && strncmp(message + rank, ": ", 2) == 0)
        message += rank + 2; /* who found it first does not matter */
    for (const char *c = message; *c != '\0' && *c != ';' && n < NDM_SWEEP_MESSAGE - 1; c++) {
        bool word = n > 0 && (isalnum((unsigned char)text[n - 1]) || text[n - 1] == '_');
        bool digit = isdigit((unsigned char)*c);
        if (strncmp(c, " (", 2) == 0)
            break; /* how many other rules fail too */
        if (digit && n > 0 && text[n - 1] == '#')
            continue;
        text[n++] = digit && !word ? '#' : *c;
    }
    text[n] = '\0';
    return text;
}

static ndm_status count_rule(ndm_sweep_result *result, const char *message)
{
    char text[NDM_SWEEP_MESSAGE];

    result->invalid++;
    ndm_sweep_rule_of(message, text);
    for (int64_t i = 0; i < result->n_rules; i++)
        if (strcmp(result->rules[i].text, text) == 0) {
            result->rules[i].count++;
            return NDM_OK;
        }
    ndm_sweep_rule *rules = realloc(result->rules, (size_t)(result->n_rules + 1) * sizeof *rules);
    if (rules == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " rules", result->n_rules + 1);
    result->rules = rules;
    memcpy(rules[result->n_rules].text, text, sizeof text);
    rules[result->n_rules++].count = 1;
    return NDM_OK;
}

static int more_frequent(const void *a, const void *b)
{
    const ndm_sweep_rule *x = a, *y = b;

    if (x->count != y->count)
        return x->count < y->count ? 1 : -1;
    return strcmp(x->text, y->text);
}

/* ---- the result
 * ---------------------------------------------------------------------------------- */

/* Those that ended well by speed, then those that did not. */
static int better(const void *a, const void *b)
{
    const ndm_sweep_row *x = a, *y = b;
    bool x_ok = x->status == NDM_SWEEP_OK && !x->loss_differs,
         y_ok = y->status == NDM_SWEEP_OK && !y->loss_differs;

    if (x_ok != y_ok)
        return x_ok ? -1 : 1;
    if (isnan(x->tokens_per_s) || isnan(y->tokens_per_s))
        return isnan(x->tokens_per_s) - isnan(y->tokens_per_s);
    return (x->tokens_per_s < y->tokens_per_s) - (x->tokens_per_s > y->tokens_per_s);
}

/* A run of the reference that ended well, and its median step; NULL without one. */
static const ndm_sweep_run *reference_of(const ndm_sweep_plan *plan, const ndm_sweep_log *log)
{
    if (plan->n == 0 || !plan->points[0].reference)
        return NULL;
    for (int64_t i = 0; i < log->n; i++)
        if (log->runs[i].status == NDM_SWEEP_OK && strcmp(log->runs[i].id, plan->points[0].id) == 0)
            return &log->runs[i];
    return NULL;
}

static ndm_status measure_peak(const ndm_sweep_log *log, double *peak)
{
    double *values = malloc((size_t)(log->n + 1) * sizeof *values);
    int64_t n = 0;

    if (values == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " peaks", log->n);
    for (int64_t i = 0; i < log->n; i++)
        if (log->runs[i].peak_gflops > 0.0)
            values[n++] = log->runs[i].peak_gflops;
    *peak = ndm_peak_median(values, n);
    free(values);
    return NDM_OK;
}

static ndm_status add_point(const ndm_sweep_point *point, const runs *r,
                            const ndm_sweep_run *reference, int64_t warmup,
                            ndm_sweep_result *result)
{
    ndm_sweep_row row = {.point = point};

    if (r->n == 0)
        return NDM_OK;
    if (r->run[r->n - 1]->status == NDM_SWEEP_INVALID)
        return count_rule(result, r->run[r->n - 1]->message);
    NDM_TRY(fill_row(r, reference, warmup, &row));
    result->rows[result->n++] = row;
    return NDM_OK;
}

static void compare_rows(ndm_sweep_result *result, double limit)
{
    double one = NAN;

    for (int64_t i = 0; i < result->n; i++)
        if (result->rows[i].point->reference)
            one = result->rows[i].p50_ms;
    for (int64_t i = 0; i < result->n; i++) {
        ndm_sweep_row *row = &result->rows[i];
        row->cost = row->p50_ms / one;
        row->of_peak = row->tflops * 1e3 / result->peak_gflops;
        row->loss_differs = row->loss_difference >= limit;
    }
    qsort(result->rows, (size_t)result->n, sizeof *result->rows, better);
    if (result->n_rules > 0)
        qsort(result->rules, (size_t)result->n_rules, sizeof *result->rules, more_frequent);
}

ndm_status ndm_sweep_result_make(const ndm_sweep_plan *plan, const ndm_sweep_log *log,
                                 int64_t warmup, double limit, ndm_sweep_result *result)
{
    runs r = {.run = malloc((size_t)(log->n + 1) * sizeof *r.run)};
    ndm_status status;

    *result = (ndm_sweep_result){.rows = calloc((size_t)plan->n + 1, sizeof *result->rows)};
    if (r.run == NULL || result->rows == NULL) {
        free(r.run);
        ndm_sweep_result_finish(result);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " rows", plan->n);
    }
    status = measure_peak(log, &result->peak_gflops);
    for (int64_t i = 0; i < plan->n && status == NDM_OK; i++) {
        r.n = runs_of(log, &plan->points[i], r.run);
        status = add_point(&plan->points[i], &r, reference_of(plan, log), warmup, result);
    }
    free(r.run);
    if (status == NDM_OK)
        compare_rows(result, limit);
    else
        ndm_sweep_result_finish(result);
    return status;
}

void ndm_sweep_result_finish(ndm_sweep_result *result)
{
    free(result->rows);
    free(result->rules);
    *result = (ndm_sweep_result){0};
}

/* ---- as a table
 * ---------------------------------------------------------------------------------- */

static const ndm_column columns[] = {
    {"ranks", "ranks", NDM_COLUMN_INT, 5, 0, false},
    {"dp_replicate", "repl", NDM_COLUMN_INT, 4, 0, false},
    {"dp_shard", "shard", NDM_COLUMN_INT, 5, 0, false},
    {"cp", "cp", NDM_COLUMN_INT, 3, 0, false},
    {"tp", "tp", NDM_COLUMN_INT, 3, 0, false},
    {"micro_batch", "mb", NDM_COLUMN_INT, 3, 0, false},
    {"grad_accum", "accum", NDM_COLUMN_INT, 5, 0, false},
    {"recompute", "recompute", NDM_COLUMN_TEXT, 9, 0, false},
    {"step_p50_ms", "p50(ms)", NDM_COLUMN_NUMBER, 9, 4, false},
    {"step_p95_ms", "p95(ms)", NDM_COLUMN_NUMBER, 9, 4, false},
    {"tokens_per_s", "tokens/s", NDM_COLUMN_NUMBER, 9, 4, false},
    {"tflops", "TFLOP/s", NDM_COLUMN_NUMBER, 8, 3, false},
    {"of_peak", "of peak", NDM_COLUMN_NUMBER, 7, 2, false},
    {"comm_exposed_ms", "exposed(ms)", NDM_COLUMN_NUMBER, 11, 3, false},
    {"memory_mib", "mem(MiB)", NDM_COLUMN_NUMBER, 8, 4, false},
    {"cost", "vs one", NDM_COLUMN_NUMBER, 6, 3, false},
    {"loss_difference", "loss diff", NDM_COLUMN_NUMBER, 9, 3, false},
    {"status", "status", NDM_COLUMN_TEXT, 9, 0, false},
    {"runs", "", NDM_COLUMN_INT, 0, 0, true},
    {"reference", "", NDM_COLUMN_TEXT, 0, 0, true},
    {"mem_peak_bytes", "", NDM_COLUMN_INT, 0, 0, true},
    {"message", "", NDM_COLUMN_TEXT, 0, 0, true},
};

static void add_row(ndm_table *t, const ndm_sweep_row *row)
{
    const ndm_sweep_point *p = row->point;

    ndm_table_int(t, p->ranks);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_table_int(t, p->sizes[a]);
    ndm_table_int(t, p->micro_batch);
    ndm_table_int(t, p->grad_accum);
    ndm_table_text(t, p->recompute);
    ndm_table_number(t, row->p50_ms);
    ndm_table_number(t, row->p95_ms);
    ndm_table_number(t, row->tokens_per_s);
    ndm_table_number(t, row->tflops);
    ndm_table_number(t, row->of_peak);
    ndm_table_number(t, row->exposed_ms);
    ndm_table_number(t, row->pss_bytes > 0.0 ? row->pss_bytes / (1 << 20) : NAN);
    ndm_table_number(t, row->cost);
    ndm_table_number(t, row->loss_difference);
    ndm_table_text(t, row->status == NDM_SWEEP_OK && row->loss_differs
                          ? "loss"
                          : ndm_sweep_status_name(row->status));
    ndm_table_int(t, row->runs);
    ndm_table_text(t, p->reference ? "yes" : "no");
    ndm_table_number(t, row->mem_peak_bytes);
    ndm_table_text(t, row->message);
}

void ndm_sweep_result_table(const ndm_sweep_result *result, ndm_table *table)
{
    ndm_table_init(table, columns, (int)(sizeof columns / sizeof columns[0]));
    for (int64_t i = 0; i < result->n; i++)
        add_row(table, &result->rows[i]);
}
