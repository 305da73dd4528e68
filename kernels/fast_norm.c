/* SPDX-License-Identifier: Apache-2.0 */
/* RMSNorm and LayerNorm, with the residual on the way; formulas in ref_norm.c. A row is read once
 * from memory and stays in L1 for the second pass. */
#include "kernels/fast.h"
#include "kernels/simd.h"

/* fp32 weights with their offset, and bias; scratch of the calling thread where they are not the
 * caller's own. */
typedef struct norm_weights {
    const float *weight, *bias; /* bias NULL: none */
} norm_weights;

static const float *widen(const void *from, ndm_dtype dtype, float offset, int64_t width, float *to)
{
    if (dtype == NDM_F32 && offset == 0.0f)
        return from;
    SIMD_FOR (j, lanes, width)
        vf_store_n(to + j, vf_load_as(from, dtype, j, lanes) + vf_set(offset), lanes);
    return to;
}

static norm_weights widen_weights(const void *weight, const void *bias, ndm_dtype dtype,
                                  float offset, int64_t width, float *scratch)
{
    return (norm_weights){widen(weight, dtype, offset, width, scratch),
                          bias ? widen(bias, dtype, 0.0f, width, scratch + width) : NULL};
}

/* x becomes x + residual in sum. */
static void add_residual(const ndm_norm_args *a, int64_t row)
{
    const float *x = ndm_fast_in(a->x) + row * a->x_stride,
                *residual = ndm_fast_in(a->residual) + row * a->x_stride;
    float *sum = ndm_fast_out(a->sum) + row * a->x_stride;

    SIMD_FOR (j, lanes, a->width) {
        ndm_fast_fetch(x + j);
        ndm_fast_fetch(residual + j);
        ndm_fast_fetch(sum + j);
        vf_store_n(sum + j, vf_load_n(x + j, lanes) + vf_load_n(residual + j, lanes), lanes);
    }
}

static float row_mean(const float *x, int64_t width)
{
    vf sum = vf_zero();

    SIMD_FOR (j, lanes, width)
        sum += vf_load_n(x + j, lanes);
    return vf_sum(sum) / (float)width;
}

/* Mean of (x - mean)^2. */
static float row_variance(const float *x, int64_t width, float mean)
{
    vf shift = vf_set(mean), sum = vf_zero();

    SIMD_FOR (j, lanes, width) {
        vf d = vf_fill_n(vf_load_n(x + j, lanes) - shift, vf_zero(), lanes);
        sum = vf_fma(d, d, sum);
    }
    return vf_sum(sum) / (float)width;
}

/* The same here and in the backward, to the bit. */
SIMD vf normed(vf xhat, const norm_weights *w, int64_t j, int64_t lanes)
{
    vf v = xhat * vf_load_n(w->weight + j, lanes);

    return w->bias ? v + vf_load_n(w->bias + j, lanes) : v;
}

static void norm_row(const ndm_norm_args *a, const norm_weights *w, int64_t row)
{
    const float *x = ndm_fast_in(a->x) + row * a->x_stride;
    float *y = ndm_fast_out(a->y) + row * a->y_stride;

    if (a->residual) {
        add_residual(a, row);
        x = ndm_fast_in(a->sum) + row * a->x_stride;
    }
    float mean = a->layer_norm ? row_mean(x, a->width) : 0.0f;
    float rstd = 1.0f / sqrtf(row_variance(x, a->width, mean) + a->eps);
    SIMD_FOR (j, lanes, a->width) {
        vf xhat = (vf_load_n(x + j, lanes) - vf_set(mean)) * vf_set(rstd);
        ndm_fast_fetch(y + j);
        vf_store_n(y + j, normed(xhat, w, j, lanes), lanes);
    }
    if (a->layer_norm)
        a->mean[row] = mean;
    a->rstd[row] = rstd;
}

ndm_status NDM_FAST(norm)(const void *args)
{
    const ndm_norm_args *a = args;
    int64_t bytes = 2 * (a->width + VL) * (int64_t)sizeof(float);
    float *scratch = ndm_fast_scratch(bytes);
    int threads = ndm_fast_threads(a->n * a->width / 4);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_norm, args);
    if (!scratch)
        return ndm_fast_no_memory("norm", bytes);
    norm_weights w = widen_weights(a->weight, a->layer_norm ? a->bias : NULL, a->dtype,
                                   a->weight_offset, a->width, scratch);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < a->n; row++)
        norm_row(a, &w, row);
    return NDM_OK;
}

