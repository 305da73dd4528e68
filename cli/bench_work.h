/* SPDX-License-Identifier: Apache-2.0 */
/* Work of a known length between two collectives, as a step has it. */
#ifndef NDM_CLI_BENCH_WORK_H
#define NDM_CLI_BENCH_WORK_H

#include <ndmesh/status.h>
#include <stdint.h>

typedef struct ndm_bench_work {
    float *memory;  /* as much as a core's second cache holds of a rank */
    int64_t passes; /* 0 = no work */
} ndm_bench_work;

/* Finds how many passes take about us microseconds. Freed with ndm_bench_work_finish(). */
NDM_MUST_USE ndm_status ndm_bench_work_init(ndm_bench_work *work, double us);
void ndm_bench_work_run(ndm_bench_work *work);
void ndm_bench_work_finish(ndm_bench_work *work);

#endif
