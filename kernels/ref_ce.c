/* SPDX-License-Identifier: Apache-2.0 */
/* Reference cross entropy over a vocabulary that may be cut over tp ranks: statistics of each
 * slice, their merge, then loss and gradient. A target that no rank holds would count as logit 0:
 * ids are checked where the data is read. */
#include <math.h>

#include "kernels/ref.h"

/* Maximum that a NaN on either side wins. */
static double max_or_nan(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

ndm_status ndm_ref_ce_stats(const void *args)
{
    const ndm_ce_stats_args *a = args;

    for (int64_t i = 0; i < a->n; i++) {
        ref_row x = ref_row_of(a->logits, a->x_dtype, i * a->stride);
        int64_t target = a->targets[i] - a->first;
        double max = -INFINITY, sum = 0.0, total = 0.0;
        for (int64_t j = 0; j < a->valid_width; j++) {
            max = max_or_nan(max, ref_get(x, j));
            total += ref_get(x, j);
        }
        for (int64_t j = 0; j < a->valid_width && max != -INFINITY; j++)
            sum += exp(ref_get(x, j) - max);
        bool here = a->targets[i] >= 0 && target >= 0 && target < a->valid_width;
        a->stats[4 * i] = (float)max;
        a->stats[4 * i + 1] = (float)sum;
        a->stats[4 * i + 2] = here ? ref_get(x, target) : 0.0f;
        a->stats[4 * i + 3] = (float)total;
    }
    return NDM_OK;
}

/* A slice without valid columns has maximum -inf and adds nothing. */
ndm_status ndm_ref_ce_merge(const void *args)
{
    const ndm_ce_merge_args *a = args;

    for (int64_t i = 0; i < a->n; i++) {
        double max = -INFINITY, sum = 0.0, target = 0.0, total = 0.0;
        for (int64_t part = 0; part < a->parts; part++)
            max = max_or_nan(max, a->all[(part * a->n + i) * 4]);
        for (int64_t part = 0; part < a->parts; part++) {
            const float *s = a->all + (part * a->n + i) * 4;
            if (s[0] != -INFINITY)
                sum += s[1] * exp(s[0] - max);
            target += s[2];
            total += s[3];
        }
        a->stats[4 * i] = (float)max;
        a->stats[4 * i + 1] = (float)sum;
        a->stats[4 * i + 2] = (float)target;
        a->stats[4 * i + 3] = (float)total;
    }
    return NDM_OK;
}

/* loss = log sum exp(x) - (1 - s) x[target] - s / V sum(x) */
static double row_loss(const ndm_ce_apply_args *a, const float *stats)
{
    double smoothing = a->label_smoothing;
    double loss = stats[0] + log(stats[1]) - (1.0 - smoothing) * stats[2];
    return smoothing == 0.0 ? loss : loss - smoothing / (double)a->vocabulary * stats[3];
}

static void row_gradient(const ndm_ce_apply_args *a, int64_t row, float scale)
{
    ref_row x = ref_row_of(a->logits, a->x_dtype, row * a->stride);
    const float *stats = a->stats + 4 * row;
    double smoothing = a->label_smoothing, share = smoothing / (double)a->vocabulary;

    for (int64_t j = 0; j < a->width; j++) {
        if (a->targets[row] < 0 || j >= a->valid_width) {
            ref_put(x, j, 0.0);
            continue;
        }
        double probability = exp(ref_get(x, j) - (double)stats[0]) / stats[1];
        double target = share + (a->first + j == a->targets[row] ? 1.0 - smoothing : 0.0);
        ref_put(x, j, (probability - target) * scale);
    }
}

ndm_status ndm_ref_ce_apply(const void *args)
{
    const ndm_ce_apply_args *a = args;
    float scale = ndm_ce_scale(a);
    double sum = 0.0;

    for (int64_t i = 0; i < a->n; i++) {
        double loss = a->targets[i] < 0 ? 0.0 : row_loss(a, a->stats + 4 * i);
        sum += loss;
        if (a->loss_rows)
            a->loss_rows[i] = (float)loss;
        if (a->grad)
            row_gradient(a, i, scale);
    }
    if (a->count_loss)
        *a->loss_sum += sum;
    return NDM_OK;
}
