/* SPDX-License-Identifier: Apache-2.0 */
/* The ops that kernels implement: one argument struct and one launch function each.
 *
 * All pointers are device memory. Matrices are row-major. Letters: B sequences, T tokens of one, N
 * = B*T rows, C width, H query heads, K key-value heads, D head dim, F ffn width, V vocabulary.
 * Weights and activations are of the type that the struct says (all zero: fp32); statistics,
 * gradients of weights and sums are fp32 or double. Bodies compute in fp32 and round once, to
 * nearest even, where they store. Every op is deterministic: the same arguments give the same bits,
 * whatever the number of threads.
 *
 * A world has a table of bodies (struct ndm_kernel_table): `ref` is the truth and complete; `fast`
 * overlays it. */
#ifndef NDM_KERNELS_KERNELS_H
#define NDM_KERNELS_KERNELS_H

#include "device/device.h"

/* C[M, N] = alpha * op(A)[M, K] op(B)[K, N] + beta * C (+ bias[N] on every row). */
typedef struct ndm_gemm_args {
    bool trans_a, trans_b; /* A is stored [K, M]; B is stored [N, K] */
    int64_t m, n, k;
    float alpha, beta; /* beta 0: C is not read */
    const void *a, *b;
    const void *bias; /* [N] of b_dtype, or NULL */
    void *c;
    int64_t lda, ldb, ldc; /* row strides, elements */
    ndm_dtype a_dtype, b_dtype,
        c_dtype; /* cpu: a and c fp32; b fp32 or bf16 (a weight); cuda: also bf16 throughout */
    /* Of 8-bit a and b, which come together: what their elements count, [1] each, NULL = 1. */
    const float *a_scale, *b_scale; /* powers of two */
    ndm_dtype bias_dtype;           /* with 8-bit a and b, of bias; else that is b_dtype */
} ndm_gemm_args;

/* out[N, C] = scale * table[id - first] for first <= id < first + rows, else 0 (another tp rank has
 * the row); plus position_table[position] when given. */
typedef struct ndm_embedding_args {
    const int32_t *ids; /* [N] */
    const void *table;  /* [rows, C] of dtype */
    ndm_dtype dtype;
    const void *position_table; /* [., C] of dtype, or NULL */
    const int32_t *positions;   /* [N], with position_table */
    float scale;
    int64_t n, width, first, rows;
    void *out; /* [N, C] of out_dtype */
    ndm_dtype out_dtype;
} ndm_embedding_args;

/* dtable[id - first] += scale * dout, likewise dposition_table. Sums in row order. With part_count,
 * dtable is a stretch of the [rows, C] elements, which need not begin or end with a row: what falls
 * beside it is left out. */
typedef struct ndm_embedding_backward_args {
    const int32_t *ids, *positions;
    const void *dout; /* [N, C] of dout_dtype */
    ndm_dtype dout_dtype;
    float scale;
    int64_t n, width, first, rows;
    float *dtable; /* [rows, C], or [part_count] elements of it from part_first on */
    int64_t part_first, part_count; /* part_count 0: all of them */
    float *dposition_table;         /* or NULL */
    int64_t position_rows;
} ndm_embedding_backward_args;

/* Optional residual: x += residual first, written to sum (sum may be x; both then packed like x:
 * x_stride is width) and rounded there: the norm is of what sum holds. Then y = x * rstd * weight
 * (RMSNorm), or (x - mean) * rstd * weight + bias (LayerNorm). Rows are of `width`, `stride` apart
 * in x, y. RMSNorm per head: width = D, rows strided. weight_offset is added to the weight (Gemma's
 * 1 + w). */
typedef struct ndm_norm_args {
    bool layer_norm;
    ndm_dtype x_dtype;         /* of x, residual, sum and y */
    const void *x;             /* [N, width] */
    const void *residual;      /* [N, width], or NULL */
    void *sum;                 /* [N, width], with residual */
    const void *weight, *bias; /* [width] of dtype; bias for LayerNorm, may be NULL */
    ndm_dtype dtype;
    float eps, weight_offset;
    int64_t n, width;
    int64_t x_stride, y_stride; /* elements between rows; 0 = width */
    void *y;                    /* [N, width]; may be x */
    float *mean, *rstd;         /* [N]; mean for LayerNorm */
} ndm_norm_args;

