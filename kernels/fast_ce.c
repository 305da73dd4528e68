/* SPDX-License-Identifier: Apache-2.0 */
/* Cross entropy: statistics in one pass over memory, with a running maximum over blocks that stay
 * in L1; loss and gradient in a second. */
#include "kernels/fast.h"
#include "kernels/simd.h"

enum { BLOCK = 2048 };

typedef struct row_stats {
    float max;
    double sum, total; /* of exp(x - max), of x */
} row_stats;

static float block_max(const float *x, int64_t count, float *total)
{
    vf max = vf_set(-INFINITY), sum = vf_zero();

    SIMD_FOR (j, lanes, count) {
        vf v = vf_load_n(x + j, lanes);
        sum += v;
        max = vf_max(max, vf_fill_n(v, vf_set(-INFINITY), lanes));
    }
    *total = vf_sum(sum);
    return vf_hmax(max);
}

static float block_sum_exp(const float *x, int64_t count, float max)
{
    vf sum = vf_zero(), shift = vf_set(max);

    SIMD_FOR (j, lanes, count) {
        /* memory brings the next block while this one is computed */
        __builtin_prefetch(x + j + BLOCK);
        sum += vf_fill_n(vf_exp(vf_load_n(x + j, lanes) - shift), vf_zero(), lanes);
    }
    return vf_sum(sum);
}

static row_stats stats_of_row(const float *x, int64_t width)
{
    row_stats s = {.max = -INFINITY};

    for (int64_t first = 0; first < width; first += BLOCK) {
        int64_t count = width - first < BLOCK ? width - first : BLOCK;
        float total, max = block_max(x + first, count, &total);
        s.total += total;
        if (max > s.max) {
            s.sum *= exp((double)s.max - max);
            s.max = max;
        }
        if (s.max != -INFINITY)
            s.sum += block_sum_exp(x + first, count, s.max);
    }
    if (isnan(s.total) && (isnan(s.sum) || s.max == -INFINITY)) /* vf_max() drops NaNs */
        s.max = NAN;
    return s;
}

ndm_status NDM_FAST(ce_stats)(const void *args)
{
    const ndm_ce_stats_args *a = args;
    int threads = ndm_fast_threads(a->n * a->width / 2);

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_ce_stats, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < a->n; i++) {
        const float *x = ndm_fast_in(a->logits) + i * a->stride;
        int64_t target = a->targets[i] - a->first;
        bool here = a->targets[i] >= 0 && target >= 0 && target < a->valid_width;
        row_stats s = stats_of_row(x, a->valid_width);
        a->stats[4 * i] = s.max;
        a->stats[4 * i + 1] = (float)s.sum;
        a->stats[4 * i + 2] = here ? x[target] : 0.0f;
        a->stats[4 * i + 3] = (float)s.total;
    }
    return NDM_OK;
}

/* A few numbers a row: nothing to gain over the reference. */
ndm_status NDM_FAST(ce_merge)(const void *args)
{
    return ndm_kernels_call_ref(NDM_OP_ce_merge, args);
}

/* Columns first .. valid_width become (softmax - share) * scale; the target's extra part is taken
 * off after. */
static void row_gradient(const ndm_ce_apply_args *a, int64_t row, float scale)
{
    float *x = ndm_fast_out(a->logits) + row * a->stride;
    const float *stats = a->stats + 4 * row;
    float share = a->label_smoothing / (float)a->vocabulary;
    vf max = vf_set(stats[0]), over = vf_set(scale / stats[1]), off = vf_set(share * scale);
    int64_t target = a->targets[row] - a->first, width = a->targets[row] < 0 ? 0 : a->valid_width;

    SIMD_FOR (j, lanes, width) {
        ndm_fast_fetch(x + j);
        vf_store_n(x + j, vf_exp(vf_load_n(x + j, lanes) - max) * over - off, lanes);
    }
    if (width > 0 && target >= 0 && target < width)
        x[target] -= (1.0f - a->label_smoothing) * scale;
    memset(x + width, 0, (size_t)(a->width - width) * sizeof *x);
}

static double row_loss(const ndm_ce_apply_args *a, const float *stats)
{
    double smoothing = a->label_smoothing;
    double loss = stats[0] + log(stats[1]) - (1.0 - smoothing) * stats[2];
    return smoothing == 0.0 ? loss : loss - smoothing / (double)a->vocabulary * stats[3];
}

/* The sum over rows is serial, so that it has one order. */
static void add_losses(const ndm_ce_apply_args *a)
{
    double sum = 0.0;

    for (int64_t i = 0; i < a->n; i++) {
        double loss = a->targets[i] < 0 ? 0.0 : row_loss(a, a->stats + 4 * i);
        sum += loss;
        if (a->loss_rows)
            a->loss_rows[i] = (float)loss;
    }
    if (a->count_loss)
        *a->loss_sum += sum;
}

ndm_status NDM_FAST(ce_apply)(const void *args)
{
    const ndm_ce_apply_args *a = args;
    int threads = ndm_fast_threads(a->n * a->width / 2);
    float scale;

    if (a->x_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_ce_apply, args);
    scale = ndm_ce_scale(a);
    if (a->count_loss || a->loss_rows)
        add_losses(a);
    if (!a->grad)
        return NDM_OK;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < a->n; i++)
        row_gradient(a, i, scale);
    return NDM_OK;
}
