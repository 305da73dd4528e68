/* SPDX-License-Identifier: Apache-2.0 */
/* How `ndmesh plan` shows what it found. */
#ifndef NDM_CLI_PLAN_VIEW_H
#define NDM_CLI_PLAN_VIEW_H

#include <stdio.h>

#include "core/json.h"
#include "train/plan.h"

/* The fastest and slowest of what was left open, and how many of them there are. */
typedef struct ndm_plan_range {
    int64_t n;
    double tokens_low, tokens_high; /* per rank and second */
    int64_t needed_low, needed_high;
    char what[64]; /* "micro-batch, recompute" */
} ndm_plan_range;

typedef struct ndm_plan_view {
    const ndm_plan_request *request;
    const ndm_plan_result *result;
    const ndm_plan_range *range; /* NULL = nothing was open */
    bool explain;
    int64_t ranks_that_fit; /* where no plan of these ranks does; 0 = not known */
} ndm_plan_view;

void ndm_plan_print(const ndm_plan_view *view, FILE *out);
NDM_MUST_USE ndm_status ndm_plan_print_json(const ndm_plan_view *view, FILE *out);

void ndm_plan_print_rows(const ndm_plan_request *request, const ndm_plan_rows *rows, int64_t top,
                         FILE *out);
NDM_MUST_USE ndm_status ndm_plan_print_rows_json(const ndm_plan_request *request,
                                                 const ndm_plan_rows *rows, FILE *out);

/* What limits the step, and what would move it: plans with one number changed (plan_explain.c). */
NDM_MUST_USE ndm_status ndm_plan_explain(const ndm_plan_view *view, FILE *out);

const char *ndm_plan_recompute_name(ndm_recompute recompute);
const char *ndm_plan_phase_name(int phase);

#endif