/* Adds the row to the partial sums of dweight and dbias, then writes dx and y, of which one may lie
 * over dy. */
static void backward_row(const ndm_norm_backward_args *a, const norm_weights *w, int64_t row,
                         float *dweight, float *dbias)
{
    const float *x = ndm_fast_in(a->x) + row * a->x_stride,
                *dy = ndm_fast_in(a->dy) + row * a->dy_stride;
    float *dx = ndm_fast_out(a->dx) + row * a->dx_stride,
          *y = a->y ? ndm_fast_out(a->y) + row * a->y_stride : NULL;
    vf mean = vf_set(a->layer_norm ? a->mean[row] : 0.0f), rstd = vf_set(a->rstd[row]);
    vf sum_g = vf_zero(), sum_gx = vf_zero();

    SIMD_FOR (j, lanes, a->width) {
        vf d = vf_load_n(dy + j, lanes), xhat = (vf_load_n(x + j, lanes) - mean) * rstd;
        vf g = d * vf_load_n(w->weight + j, lanes);
        ndm_fast_fetch(dy + j);
        ndm_fast_fetch(x + j);
        vf_store_n(dweight + j, vf_fma(d, xhat, vf_load_n(dweight + j, lanes)), lanes);
        vf_store_n(dbias + j, vf_load_n(dbias + j, lanes) + d, lanes);
        sum_g += g;
        sum_gx = vf_fma(g, xhat, sum_gx);
    }
    vf mean_g = vf_set(a->layer_norm ? vf_sum(sum_g) / (float)a->width : 0.0f);
    vf mean_gx = vf_set(vf_sum(sum_gx) / (float)a->width);
    SIMD_FOR (j, lanes, a->width) {
        vf xhat = (vf_load_n(x + j, lanes) - mean) * rstd;
        vf g = vf_load_n(dy + j, lanes) * vf_load_n(w->weight + j, lanes);
        vf d = rstd * vf_fnma(xhat, mean_gx, g - mean_g);
        ndm_fast_fetch(dx + j);
        if (a->accumulate)
            d += vf_load_n(dx + j, lanes);
        vf_store_n(dx + j, d, lanes);
        if (y)
            vf_store_n(y + j, normed(xhat, w, j, lanes), lanes);
    }
}

/* out += the partial sums, in order of the blocks of rows. */
static void add_partials(const float *partial, int64_t blocks, int64_t width, float *out)
{
    SIMD_FOR (j, lanes, width) {
        vf sum = vf_zero();
        for (int64_t block = 0; block < blocks; block++)
            sum += vf_load_n(partial + block * 2 * width + j, lanes);
        vf_store_n(out + j, vf_load_n(out + j, lanes) + sum, lanes);
    }
}

ndm_status NDM_FAST(norm_backward)(const void *args)
{
    enum { LEAST_ROWS = 16 };
    const ndm_norm_backward_args *a = args;
    int64_t bytes = 2 * (a->width + VL) * (int64_t)sizeof(float);
    int64_t blocks = (a->n + LEAST_ROWS - 1) / LEAST_ROWS;
    float *scratch = ndm_fast_scratch(bytes);
    int threads = ndm_fast_threads(a->n * a->width / 2);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_norm_backward, args);
    if (!scratch)
        return ndm_fast_no_memory("norm_backward", bytes);
    if (blocks > NDM_NORM_PARTIALS)
        blocks = NDM_NORM_PARTIALS;
    norm_weights w = widen_weights(a->weight, a->layer_norm && a->y ? a->bias : NULL, a->dtype,
                                   a->weight_offset, a->width, scratch);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t block = 0; block < blocks; block++) {
        float *partial = a->workspace + block * 2 * a->width;
        memset(partial, 0, (size_t)(2 * a->width) * sizeof *partial);
        for (int64_t row = a->n * block / blocks; row < a->n * (block + 1) / blocks; row++)
            backward_row(a, &w, row, partial, partial + a->width);
    }
    add_partials(a->workspace, blocks, a->width, a->dweight);
    if (a->layer_norm && a->dbias)
        add_partials(a->workspace + a->width, blocks, a->width, a->dbias);
    return NDM_OK;
}
