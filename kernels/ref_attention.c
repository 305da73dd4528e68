/* SPDX-License-Identifier: Apache-2.0 */
/* Reference attention: one query row at a time, softmax by its definition with the row maximum
 * taken out; a row of scores is all the memory it needs.
 *
 * Backward, with p = exp(scale q.k - lse), dp = dout.v, delta = dout.out:
 * ds = p (dp - delta); dq = scale sum_k ds k; dk = scale sum_q ds q; dv = sum_q p dout. */
#include <math.h>
#include <stdlib.h>

#include "kernels/ref.h"

static double dot(ref_row x, ref_row y, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)ref_get(x, i) * ref_get(y, i);
    return sum;
}

static bool sees(const ndm_attention_args *a, int64_t b, int64_t i, int64_t j)
{
    int64_t query = a->q_index ? a->q_index[b * a->tq + i] : i;
    int64_t key = a->k_index ? a->k_index[b * a->tk + j] : j;
    int64_t first = a->q_first ? a->q_first[b * a->tq + i] : 0;
    return key >= first && (!a->causal || key <= query);
}

static ref_row query_row(const ndm_attention_args *a, int64_t b, int64_t head, int64_t i)
{
    return ref_row_of(a->q, a->x_dtype, (b * a->tq + i) * a->q_stride + head * a->head_dim);
}

static ref_row key_row(const ndm_attention_args *a, int64_t b, int64_t head, int64_t j)
{
    int64_t kv_head = head / (a->heads / a->kv_heads);
    return ref_row_of(a->k, a->x_dtype, (b * a->tk + j) * a->k_stride + kv_head * a->head_dim);
}

static ref_row value_row(const ndm_attention_args *a, int64_t b, int64_t head, int64_t j)
{
    int64_t kv_head = head / (a->heads / a->kv_heads);
    return ref_row_of(a->v, a->x_dtype, (b * a->tk + j) * a->v_stride + kv_head * a->head_dim);
}

static ref_row out_row(const ndm_attention_args *a, int64_t b, int64_t head, int64_t i)
{
    return ref_row_of(a->out, a->out_dtype, (b * a->tq + i) * a->out_stride + head * a->head_dim);
}

/* score: [Tk], sum: [D]; scratch. */
static void forward_row(const ndm_attention_args *a, int64_t b, int64_t head, int64_t i,
                        double *score, double *sum)
{
    ref_row out = out_row(a, b, head, i);
    double max = -INFINITY, total = 0.0;

    for (int64_t j = 0; j < a->tk; j++) {
        score[j] = -INFINITY;
        if (sees(a, b, i, j))
            score[j] = a->scale *
                       dot(query_row(a, b, head, i), key_row(a, b, head, j), a->head_dim);
        if (score[j] > max || isnan(score[j]))
            max = score[j];
    }
    for (int64_t d = 0; d < a->head_dim; d++)
        sum[d] = 0.0;
    for (int64_t j = 0; j < a->tk; j++) {
        if (!sees(a, b, i, j) || max == -INFINITY)
            continue;
        double p = exp(score[j] - max);
        ref_row v = value_row(a, b, head, j);
        total += p;
        for (int64_t d = 0; d < a->head_dim; d++)
            sum[d] += p * ref_get(v, d);
    }
    for (int64_t d = 0; d < a->head_dim; d++)
        ref_put(out, d, max == -INFINITY ? 0.0 : sum[d] / total);
    a->lse[(b * a->heads + head) * a->tq + i] = max == -INFINITY ? -INFINITY
                                                                 : (float)(max + log(total));
}

ndm_status ndm_ref_attention(const void *args)
{
    const ndm_attention_args *a = args;
    double *scratch = malloc((size_t)(a->tk + a->head_dim) * sizeof *scratch);

    if (!scratch)
        NDM_FAIL(NDM_ERR_MEMORY, "attention: no memory for a row of %lld scores", (long long)a->tk);
    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < a->tq; i++)
                forward_row(a, b, head, i, scratch, scratch + a->tk);
    free(scratch);
    return NDM_OK;
}

/* Sums in double of one (sequence, key-value head). */
typedef struct backward_sums {
    double *dk, *dv; /* [Tk, D] */
    double *dq;      /* [D] */
} backward_sums;

static ref_row dout_row(const ndm_attention_backward_args *a, int64_t b, int64_t head, int64_t i)
{
    const ndm_attention_args *f = &a->forward;
    return ref_row_of(a->dout, f->out_dtype, (b * f->tq + i) * a->dout_stride + head * f->head_dim);
}

static double row_delta(const ndm_attention_backward_args *a, int64_t b, int64_t head, int64_t i)
{
    const ndm_attention_args *f = &a->forward;
    float *delta = &a->delta[(b * f->heads + head) * f->tq + i];

    if (a->make_delta)
        *delta = (float)dot(dout_row(a, b, head, i), out_row(f, b, head, i), f->head_dim);
    return *delta;
}

