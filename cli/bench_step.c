/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh bench step`: training steps of one mesh on drawn tokens, and where their time goes.
 *
 * compute is what kernels on the compute stream take before the update, by kind; exposed
 * communication is the time that this stream stood waiting for others; optimizer is the update
 * without such waits; idle is what remains: host code, and communication that is moved on between
 * kernels. The parts are means over steps and ranks, so they add up to the mean step. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/bench_again.h"
#include "cli/bench_only.h"
#include "cli/bench_peak.h"
#include "cli/cli.h"
#include "cli/launch.h"
#include "core/clock.h"
#include "core/resident.h"
#include "strategies/internal.h"
#include "train/auto_mesh.h"
#include "train/run_setup.h"
#include "train/trainer.h"

enum { PEAK_ROUNDS = 3, PEAK_NS = 20000000 };

/* ---- phases
 * -------------------------------------------------------------------------------------- */

typedef enum part {
    PART_GEMM,
    PART_ATTENTION,
    PART_NORM,
    PART_ACT,
    PART_EMBEDDING,
    PART_LOSS,
    PART_OTHER,
    PART_EXPOSED,
    PART_OPTIMIZER,
    PART_IDLE,
    PART_STEP,
    PARTS
} part;

static const char *const part_names[PARTS] = {
    "gemm",      "attention", "norm",          "activation",
    "embedding", "loss",      "other kernels", "exposed communication",
    "optimizer", "idle",      "step"};

static part part_of(int op)
{
    switch (op) {
    case NDM_OP_gemm:
        return PART_GEMM;
    case NDM_OP_attention:
    case NDM_OP_attention_backward:
    case NDM_OP_attention_merge:
    case NDM_OP_rope:
        return PART_ATTENTION;
    case NDM_OP_norm:
    case NDM_OP_norm_backward:
        return PART_NORM;
    case NDM_OP_act:
    case NDM_OP_act_backward:
        return PART_ACT;
    case NDM_OP_embedding:
    case NDM_OP_embedding_backward:
        return PART_EMBEDDING;
    case NDM_OP_ce_stats:
    case NDM_OP_ce_merge:
    case NDM_OP_ce_apply:
        return PART_LOSS;
    default:
        return PART_OTHER;
    }
}

typedef struct bench {
    const ndm_options *options;
    ndm_context *context;
    ndm_model *model;
    ndm_trainer *trainer;
    int32_t *tokens; /* [2, sequences, seq_len]: inputs, targets */
    int64_t sequences;
    int64_t at_update_ns, waited_at_update_ns;
    bool updating;
    double ns[PARTS]; /* of this rank, over the measured steps */
    double *step_ms;  /* [steps] of the slowest rank */
    ndm_step_result first, last;
    double flops_per_token;
    int64_t wrong; /* results of the first step that came out otherwise; -1 = not checked */
    double peak[2 * PEAK_ROUNDS];     /* GFLOP/s of all ranks */
    double least[PARTS], most[PARTS]; /* over ranks; ms a step */
    int64_t pss_bytes;                /* of all ranks; -1 unknown */
    int64_t program_bytes;            /* of them, before there was a model; likewise */
    ndm_bench_report report;
} bench;

static void on_kernel(void *user, const ndm_stream *stream, const char *name, int op,
                      int64_t begin_ns, int64_t end_ns)
{
    bench *b = user;

    (void)name;
    if (stream->kind == NDM_STREAM_COMPUTE && !b->updating)
        b->ns[part_of(op)] += (double)(end_ns - begin_ns);
}

static ndm_status on_update(void *user)
{
    bench *b = user;

    b->updating = true;
    b->at_update_ns = ndm_clock_ns();
    b->waited_at_update_ns = ndm_stream_waited_ns(b->context->compute);
    return NDM_OK;
}

/* ---- steps
 * --------------------------------------------------------------------------------------- */

/* What this rank has of a step, in the one place that there is for it. */
static ndm_batch draw(bench *b, int64_t step)
{
    int64_t s = ndm_model_get_options(b->model)->seq_len;

    ndm_bench_draw(b->options, b->model, b->sequences, step, b->tokens);
    return (ndm_batch){b->sequences, b->tokens, b->tokens + b->sequences * s, NULL, NULL};
}

static ndm_status run_step(bench *b, int64_t step, bool measured)
{
    double before[PARTS];
    ndm_batch batch = draw(b, step);

    NDM_TRY(ndm_context_agree(b->context, NDM_OK)); /* all start together */
    memcpy(before, b->ns, sizeof before);
    b->updating = false;
    int64_t start = ndm_clock_ns(), waited = ndm_stream_waited_ns(b->context->compute);
    NDM_TRY(ndm_trainer_step(b->trainer, &batch, &b->last));
    int64_t end = ndm_clock_ns(), waited_end = ndm_stream_waited_ns(b->context->compute);
    if (!measured) {
        memcpy(b->ns, before, sizeof before);
        return NDM_OK;
    }
    b->ns[PART_EXPOSED] += (double)(waited_end - waited);
    b->ns[PART_OPTIMIZER] += (double)(end - b->at_update_ns -
                                      (waited_end - b->waited_at_update_ns));
    b->ns[PART_STEP] += (double)(end - start);
    return NDM_OK;
}

/* Of the cores that the ranks have; threads that share one count for their part of it. */
static ndm_status measure_peak(bench *b, double *peak)
{
    const ndm_bench_facts *f = &b->report.facts;
    double share = fmin(1.0, (double)ndm_bench_cores() / (double)(f->local_ranks * f->threads));

    for (int i = 0; i < PEAK_ROUNDS; i++) {
        NDM_TRY(ndm_context_agree(b->context, NDM_OK)); /* all cores are busy, as in a step */
        peak[i] = share * ndm_peak_fma_gflops(f->threads, PEAK_NS);
        NDM_TRY(ndm_context_sum(b->context, &peak[i]));
    }
    return NDM_OK;
}

static ndm_status run_steps(bench *b)
{
    int64_t steps = ndm_option_int64(b->options, "steps"),
            warmup = ndm_option_int64(b->options, "warmup-steps");

    ndm_bench_only only = (ndm_bench_only)ndm_option_enum(b->options, "only");

    NDM_TRY(measure_peak(b, b->peak));
    ndm_device_observe(b->context->device, on_kernel, b);
    ndm_trainer_before_update(b->trainer, on_update, b);
    for (int64_t i = 0; i < warmup + steps; i++) {
        if (i == 1)
            ndm_bench_leave_out(b->context, only);
        NDM_TRY(run_step(b, i, i >= warmup));
        if (i == 0)
            b->first = b->last;
        if (i >= warmup)
            b->step_ms[i - warmup] = b->last.step_ms;
    }
    ndm_device_observe(b->context->device, NULL, NULL);
    return measure_peak(b, b->peak + PEAK_ROUNDS);
}

/* -1 where one does not know. */
static void add_bytes(int64_t *sum, int64_t bytes)
{
    *sum = *sum < 0 || bytes < 0 ? -1 : *sum + bytes;
}

/* Means over steps and ranks; the least and the most of the ranks. */
static ndm_status merge(bench *b)
{
    struct facts {
        double ms[PARTS];
        int64_t pss_bytes, program_bytes;
    } mine = {.pss_bytes = ndm_resident_bytes(0), .program_bytes = b->program_bytes};
    int64_t n = ndm_context_size(b->context), steps = ndm_option_int64(b->options, "steps");
    struct facts *all = calloc((size_t)n, sizeof *all);

    if (all == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the times of %" PRId64 " ranks", n);
    b->ns[PART_IDLE] = b->ns[PART_STEP];
    for (int i = 0; i < PART_IDLE; i++)
        b->ns[PART_IDLE] -= b->ns[i];
    for (int i = 0; i < PARTS; i++)
        mine.ms[i] = b->ns[i] * 1e-6 / (double)steps;
    ndm_status status = ndm_world_exchange(b->context->world, &mine, sizeof mine, all);
    b->pss_bytes = b->program_bytes = 0;
    for (int64_t r = 0; r < n && status == NDM_OK; r++) {
        add_bytes(&b->pss_bytes, all[r].pss_bytes);
        add_bytes(&b->program_bytes, all[r].program_bytes);
    }
    for (int i = 0; i < PARTS && status == NDM_OK; i++) {
        b->ns[i] = 0.0;
        b->least[i] = b->most[i] = all[0].ms[i];
        for (int64_t r = 0; r < n; r++) {
            b->ns[i] += all[r].ms[i] / (double)n;
            b->least[i] = fmin(b->least[i], all[r].ms[i]);
            b->most[i] = fmax(b->most[i], all[r].ms[i]);
        }
    }
    free(all);
    return status;
}

/* ---- report
 * -------------------------------------------------------------------------------------- */

static const ndm_column columns[] = {
    {"part", "part", NDM_COLUMN_TEXT, 24, 0, false},
    {"ms", "ms", NDM_COLUMN_NUMBER, 9, 4, false},
    {"share", "share", NDM_COLUMN_NUMBER, 6, 3, false},
    {"least_ms", "least rank", NDM_COLUMN_NUMBER, 10, 4, false},
    {"most_ms", "most", NDM_COLUMN_NUMBER, 9, 4, false},
};

static ndm_status add_rows(bench *b)
{
    for (int i = 0; i < PARTS; i++) {
        ndm_table_text(&b->report.table, part_names[i]);
        ndm_table_number(&b->report.table, b->ns[i]);
        ndm_table_number(&b->report.table, b->ns[i] / b->ns[PART_STEP]);
        ndm_table_number(&b->report.table, b->least[i]);
        ndm_table_number(&b->report.table, b->most[i]);
    }
    return ndm_bench_report_row(&b->report);
}

typedef struct summary {
    double p50_ms, p95_ms, tokens_per_s, gflops, peak, of_peak;
} summary;

static summary summarize(bench *b)
{
    int64_t steps = ndm_option_int64(b->options, "steps");
    summary s = {.p50_ms = ndm_peak_median(b->step_ms, steps),
                 .p95_ms = ndm_peak_quantile(b->step_ms, steps, 0.95),
                 .peak = ndm_peak_median(b->peak, 2 * PEAK_ROUNDS)};

    s.tokens_per_s = (double)b->last.tokens / s.p50_ms * 1e3;
    s.gflops = b->flops_per_token * s.tokens_per_s * 1e-9;
    s.of_peak = s.gflops / s.peak;
    return s;
}

static void print_summary(bench *b)
{
    const ndm_parallelism_config *p = ndm_context_parallelism(b->context);
    summary s = summarize(b);

    printf("# mesh           dp_replicate %" PRId64 " x dp_shard %" PRId64 " x cp %" PRId64
           " x tp %" PRId64 "\n",
           p->dp_replicate, p->dp_shard, p->cp, p->tp);
    printf("# step p50       %.2f ms, p95 %.2f ms\n", s.p50_ms, s.p95_ms);
    printf("# first step     %s\n", b->wrong < 0    ? "not checked"
                                    : b->wrong == 0 ? "made again: the same bits"
                                                    : "made again: other bits");
    printf("# tokens/s       %.1f\n", s.tokens_per_s);
    printf("# model GFLOP/s  %.1f, %.1f %% of the %.1f of fused multiply-adds\n", s.gflops,
           100.0 * s.of_peak, s.peak);
    printf(
        "# memory         %.1f MiB of all ranks, %.1f MiB before there was a model, %.1f MiB of a "
        "rank's states and activations\n",
        (double)b->pss_bytes / (1 << 20), (double)b->program_bytes / (1 << 20),
        (double)b->last.mem_peak_bytes / (1 << 20));
}

static void write_more(ndm_json *json, void *user)
{
    bench *b = user;
    const ndm_parallelism_config *p = ndm_context_parallelism(b->context);
    summary s = summarize(b);

    ndm_json_key_string(json, "model", ndm_option_string(b->options, "model"));
    ndm_json_key(json, "mesh");
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "dp_replicate", p->dp_replicate);
    ndm_json_key_int(json, "dp_shard", p->dp_shard);
    ndm_json_key_int(json, "cp", p->cp);
    ndm_json_key_int(json, "tp", p->tp);
    ndm_json_end_object(json);
    ndm_json_key_int(json, "steps", ndm_option_int64(b->options, "steps"));
    ndm_json_key_int(json, "tokens", b->last.tokens);
    ndm_json_key_double(json, "loss", b->last.loss);
    ndm_json_key_bool(json, "checked", b->wrong >= 0);
    ndm_json_key_int(json, "wrong", b->wrong > 0 ? b->wrong : 0);
    ndm_json_key_double(json, "step_p50_ms", s.p50_ms);
    ndm_json_key_double(json, "step_p95_ms", s.p95_ms);
    ndm_json_key_double(json, "tokens_per_s", s.tokens_per_s);
    ndm_json_key_double(json, "gflops", s.gflops);
    ndm_json_key_double(json, "fma_peak_gflops", s.peak);
    ndm_json_key_double(json, "of_fma_peak", s.of_peak);
    ndm_json_key_int(json, "mem_peak_bytes", b->last.mem_peak_bytes);
    ndm_json_key_int(json, "pss_bytes", b->pss_bytes);
    ndm_json_key_int(json, "program_bytes", b->program_bytes);
}

/* ---- the run
 * ------------------------------------------------------------------------------------- */

static void begin_report(bench *b, const ndm_comm *everyone)
{
    const ndm_options *o = b->options;
    ndm_bench_report *r = &b->report;

    r->bench = "step";
    r->form = ndm_option_bool(o, "json")  ? NDM_BENCH_JSON
              : ndm_option_bool(o, "csv") ? NDM_BENCH_CSV
                                          : NDM_BENCH_TEXT;
    r->speaks = ndm_context_rank(b->context) == 0;
    r->facts = (ndm_bench_facts){
        .ranks = ndm_context_size(b->context),
        .local_ranks = ndm_world_local_size(b->context->world),
        .threads = b->context->device->options.threads,
        .kernels = ndm_kernels_chosen(b->context->device, NDM_OP_gemm),
        .collectives = everyone->backend->name,
    };
    ndm_table_init(&r->table, columns, (int)(sizeof columns / sizeof columns[0]));
}

static ndm_status make_batch(bench *b)
{
    int64_t s = ndm_model_get_options(b->model)->seq_len;

    b->sequences = ndm_option_int64(b->options, "micro-batch") *
                   ndm_option_int64(b->options, "grad-accum");
    b->tokens = malloc((size_t)(2 * b->sequences * s) * sizeof *b->tokens);
    b->step_ms = calloc((size_t)ndm_option_int64(b->options, "steps"), sizeof *b->step_ms);
    if (b->tokens == NULL || b->step_ms == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the tokens of a step");
    return NDM_OK;
}

/* The model that was measured is gone by then: there may be no room for two. */
static ndm_status check(bench *b)
{
    b->wrong = -1;
    if (!ndm_option_bool(b->options, "check") ||
        ndm_option_enum(b->options, "only") != NDM_ONLY_ALL)
        return NDM_OK;
    ndm_batch batch = draw(b, 0);
    ndm_trainer_destroy(b->trainer);
    ndm_model_destroy(b->model);
    b->trainer = NULL;
    b->model = NULL;
    return ndm_bench_again(b->options, b->context, &batch, &b->first,
                           ndm_option_bool(b->options, "spoil"), &b->wrong);
}

static ndm_status run(bench *b)
{
    ndm_comm *everyone;

    ndm_cli_watch_start(ndm_option_double(b->options, "timeout"));
    NDM_TRY(ndm_setup_context(b->options, &b->context));
    NDM_TRY(ndm_setup_check_memory(b->options, b->context));
    b->program_bytes = ndm_resident_bytes(0);
    NDM_TRY(ndm_context_agree(b->context, NDM_OK)); /* nobody's shared pages have changed */
    NDM_TRY(ndm_setup_model(b->options, b->context, &b->model));
    NDM_TRY(ndm_setup_trainer(b->options, b->model, &b->trainer));
    NDM_TRY(ndm_context_agree(b->context, make_batch(b)));
    NDM_TRY(ndm_context_comm(b->context, NDM_AXES_ALL, &everyone));
    begin_report(b, everyone);
    NDM_TRY(run_steps(b));
    NDM_TRY(ndm_context_agree(b->context, merge(b)));
    b->flops_per_token = ndm_model_flops_per_token(b->model);
    NDM_TRY(check(b));
    ndm_bench_report_begin(&b->report);
    NDM_TRY(add_rows(b));
    if (b->report.speaks && b->report.form == NDM_BENCH_TEXT)
        print_summary(b);
    NDM_TRY(ndm_context_agree(b->context, ndm_bench_report_end(&b->report, write_more, b)));
    if (b->wrong > 0)
        NDM_FAIL(NDM_ERR_CHECK,
                 "bench step: loss %.9g and gradient norm %.9g of the first step did "
                 "not come again",
                 b->first.loss, b->first.grad_norm);
    return NDM_OK;
}

static void tear_down(bench *b, bool failed)
{
    ndm_trainer_destroy(b->trainer);
    ndm_model_destroy(b->model);
    free(b->tokens);
    free(b->step_ms);
    ndm_table_finish(&b->report.table);
    if (failed)
        ndm_context_abandon(b->context);
    else
        ndm_context_destroy(b->context);
}

static ndm_status start(const ndm_options *o, int argc, const char *const *argv)
{
    static const char *const verb[] = {"bench", "step", NULL};
    bench b = {.options = o};
    int64_t ranks = ndm_option_int64(o, "ranks");

    NDM_TRY(ndm_bench_step_check(o));
    NDM_TRY(ndm_auto_mesh_refuse_idle(o, "cluster"));
    if (ndm_cli_starts_ranks(ranks))
        return ndm_cli_exec_ranks(ranks, verb, argc, argv);
    ndm_status status = run(&b);
    tear_down(&b, status != NDM_OK && status != NDM_ERR_CHECK);
    return status;
}

ndm_status ndm_bench_step(int argc, const char *const *argv)
{
    ndm_option_table *table = NULL;
    ndm_options *o = NULL;

    NDM_TRY(ndm_bench_step_table(&table));
    ndm_status status = ndm_cli_options(table, argc, argv, NULL, NULL, &o);
    if (status == NDM_OK)
        status = start(o, argc, argv);
    ndm_options_destroy(o);
    free(table);
    return status;
}
