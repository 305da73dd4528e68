/* SPDX-License-Identifier: Apache-2.0 */
/* The benchmarks of `ndmesh bench`, and what they share. */
#ifndef NDM_CLI_BENCH_H
#define NDM_CLI_BENCH_H

#include "cli/bench_facts.h"
#include "cli/bench_table.h"
#include "core/option.h"
#include <ndmesh/context.h>

/* What a run of a benchmark writes: its rows, in the form that was asked for. */
typedef enum ndm_bench_form { NDM_BENCH_TEXT, NDM_BENCH_JSON, NDM_BENCH_CSV } ndm_bench_form;

typedef struct ndm_bench_report {
    const char *bench; /* "collectives" */
    ndm_bench_form form;
    bool speaks; /* rank 0: the others print nothing */
    ndm_bench_facts facts;
    ndm_table table;
    int64_t shown; /* rows that text has printed */
} ndm_bench_report;

/* Text: facts and heading now, each row by ndm_bench_report_row() as soon as it is there. JSON and
 * CSV: all at the end, of which JSON is {"bench", "context", "rows", ...}: members between are
 * written by `more`, which may be NULL. */
void ndm_bench_report_begin(ndm_bench_report *report);
NDM_MUST_USE ndm_status ndm_bench_report_row(ndm_bench_report *report);
NDM_MUST_USE ndm_status ndm_bench_report_end(ndm_bench_report *report,
                                             void (*more)(ndm_json *json, void *user), void *user);

/* Options of `bench` as `collectives` and `kernels` read them. NDM_ERR_CHECK: a result was wrong;
 * the rows are printed all the same. */
NDM_MUST_USE ndm_status ndm_bench_collectives(const ndm_options *options);
NDM_MUST_USE ndm_status ndm_bench_kernels(const ndm_options *options);

/* Measures this machine for `ndmesh plan`. */
NDM_MUST_USE ndm_status ndm_bench_profile(const ndm_options *options);

/* Options of bench step: the table lives as long as the options do, and is freed with free(); and
 * what train takes and a benchmark does not. */
NDM_MUST_USE ndm_status ndm_bench_step_table(ndm_option_table **table);
NDM_MUST_USE ndm_status ndm_bench_step_check(const ndm_options *options);

/* `bench step` takes the options of train. */
NDM_MUST_USE ndm_status ndm_bench_step(int argc, const char *const *argv);

/* Measured rounds take so long at least, unless the options say otherwise. */
enum { NDM_BENCH_BURST_NS = 4000000 };

#endif
