/* SPDX-License-Identifier: Apache-2.0 */
/* Multiply-adds in registers in the compiler's vector types, for processors without a file of their
 * own. */
#include "cli/bench_peak.h"

typedef float vector __attribute__((vector_size(16)));

enum { SUMS = 16 };

static volatile float keep; /* so that the sums are made */

double ndm_burst_run(int64_t rounds)
{
    vector sum[SUMS], a = {0.999f, 0.999f, 0.999f, 0.999f}, b = {1e-3f, 1e-3f, 1e-3f, 1e-3f};

    for (int i = 0; i < SUMS; i++)
        sum[i] = (vector){(float)i};
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS; i++)
            sum[i] = sum[i] * a + b;
    for (int i = 1; i < SUMS; i++)
        sum[0] += sum[i];
    keep = sum[0][0];
    return (double)rounds * SUMS * 4 * 2;
}

const char *ndm_burst_name(void)
{
    return "vectors of 4";
}
