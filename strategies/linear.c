/* SPDX-License-Identifier: Apache-2.0 */
/* Linear layers over a unit's parameters. A column-parallel one reads the whole input and makes
 * this rank's output features; a row-parallel one reads this rank's input features and makes
 * partial sums of the whole output. The strategies' collectives repair both.
 *
 * y[N, out] = x[N, in] W^T + b with W stored [out, in], or x W with W stored [in, out] (GPT-2).
 * Matrices that lie side by side in the unit are one GEMM; their outputs lie side by side in a row
 * of y either way. */
#include "strategies/linear.h"
#include "core/dtype.h"
#include "core/given.h"
#include "strategies/fp8.h"

static const ndm_param *param_of(const ndm_linear *l, int i)
{
    return &l->unit->params[i];
}

static ndm_role role_of(const ndm_linear *l)
{
    return param_of(l, l->weight[0])->spec.role;
}

/* ---- checks ------------------------------------------------------------------------------- */

/* A row linear's bias is whole on every rank, and may say so. */
static bool role_fits(const ndm_linear *l, const ndm_param_spec *spec)
{
    ndm_role role = role_of(l);

    if (spec->ndim == 1 && role == NDM_ROLE_ROW && spec->role == NDM_ROLE_REPLICATED)
        return true;
    return spec->role == role && role != NDM_ROLE_VOCAB;
}

static ndm_status check_param(const ndm_linear *l, int i, int ndim)
{
    if (i < 0 || i >= l->unit->n_params)
        NDM_FAIL(NDM_ERR_USAGE, "linear: unit %s has no parameter %d; it has %lld", l->unit->name,
                 i, (long long)l->unit->n_params);
    const ndm_param_spec *spec = &param_of(l, i)->spec;
    if (spec->ndim != ndim)
        NDM_FAIL(NDM_ERR_USAGE, "linear: %s has %d dimensions; a %s has %d", spec->name, spec->ndim,
                 ndim == 2 ? "weight" : "bias", ndim);
    if (!role_fits(l, spec))
        NDM_FAIL(NDM_ERR_USAGE,
                 "linear: the role of %s is not that of %s, or is no linear's; column, row and "
                 "replicated are",
                 spec->name, param_of(l, l->weight[0])->spec.name);
    return NDM_OK;
}

static ndm_status check(const ndm_linear *l, int64_t rows)
{
    if (!l->unit)
        NDM_FAIL(NDM_ERR_USAGE, "linear: its unit is NULL");
    if (l->dtype != NDM_F32 && l->dtype != NDM_BF16)
        NDM_FAIL(NDM_ERR_USAGE, "linear: type %d; fp32 and bf16 are supported", l->dtype);
    if (l->n < 1 || l->n > NDM_LINEAR_MAX)
        NDM_FAIL(NDM_ERR_USAGE, "linear: %d matrices; 1 to %d are allowed", l->n, NDM_LINEAR_MAX);
    for (int i = 0; i < l->n; i++) {
        NDM_TRY(check_param(l, l->weight[i], 2));
        if (l->bias[i] >= 0)
            NDM_TRY(check_param(l, l->bias[i], 1));
    }
    if (rows < 0)
        NDM_FAIL(NDM_ERR_USAGE, "linear: %lld rows", (long long)rows);
    if (l->unit->users < 1)
        NDM_FAIL(NDM_ERR_STATE, "linear: unit %s is not unsharded", l->unit->name);
    return NDM_OK;
}

/* Whether ranks of tp own different rows outside the linear. */
static bool rows_are_split(const ndm_linear *l)
{
    return role_of(l) != NDM_ROLE_REPLICATED && ndm_context_sequence_parallel(l->unit->context);
}

static ndm_status check_split(const ndm_linear *l, int64_t rows, const void *all)
{
    int64_t first, count;

    if (!rows_are_split(l))
        return NDM_OK;
    if (!all)
        NDM_FAIL(NDM_ERR_USAGE, "linear: with sequence parallelism %s needs room for all rows",
                 param_of(l, l->weight[0])->spec.name);
    return ndm_linear_rows(l->unit->context, rows, &first, &count);
}

ndm_status ndm_linear_rows(const ndm_context *context, int64_t rows, int64_t *first, int64_t *count)
{
    NDM_NEED(context);
    NDM_NEED(first);
    NDM_NEED(count);
    int64_t tp = ndm_context_axes_size(context, NDM_AXIS_TP);

    if (rows < 0)
        NDM_FAIL(NDM_ERR_USAGE, "linear: %lld rows", (long long)rows);
    *first = 0;
    *count = rows;
    if (!ndm_context_sequence_parallel(context))
        return NDM_OK;
    if (rows % tp)
        NDM_FAIL(NDM_ERR_CONFIG, "linear: tp=%lld does not divide the %lld rows; pad them",
                 (long long)tp, (long long)rows);
    *count = rows / tp;
    *first = ndm_context_coord(context, NDM_TP) * *count;
    return NDM_OK;
}

