/* SPDX-License-Identifier: Apache-2.0 */
/* Sums whose order does not depend on the number of threads: squares by fixed blocks in double,
 * columns by their owners. */
#include "kernels/fast.h"
#include "kernels/simd.h"

enum { BLOCK = 4096, ROWS = 128, STRIP = 4 };

typedef struct block_sum {
    double sum;
    float max;
} block_sum;

static block_sum square_block(const float *x, int64_t count)
{
    vd low = vd_set(0.0), high = vd_set(0.0);
    vf max = vf_zero();

    SIMD_FOR (i, lanes, count) {
        vf v = vf_load_n(x + i, lanes);
        vd a = vd_low(v), b = vd_high(v);
        low += a * a;
        high += b * b;
        max = vf_max(max, vf_abs(v));
    }
    return (block_sum){vd_sum(low + high), vf_hmax(max)};
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
    for (int64_t i = 0; i < blocks; i++)
        part[i] = square_block(a->x + i * BLOCK,
                               a->n - i * BLOCK < BLOCK ? a->n - i * BLOCK : BLOCK);
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