/* dx = (accumulate ? dx : 0) + gradient; dweight, dbias += their sums over rows. x is the normed
 * input (after residual). dx may be dy when not accumulating. If y is not NULL, what the forward
 * wrote is made again on the way, to the bit; y may be dy unless dx is. workspace as
 * ndm_norm_workspace_bytes(). */
typedef struct ndm_norm_backward_args {
    bool layer_norm, accumulate;
    ndm_dtype x_dtype; /* of x, dy, dx and y */
    const void *x, *dy;
    const float *mean, *rstd;
    const void *weight, *bias; /* bias is read for y alone */
    ndm_dtype dtype;
    float weight_offset;
    int64_t n, width, x_stride, dy_stride, dx_stride, y_stride;
    void *dx, *y;
    float *dweight, *dbias;
    float *workspace;
} ndm_norm_backward_args;

/* Rotates pairs (i, i + D/2) of each head in place by the angle of the row's position; sign -1 is
 * the backward. Heads lie one after another in a row: x + row * stride + head * D. */
typedef struct ndm_rope_args {
    void *x; /* of x_dtype */
    ndm_dtype x_dtype;
    int64_t n, heads, head_dim, stride;
    const int32_t *positions; /* [N] */
    const float *cos, *sin;   /* [positions, D/2] */
    float sign;
} ndm_rope_args;

/* Attention of one call: every query row sees key rows with first[q] <= key_index <= query_index,
 * all as global indices in the sequence. `first` carries documents and sliding windows. NULL
 * indices mean: causal, query and key i of the same sequence are at i (Tq == Tk), first 0. Blocks
 * that see nothing are skipped. GQA: query head h uses key head h / (H/K). out rows that see no key
 * at all are 0 with lse = -inf. */
typedef struct ndm_attention_args {
    ndm_dtype x_dtype, out_dtype; /* of q, k and v; of out */
    const void *q, *k, *v;        /* rows of q_stride, k_stride, v_stride; heads side by side */
    int64_t q_stride, k_stride, v_stride;
    int64_t batch, tq, tk, heads, kv_heads, head_dim;
    float scale;
    bool causal;                      /* false: every key from first[q] on is seen */
    const int32_t *q_index, *k_index; /* [B*Tq], [B*Tk], or NULL */
    const int32_t *q_first;           /* [B*Tq], or NULL */
    void *out;                        /* [B*Tq, H*D], rows of out_stride */
    int64_t out_stride;
    float *lse; /* [B, H, Tq] log-sum-exp of the scaled scores */
} ndm_attention_args;

/* dq, dk, dv of the same rows, += when accumulate_*; delta [B, H, Tq] = sum_d dout * out, computed
 * when make_delta. lse is that of the whole row (over all keys everywhere), so a ring can call this
 * once per block of keys. */
typedef struct ndm_attention_backward_args {
    ndm_attention_args forward; /* out and lse are inputs */
    const void *dout;           /* [B*Tq, H*D] of forward.out_dtype, rows of dout_stride */
    int64_t dout_stride;
    bool make_delta, accumulate_dq, accumulate_dkv;
    float *delta;
    ndm_dtype d_dtype;  /* of dq, dk and dv */
    void *dq, *dk, *dv; /* strides dq_stride, dk_stride, dv_stride */
    int64_t dq_stride, dk_stride, dv_stride;
} ndm_attention_backward_args;

/* Merges a partial attention into a running one, both with their lse: out = softmax-weighted mean;
 * lse = logaddexp. Neither overflows; -inf on both sides stays 0 / -inf. */
