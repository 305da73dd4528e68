/* SPDX-License-Identifier: Apache-2.0 */
/* Progress for people: one line that is rewritten on a terminal, plain lines otherwise. */
#ifndef NDM_TRAIN_PROGRESS_H
#define NDM_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "train/metrics.h"

typedef struct ndm_progress {
    FILE *stream;      /* stderr; NULL = quiet */
    bool terminal;     /* rewrite one line */
    int64_t steps;     /* of the whole run */
    int64_t log_every; /* plain lines: every so many steps, and the first and last */
    double mean_ms;    /* of a step: an average that forgets */
    bool open;         /* the rewritten line has no newline yet */
} ndm_progress;

/* terminal is found out from the stream. */
void ndm_progress_init(ndm_progress *progress, FILE *stream, int64_t steps, int64_t log_every);

void ndm_progress_step(ndm_progress *progress, const ndm_step_metrics *step);

/* Ends the rewritten line, so that something else can be printed. */
void ndm_progress_finish(ndm_progress *progress);

/* "1:02:03" or "2:03" in buffer; returns buffer. */
const char *ndm_progress_time(double seconds, char *buffer, size_t bytes);

#endif
