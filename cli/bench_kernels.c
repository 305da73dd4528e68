/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh bench kernels`: every table of kernels that this machine can run, op by op, in the shapes
 * of a model's layers. Tables take turns round by round, next to bursts that show what the machine
 * could do at most at that time; each result is compared with the reference's. */
#include <math.h>
#include <string.h>

#include <omp.h>

#include "cli/bench.h"
#include "cli/bench_cases.h"
#include "cli/bench_peak.h"
#include "core/clock.h"
#include "core/log.h"
#include "device/device.h"
#include "model/config.h"

enum { MAX_TABLES = 16, MAX_ROUNDS = 99, COPY_BYTES = 32 << 20, CALLS_MOST = 100000 };

/* A device that runs one table. */
typedef struct subject {
    const ndm_kernel_table *table;
    ndm_device *device;
    ndm_stream *stream;
} subject;

/* What the rounds of one case gave for one subject. */
typedef struct result {
    bool runs;
    ndm_case bound;
    ndm_case_memory memory;
    double us[MAX_ROUNDS];
    double error; /* against the reference */
    bool wrong;
} result;

typedef struct bench {
    const ndm_options *options;
    ndm_bench_shape shape;
    int threads;
    subject reference, subjects[MAX_TABLES];
    int n_subjects;
    ndm_peak_copy copy;
    double fma[MAX_ROUNDS], stream[MAX_ROUNDS]; /* of the present case */
    ndm_bench_report report;
    int64_t wrong;
    char complaint[256]; /* of the first wrong result */
} bench;

static const ndm_column columns[] = {
    {"case", "case", NDM_COLUMN_TEXT, 42, 0, false},
    {"table", "table", NDM_COLUMN_TEXT, 9, 0, false},
    {"time_us", "time(us)", NDM_COLUMN_NUMBER, 10, 4, false},
    {"gflops", "GFLOP/s", NDM_COLUMN_NUMBER, 8, 3, false},
    {"of_fma_peak", "of FMA", NDM_COLUMN_NUMBER, 7, 2, false},
    {"gbs", "GB/s", NDM_COLUMN_NUMBER, 7, 3, false},
    {"of_copy_peak", "of copy", NDM_COLUMN_NUMBER, 7, 2, false},
    {"max_error", "max error", NDM_COLUMN_NUMBER, 10, 3, false},
    {"wrong", "#wrong", NDM_COLUMN_INT, 6, 0, false},
    {"op", "", NDM_COLUMN_TEXT, 0, 0, true},
    {"time_min_us", "", NDM_COLUMN_NUMBER, 0, 4, true},
    {"time_max_us", "", NDM_COLUMN_NUMBER, 0, 4, true},
    {"tolerance", "", NDM_COLUMN_NUMBER, 0, 3, true},
    {"fma_peak_gflops", "", NDM_COLUMN_NUMBER, 0, 4, true},
    {"copy_peak_gbs", "", NDM_COLUMN_NUMBER, 0, 4, true},
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

/* ---- subjects -------------------------------------------------------------------------------- */

static void close_subject(subject *s)
{
    ndm_stream_destroy(s->stream);
    ndm_device_destroy(s->device);
    *s = (subject){0};
}

static ndm_status open_subject(const ndm_kernel_table *table, int threads, subject *s)
{
    ndm_device_options options = {.threads = threads};
    ndm_status status;

    *s = (subject){.table = table};
    NDM_TRY(ndm_device_create(table->device, &options, &s->device));
    NDM_TRY_OR(status, ndm_kernels_bind(s->device, table->name), undo);
    NDM_TRY_OR(status, ndm_stream_create(s->device, NDM_STREAM_COMPUTE, "bench", &s->stream), undo);
    return NDM_OK;
undo:
    close_subject(s);
    return status;
}

static ndm_status open_subjects(bench *b)
{
    for (const ndm_kernel_table *const *t = ndm_kernel_table_list(); *t != NULL; t++) {
        char why[256] = "";
        bool reference = strcmp((*t)->name, "ref") == 0;
        if (strcmp((*t)->device, "sim") == 0)
            continue; /* computes nothing */
        if ((*t)->probe != NULL && !(*t)->probe(why, sizeof why)) {
            ndm_log(NDM_LOG_INFO, "kernel", "%s is not measured: %s", (*t)->name, why);
            continue;
        }
        if (reference)
            NDM_TRY(open_subject(*t, b->threads, &b->reference));
        else if (b->n_subjects < MAX_TABLES)
            NDM_TRY(open_subject(*t, b->threads, &b->subjects[b->n_subjects++]));
    }
    if (b->reference.table == NULL)
        NDM_FAIL(NDM_ERR_INTERNAL, "there is no table 'ref'");
    return NDM_OK;
}

/* ---- a case ---------------------------------------------------------------------------------- */

static bool wanted(const bench *b, const ndm_case *c, const char *table)
{
    size_t n = ndm_option_count(b->options, "filter");

    for (size_t i = 0; i < n; i++) {
        const char *text = ndm_option_item(b->options, "filter", i);
        if (strstr(c->label, text) != NULL || strcmp(table, text) == 0)
            return true;
    }
    return n == 0;
}

/* Runs once, compares. A wrong result is counted; what else fails, fails. */
static ndm_status check(bench *b, const ndm_case *c, const subject *s, const ndm_case_data *before,
                        const ndm_case_data *expected, result *r)
{
    ndm_case_data after = {0};

    NDM_TRY(ndm_case_run(c, before, s->stream, &after));
    if (ndm_option_bool(b->options, "spoil"))
        for (int i = 0; i < c->buffers; i++)
            if (c->buffer[i].output && !c->buffer[i].scratch)
                after.image[i][64 + 3] ^= 0x40; /* the exponent of the first element */
    ndm_status status = ndm_case_compare(c, before, expected, &after, &r->error);
    ndm_case_data_finish(&after);
    if (status != NDM_ERR_CHECK)
        return status;
    r->wrong = true;
    r->error = NAN;
    if (b->wrong++ == 0)
        snprintf(b->complaint, sizeof b->complaint, "%s: %.220s", s->table->name,
                 ndm_error_message());
    return NDM_OK;
}

/* Calls until min_ms have passed; the mean time of one. */
static ndm_status time_round(const bench *b, const subject *s, const result *r, double *us)
{
    double least_us = ndm_option_double(b->options, "min-ms") * 1e3;
    int64_t start = ndm_clock_ns(), calls = 0;
    double spent = 0.0;

    while (calls == 0 || (spent < least_us && calls < CALLS_MOST)) {
        NDM_TRY(ndm_case_launch(&r->bound, s->stream));
        NDM_TRY(ndm_stream_synchronize(s->stream));
        spent = (double)(ndm_clock_ns() - start) * 1e-3;
        calls++;
    }
    *us = spent / (double)calls;
    return NDM_OK;
}

/* The machine's limits, then each table, round by round. */
static ndm_status time_rounds(bench *b, result *results)
{
    int64_t rounds = ndm_option_int64(b->options, "rounds");
    double warm;

    for (int s = 0; s < b->n_subjects; s++)
        if (results[s].runs)
            NDM_TRY(time_round(b, &b->subjects[s], &results[s], &warm));
    for (int64_t i = 0; i < rounds; i++) {
        b->fma[i] = ndm_peak_fma_gflops(b->threads, NDM_BENCH_BURST_NS);
        b->stream[i] = ndm_peak_copy_gbs(&b->copy, NDM_BENCH_BURST_NS);
        for (int s = 0; s < b->n_subjects; s++)
            if (results[s].runs)
                NDM_TRY(time_round(b, &b->subjects[s], &results[s], &results[s].us[i]));
    }
    return NDM_OK;
}

static ndm_status add_row(bench *b, const ndm_case *c, const subject *s, result *r)
{
    int64_t rounds = ndm_option_int64(b->options, "rounds");
    double us = ndm_peak_median(r->us, rounds), fma = ndm_peak_median(b->fma, rounds),
           stream = ndm_peak_median(b->stream, rounds);
    double gflops = c->flop > 0.0 ? c->flop / us * 1e-3 : NAN;
    double gbs = ndm_bench_case_traffic(c) / us * 1e-3;
    ndm_table *t = &b->report.table;

    ndm_table_text(t, c->label);
    ndm_table_text(t, s->table->name);
    ndm_table_number(t, us);
    ndm_table_number(t, gflops);
    ndm_table_number(t, gflops / fma);
    ndm_table_number(t, gbs);
    ndm_table_number(t, gbs / stream);
    ndm_table_number(t, r->error);
    ndm_table_int(t, r->wrong);
    ndm_table_text(t, ndm_op_name(c->op));
    ndm_table_number(t, r->us[0]);
    ndm_table_number(t, r->us[rounds - 1]);
    ndm_table_number(t, ndm_case_tolerance(c->op));
    ndm_table_number(t, fma);
    ndm_table_number(t, stream);
    return ndm_bench_report_row(&b->report);
}

static ndm_status prepare(bench *b, const ndm_case *c, const ndm_case_data *before, result *results)
{
    ndm_case_data expected = {0};
    ndm_status status = ndm_case_run(c, before, b->reference.stream, &expected);

    for (int s = 0; s < b->n_subjects && status == NDM_OK; s++) {
        if (!results[s].runs)
            continue;
        status = check(b, c, &b->subjects[s], before, &expected, &results[s]);
        results[s].bound = *c;
        if (status == NDM_OK)
            status = ndm_case_upload(&results[s].bound, before, b->subjects[s].stream,
                                     &results[s].memory);
    }
    ndm_case_data_finish(&expected);
    return status;
}

static ndm_status run_case(bench *b, const ndm_case *c, result *results)
{
    ndm_case_data before = {0};

    NDM_TRY(ndm_case_data_init(c, (uint64_t)ndm_option_int64(b->options, "seed"), 0, &before));
    ndm_status status = prepare(b, c, &before, results);
    ndm_case_data_finish(&before);
    if (status == NDM_OK)
        status = time_rounds(b, results);
    for (int s = 0; s < b->n_subjects; s++) {
        if (results[s].memory.device != NULL)
            ndm_case_release(&results[s].memory);
        if (results[s].runs && status == NDM_OK)
            status = add_row(b, c, &b->subjects[s], &results[s]);
    }
    return status;
}

static ndm_status run_cases(bench *b, int64_t *n)
{
    static result results[MAX_TABLES]; /* large; one benchmark a process */
    ndm_case c;

    *n = 0;
    for (int64_t i = 0; ndm_bench_case_get(&b->shape, i, &c); i++) {
        int runs = 0;
        memset(results, 0, sizeof results);
        for (int s = 0; s < b->n_subjects; s++) {
            const ndm_kernel_table *t = b->subjects[s].table;
            results[s].runs = t->body[c.op] != NULL && wanted(b, &c, t->name);
            runs += results[s].runs;
        }
        if (runs == 0)
            continue;
        NDM_TRY(run_case(b, &c, results));
        *n += runs;
    }
    return NDM_OK;
}

/* ---- set up ---------------------------------------------------------------------------------- */

static ndm_status read_shape(bench *b)
{
    ndm_model_config m;

    NDM_TRY(ndm_model_config_resolve(ndm_option_string(b->options, "model"), &m));
    b->shape = (ndm_bench_shape){.tokens = ndm_option_int64(b->options, "tokens"),
                                 .width = m.hidden,
                                 .heads = m.heads,
                                 .kv_heads = m.kv_heads,
                                 .head_dim = m.head_dim,
                                 .ffn = m.ffn,
                                 .vocab = m.vocab};
    return NDM_OK;
}

static void begin_report(bench *b)
{
    const ndm_options *o = b->options;
    ndm_bench_report *r = &b->report;

    r->bench = "kernels";
    r->form = ndm_option_bool(o, "json")  ? NDM_BENCH_JSON
              : ndm_option_bool(o, "csv") ? NDM_BENCH_CSV
                                          : NDM_BENCH_TEXT;
    r->speaks = true;
    r->facts = (ndm_bench_facts){.ranks = 1, .local_ranks = 1, .threads = b->threads};
    ndm_table_init(&r->table, columns, N_COLUMNS);
    ndm_bench_report_begin(r);
}

static void write_more(ndm_json *json, void *user)
{
    const bench *b = user;

    ndm_json_key_string(json, "model", ndm_option_string(b->options, "model"));
    ndm_json_key_int(json, "tokens", b->shape.tokens);
    ndm_json_key_int(json, "wrong", b->wrong);
}

static ndm_status run(bench *b)
{
    int64_t n = 0;

    NDM_TRY(read_shape(b));
    NDM_TRY(open_subjects(b));
    NDM_TRY(ndm_peak_copy_init(&b->copy, b->threads, COPY_BYTES));
    begin_report(b);
    NDM_TRY(run_cases(b, &n));
    if (n == 0)
        NDM_FAIL(NDM_ERR_USAGE, "--filter: no case and no table has this text");
    NDM_TRY(ndm_bench_report_end(&b->report, write_more, b));
    if (b->wrong > 0)
        NDM_FAIL(NDM_ERR_CHECK, "%lld results are wrong; the first: %s", (long long)b->wrong,
                 b->complaint);
    return NDM_OK;
}

ndm_status ndm_bench_kernels(const ndm_options *options)
{
    bench b = {.options = options, .threads = (int)ndm_option_int64(options, "threads")};

    if (b.threads == 0)
        b.threads = (int)ndm_bench_cores();
    omp_set_num_threads(b.threads);
    ndm_status status = run(&b);
    for (int s = 0; s < b.n_subjects; s++)
        close_subject(&b.subjects[s]);
    if (b.reference.table != NULL)
        close_subject(&b.reference);
    ndm_peak_copy_finish(&b.copy);
    ndm_table_finish(&b.report.table);
    return status;
}