/* ---- GEMMs -------------------------------------------------------------------------------- */

/* A stretch of output columns made by one GEMM. */
typedef struct piece {
    int w, b; /* first of its parameters; b < 0: no bias */
    int64_t column, width;
    bool transposed; /* stored [in, out] */
} piece;

static int64_t out_width(const ndm_param *p)
{
    return p->spec.transposed ? p->local[1] : p->local[0];
}

/* As far as the widths ask. */
static bool is_made(const ndm_linear *l)
{
    bool made = l && l->unit && l->n >= 1 && l->n <= NDM_LINEAR_MAX;

    for (int i = 0; made && i < l->n; i++)
        made = ndm_unit_has(l->unit, l->weight[i]);
    return made;
}

int64_t ndm_linear_in(const ndm_linear *l)
{
    if (!is_made(l))
        return 0;
    const ndm_param *p = param_of(l, l->weight[0]);

    return p->spec.transposed ? p->local[0] : p->local[1];
}

int64_t ndm_linear_out(const ndm_linear *l)
{
    int64_t width = 0;

    for (int i = 0; is_made(l) && i < l->n; i++)
        width += out_width(param_of(l, l->weight[i]));
    return width;
}

static bool side_by_side(const ndm_linear *l, int a, int b)
{
    const ndm_param *p = param_of(l, a), *q = param_of(l, b);

    return !p->spec.transposed && !q->spec.transposed && p->start + p->numel == q->start;
}

/* Matrix i and its bias continue those of the one before. */
static bool continues(const ndm_linear *l, int i)
{
    bool biased = l->bias[i] >= 0, before = l->bias[i - 1] >= 0;

    return side_by_side(l, l->weight[i - 1], l->weight[i]) && biased == before &&
           (!biased || side_by_side(l, l->bias[i - 1], l->bias[i]));
}

/* Cuts the op into as few GEMMs as the layout allows; returns their number. */
static int pieces_of(const ndm_linear *l, piece pieces[NDM_LINEAR_MAX])
{
    int n = 0;
    int64_t column = 0;

    for (int i = 0; i < l->n; i++) {
        const ndm_param *p = param_of(l, l->weight[i]);
        int64_t width = out_width(p);
        if (n > 0 && continues(l, i))
            pieces[n - 1].width += width;
        else
            pieces[n++] = (piece){l->weight[i], l->bias[i], column, width, p->spec.transposed};
        column += width;
    }
    return n;
}

/* A row-parallel bias is added by one tp rank to its partial sums. */
static bool adds_bias(const ndm_linear *l)
{
    return role_of(l) != NDM_ROLE_ROW || ndm_context_coord(l->unit->context, NDM_TP) == 0;
}

/* A whole array of activations, and the matrix of a piece, on their way to 8 bits. */
static ndm_fp8_tensor rows_of(const ndm_linear *l, const void *x, int64_t rows, int64_t width,
                              ndm_dtype dtype, int tensor)
{
    return (ndm_fp8_tensor){.tensor = tensor,
                            .src = x,
                            .rows = rows,
                            .width = width,
                            .stride = width,
                            .src_dtype = l->dtype,
                            .dtype = dtype};
}

static ndm_fp8_tensor matrix_of(const ndm_linear *l, const piece *p)
{
    int64_t in = ndm_linear_in(l), rows = p->transposed ? in : p->width,
            width = p->transposed ? p->width : in;

    return (ndm_fp8_tensor){.tensor = 1,
                            .src = ndm_unit_weight(l->unit, p->w),
                            .rows = rows,
                            .width = width,
                            .stride = width,
                            .src_dtype = l->unit->fsdp.param_dtype,
                            .dtype = NDM_F8E4M3};
}

/* t[0] is x or dy, t[1 + i] the matrix of piece i: all of a pass in 8 bits. Matrices side by side
 * have one scale, since how many pieces they are depends on the mesh. */
static ndm_status quantize_pass(const ndm_linear *l, const piece *pieces, int n, ndm_fp8_tensor *t)
{
    for (int i = 0; i < n && l->fp8; i++)
        t[1 + i] = matrix_of(l, &pieces[i]);
    return l->fp8 ? ndm_fp8_quantize(l->unit->context, t, n + 1) : NDM_OK;
}