static void backward_pair(const ndm_attention_backward_args *a, int64_t b, int64_t head, int64_t i,
                          int64_t j, double delta, const backward_sums *s)
{
    const ndm_attention_args *f = &a->forward;
    int64_t width = f->head_dim;
    ref_row q = query_row(f, b, head, i), k = key_row(f, b, head, j);
    ref_row dout = dout_row(a, b, head, i);
    double p = exp(f->scale * dot(q, k, width) - f->lse[(b * f->heads + head) * f->tq + i]);
    double ds = f->scale * p * (dot(dout, value_row(f, b, head, j), width) - delta);

    for (int64_t d = 0; d < width; d++) {
        s->dq[d] += ds * ref_get(k, d);
        s->dk[j * width + d] += ds * ref_get(q, d);
        s->dv[j * width + d] += p * ref_get(dout, d);
    }
}

/* A row that sees no key anywhere has lse -inf and no gradient. */
static void backward_row(const ndm_attention_backward_args *a, int64_t b, int64_t head, int64_t i,
                         const backward_sums *s)
{
    const ndm_attention_args *f = &a->forward;
    ref_row dq = ref_row_of(a->dq, a->d_dtype, (b * f->tq + i) * a->dq_stride + head * f->head_dim);
    double delta = row_delta(a, b, head, i);
    bool blind = f->lse[(b * f->heads + head) * f->tq + i] == -INFINITY;

    for (int64_t d = 0; d < f->head_dim; d++)
        s->dq[d] = a->accumulate_dq ? ref_get(dq, d) : 0.0;
    for (int64_t j = 0; j < f->tk && !blind; j++)
        if (sees(f, b, i, j))
            backward_pair(a, b, head, i, j, delta, s);
    for (int64_t d = 0; d < f->head_dim; d++)
        ref_put(dq, d, s->dq[d]);
}

static void store_rows(const double *sum, ref_row out, int64_t stride, int64_t rows, int64_t width,
                       bool accumulate)
{
    for (int64_t j = 0; j < rows; j++)
        for (int64_t d = 0; d < width; d++) {
            double before = accumulate ? ref_get(out, j * stride + d) : 0.0;
            ref_put(out, j * stride + d, before + sum[j * width + d]);
        }
}

static void backward_kv_head(const ndm_attention_backward_args *a, int64_t b, int64_t kv_head,
                             const backward_sums *s)
{
    const ndm_attention_args *f = &a->forward;
    int64_t group = f->heads / f->kv_heads, width = f->head_dim;

    for (int64_t i = 0; i < f->tk * width; i++)
        s->dk[i] = s->dv[i] = 0.0;
    for (int64_t head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int64_t i = 0; i < f->tq; i++)
            backward_row(a, b, head, i, s);
    store_rows(s->dk, ref_row_of(a->dk, a->d_dtype, b * f->tk * a->dk_stride + kv_head * width),
               a->dk_stride, f->tk, width, a->accumulate_dkv);
    store_rows(s->dv, ref_row_of(a->dv, a->d_dtype, b * f->tk * a->dv_stride + kv_head * width),
               a->dv_stride, f->tk, width, a->accumulate_dkv);
}

ndm_status ndm_ref_attention_backward(const void *args)
{
    const ndm_attention_backward_args *a = args;
    const ndm_attention_args *f = &a->forward;
    int64_t count = f->tk * f->head_dim;
    double *scratch = malloc((size_t)(2 * count + f->head_dim) * sizeof *scratch);

    if (!scratch)
        NDM_FAIL(NDM_ERR_MEMORY, "attention_backward: no memory for sums of %lld keys of %lld",
                 (long long)f->tk, (long long)f->head_dim);
    backward_sums sums = {.dk = scratch, .dv = scratch + count, .dq = scratch + 2 * count};
    for (int64_t b = 0; b < f->batch; b++)
        for (int64_t kv_head = 0; kv_head < f->kv_heads; kv_head++)
            backward_kv_head(a, b, kv_head, &sums);
    free(scratch);
    return NDM_OK;
}

/* One side that saw nothing is left out by selection: what its rows hold is never read. */
static void merge_row(ref_row out, float *lse, ref_row part, float part_lse, int64_t width)
{
    double a = *lse, b = part_lse, max = a > b ? a : b;
    double weight_a = exp(a - max), weight_b = exp(b - max), total = weight_a + weight_b;

    if (part_lse == -INFINITY && *lse != -INFINITY)
        return;
    for (int64_t d = 0; d < width; d++) {
        if (part_lse == -INFINITY)
            ref_put(out, d, 0.0);
        else if (*lse == -INFINITY)
            ref_put(out, d, ref_get(part, d));
        else
            ref_put(out, d, (weight_a * ref_get(out, d) + weight_b * ref_get(part, d)) / total);
    }
    if (*lse == -INFINITY)
        *lse = part_lse;
    else
        *lse = (float)(max + log(total));
}

ndm_status ndm_ref_attention_merge(const void *args)
{
    const ndm_attention_merge_args *a = args;

    for (int64_t b = 0; b < a->batch; b++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < a->t; i++) {
                int64_t row = b * a->t + i, at = (b * a->heads + head) * a->t + i;
                int64_t column = head * a->head_dim;
                merge_row(ref_row_of(a->out, a->out_dtype, row * a->out_stride + column),
                          &a->lse[at],
                          ref_row_of(a->part, a->part_dtype, row * a->part_stride + column),
                          a->part_lse[at], a->head_dim);
            }
    return NDM_OK;
}
