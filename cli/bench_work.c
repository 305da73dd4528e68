/* SPDX-License-Identifier: Apache-2.0 */
/* Work between collectives: passes over a memory of the rank's own. Where ranks share a core, each
 * finds its caches used by the others, as within a step. */
#include "cli/bench_work.h"

#include <stdlib.h>

#include "core/clock.h"

enum { NUMEL = 65536, CALIBRATE_NS = 3000000 };

static void run(ndm_bench_work *work, int64_t passes)
{
    for (int64_t p = 0; p < passes; p++)
        for (int64_t i = 0; i < NUMEL; i++)
            work->memory[i] = work->memory[i] * 0.5f + 1.0f;
}

ndm_status ndm_bench_work_init(ndm_bench_work *work, double us)
{
    int64_t passes = 0, start, spent = 0;

    *work = (ndm_bench_work){0};
    if (us <= 0.0)
        return NDM_OK;
    work->memory = calloc(NUMEL, sizeof *work->memory);
    if (!work->memory)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for work of %lld bytes",
                 (long long)NUMEL * (long long)sizeof *work->memory);
    run(work, 1); /* touches it */
    for (start = ndm_clock_thread_ns(); spent < CALIBRATE_NS; passes++) {
        run(work, 1);
        spent = ndm_clock_thread_ns() - start;
    }
    double pass_us = (double)spent * 1e-3 / (double)passes;
    work->passes = us > pass_us ? (int64_t)(us / pass_us) : 1;
    return NDM_OK;
}

void ndm_bench_work_run(ndm_bench_work *work)
{
    run(work, work->passes);
}

void ndm_bench_work_finish(ndm_bench_work *work)
{
    free(work->memory);
    *work = (ndm_bench_work){0};
}