typedef struct ndm_attention_merge_args {
    ndm_dtype out_dtype, part_dtype;
    void *out;             /* running: [B*T, H*D] rows of out_stride */
    float *lse;            /* running: [B, H, T] */
    const void *part;      /* [B*T, H*D] rows of part_stride */
    const float *part_lse; /* [B, H, T] */
    int64_t batch, t, heads, head_dim, out_stride, part_stride;
} ndm_attention_merge_args;

typedef enum ndm_activation { NDM_SILU, NDM_GELU_TANH, NDM_GELU_ERF } ndm_activation;

/* Gated: y[N, F] = act(x[:, :F]) * x[:, F:], x is [N, 2F] rows of x_stride. Not gated: y = act(x),
 * x is [N, F]. */
typedef struct ndm_act_args {
    ndm_activation activation;
    bool gated;
    ndm_dtype x_dtype; /* of x and y */
    const void *x;
    void *y;
    int64_t n, width, x_stride, y_stride;
} ndm_act_args;

/* dx from x and dy; dx may be x (in place). If y is not NULL, what the forward wrote is made again
 * on the way, to the bit; y may be dy. */
typedef struct ndm_act_backward_args {
    ndm_activation activation;
    bool gated;
    ndm_dtype x_dtype; /* of x, dy, dx and y */
    const void *x, *dy;
    void *dx, *y;
    int64_t n, width, x_stride, dy_stride, dx_stride, y_stride;
} ndm_act_backward_args;

/* Cross entropy over a (slice of a) vocabulary: columns are ids first .. first + width - 1; targets
 * outside have their logit on another tp rank. ignored targets are negative (-100). valid_width <=
 * width: the columns beyond are padding and never count. stats [N, 4]: row max, sum of exp(x -
 * max), logit of the target (0 if elsewhere), sum of logits. */
typedef struct ndm_ce_stats_args {
    const void *logits; /* [N, width] of x_dtype, rows of stride */
    ndm_dtype x_dtype;
    const int32_t *targets; /* [N] */
    int64_t n, width, valid_width, stride, first;
    float *stats;
} ndm_ce_stats_args;

/* Merges `parts` ranks' stats, [parts][N][4], into stats, [N, 4]: maximum, rescaled sum, target
 * logit, sum. */
typedef struct ndm_ce_merge_args {
    const float *all;
    float *stats;
    int64_t n, parts;
} ndm_ce_merge_args;

/* From stats of the whole row: loss_sum[0] += the sum over valid rows of the loss, in double and in
 * row order; token_count is not touched. If grad: logits become dlogits = (softmax - target) *
 * grad_scale, rows of ignored targets and padded columns 0. label smoothing s: target = (1 - s) *
 * onehot + s / vocabulary. loss_rows may be NULL. */
typedef struct ndm_ce_apply_args {
    void *logits; /* of x_dtype */
    ndm_dtype x_dtype;
    const int32_t *targets;
    const float *stats;
    int64_t n, width, valid_width, stride, first, vocabulary;
    float grad_scale, label_smoothing;
    const int64_t *tokens; /* [1], the gradient is divided by it (0: is 0); NULL = 1 */
    bool grad, count_loss; /* count_loss: this tp rank adds to loss_sum (one of them does) */
    double *loss_sum;      /* [1] */
    float *loss_rows;      /* [N] */
} ndm_ce_apply_args;

/* What differs from step to step, in memory of the device: so the same launches do for all steps,
 * and the host waits for none of it. */
typedef struct ndm_step_numbers {
    double lr, bias1, bias2; /* 1 - beta^step; the host sets these */
    double grad_scale;       /* ndm_clip() sets it; NaN = the step is not taken */
} ndm_step_numbers;

/* step->grad_scale = min(1, max_norm / (norm + 1e-6)), or 1 with max_norm 0, where norm is the root
 * of sums[0], or *largest. NaN where the norm or another of the sums is not finite. */
typedef struct ndm_clip_args {
    const double *sums; /* [n] */
    int64_t n;
    const double *largest; /* [1], or NULL */
    double max_norm;
    ndm_step_numbers *step; /* [1] */
} ndm_clip_args;

