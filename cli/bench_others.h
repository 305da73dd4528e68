/* SPDX-License-Identifier: Apache-2.0 */
/* What other programs took of the machine while something was measured: times beside them mean
 * little. Linux; elsewhere nothing is seen. */
#ifndef NDM_CLI_BENCH_OTHERS_H
#define NDM_CLI_BENCH_OTHERS_H

typedef struct ndm_bench_others {
    double busy_s, own_s, at_s;
} ndm_bench_others;

void ndm_bench_others_start(ndm_bench_others *others);

/* Share of all processors' time since the start. Children count as own when they have been waited
 * for. */
double ndm_bench_others_share(const ndm_bench_others *others);

#endif
