/* SPDX-License-Identifier: Apache-2.0 */
/* Limits of the machine, measured by all threads at once for a given time. */
#include "cli/bench_peak.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/pages.h"

enum { BURST_ROUNDS = 4096, ALIGNMENT = 4096 };

/* Times are of the calling thread: a burst that others interrupt does not look slower. */

double ndm_peak_fma_gflops(int threads, int64_t ns)
{
    double gflops = 0.0;

#pragma omp parallel num_threads(threads) reduction(+ : gflops)
    {
        double flop = 0.0;
        ndm_burst_run(BURST_ROUNDS); /* the clock of wide vectors settles */
#pragma omp barrier
        int64_t start = ndm_clock_thread_ns(), end = start + ns, now;
        do {
            flop += ndm_burst_run(BURST_ROUNDS);
            now = ndm_clock_thread_ns();
        } while (now < end);
        gflops = flop / (double)(now - start);
    }
    return gflops;
}

ndm_status ndm_peak_copy_init(ndm_peak_copy *copy, int threads, int64_t bytes)
{
    bool failed = false;

    bytes = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    *copy = (ndm_peak_copy){.threads = threads,
                            .bytes = bytes,
                            .from = calloc((size_t)threads, sizeof *copy->from),
                            .to = calloc((size_t)threads, sizeof *copy->to)};
    for (int t = 0; t < threads && copy->from != NULL && copy->to != NULL; t++) {
        copy->from[t] = ndm_pages_alloc(bytes); /* as the arrays of kernels are */
        copy->to[t] = ndm_pages_alloc(bytes);
        failed = failed || copy->from[t] == NULL || copy->to[t] == NULL;
    }
    if (failed || copy->from == NULL || copy->to == NULL) {
        ndm_peak_copy_finish(copy);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for copies of %lld bytes by %d threads",
                 (long long)bytes, threads);
    }
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++) { /* on the thread that will copy, for its memory node */
        memset(copy->from[t], 1, (size_t)bytes);
        memset(copy->to[t], 2, (size_t)bytes);
    }
    return NDM_OK;
}

void ndm_peak_copy_finish(ndm_peak_copy *copy)
{
    for (int t = 0; t < copy->threads; t++) {
        if (copy->from != NULL)
            free(copy->from[t]);
        if (copy->to != NULL)
            free(copy->to[t]);
    }
    free(copy->from);
    free(copy->to);
    *copy = (ndm_peak_copy){0};
}

double ndm_peak_copy_gbs(const ndm_peak_copy *copy, int64_t ns)
{
    double gbs = 0.0;

#pragma omp parallel for num_threads(copy->threads) schedule(static, 1) reduction(+ : gbs)
    for (int t = 0; t < copy->threads; t++) {
        double bytes = 0.0;
        int64_t start = ndm_clock_thread_ns(), now;
        do {
            memcpy(copy->to[t], copy->from[t], (size_t)copy->bytes);
            bytes += 2.0 * (double)copy->bytes;
            now = ndm_clock_thread_ns();
        } while (now < start + ns);
        gbs += bytes / (double)(now - start);
    }
    return gbs;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double ndm_peak_quantile(double *values, int64_t n, double p)
{
    if (n < 1)
        return NAN;
    qsort(values, (size_t)n, sizeof *values, ascending);
    double at = p * (double)(n - 1);
    int64_t low = (int64_t)at, high = low + 1 < n ? low + 1 : low;
    return values[low] + (values[high] - values[low]) * (at - (double)low);
}

double ndm_peak_median(double *values, int64_t n)
{
    return ndm_peak_quantile(values, n, 0.5);
}
