/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of a run as JSON lines: {"run": {...}}, one object a step, {"end": {...}}. A line appears
 * whole or not at all, and at once, so that others can follow the file. */
#ifndef NDM_TRAIN_METRICS_H
#define NDM_TRAIN_METRICS_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>

#include "core/json.h"

/* One step, over all ranks. NaN stands for "not known" and becomes null. */
typedef struct ndm_step_metrics {
    int64_t step;     /* from 1 */
    double loss;      /* over all valid tokens of the step */
    double grad_norm; /* before clipping */
    double lr;
    int64_t tokens;       /* valid tokens of the step */
    int64_t tokens_total; /* since the first step, those before a resume included */
    double step_ms;
    double tokens_per_s;
    double tflops;          /* model FLOPs, all ranks */
    double mfu;             /* of the machine's peak, 0 to 1 */
    double comm_exposed_ms; /* worst rank */
    int64_t mem_peak_bytes; /* worst rank */
} ndm_step_metrics;

typedef struct ndm_metrics ndm_metrics;

/* append: a resumed run adds to its file; otherwise it starts empty. */
NDM_MUST_USE ndm_status ndm_metrics_open(const char *path, bool append, ndm_metrics **metrics);
void ndm_metrics_close(ndm_metrics *metrics); /* NULL is fine */

NDM_MUST_USE ndm_status ndm_metrics_step(ndm_metrics *metrics, const ndm_step_metrics *step);

/* Begins a line {"NAME": {...}}; add its members to the object returned, then end the line. For
 * "run", "eval", "end". */
ndm_json *ndm_metrics_begin(ndm_metrics *metrics, const char *name);
NDM_MUST_USE ndm_status ndm_metrics_end(ndm_metrics *metrics);

/* Members of a "run" line: "version" of ndmesh, and "host": name, kernel, cpu, cores, memory_bytes.
 */
void ndm_metrics_add_host(ndm_json *json);

#endif
