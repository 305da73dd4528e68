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

/* Rows to fetch into L2 while a tile is computed: what will be packed, copied or written next. */
typedef struct micro_ahead {
    const float *from;
    int64_t step; /* elements from a row to the next */
    int64_t rows, lines;
} micro_ahead;

typedef struct micro_args {
    int64_t k;
    const float *a, *b;
    int64_t ars, acs, ldb;
    float alpha;
    bool add;
    float *c;
    int64_t ldc;
    micro_ahead ahead;
} micro_args;

enum { MICRO_STEP = 4, MICRO_LINE = 16 }; /* rows of B between fetches; floats of a cache line */

SIMD void micro_store(const micro_args *m, float *c, vf sum)
{
    vf alpha = vf_set(m->alpha);
    vf_store(c, m->add ? vf_fma(alpha, sum, vf_load(c)) : alpha * sum);
}

/* far: rows of B ahead that are fetched into L1 (0 = none: they are there). */
SIMD void micro_row(const int R, const int NV, const micro_args *m, const float *a, const float *b,
                    const int far, vf sum[14][4])
{
    vf row[4];

    SIMD_UNROLL
    for (int j = 0; j < NV; j++)
        row[j] = vf_load(b + j * VL);
    if (far) {
        SIMD_UNROLL
        for (int j = 0; j < NV * VL; j += MICRO_LINE)
            __builtin_prefetch(b + far * NV * VL + j);
    }
    SIMD_UNROLL
    for (int i = 0; i < R; i++) {
        vf x = vf_set(a[i * m->ars]);
        SIMD_UNROLL
        for (int j = 0; j < NV; j++)
            sum[i][j] = vf_fma(x, row[j], sum[i][j]);
    }
}

SIMD void micro_fetch(const micro_ahead *ahead, int64_t row, int64_t line)
{
    __builtin_prefetch(ahead->from + row * ahead->step + line * MICRO_LINE, 0, 2);
}

/* R, NV, far constant. Fetches are spread over the rows of B, since a core has few misses in
 * flight: first C, a row at a time, then what is ahead. */
SIMD void micro(const int R, const int NV, const micro_args *m, const int far)
{
    vf sum[14][4];
    const float *a = m->a, *b = m->b, *c = m->c;
    int64_t c_rows = R, row = 0, line = 0, k = 0;

    SIMD_UNROLL
    for (int i = 0; i < R; i++)
        SIMD_UNROLL
    for (int j = 0; j < NV; j++)
        sum[i][j] = vf_zero();
    for (; k + MICRO_STEP <= m->k; k += MICRO_STEP) {
        if (c_rows > 0) {
            SIMD_UNROLL
            for (int j = 0; j < NV * VL; j += MICRO_LINE)
                __builtin_prefetch(c + j, 1);
            c += m->ldc;
            c_rows--;
        } else if (row < m->ahead.rows) {
            micro_fetch(&m->ahead, row, line);
            row += ++line == m->ahead.lines;
            line = line == m->ahead.lines ? 0 : line;
        }
        SIMD_UNROLL
        for (int i = 0; i < MICRO_STEP; i++, a += m->acs, b += m->ldb)
            micro_row(R, NV, m, a, b, far, sum);
    }
    for (; k < m->k; k++, a += m->acs, b += m->ldb)
        micro_row(R, NV, m, a, b, 0, sum);
    SIMD_UNROLL
    for (int i = 0; i < R; i++)
        SIMD_UNROLL
    for (int j = 0; j < NV; j++)
        micro_store(m, m->c + i * m->ldc + j * VL, sum[i][j]);
}

#endif