/* The operands of a product in their 8-bit form, from these columns on. */
static void take_eight(const ndm_linear *l, const ndm_fp8_tensor *a, int64_t a_column,
                       const ndm_fp8_tensor *b, int64_t b_column, ndm_gemm_args *args)
{
    if (!l->fp8)
        return;
    args->a = a->bytes + a_column;
    args->a_dtype = a->dtype;
    args->a_scale = a->scale;
    args->b = b->bytes + b_column;
    args->bias_dtype = args->b_dtype;
    args->b_dtype = b->dtype;
    args->b_scale = b->scale;
}

ndm_status ndm_linear_multiply(const ndm_linear *l, int64_t rows, const void *x, void *y)
{
    int64_t in = ndm_linear_in(l), out = ndm_linear_out(l);
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(l, pieces);
    ndm_fp8_tensor t[NDM_FP8_TENSORS] = {rows_of(l, x, rows, in, NDM_F8E4M3, 0)};

    NDM_TRY(quantize_pass(l, pieces, n, t));
    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        ndm_gemm_args args = {
            .trans_b = !p->transposed,
            .m = rows,
            .n = p->width,
            .k = in,
            .alpha = 1.0f,
            .a = x,
            .lda = in,
            .b = ndm_unit_weight(l->unit, p->w),
            .ldb = p->transposed ? p->width : in,
            .b_dtype = l->unit->fsdp.param_dtype,
            .bias = p->b >= 0 && adds_bias(l) ? ndm_unit_weight(l->unit, p->b) : NULL,
            .c = ndm_dtype_at(y, l->dtype, p->column),
            .ldc = out,
            .a_dtype = l->dtype,
            .c_dtype = l->dtype,
        };
        take_eight(l, &t[0], 0, &t[1 + i], 0, &args);
        NDM_TRY(ndm_gemm(l->unit->context->compute, &args));
    }
    return NDM_OK;
}

ndm_status ndm_linear_grad_input(const ndm_linear *l, int64_t rows, const void *dy, void *dx)
{
    int64_t in = ndm_linear_in(l), out = ndm_linear_out(l);
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(l, pieces);
    ndm_fp8_tensor t[NDM_FP8_TENSORS] = {rows_of(l, dy, rows, out, NDM_F8E5M2, 0)};

    NDM_TRY(quantize_pass(l, pieces, n, t));
    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        ndm_gemm_args args = {
            .trans_b = p->transposed,
            .m = rows,
            .n = in,
            .k = p->width,
            .alpha = 1.0f,
            .beta = i > 0 ? 1.0f : 0.0f,
            .a = ndm_dtype_at(dy, l->dtype, p->column),
            .lda = out,
            .a_dtype = l->dtype,
            .b = ndm_unit_weight(l->unit, p->w),
            .ldb = p->transposed ? p->width : in,
            .b_dtype = l->unit->fsdp.param_dtype,
            .c = dx,
            .c_dtype = l->dtype,
            .ldc = in,
        };
        take_eight(l, &t[0], p->column, &t[1 + i], 0, &args);
        NDM_TRY(ndm_gemm(l->unit->context->compute, &args));
    }
    return NDM_OK;
}

/* dW += dy^T x as [out, in], or x^T dy as [in, out]. */
ndm_status ndm_linear_grad_weight(const ndm_linear *l, int64_t rows, const void *x, const void *dy)
{
    int64_t in = ndm_linear_in(l), out = ndm_linear_out(l);
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(l, pieces);
    ndm_fp8_tensor t[] = {rows_of(l, x, rows, in, NDM_F8E4M3, 0),
                          rows_of(l, dy, rows, out, NDM_F8E5M2, 1)};

    if (l->fp8)
        NDM_TRY(ndm_fp8_quantize(l->unit->context, t, 2));
    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        const void *part = ndm_dtype_at(dy, l->dtype, p->column);
        float *grad, beta;
        NDM_TRY(ndm_unit_grad_product(l->unit, p->w, p->width * in, l->unit->context->compute,
                                      &grad, &beta));
        ndm_gemm_args args = {
            .trans_a = true,
            .m = p->transposed ? in : p->width,
            .n = p->transposed ? p->width : in,
            .k = rows,
            .alpha = 1.0f,
            .beta = beta,
            .a = p->transposed ? x : part,
            .lda = p->transposed ? in : out,
            .b = p->transposed ? part : x,
            .ldb = p->transposed ? out : in,
            .a_dtype = l->dtype,
            .b_dtype = l->dtype,
            .c = grad,
            .ldc = p->transposed ? p->width : in,
        };
        if (p->transposed)
            take_eight(l, &t[0], 0, &t[1], p->column, &args);
        else
            take_eight(l, &t[1], p->column, &t[0], 0, &args);
        NDM_TRY(ndm_gemm(l->unit->context->compute, &args));
    }
    return NDM_OK;
}

