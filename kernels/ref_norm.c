/* SPDX-License-Identifier: Apache-2.0 */
/* Reference RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016).
 *
 * With xhat = (x - mean) * rstd (mean 0 for RMSNorm) and g = dy * weight, means over the row:
 * dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), where mean(g) is left out for RMSNorm. */
#include <math.h>

#include "kernels/ref.h"

/* As they are stored, so that a backward makes the same y of them. */
static void row_statistics(const ndm_norm_args *a, ref_row x, double *mean, double *rstd)
{
    double sum = 0.0, square = 0.0;

    for (int64_t j = 0; a->layer_norm && j < a->width; j++)
        sum += ref_get(x, j);
    *mean = (float)(sum / (double)a->width);
    for (int64_t j = 0; j < a->width; j++)
        square += (ref_get(x, j) - *mean) * (ref_get(x, j) - *mean);
    *rstd = (float)(1.0 / sqrt(square / (double)a->width + (double)a->eps));
}

/* Element j of a normed row. */
static double normed(double x, double mean, double rstd, double weight, double bias)
{
    return (x - mean) * rstd * weight + bias;
}

ndm_status ndm_ref_norm(const void *args)
{
    const ndm_norm_args *a = args;

    for (int64_t i = 0; i < a->n; i++) {
        ref_row x = ref_row_of(a->x, a->x_dtype, i * a->x_stride);
        ref_row y = ref_row_of(a->y, a->x_dtype, i * a->y_stride);
        double mean, rstd;
        if (a->residual) {
            ref_row residual = ref_row_of(a->residual, a->x_dtype, i * a->x_stride);
            ref_row sum = ref_row_of(a->sum, a->x_dtype, i * a->x_stride);
            for (int64_t j = 0; j < a->width; j++)
                ref_put(sum, j, ref_get(x, j) + ref_get(residual, j));
            x = sum;
        }
        row_statistics(a, x, &mean, &rstd);
        for (int64_t j = 0; j < a->width; j++) {
            double weight = (double)ref_load(a->weight, a->dtype, j) + a->weight_offset;
            double bias = a->layer_norm && a->bias ? ref_load(a->bias, a->dtype, j) : 0.0;
            ref_put(y, j, normed(ref_get(x, j), mean, rstd, weight, bias));
        }
        if (a->layer_norm)
            a->mean[i] = (float)mean;
        a->rstd[i] = (float)rstd;
    }
    return NDM_OK;
}

static double row_mean(const ndm_norm_backward_args *a, int64_t row)
{
    return a->layer_norm ? a->mean[row] : 0.0;
}

static void add_weight_gradients(const ndm_norm_backward_args *a)
{
    for (int64_t j = 0; j < a->width; j++) {
        double dweight = 0.0, dbias = 0.0;
        for (int64_t i = 0; i < a->n; i++) {
            double dy = ref_load(a->dy, a->x_dtype, i * a->dy_stride + j);
            double x = ref_load(a->x, a->x_dtype, i * a->x_stride + j);
            dweight += dy * (x - row_mean(a, i)) * a->rstd[i];
            dbias += dy;
        }
        a->dweight[j] = (float)(a->dweight[j] + dweight);
        if (a->layer_norm && a->dbias)
            a->dbias[j] = (float)(a->dbias[j] + dbias);
    }
}

static void row_backward(const ndm_norm_backward_args *a, int64_t row)
{
    ref_row x = ref_row_of(a->x, a->x_dtype, row * a->x_stride);
    ref_row dy = ref_row_of(a->dy, a->x_dtype, row * a->dy_stride);
    ref_row dx = ref_row_of(a->dx, a->x_dtype, row * a->dx_stride);
    double mean = row_mean(a, row), rstd = a->rstd[row], sum_g = 0.0, sum_gx = 0.0;

    for (int64_t j = 0; j < a->width; j++) {
        double g = ref_get(dy, j) * ((double)ref_load(a->weight, a->dtype, j) + a->weight_offset);
        sum_g += g;
        sum_gx += g * (ref_get(x, j) - mean) * rstd;
    }
    double mean_g = a->layer_norm ? sum_g / (double)a->width : 0.0;
    double mean_gx = sum_gx / (double)a->width;
    for (int64_t j = 0; j < a->width; j++) {
        double g = ref_get(dy, j) * ((double)ref_load(a->weight, a->dtype, j) + a->weight_offset);
        double d = rstd * (g - mean_g - (ref_get(x, j) - mean) * rstd * mean_gx);
        ref_put(dx, j, a->accumulate ? ref_get(dx, j) + d : d);
    }
}

static void row_again(const ndm_norm_backward_args *a, int64_t row)
{
    ref_row x = ref_row_of(a->x, a->x_dtype, row * a->x_stride);
    ref_row y = ref_row_of(a->y, a->x_dtype, row * a->y_stride);

    for (int64_t j = 0; j < a->width; j++) {
        double weight = (double)ref_load(a->weight, a->dtype, j) + a->weight_offset;
        double bias = a->layer_norm && a->bias ? ref_load(a->bias, a->dtype, j) : 0.0;
        ref_put(y, j, normed(ref_get(x, j), row_mean(a, row), a->rstd[row], weight, bias));
    }
}

/* The sums over rows come first, because dx or y may lie over dy. Sums in double need no workspace.
 */
ndm_status ndm_ref_norm_backward(const void *args)
{
    const ndm_norm_backward_args *a = args;

    add_weight_gradients(a);
    for (int64_t i = 0; i < a->n; i++) {
        row_backward(a, i);
        if (a->y)
            row_again(a, i);
    }
    return NDM_OK;
}
