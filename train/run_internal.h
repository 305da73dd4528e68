/* SPDX-License-Identifier: Apache-2.0 */
/* A training run's parts: the loop (run.c), what it reports (run_report.c), its checkpoints
 * (run_save.c), evaluation (evaluate.c), and the run that only says what it would do (run_dry.c).
 * All are collective over the world unless they say otherwise. */
#ifndef NDM_TRAIN_RUN_INTERNAL_H
#define NDM_TRAIN_RUN_INTERNAL_H

#include <ndmesh/checkpoint.h>

#include "train/checkpoint_lock.h"
#include "train/metrics.h"
#include "train/progress.h"
#include "train/run.h"
#include "train/run_setup.h"

enum { NDM_RUN_PATH_BYTES = 4096 };

typedef struct ndm_run_trace ndm_run_trace;

typedef struct ndm_run_eval {
    int64_t step, tokens;
    double loss;
} ndm_run_eval;

/* Of this start of the run, not of those before a resume. */
typedef struct ndm_run_summary {
    int64_t steps, tokens, mem_peak_bytes;
    double steps_ms;
    ndm_run_eval *evals; /* [n_evals] */
    int64_t n_evals;
    char checkpoint[NDM_RUN_PATH_BYTES]; /* the last one that is complete, "" = none */
} ndm_run_summary;

typedef struct ndm_training {
    const ndm_options *options;
    ndm_context *context;
    ndm_model *model;
    ndm_data *data, *eval_data; /* eval_data: NULL = no evaluation */
    ndm_trainer *trainer;
    ndm_checkpoint_lock lock; /* of the folder of checkpoints, where it was there at the start */
    ndm_saver *saver;         /* NULL = no checkpoints */
    ndm_metrics *metrics;     /* rank 0 alone */
    bool ended;               /* the metrics have their last line */
    ndm_run_trace *trace;     /* NULL = none */
    ndm_progress progress;
    ndm_data_split split;
    int32_t *buffer; /* [4, sequences, seq_len] */
    int64_t sequences;
    int64_t samples;                  /* used so far: where the data goes on */
    int64_t saved_step;               /* last one that a save was begun for, -1 = none */
    int64_t evaluated_step;           /* likewise */
    char resumed[NDM_RUN_PATH_BYTES]; /* checkpoint that the run goes on from, "" = none */
    double start_s, load_ms;
    int64_t program_bytes; /* of a dry run: resident before there was a model; 0 unknown */
    ndm_step_result last;
    ndm_run_summary summary;
} ndm_training;

/* ---- run_report.c: on rank 0 only, local. A closed metrics file takes nothing. ---- */
NDM_MUST_USE ndm_status ndm_training_open_metrics(ndm_training *r);
/* Model, mesh and units, for people: two lines before the first step. */
void ndm_training_report_start(const ndm_training *r);
NDM_MUST_USE ndm_status ndm_training_report_step(ndm_training *r);
NDM_MUST_USE ndm_status ndm_training_report_eval(ndm_training *r, double loss, int64_t tokens);
NDM_MUST_USE ndm_status ndm_training_report_save(ndm_training *r, const ndm_save_result *save);
NDM_MUST_USE ndm_status ndm_training_report_end(ndm_training *r, const char *status);
/* The last line of a run that failed, and its members: status, code of the process, reason. */
NDM_MUST_USE ndm_status ndm_training_report_failed(ndm_training *r, ndm_status failure,
                                                   const char *reason);
void ndm_training_report_failure(ndm_json *json, ndm_status failure, const char *reason);
/* Members "mesh" and, where the world keeps memory for reuse, "memory_pool". */
void ndm_training_add_mesh(const ndm_training *r, ndm_json *json);
void ndm_training_add_pool(const ndm_training *r, ndm_json *json);

/* ---- run_summary.c: what --json prints at the end, gathered on the way; local ---- */
void ndm_training_sum_step(ndm_training *r);
NDM_MUST_USE ndm_status ndm_training_sum_eval(ndm_training *r, double loss, int64_t tokens);
void ndm_training_sum_save(ndm_training *r, const ndm_save_result *save);
/* On rank 0, with --json. */
NDM_MUST_USE ndm_status ndm_training_print_summary(ndm_training *r, const char *status, FILE *out);
void ndm_training_close_summary(ndm_training *r);

/* ---- run_save.c ---- */
/* Before anything is read there: another run that still writes may not have saved its last. */
NDM_MUST_USE ndm_status ndm_training_lock_checkpoints(ndm_training *r);
/* Which checkpoint to go on from: sets r->resumed. Before the model has weights. */
NDM_MUST_USE ndm_status ndm_training_find_resume(ndm_training *r);
/* Loads it, if there is one, and makes the saver, if there is a folder for it. */
NDM_MUST_USE ndm_status ndm_training_open_checkpoints(ndm_training *r);
/* Between steps: moves a save on, begins one that is due. */
NDM_MUST_USE ndm_status ndm_training_save_if_due(ndm_training *r);
/* After the last step: saves what is not saved yet, and waits. */
NDM_MUST_USE ndm_status ndm_training_save_last(ndm_training *r);

/* ---- run_trace.c: the first is to be agreed on; then right after a rendezvous; after each step;
 * after the last ---- */
NDM_MUST_USE ndm_status ndm_training_open_trace(ndm_training *r);
void ndm_training_trace_start(ndm_training *r);
void ndm_training_trace_step(ndm_training *r);
NDM_MUST_USE ndm_status ndm_training_write_trace(ndm_training *r);
/* Instead, of a run that failed: local. */
NDM_MUST_USE ndm_status ndm_training_fail_trace(ndm_training *r, ndm_status failure,
                                                const char *reason);
void ndm_training_close_trace(ndm_training *r);

/* ---- evaluate.c ---- */
/* Loss over the whole evaluation data, if it is due after this step, or if it is the last. */
NDM_MUST_USE ndm_status ndm_training_evaluate_if_due(ndm_training *r, bool is_last);

/* ---- run.c ---- */
/* The next step's samples of this rank into the buffer (local), and the buffer as a batch. */
NDM_MUST_USE ndm_status ndm_training_read_samples(ndm_training *r);
ndm_batch ndm_training_batch(const ndm_training *r);
/* Room for them. Local. */
NDM_MUST_USE ndm_status ndm_training_set_up_batches(ndm_training *r);

/* ---- run_dry.c: of a run that was set up on the counting device ---- */
NDM_MUST_USE ndm_status ndm_training_dry_run(ndm_training *r, FILE *out);
/* Bytes of this rank's copy for saves in the background. */
int64_t ndm_training_copy_bytes(const ndm_training *r);

#endif
