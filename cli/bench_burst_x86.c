/* SPDX-License-Identifier: Apache-2.0 */
/* Fused multiply-adds in registers, as wide as the processor has them: 16 independent sums hide the
 * latency of 4 cycles on two ports twice over. */
#include "cli/bench_peak.h"

#include <immintrin.h>

enum { SUMS = 16 };

static volatile float keep; /* so that the sums are made */

__attribute__((target("avx512f"))) static double burst_avx512(int64_t rounds)
{
    __m512 sum[SUMS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(1e-3f);

    for (int i = 0; i < SUMS; i++)
        sum[i] = _mm512_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS; i++)
            sum[i] = _mm512_fmadd_ps(sum[i], a, b);
    for (int i = 1; i < SUMS; i++)
        sum[0] = _mm512_add_ps(sum[0], sum[i]);
    keep = _mm512_cvtss_f32(sum[0]);
    return (double)rounds * SUMS * 16 * 2;
}

/* Half as many, for there are half as many registers. */
__attribute__((target("avx2,fma"))) static double burst_avx2(int64_t rounds)
{
    __m256 sum[SUMS / 2 + 2], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(1e-3f);

    for (int i = 0; i < SUMS / 2 + 2; i++)
        sum[i] = _mm256_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS / 2 + 2; i++)
            sum[i] = _mm256_fmadd_ps(sum[i], a, b);
    for (int i = 1; i < SUMS / 2 + 2; i++)
        sum[0] = _mm256_add_ps(sum[0], sum[i]);
    keep = _mm256_cvtss_f32(sum[0]);
    return (double)rounds * (SUMS / 2 + 2) * 8 * 2;
}

static double burst_sse(int64_t rounds)
{
    __m128 sum[SUMS / 2 + 2], a = _mm_set1_ps(0.999f), b = _mm_set1_ps(1e-3f);

    for (int i = 0; i < SUMS / 2 + 2; i++)
        sum[i] = _mm_set1_ps((float)i);
    for (int64_t r = 0; r < rounds; r++)
        for (int i = 0; i < SUMS / 2 + 2; i++)
            sum[i] = _mm_add_ps(_mm_mul_ps(sum[i], a), b);
    for (int i = 1; i < SUMS / 2 + 2; i++)
        sum[0] = _mm_add_ps(sum[0], sum[i]);
    keep = _mm_cvtss_f32(sum[0]);
    return (double)rounds * (SUMS / 2 + 2) * 4 * 2;
}

double ndm_burst_run(int64_t rounds)
{
    if (__builtin_cpu_supports("avx512f"))
        return burst_avx512(rounds);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        return burst_avx2(rounds);
    return burst_sse(rounds);
}

const char *ndm_burst_name(void)
{
    if (__builtin_cpu_supports("avx512f"))
        return "avx512";
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? "avx2" : "sse";
}