/* Sums of dy's columns. A row-parallel bias belongs to all tp ranks: each sums the rows it owns,
 * and with sequence parallelism the unit's reduction adds these up. */
ndm_status ndm_linear_grad_bias(const ndm_linear *l, int64_t rows, const void *dy)
{
    int64_t out = ndm_linear_out(l);
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(l, pieces);

    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        if (p->b < 0)
            continue;
        ndm_colsum_args args = {.x = ndm_dtype_at(dy, l->dtype, p->column),
                                .x_dtype = l->dtype,
                                .out = ndm_unit_grad(l->unit, p->b),
                                .m = rows,
                                .n = p->width,
                                .stride = out};
        NDM_TRY(ndm_colsum(l->unit->context->compute, &args));
    }
    return NDM_OK;
}

/* ---- with their collectives --------------------------------------------------------------- */

ndm_status ndm_linear_forward(const ndm_linear *linear, int64_t rows, const void *x, void *all,
                              void *y)
{
    NDM_NEED(linear);
    NDM_TRY(check(linear, rows));
    ndm_context *c = linear->unit->context;

    NDM_TRY(check_split(linear, rows, all));
    if (!x || !y)
        NDM_FAIL(NDM_ERR_USAGE, "linear: x and y must not be NULL");
    bool split = rows_are_split(linear);
    if (role_of(linear) == NDM_ROLE_COLUMN) {
        void *own = (void *)x, *whole = split ? all : own; /* own rows are read only */
        NDM_TRY(ndm_engine_linear_in(c, NDM_FORWARD, own, whole, rows, ndm_linear_in(linear),
                                     linear->dtype));
        return ndm_linear_multiply(linear, rows, whole, y);
    }
    void *whole = split ? all : y;
    NDM_TRY(ndm_linear_multiply(linear, rows, x, whole));
    if (role_of(linear) == NDM_ROLE_REPLICATED)
        return NDM_OK;
    return ndm_engine_linear_out(c, NDM_FORWARD, y, whole, rows, ndm_linear_out(linear),
                                 linear->dtype);
}

/* Partial sums of dx for all rows -> dx of own rows. */
static ndm_status column_backward(const ndm_linear *l, int64_t rows, const void *x, const void *dy,
                                  void *all, void *dx)
{
    void *whole = rows_are_split(l) ? all : dx;

    if (dx) {
        NDM_TRY(ndm_linear_grad_input(l, rows, dy, whole));
        NDM_TRY(ndm_engine_linear_in(l->unit->context, NDM_BACKWARD, dx, whole, rows,
                                     ndm_linear_in(l), l->dtype));
    }
    NDM_TRY(ndm_linear_grad_weight(l, rows, x, dy));
    return ndm_linear_grad_bias(l, rows, dy);
}

/* dy of own rows -> dy of all rows. */
static ndm_status row_backward(const ndm_linear *l, int64_t rows, const void *x, const void *dy,
                               void *all, void *dx)
{
    void *own = (void *)dy, *whole = rows_are_split(l) ? all : own; /* own rows are read only */
    int64_t first, count;

    NDM_TRY(ndm_linear_rows(l->unit->context, rows, &first, &count));
    NDM_TRY(ndm_linear_grad_bias(l, count, dy));
    NDM_TRY(ndm_engine_linear_out(l->unit->context, NDM_BACKWARD, own, whole, rows,
                                  ndm_linear_out(l), l->dtype));
    if (dx)
        NDM_TRY(ndm_linear_grad_input(l, rows, whole, dx));
    return ndm_linear_grad_weight(l, rows, x, whole);
}

ndm_status ndm_linear_backward(const ndm_linear *linear, int64_t rows, const void *x,
                               const void *dy, void *all, void *dx)
{
    NDM_NEED(linear);
    NDM_TRY(check(linear, rows));
    if (dx || role_of(linear) == NDM_ROLE_ROW)
        NDM_TRY(check_split(linear, rows, all));
    if (!x || !dy)
        NDM_FAIL(NDM_ERR_USAGE, "linear: x and dy must not be NULL");
    if (!linear->unit->in_backward)
        NDM_FAIL(NDM_ERR_STATE, "linear: the gradients of unit %s are not begun",
                 linear->unit->name);
    if (role_of(linear) == NDM_ROLE_ROW)
        return row_backward(linear, rows, x, dy, all, dx);
    if (role_of(linear) == NDM_ROLE_COLUMN)
        return column_backward(linear, rows, x, dy, all, dx);
    if (dx)
        NDM_TRY(ndm_linear_grad_input(linear, rows, dy, dx));
    NDM_TRY(ndm_linear_grad_weight(linear, rows, x, dy));
    return ndm_linear_grad_bias(linear, rows, dy);
}