/* AdamW (Loshchilov and Hutter, 2019), as torch.optim.AdamW: w -= lr*wd*w; m, v; w -= lr * mhat /
 * (sqrt(vhat) + eps). g is multiplied by grad_scale first (clipping). eps 0 with v 0 gives no step.
 * copy (NULL or [N] of copy_dtype) gets the result. The coefficients are double because 1 - beta
 * is: with 0.999 in fp32 it would be off by 1.3e-5. */
typedef struct ndm_adamw_args {
    float *w, *m, *v;
    const float *g;
    int64_t n;
    double lr, beta1, beta2, eps, weight_decay, grad_scale;
    double bias1, bias2;          /* 1 - beta^step */
    const ndm_step_numbers *step; /* [1], instead of lr, bias1, bias2 and grad_scale; or NULL */
    void *copy;
    ndm_dtype copy_dtype;
} ndm_adamw_args;

/* out[0] += weight * sum of x^2 in double (pairwise or blocked: the result does not depend on
 * threads); out_max[0] = max(., |x|) when not NULL. NaN in x makes both NaN. */
typedef struct ndm_sumsq_args {
    const float *x;
    int64_t n;
    double weight;
    double *out, *out_max;
} ndm_sumsq_args;

typedef struct ndm_cast_args {
    const void *src;
    void *dst;
    ndm_dtype src_dtype, dst_dtype;
    int64_t n;
} ndm_cast_args;
typedef struct ndm_scale_args {
    void *x;
    ndm_dtype x_dtype;
    float factor;
    int64_t n;
} ndm_scale_args; /* x *= factor */
typedef struct ndm_add_args {
    void *y;
    const void *x;
    ndm_dtype y_dtype, x_dtype;
    float factor;
    int64_t n;
} ndm_add_args; /* y += factor * x */

/* out[N] += column sums of x, [M, N] rows of stride (bias gradients). */
typedef struct ndm_colsum_args {
    const void *x; /* of x_dtype */
    ndm_dtype x_dtype;
    float *out;
    int64_t m, n, stride;
} ndm_colsum_args;

/* Copies m rows of `row_bytes`, strides in bytes (0 = row_bytes). index: NULL, or [m] int32: with
 * gather, row i of dst is row index[i] of src; without, row index[i] of dst is row i of src. */
typedef struct ndm_copy2d_args {
    const void *src;
    void *dst;
    int64_t m, row_bytes, src_stride_bytes, dst_stride_bytes;
    const int32_t *index;
    bool gather;
} ndm_copy2d_args;

/* out[i] = mean + std * normal(seed, stream, first + i), or the constant mean when std is 0. */
typedef struct ndm_init_args {
    float *out;
    int64_t n;
    uint64_t seed, stream;
    int64_t first;
    float mean, std;
} ndm_init_args;

/* *out = max(*out, |src|) over m rows; a NaN stays. */
typedef struct ndm_amax_args {
    const void *src;
    ndm_dtype src_dtype;
    int64_t m, width, stride; /* stride 0 = width */
    float *out;               /* [1] */
} ndm_amax_args;

/* dst = src / scale, to nearest even, where scale is the least power of two that brings amax to the
 * largest number of dst_dtype or below; 1 if amax is 0 or not finite. */
typedef struct ndm_quantize_args {
    const void *src;
    ndm_dtype src_dtype;
    uint8_t *dst; /* [m, width] of dst_dtype: NDM_F8E4M3 or NDM_F8E5M2 */
    ndm_dtype dst_dtype;
    int64_t m, width, stride; /* of src; 0 = width */
    const float *amax;        /* [1] */
    float *scale;             /* [1], written */
} ndm_quantize_args;

/* dst = scale * src. */
typedef struct ndm_dequantize_args {
    const uint8_t *src; /* [n] of src_dtype: NDM_F8E4M3 or NDM_F8E5M2 */
    ndm_dtype src_dtype;
    const float *scale; /* [1] */
    void *dst;          /* [n] of dst_dtype */
    ndm_dtype dst_dtype;
    int64_t n;
} ndm_dequantize_args;

