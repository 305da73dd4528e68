/* SPDX-License-Identifier: Apache-2.0 */
/* Sums whose order does not depend on the number of threads: squares by fixed blocks in double,
 * columns by their owners. */
#include "kernels/fast.h"
#include "kernels/simd.h"

enum { BLOCK = 4096, TOGETHER = 4, ROWS = 128, STRIP = 4 };

typedef struct block_sum {
    double sum;
    float max;
} block_sum;

/* Squares of n blocks side by side, each of `count` elements: one stream of reads alone would not
 * keep the memory busy. A block's bits do not depend on n. */
SIMD void square_blocks(const int n, const float *x, int64_t count, block_sum *part)
{
    vd low[TOGETHER], high[TOGETHER];
    vf max[TOGETHER];

    SIMD_UNROLL
    for (int b = 0; b < n; b++) {
        low[b] = high[b] = vd_set(0.0);
        max[b] = vf_zero();
    }
    SIMD_FOR (i, lanes, count) {
        SIMD_UNROLL
        for (int b = 0; b < n; b++) {
            vf v = vf_load_n(x + b * BLOCK + i, lanes);
            vd l = vd_low(v), h = vd_high(v);
            low[b] += l * l;
            high[b] += h * h;
            max[b] = vf_max(max[b], vf_abs(v));
        }
    }
    SIMD_UNROLL
    for (int b = 0; b < n; b++)
        part[b] = (block_sum){vd_sum(low[b] + high[b]), vf_hmax(max[b])};
}

/* Blocks first .. end - 1 of all n elements. */
static void square_range(const float *x, int64_t n, int64_t first, int64_t end, block_sum *part)
{
    int64_t i = first;

    for (; i + TOGETHER <= end && (i + TOGETHER) * BLOCK <= n; i += TOGETHER)
        square_blocks(TOGETHER, x + i * BLOCK, BLOCK, part + i);
    for (; i < end; i++)
        square_blocks(1, x + i * BLOCK, n - i * BLOCK < BLOCK ? n - i * BLOCK : BLOCK, part + i);
}

static void add_blocks(const ndm_sumsq_args *a, const block_sum *part, int64_t blocks)
{
    double total = 0.0, max = a->out_max ? *a->out_max : 0.0;

    for (int64_t i = 0; i < blocks; i++) {
        total += part[i].sum;
        if (part[i].max > max)
            max = part[i].max;
    }
    *a->out += a->weight * total;
    if (a->out_max)
        *a->out_max = isnan(total) ? total : max; /* a sum of squares is NaN for a NaN alone */
}

ndm_status NDM_FAST(sumsq)(const void *args)
{
    const ndm_sumsq_args *a = args;
    int64_t blocks = (a->n + BLOCK - 1) / BLOCK, bytes = (blocks + 1) * (int64_t)sizeof(block_sum);
    block_sum *part = ndm_fast_scratch(bytes);
    int threads = ndm_fast_threads(a->n / 4);

    if (!part)
        return ndm_fast_no_memory("sumsq", bytes);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t first = 0; first < blocks; first += TOGETHER)
        square_range(a->x, a->n, first, first + TOGETHER < blocks ? first + TOGETHER : blocks,
                     part);
    add_blocks(a, part, blocks);
    return NDM_OK;
}

/* Up to STRIP vectors of columns; blocks of rows keep the fp32 error small. */
static void sum_strip(const ndm_colsum_args *a, int64_t column)
{
    int64_t columns = a->n - column;
    vf total[STRIP] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};

    for (int64_t first = 0; first < a->m; first += ROWS) {
        int64_t end = first + ROWS < a->m ? first + ROWS : a->m;
        vf sum[STRIP] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
        for (int64_t i = first; i < end; i++)
            for (int v = 0; v < STRIP && v * VL < columns; v++)
                sum[v] += vf_load_n(ndm_fast_in(a->x) + i * a->stride + column + v * VL,
                                    columns - v * VL);
        for (int v = 0; v < STRIP; v++)
            total[v] += sum[v];
    }
    for (int v = 0; v < STRIP && v * VL < columns; v++) {
        float *out = a->out + column + v * VL;
        vf_store_n(out, vf_load_n(out, columns - v * VL) + total[v], columns - v * VL);
    }
}

ndm_status NDM_FAST(colsum)(const void *args)
{
    const ndm_colsum_args *a = args;
    int threads = ndm_fast_threads(a->m * a->n / 4);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_colsum, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t column = 0; column < a->n; column += STRIP * VL)
        sum_strip(a, column);
    return NDM_OK;
}
