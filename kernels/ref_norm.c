/* SPDX-License-Identifier: Apache-2.0 */
/* Reference RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016).
 *
 * With xhat = (x - mean) * rstd (mean 0 for RMSNorm) and g = dy * weight, means over the row:
 * dx = rstd * (g - mean(g) - xhat * mean(g * xhat)), where mean(g) is left out for RMSNorm. */
#include <math.h>

#include "kernels/ref.h"

static void row_statistics(const ndm_norm_args *a, const float *x, double *mean, double *rstd)
{
    double sum = 0.0, square = 0.0;

    for (int64_t j = 0; a->layer_norm && j < a->width; j++)
        sum += x[j];
    *mean = sum / (double)a->width;
    for (int64_t j = 0; j < a->width; j++)
        square += (x[j] - *mean) * (x[j] - *mean);
    *rstd = 1.0 / sqrt(square / (double)a->width + (double)a->eps);
}

ndm_status ndm_ref_norm(const void *args)
{
    const ndm_norm_args *a = args;

    for (int64_t i = 0; i < a->n; i++) {
        const float *x = a->x + i * a->x_stride;
        float *y = a->y + i * a->y_stride;
        double mean, rstd;
        if (a->residual) {
            float *sum = a->sum + i * a->x_stride;
            for (int64_t j = 0; j < a->width; j++)
                sum[j] = x[j] + a->residual[i * a->x_stride + j];
            x = sum;
        }
        row_statistics(a, x, &mean, &rstd);
        for (int64_t j = 0; j < a->width; j++) {
            double weight = (double)ref_load(a->weight, a->dtype, j) + a->weight_offset;
            double bias = a->layer_norm && a->bias ? ref_load(a->bias, a->dtype, j) : 0.0;
            y[j] = (float)((x[j] - mean) * rstd * weight + bias);
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
            double dy = a->dy[i * a->dy_stride + j];
            dweight += dy * (a->x[i * a->x_stride + j] - row_mean(a, i)) * a->rstd[i];
            dbias += dy;
        }
        a->dweight[j] = (float)(a->dweight[j] + dweight);
        if (a->layer_norm && a->dbias)
            a->dbias[j] = (float)(a->dbias[j] + dbias);
    }
}

static void row_backward(const ndm_norm_backward_args *a, int64_t row)
{
    const float *x = a->x + row * a->x_stride, *dy = a->dy + row * a->dy_stride;
    float *dx = a->dx + row * a->dx_stride;
    double mean = row_mean(a, row), rstd = a->rstd[row], sum_g = 0.0, sum_gx = 0.0;

    for (int64_t j = 0; j < a->width; j++) {
        double g = dy[j] * ((double)ref_load(a->weight, a->dtype, j) + a->weight_offset);
        sum_g += g;
        sum_gx += g * (x[j] - mean) * rstd;
    }
    double mean_g = a->layer_norm ? sum_g / (double)a->width : 0.0;
    double mean_gx = sum_gx / (double)a->width;
    for (int64_t j = 0; j < a->width; j++) {
        double g = dy[j] * ((double)ref_load(a->weight, a->dtype, j) + a->weight_offset);
        double d = rstd * (g - mean_g - (x[j] - mean) * rstd * mean_gx);
        dx[j] = (float)(a->accumulate ? dx[j] + d : d);
    }
}

/* The sums over rows come first, because dx may lie over dy. Sums in double need no workspace. */
ndm_status ndm_ref_norm_backward(const void *args)
{
    const ndm_norm_backward_args *a = args;

    add_weight_gradients(a);
    for (int64_t i = 0; i < a->n; i++)
        row_backward(a, i);
    return NDM_OK;
}