/* X(name, short doc): the list of ops. `name` gives ndm_<name>_args, ndm_<name>() and
 * NDM_OP_<name>. */
#define NDM_KERNEL_LIST(X)                               \
    X(gemm, "C = alpha op(A) op(B) + beta C + bias")     \
    X(embedding, "rows of a table by id")                \
    X(embedding_backward, "gradient of the table")       \
    X(norm, "RMSNorm or LayerNorm, with a residual")     \
    X(norm_backward, "gradient of the norm")             \
    X(rope, "rotary positions, both directions")         \
    X(attention, "block-wise softmax attention")         \
    X(attention_backward, "dq, dk, dv from log-sum-exp") \
    X(attention_merge, "merge of partial attentions")    \
    X(act, "SwiGLU, GELU")                               \
    X(act_backward, "gradient of the activation")        \
    X(ce_stats, "softmax statistics of logits")          \
    X(ce_merge, "merge of the statistics over tp")       \
    X(ce_apply, "loss and gradient of logits in place")  \
    X(adamw, "AdamW on a slice")                         \
    X(clip, "clipping of gradients")                     \
    X(sumsq, "sum of squares in double")                 \
    X(cast, "change of type")                            \
    X(scale, "x *= a")                                   \
    X(add, "y += a x")                                   \
    X(colsum, "sums of columns")                         \
    X(copy2d, "strided or indexed rows")                 \
    X(init, "counter-based normal numbers")              \
    X(amax, "largest magnitude")                         \
    X(quantize, "8-bit numbers and their scale")         \
    X(dequantize, "what 8-bit numbers count")

typedef enum ndm_op {
#define NDM_KERNEL_ENUM(name, doc) NDM_OP_##name,
    NDM_KERNEL_LIST(NDM_KERNEL_ENUM)
#undef NDM_KERNEL_ENUM
        NDM_OP_COUNT
} ndm_op;

/* Checks the arguments (NDM_ERR_USAGE with the numbers) and launches on stream. n == 0 is no
 * launch. */
#define NDM_KERNEL_PROTOTYPE(name, doc) \
    NDM_MUST_USE ndm_status ndm_##name(ndm_stream *stream, const ndm_##name##_args *args);
NDM_KERNEL_LIST(NDM_KERNEL_PROTOTYPE)
#undef NDM_KERNEL_PROTOTYPE

/* Partial sums of dweight and dbias: norm_backward cuts the rows in at most this many blocks,
 * whatever the threads. */
enum { NDM_NORM_PARTIALS = 32 };
int64_t
ndm_norm_workspace_bytes(int64_t width); /* of norm_backward: [NDM_NORM_PARTIALS, 2, width] fp32 */

/* A table of bodies. NULL falls back to `base`, whose last is the reference. */
typedef struct ndm_kernel_table {
    const char *name; /* "ref", "avx512", ... */
    const char *summary;
    const char *device; /* "cpu", "cuda" */
    int priority;
    bool (*probe)(char *why, size_t why_bytes);
    void (*version)(char *text, size_t bytes); /* of its library, after the probe; NULL = none */
    void (*body[NDM_OP_COUNT])(void);          /* cpu: ndm_host_body */
} ndm_kernel_table;

const ndm_kernel_table *const *
ndm_kernel_table_list(void); /* NULL-terminated: those of kernels/kernels.def, then a module's */
const char *ndm_op_name(ndm_op op);

/* Chooses tables for the device: for each op the best table that has it and whose probe says yes.
 * choice: NULL or "auto" for the best; "ref"; or a comma list of table names in order of preference
 * (ref is always last). */
NDM_MUST_USE ndm_status ndm_kernels_bind(ndm_device *device, const char *choice);
void ndm_kernels_unbind(
    ndm_device *device); /* frees what bind made; bind and the device's end do so as well */
const char *ndm_kernels_chosen(const ndm_device *device,
                               ndm_op op); /* name of the table that an op runs from */

#endif
