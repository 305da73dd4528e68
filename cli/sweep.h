/* SPDX-License-Identifier: Apache-2.0 */
/* A sweep: points (mesh shapes with their options), the runs of each, and what is made of them.
 *
 * sweep_plan.c makes the points, sweep_child.c runs one, sweep_log.c keeps runs in a file of JSON
 * lines, sweep_result.c makes a row of a point's runs, sweep_report.c prints them, sweep_svg.c
 * draws them, verb_sweep.c leads. */
#ifndef NDM_CLI_SWEEP_H
#define NDM_CLI_SWEEP_H

#include <stdio.h>

#include "cli/bench_table.h"
#include "core/option.h"
#include <ndmesh/mesh.h>

/* ---- points ------------------------------------------------------------------------------------
 */

enum { NDM_SWEEP_ID = 96, NDM_SWEEP_MESSAGE = 512 };

typedef struct ndm_sweep_point {
    int64_t ranks;
    int64_t sizes[NDM_AXIS_COUNT];
    int64_t micro_batch, grad_accum; /* grad_accum 0: the global batch does not divide */
    const char *recompute;
    bool reference;        /* one rank, which losses and times are compared with */
    char id[NDM_SWEEP_ID]; /* "dp_replicate 1 x dp_shard 2 x cp 1 x tp 2, micro-batch 1, none" */
} ndm_sweep_point;

typedef struct ndm_sweep_plan {
    ndm_sweep_point *points; /* [n]; the reference is the first, if there is one */
    int64_t n, capacity;
    int64_t filtered; /* shapes that --filter or --axes left out */
    int64_t global_batch;
} ndm_sweep_plan;

NDM_MUST_USE ndm_status ndm_sweep_plan_make(const ndm_options *options, ndm_sweep_plan *plan);
void ndm_sweep_plan_finish(ndm_sweep_plan *plan);

/* ---- runs --------------------------------------------------------------------------------------
 */

/* invalid: exit code 3, or a batch that does not divide. The others cost the point. */
typedef enum ndm_sweep_status {
    NDM_SWEEP_OK,
    NDM_SWEEP_INVALID,
    NDM_SWEEP_FAILED,  /* exit codes 1, 2, 6 */
    NDM_SWEEP_COMM,    /* 4 */
    NDM_SWEEP_MEMORY,  /* 5 */
    NDM_SWEEP_CRASHED, /* by a signal, or without having said that it was done */
    NDM_SWEEP_TIMEOUT,
    NDM_SWEEP_STOPPED, /* the sweep itself was interrupted; not kept */
    NDM_SWEEP_STATUS_COUNT
} ndm_sweep_status;

const char *ndm_sweep_status_name(ndm_sweep_status status);

typedef struct ndm_sweep_run {
    char id[NDM_SWEEP_ID];
    int64_t round;
    ndm_sweep_status status;
    int exit_code; /* of the launcher; 128 + signal */
    char message[NDM_SWEEP_MESSAGE];
    double seconds; /* wall time of the child */
    double peak_gflops;
    int64_t n_steps;
    double *step_ms, *loss, *exposed_ms; /* [n_steps] */
    int64_t tokens;                      /* of a step */
    double flop_per_token;
    int64_t mem_peak_bytes; /* what the engine counts on its worst rank */
    int64_t pss_bytes; /* most that all ranks together had, as seen from outside; 0 = not seen */
} ndm_sweep_run;

void ndm_sweep_run_finish(ndm_sweep_run *run);

/* What runs have in common. */
typedef struct ndm_sweep_setting {
    const char *program;               /* this one */
    const char *model, *data, *folder; /* folder: for files of a run */
    int64_t seq_len, steps, seed;
    double timeout_s;
    const char *const *extra; /* [n_extra] more flags of train */
    int n_extra;
    bool watch_memory;
} ndm_sweep_setting;

