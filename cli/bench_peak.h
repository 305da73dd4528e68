/* SPDX-License-Identifier: Apache-2.0 */
/* What this machine can do at most, measured: fused multiply-adds in registers, and copies. */
#ifndef NDM_CLI_BENCH_PEAK_H
#define NDM_CLI_BENCH_PEAK_H

#include <stdint.h>

#include <ndmesh/status.h>

/* fp32 GFLOP/s of `threads` threads of this process, one a core, that do nothing but fused
 * multiply-adds for about ns nanoseconds of processor time, in the widest vectors there are. What
 * other processes take away does not count, so on a busy machine this is still its peak. */
double ndm_peak_fma_gflops(int threads, int64_t ns);

/* Two buffers a thread; what a copy between them moves. */
typedef struct ndm_peak_copy {
    int threads;
    int64_t bytes;     /* of a buffer */
    char **from, **to; /* [threads] */
} ndm_peak_copy;

NDM_MUST_USE ndm_status ndm_peak_copy_init(ndm_peak_copy *copy, int threads, int64_t bytes);
void ndm_peak_copy_finish(ndm_peak_copy *copy);

/* GB/s read plus written by all threads at once, over about ns nanoseconds of processor time. */
double ndm_peak_copy_gbs(const ndm_peak_copy *copy, int64_t ns);

/* Median of values, [n], which it sorts in place; NaN of none. And the p-quantile, 0 <= p <= 1. */
double ndm_peak_median(double *values, int64_t n);
double ndm_peak_quantile(double *values, int64_t n, double p);

/* bench_burst_x86.c or bench_burst_any.c: FLOP of one call, which does `rounds` rounds of them. */
double ndm_burst_run(int64_t rounds);
const char *ndm_burst_name(void); /* "avx512", ... */

#endif
