/* SPDX-License-Identifier: Apache-2.0 */
/* Learning rate of a step: linear warm-up, then constant, linear or cosine. Counts optimizer steps,
 * from 1. */
#ifndef NDM_TRAIN_SCHEDULE_H
#define NDM_TRAIN_SCHEDULE_H

#include <stdint.h>

#include <ndmesh/status.h>

typedef enum ndm_schedule_kind {
    NDM_SCHEDULE_CONSTANT,
    NDM_SCHEDULE_LINEAR,
    NDM_SCHEDULE_COSINE
} ndm_schedule_kind;

typedef struct ndm_schedule {
    ndm_schedule_kind kind;
    double lr;           /* at the end of the warm-up */
    double min_lr_ratio; /* of lr, at the last step; linear and cosine */
    int64_t warmup;      /* steps; 0 = none */
    int64_t steps;       /* of the whole run */
} ndm_schedule;

/* "constant", "linear", "cosine". NDM_ERR_USAGE with the nearest name otherwise. */
NDM_MUST_USE ndm_status ndm_schedule_parse(const char *name, ndm_schedule_kind *kind);

/* NDM_ERR_CONFIG: a number out of range. */
NDM_MUST_USE ndm_status ndm_schedule_check(const ndm_schedule *schedule);

/* Steps beyond the last one keep its rate. */
double ndm_schedule_lr(const ndm_schedule *schedule, int64_t step);

#endif