/* Runs a point as a child, and reads what it has left. Whatever happens to the child, the status is
 * NDM_OK; NDM_ERR_USAGE where train does not take its flags; NDM_ERR_INTERRUPTED after a signal. */
NDM_MUST_USE ndm_status ndm_sweep_child_run(const ndm_sweep_setting *setting,
                                            const ndm_sweep_point *point, ndm_sweep_run *run);

/* Signals end the present child, and then the sweep. 0, or the signal that came. */
void ndm_sweep_watch_signals(void);
int ndm_sweep_signal(void);

/* ---- the log -----------------------------------------------------------------------------------
 */

typedef struct ndm_sweep_log {
    int fd;
    char *path;
    ndm_sweep_run *runs; /* [n] of this sweep and of those that it goes on with */
    int64_t n, capacity;
} ndm_sweep_log;

/* key: what runs must have in common to be compared. A file that is there is refused, unless
 * resume: then its runs are read, a torn last line is cut off, and a file of another key is
 * NDM_ERR_CONFIG. retry: runs that failed are forgotten. */
NDM_MUST_USE ndm_status ndm_sweep_log_open(const char *path, const char *key, bool resume,
                                           bool retry, ndm_sweep_log *log);
void ndm_sweep_log_close(ndm_sweep_log *log);

/* Appends a line that survives a crash, and keeps the run, which it takes over. */
NDM_MUST_USE ndm_status ndm_sweep_log_add(ndm_sweep_log *log, ndm_sweep_run *run);

const ndm_sweep_run *ndm_sweep_log_find(const ndm_sweep_log *log, const char *id, int64_t round);

/* ---- rows --------------------------------------------------------------------------------------
 */

typedef struct ndm_sweep_row {
    const ndm_sweep_point *point;
    ndm_sweep_status status;
    const char *message; /* of the run that failed; NULL */
    bool loss_differs;
    int64_t runs;
    double p50_ms, p95_ms, tokens_per_s, tflops, of_peak, exposed_ms, pss_bytes, mem_peak_bytes;
    double loss_difference; /* largest over steps, absolute; NaN without a reference */
    double cost;            /* p50 over that of one rank, which does the same batch */
} ndm_sweep_row;

typedef struct ndm_sweep_rule {
    char text[NDM_SWEEP_MESSAGE];
    int64_t count;
} ndm_sweep_rule;

typedef struct ndm_sweep_result {
    ndm_sweep_row *rows; /* [n]: valid points that were run, best first */
    int64_t n;
    ndm_sweep_rule *rules; /* [n_rules]: why points were invalid, the most frequent first */
    int64_t n_rules, invalid;
    double peak_gflops; /* median over runs */
} ndm_sweep_result;

/* warmup: steps of a run that are left out. limit: of the loss difference. */
NDM_MUST_USE ndm_status ndm_sweep_result_make(const ndm_sweep_plan *plan, const ndm_sweep_log *log,
                                              int64_t warmup, double limit,
                                              ndm_sweep_result *result);
void ndm_sweep_result_finish(ndm_sweep_result *result);

/* Rows as a table, to be finished by the caller. */
void ndm_sweep_result_table(const ndm_sweep_result *result, ndm_table *table);

/* A rule as it is counted: numbers as #, without advice. Returns text. */
const char *ndm_sweep_rule_of(const char *message, char text[NDM_SWEEP_MESSAGE]);

/* Makes the result and prints it as text or JSON, with the files that the options ask for. */
NDM_MUST_USE ndm_status ndm_sweep_report(const ndm_options *options, const ndm_sweep_plan *plan,
                                         const ndm_sweep_log *log, const char *key);

/* ---- pictures ----------------------------------------------------------------------------------
 */

/* heatmap-<ranks>.svg, scaling.svg and time.svg in the folder, which is made. */
NDM_MUST_USE ndm_status ndm_sweep_draw(const ndm_sweep_result *result, const ndm_sweep_plan *plan,
                                       const ndm_options *options, const char *folder);

#endif
