/* SPDX-License-Identifier: Apache-2.0 */
/* The micro-kernel of GEMM and attention: C[R, NV * VL] = or += alpha * A B with all R x NV sums in
 * registers.
 *
 * Elements of A, (i, k) at a[i * ars + k * acs], are broadcast; rows of B are vectors, ldb apart.
 * Two strides make a transposed A the same code. Every element is one chain of fused multiply-adds
 * over ascending k, then one with alpha: its bits do not depend on R, NV or the place in the tile.
 */
#ifndef NDM_KERNELS_FAST_MICRO_H
#define NDM_KERNELS_FAST_MICRO_H

#include "kernels/simd.h"

/* Rows of a tile for 1, 2 and 4 vectors: as many sums as the registers hold beside a row of B and
 * one element of A. */
#if defined(NDM_ISA_AVX512)
enum { MICRO_ROWS_1 = 14, MICRO_ROWS_2 = 14, MICRO_ROWS_4 = 6 };
#elif defined(NDM_ISA_AVX2)
enum { MICRO_ROWS_1 = 6, MICRO_ROWS_2 = 6 };
#else
enum { MICRO_ROWS_1 = 4, MICRO_ROWS_2 = 4 };
#endif

typedef struct micro_args {
    int64_t k;
    const float *a, *b;
    int64_t ars, acs, ldb;
    float alpha;
    bool add;
    float *c;
    int64_t ldc;
} micro_args;

SIMD void micro_store(const micro_args *m, float *c, vf sum)
{
    vf alpha = vf_set(m->alpha);
    vf_store(c, m->add ? vf_fma(alpha, sum, vf_load(c)) : alpha * sum);
}

/* R, NV constant. far: elements of A ahead of k that are prefetched (0 = none). */
SIMD void micro(const int R, const int NV, const micro_args *m, int64_t far)
{
    vf sum[14][4];
    const float *a = m->a, *b = m->b;

    SIMD_UNROLL
    for (int i = 0; i < R; i++)
        SIMD_UNROLL
    for (int j = 0; j < NV; j++) {
        sum[i][j] = vf_zero();
        __builtin_prefetch(m->c + i * m->ldc + j * VL, 1);
    }
    for (int64_t k = 0; k < m->k; k++, a += m->acs, b += m->ldb) {
        vf row[4];
        SIMD_UNROLL
        for (int j = 0; j < NV; j++)
            row[j] = vf_load(b + j * VL);
        if (far)
            __builtin_prefetch(a + far);
        SIMD_UNROLL
        for (int i = 0; i < R; i++) {
            vf x = vf_set(a[i * m->ars]);
            SIMD_UNROLL
            for (int j = 0; j < NV; j++)
                sum[i][j] = vf_fma(x, row[j], sum[i][j]);
        }
    }
    SIMD_UNROLL
    for (int i = 0; i < R; i++)
        SIMD_UNROLL
    for (int j = 0; j < NV; j++)
        micro_store(m, m->c + i * m->ldc + j * VL, sum[i][j]);
}

#endif
