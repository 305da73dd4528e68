/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh bench collectives`: rows as nccl-tests prints them, every result checked, and beside each
 * time the least that a collective of that size costs here, measured in the same rounds.
 *
 * size is the larger of a rank's two buffers; algbw is size / time; busbw is algbw times the part
 * of size that must enter or leave a rank: (n-1)/n, twice that for an all-reduce, 1 for broadcast
 * and send-recv. Time is of the slowest rank, the median of the rounds. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench.h"
#include "cli/bench_limit.h"
#include "cli/bench_pattern.h"
#include "cli/bench_peak.h"
#include "cli/bench_work.h"
#include "cli/cli.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "strategies/internal.h"

enum { MAX_ROUNDS = 99, ALIGNMENT = 64 };
static const double LEAST_US = 0.1; /* of a call, where work between calls hides it */

typedef struct bench {
    const ndm_options *options;
    ndm_context *context;
    ndm_comm *comm, *everyone;
    ndm_stream *stream;
    ndm_dtype dtype;
    ndm_reduce_op op;
    bool in_place;
    int64_t most_bytes, room_bytes, apart_bytes;
    char *first, *second;       /* device, [room_bytes]; the first may lie in the window */
    int64_t offset, step_bytes; /* of the call's buffers in both; from there to the next call's */
    int64_t row_bytes;          /* that a row's calls take in turn */
    void *window;               /* of comm, or NULL */
    char *host;                 /* [most_bytes] */
    ndm_limit limit;
    ndm_bench_work work; /* before each timed call */
    bool wanted[NDM_COLLECTIVE_COUNT];
    ndm_bench_report report;
    int64_t wrong; /* over all rows and ranks */
} bench;

static const ndm_column columns[] = {
    {"op", "op", NDM_COLUMN_TEXT, 14, 0, false},
    {"size_bytes", "size(B)", NDM_COLUMN_INT, 12, 0, false},
    {"count", "count", NDM_COLUMN_INT, 12, 0, false},
    {"type", "type", NDM_COLUMN_TEXT, 5, 0, false},
    {"redop", "redop", NDM_COLUMN_TEXT, 5, 0, false},
    {"time_us", "time(us)", NDM_COLUMN_NUMBER, 10, 4, false},
    {"algbw_gbs", "algbw", NDM_COLUMN_NUMBER, 7, 3, false},
    {"busbw_gbs", "busbw", NDM_COLUMN_NUMBER, 7, 3, false},
    {"wrong", "#wrong", NDM_COLUMN_NUMBER, 6, 1, false},
    {"limit_us", "limit(us)", NDM_COLUMN_NUMBER, 10, 4, false},
    {"of_limit", "of limit", NDM_COLUMN_NUMBER, 8, 2, false},
    {"time_min_us", "", NDM_COLUMN_NUMBER, 0, 4, true},
    {"time_max_us", "", NDM_COLUMN_NUMBER, 0, 4, true},
};
enum { N_COLUMNS = sizeof columns / sizeof columns[0] };

/* ---- one collective -------------------------------------------------------------------------- */

static bool reduces(ndm_collective kind)
{
    return kind == NDM_REDUCE_SCATTER || kind == NDM_ALL_REDUCE;
}

static bool within(const bench *b, ndm_collective kind)
{
    bool may = kind == NDM_ALL_GATHER || kind == NDM_REDUCE_SCATTER;

    return kind == NDM_ALL_REDUCE || kind == NDM_BROADCAST || (b->in_place && may);
}

static int64_t element_bytes(const bench *b)
{
    return (int64_t)ndm_dtype_bytes(b->dtype);
}

static void *send_of(const bench *b, const ndm_pattern *p)
{
    bool block = p->kind == NDM_ALL_GATHER && within(b, p->kind);

    return b->first + b->offset + (block ? p->index * p->count * element_bytes(b) : 0);
}

static void *recv_of(const bench *b, const ndm_pattern *p)
{
    bool block = p->kind == NDM_REDUCE_SCATTER && within(b, p->kind);

    if (!within(b, p->kind))
        return b->second + b->offset;
    return b->first + b->offset + (block ? p->index * p->count * element_bytes(b) : 0);
}

static ndm_status issue(const bench *b, const ndm_pattern *p)
{
    void *send = send_of(b, p), *recv = recv_of(b, p);
    int64_t next = (p->index + 1) % p->size, last = (p->index + p->size - 1) % p->size;

    switch (p->kind) {
    case NDM_ALL_GATHER:
        return ndm_all_gather(b->comm, send, recv, p->count, p->dtype, b->stream);
    case NDM_REDUCE_SCATTER:
        return ndm_reduce_scatter(b->comm, send, recv, p->count, p->dtype, p->dtype, p->op,
                                  b->stream);
    case NDM_ALL_REDUCE:
        return ndm_all_reduce(b->comm, recv, p->count, p->dtype, p->op, b->stream);
    case NDM_ALL_TO_ALL:
        return ndm_all_to_all(b->comm, send, recv, p->count, p->dtype, b->stream);
    case NDM_BROADCAST:
        return ndm_broadcast(b->comm, recv, p->count, p->dtype, 0, b->stream);
    case NDM_SEND_RECV:
        return ndm_send_recv(b->comm, send, next, recv, last, p->count, p->dtype, b->stream);
    case NDM_BARRIER:
    case NDM_COLLECTIVE_COUNT:
        break;
    }
    return ndm_barrier(b->comm, b->stream);
}

/* ---- results --------------------------------------------------------------------------------- */

/* Sends known contents once and counts what is wrong here. */
static ndm_status check_once(bench *b, ndm_pattern *p, uint64_t salt, int64_t *wrong)
{
    int64_t send = ndm_pattern_send_count(p) * element_bytes(b);
    int64_t recv = ndm_pattern_recv_count(p) * element_bytes(b);

    p->salt = salt;
    ndm_pattern_fill(p, b->host);
    NDM_TRY(ndm_zero(b->stream, b->first, b->room_bytes));
    NDM_TRY(ndm_zero(b->stream, b->second, b->most_bytes));
    NDM_TRY(ndm_copy(b->stream, send_of(b, p), b->host, send, NDM_HOST_TO_DEVICE));
    NDM_TRY(ndm_stream_synchronize(b->stream));
    NDM_TRY(ndm_barrier(b->everyone, b->stream)); /* windows are written outside of collectives */
    NDM_TRY(issue(b, p));
    NDM_TRY(ndm_copy(b->stream, b->host, recv_of(b, p), recv, NDM_DEVICE_TO_HOST));
    NDM_TRY(ndm_stream_synchronize(b->stream));
    if (ndm_option_bool(b->options, "spoil") && ndm_context_rank(b->context) == 0)
        b->host[recv - 1] = (char)(b->host[recv - 1] ^ 0x41);
    *wrong += ndm_pattern_count_wrong(p, b->host);
    return ndm_barrier(b->everyone, b->stream); /* before somebody writes again */
}

static ndm_status check_row(bench *b, ndm_pattern *p, int64_t *wrong)
{
    int64_t checks = ndm_option_int64(b->options, "check");
    uint64_t seed = (uint64_t)ndm_option_int64(b->options, "seed");

    for (int64_t i = 0; i < checks && p->kind != NDM_BARRIER; i++)
        NDM_TRY(check_once(b, p, seed + (uint64_t)i, wrong));
    NDM_TRY(ndm_zero(b->stream, b->first, b->room_bytes)); /* sums of zeros stay what they are */
    NDM_TRY(ndm_zero(b->stream, b->second, b->room_bytes));
    return ndm_stream_synchronize(b->stream);
}

/* ---- times ----------------------------------------------------------------------------------- */

/* Mean time of n turns of this rank, which starts with the others: work, and a call if p is not
 * NULL. */
static ndm_status time_turns(bench *b, const ndm_pattern *p, int64_t n, double *us)
{
    NDM_TRY(ndm_barrier(b->everyone, b->stream));
    NDM_TRY(ndm_stream_synchronize(b->stream));
    int64_t start = ndm_clock_ns();
    for (int64_t i = 0; i < n; i++) {
        ndm_bench_work_run(&b->work);
        if (p) {
            NDM_TRY(issue(b, p));
            bool last = b->offset + 2 * b->step_bytes > b->row_bytes;
            b->offset = last ? 0 : b->offset + b->step_bytes;
        }
    }
    NDM_TRY(ndm_stream_synchronize(b->stream));
    if (b->work.passes > 0) /* all ranks' work, where some share a core */
        NDM_TRY(ndm_barrier(b->everyone, b->stream));
    *us = (double)(ndm_clock_ns() - start) * 1e-3 / (double)n;
    return NDM_OK;
}

/* Mean of n calls, without the work between them. */
static ndm_status time_calls(bench *b, const ndm_pattern *p, int64_t n, double *us)
{
    double work;

    NDM_TRY(time_turns(b, p, n, us));
    if (b->work.passes == 0)
        return NDM_OK;
    NDM_TRY(time_turns(b, NULL, n, &work));
    *us = fmax(*us - work, LEAST_US);
    return NDM_OK;
}

/* What a rank has found for a row. */
typedef struct found {
    double us[MAX_ROUNDS], limit_us[MAX_ROUNDS];
    int64_t wrong;
} found;

static ndm_status measure(bench *b, ndm_pattern *p, int64_t bytes, found *f)
{
    int64_t iters = ndm_option_int64(b->options, "iters"),
            rounds = ndm_option_int64(b->options, "rounds");
    int64_t each = (iters + rounds - 1) / rounds;
    double warm;

    b->offset = 0;
    b->step_bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    b->row_bytes = b->apart_bytes > b->step_bytes ? b->apart_bytes : b->step_bytes;
    ndm_limit_work work = {&b->limit,          p->kind,       p->size,     bytes,
                           within(b, p->kind), b->step_bytes, b->row_bytes};
    NDM_TRY(check_row(b, p, &f->wrong));
    if (ndm_option_int64(b->options, "warmup-iters") > 0) {
        NDM_TRY(time_calls(b, p, ndm_option_int64(b->options, "warmup-iters"), &warm));
        NDM_TRY(ndm_limit_time(&work, b->context, 1, &warm));
    }
    for (int64_t r = 0; r < rounds; r++) {
        NDM_TRY(time_calls(b, p, each, &f->us[r]));
        NDM_TRY(ndm_limit_time(&work, b->context, each, &f->limit_us[r]));
    }
    return NDM_OK;
}

/* Round by round the slowest rank; the ranks' wrong elements together. */
static ndm_status merge(bench *b, found *mine)
{
    int64_t n = ndm_context_size(b->context);
    found *all = calloc((size_t)n, sizeof *all);

    if (all == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the times of %lld ranks", (long long)n);
    ndm_status status = ndm_world_exchange(b->context->world, mine, sizeof *mine, all);
    mine->wrong = 0;
    for (int64_t r = 0; r < n && status == NDM_OK; r++) {
        for (int i = 0; i < MAX_ROUNDS; i++)
            mine->us[i] = fmax(mine->us[i], all[r].us[i]);
        mine->wrong += all[r].wrong;
    }
    free(all);
    return status;
}

static double bus_factor(ndm_collective kind, int64_t n)
{
    double part = (double)(n - 1) / (double)n;

    if (kind == NDM_BROADCAST || kind == NDM_SEND_RECV)
        return 1.0;
    return kind == NDM_ALL_REDUCE ? 2.0 * part : part;
}

static ndm_status add_row(bench *b, const ndm_pattern *p, int64_t bytes, found *f)
{
    int64_t rounds = ndm_option_int64(b->options, "rounds");
    bool data = p->kind != NDM_BARRIER, checked = ndm_option_int64(b->options, "check") > 0;
    double us = ndm_peak_median(f->us, rounds), limit = ndm_peak_median(f->limit_us, rounds);
    double algbw = data ? (double)bytes / us * 1e-3 : NAN;
    ndm_table *t = &b->report.table;

    if (!data || p->size == 1)
        limit = NAN;
    ndm_table_text(t, ndm_collective_name(p->kind));
    ndm_table_int(t, bytes);
    ndm_table_int(t, p->count);
    ndm_table_text(t, data ? ndm_dtype_name(p->dtype) : NULL);
    ndm_table_text(t, !reduces(p->kind) ? "none" : p->op == NDM_SUM ? "sum" : "max");
    ndm_table_number(t, us);
    ndm_table_number(t, algbw);
    ndm_table_number(t, algbw * bus_factor(p->kind, p->size));
    ndm_table_number(t, data && checked ? (double)f->wrong : NAN);
    ndm_table_number(t, limit);
    ndm_table_number(t, limit / us);
    ndm_table_number(t, f->us[0]);
    ndm_table_number(t, f->us[rounds - 1]);
    b->wrong += f->wrong;
    return ndm_bench_report_row(&b->report);
}

/* ---- rows ------------------------------------------------------------------------------------ */

static ndm_status run_row(bench *b, ndm_collective kind, int64_t bytes)
{
    ndm_pattern p = {.kind = kind,
                     .op = b->op,
                     .dtype = b->dtype,
                     .size = ndm_comm_size(b->comm),
                     .index = ndm_comm_index(b->comm)};
    bool blocks = kind == NDM_ALL_GATHER || kind == NDM_REDUCE_SCATTER || kind == NDM_ALL_TO_ALL;
    int64_t unit = element_bytes(b) * (blocks ? p.size : 1);
    found f = {0};

    p.count = bytes / unit > 0 ? bytes / unit : 1;
    if (kind == NDM_BARRIER)
        p.count = 0;
    NDM_TRY(measure(b, &p, p.count * unit, &f));
    NDM_TRY(merge(b, &f));
    return add_row(b, &p, p.count * unit, &f);
}

static ndm_status run_rows(bench *b)
{
    int64_t least = ndm_option_int64(b->options, "min-bytes"),
            most = ndm_option_int64(b->options, "max-bytes"),
            factor = ndm_option_int64(b->options, "step-factor");

    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
        if (!b->wanted[k])
            continue;
        for (int64_t bytes = least; bytes <= most; bytes *= factor) {
            NDM_TRY(run_row(b, (ndm_collective)k, bytes));
            if (k == NDM_BARRIER)
                break;
        }
    }
    return NDM_OK;
}

/* ---- set up ---------------------------------------------------------------------------------- */

static ndm_status choose(bench *b, const char *name)
{
    const char *names[NDM_COLLECTIVE_COUNT];

    if (strcmp(name, "sum") == 0 || strcmp(name, "max") == 0) {
        b->op = name[0] == 's' ? NDM_SUM : NDM_MAX;
        return NDM_OK;
    }
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
        names[k] = ndm_collective_name((ndm_collective)k);
        if (ndm_text_name_equal(name, names[k]) || strcmp(name, "all") == 0)
            b->wanted[k] = true;
        if (ndm_text_name_equal(name, names[k]))
            return NDM_OK;
    }
    if (strcmp(name, "all") == 0)
        return NDM_OK;
    const char *nearest = ndm_text_nearest(name, names, NDM_COLLECTIVE_COUNT);
    NDM_FAIL(NDM_ERR_USAGE, "--op: there is no collective '%s'%s%s", name,
             nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "");
}

static ndm_status read_choices(bench *b)
{
    size_t n = ndm_option_count(b->options, "op");
    bool any = false;

    NDM_TRY(ndm_dtype_parse(ndm_option_string(b->options, "datatype"), &b->dtype));
    b->in_place = ndm_option_bool(b->options, "in-place");
    for (size_t i = 0; i < n; i++)
        NDM_TRY(choose(b, ndm_option_item(b->options, "op", i)));
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        any = any || b->wanted[k];
    for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
        b->wanted[k] = b->wanted[k] || !any;
    if (ndm_option_int64(b->options, "min-bytes") > ndm_option_int64(b->options, "max-bytes"))
        NDM_FAIL(NDM_ERR_USAGE, "--min-bytes %s is above --max-bytes %s",
                 ndm_option_string(b->options, "min-bytes"),
                 ndm_option_string(b->options, "max-bytes"));
    return NDM_OK;
}

static ndm_status join(bench *b)
{
    const ndm_options *o = b->options;
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options c = NDM_CONTEXT_OPTIONS_INIT;
    ndm_axis_set axes;

    p.dp_replicate = ndm_option_int64(o, "dp-replicate");
    p.dp_shard = ndm_option_int64(o, "dp-shard");
    p.cp = ndm_option_int64(o, "cp");
    p.tp = ndm_option_int64(o, "tp");
    c.device = ndm_option_string(o, "backend");
    c.collectives = ndm_option_string(o, "collectives");
    c.timeout_s = ndm_option_double(o, "timeout");
    c.threads = (int)ndm_option_int64(o, "threads");
    c.ranks = ndm_option_int64(o, "ranks");
    NDM_TRY(ndm_axis_set_parse(ndm_option_string(o, "axis"), &axes));
    ndm_cli_watch_start(c.timeout_s);
    NDM_TRY(ndm_context_create(&p, &c, &b->context));
    b->stream = ndm_context_stream(b->context);
    NDM_TRY(ndm_context_comm(b->context, axes, &b->comm));
    return ndm_context_comm(b->context, NDM_AXES_ALL, &b->everyone);
}

/* The first buffer lies where others can read it, if that is asked for and there is such a place.
 */
static ndm_status make_buffers(bench *b)
{
    const char *memory = ndm_option_string(b->options, "memory");
    int64_t unit = 64 * ndm_comm_size(b->comm), apart = ndm_option_int64(b->options, "apart");
    void *first = NULL, *second = NULL;

    b->most_bytes = (ndm_option_int64(b->options, "max-bytes") + unit - 1) / unit * unit;
    b->apart_bytes = (apart + unit - 1) / unit * unit;
    b->room_bytes = b->apart_bytes > b->most_bytes ? b->apart_bytes : b->most_bytes;
    if (strcmp(memory, "plain") != 0)
        NDM_TRY(ndm_window_alloc(b->comm, b->room_bytes, NDM_MEMORY_COMM, &b->window));
    if (strcmp(memory, "window") == 0 && b->window == NULL)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "--memory window: %s on %s has none", b->comm->backend->name,
                 ndm_comm_name(b->comm));
    if (b->window == NULL)
        NDM_TRY(ndm_device_alloc(b->context->device, b->room_bytes, NDM_MEMORY_COMM, &first));
    else
        first = (char *)b->window + ndm_comm_index(b->comm) * b->room_bytes;
    b->first = first;
    NDM_TRY(ndm_device_alloc(b->context->device, b->room_bytes, NDM_MEMORY_COMM, &second));
    b->second = second;
    b->host = malloc((size_t)b->most_bytes);
    if (b->host == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %lld bytes", (long long)b->most_bytes);
    NDM_TRY(ndm_limit_init(&b->limit, b->room_bytes));
    return ndm_bench_work_init(&b->work, ndm_option_double(b->options, "work-us"));
}

static void free_buffers(bench *b)
{
    if (b->window != NULL)
        ndm_window_free(b->comm, b->window);
    else if (b->first != NULL)
        ndm_device_free(b->context->device, b->first);
    if (b->second != NULL)
        ndm_device_free(b->context->device, b->second);
    free(b->host);
    ndm_limit_finish(&b->limit);
    ndm_bench_work_finish(&b->work);
}

static void begin_report(bench *b)
{
    const ndm_options *o = b->options;
    ndm_bench_report *r = &b->report;

    r->bench = "collectives";
    r->form = ndm_option_bool(o, "json")  ? NDM_BENCH_JSON
              : ndm_option_bool(o, "csv") ? NDM_BENCH_CSV
                                          : NDM_BENCH_TEXT;
    r->speaks = ndm_context_rank(b->context) == 0;
    r->facts = (ndm_bench_facts){
        .ranks = ndm_context_size(b->context),
        .local_ranks = ndm_world_local_size(b->context->world),
        .threads = 1, /* the host side of collectives */
        .collectives = b->comm->backend->name,
    };
    ndm_table_init(&r->table, columns, N_COLUMNS);
    ndm_bench_report_begin(r);
}

static void write_more(ndm_json *json, void *user)
{
    const bench *b = user;
    const ndm_parallelism_config *p = ndm_context_parallelism(b->context);

    ndm_json_key(json, "mesh");
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "dp_replicate", p->dp_replicate);
    ndm_json_key_int(json, "dp_shard", p->dp_shard);
    ndm_json_key_int(json, "cp", p->cp);
    ndm_json_key_int(json, "tp", p->tp);
    ndm_json_end_object(json);
    ndm_json_key_string(json, "axis", ndm_comm_name(b->comm));
    ndm_json_key_int(json, "group_size", ndm_comm_size(b->comm));
    ndm_json_key_int(json, "groups", ndm_context_size(b->context) / ndm_comm_size(b->comm));
    ndm_json_key_string(json, "memory", b->window != NULL ? "window" : "plain");
    ndm_json_key_bool(json, "in_place", b->in_place);
    ndm_json_key_int(json, "wrong", b->wrong);
}

static ndm_status run(bench *b)
{
    NDM_TRY(ndm_context_agree(b->context, make_buffers(b)));
    begin_report(b);
    NDM_TRY(run_rows(b));
    NDM_TRY(ndm_context_agree(b->context, ndm_bench_report_end(&b->report, write_more, b)));
    if (b->wrong > 0)
        NDM_FAIL(NDM_ERR_CHECK, "%lld elements are wrong", (long long)b->wrong);
    return NDM_OK;
}

ndm_status ndm_bench_collectives(const ndm_options *options)
{
    bench b = {.options = options};

    NDM_TRY(read_choices(&b));
    ndm_status status = join(&b);
    if (status == NDM_OK)
        status = run(&b);
    ndm_table_finish(&b.report.table);
    if (status != NDM_OK && status != NDM_ERR_CHECK) {
        ndm_context_abandon(b.context);
        return status;
    }
    free_buffers(&b);
    ndm_context_destroy(b.context);
    return status;
}
