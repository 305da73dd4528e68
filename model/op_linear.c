/* SPDX-License-Identifier: Apache-2.0 */
/* Split linear ops. A column-parallel one reads the whole input and makes this rank's output
 * features; a row-parallel one reads this rank's input features and makes partial sums of the whole
 * output. The strategies' collectives repair both.
 *
 * y[N, out] = x[N, in] W^T + b with W stored [out, in], or x W with W stored [in, out] (GPT-2).
 * Matrices of one op that lie side by side in the unit are one GEMM; their outputs lie side by side
 * in a row of y either way. */
#include "core/dtype.h"
#include "model/model.h"

/* A stretch of output columns made by one GEMM. */
typedef struct piece {
    ndm_weight w, b;
    int64_t column, width;
    bool transposed; /* stored [in, out] */
} piece;

static int64_t out_width(const ndm_block *block, ndm_weight w)
{
    const int64_t *shape = ndm_unit_local_shape(block->unit, block->param[w]);
    return ndm_unit_spec(block->unit, block->param[w])->transposed ? shape[1] : shape[0];
}

static bool side_by_side(const ndm_block *block, ndm_weight a, ndm_weight b)
{
    const ndm_param *p = &block->unit->params[block->param[a]],
                    *q = &block->unit->params[block->param[b]];
    return !p->spec.transposed && !q->spec.transposed && p->start + p->numel == q->start;
}

/* Cuts the op into as few GEMMs as the layout allows; returns their number. */
static int pieces_of(const ndm_linear_call *call, piece pieces[NDM_LINEAR_MAX])
{
    int n = 0;
    int64_t column = 0;

    for (int i = 0; i < NDM_LINEAR_MAX; i++) {
        ndm_weight w = call->w[i], b = call->b[i];
        if (w == W_NONE || !ndm_block_has(call->block, w))
            continue;
        bool bias = b != W_NONE && ndm_block_has(call->block, b);
        int64_t width = out_width(call->block, w);
        if (n > 0 && side_by_side(call->block, call->w[i - 1], w) &&
            (!bias || side_by_side(call->block, call->b[i - 1], b)))
            pieces[n - 1].width += width;
        else
            pieces[n++] = (piece){
                w, bias ? b : W_NONE, column, width,
                ndm_unit_spec(call->block->unit, call->block->param[w])->transposed};
        column += width;
    }
    return n;
}

int64_t ndm_linear_out(const ndm_linear_call *call)
{
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(call, pieces);

    return pieces[n - 1].column + pieces[n - 1].width;
}

ndm_status ndm_linear_apply(const ndm_run *run, const ndm_linear_call *call, const float *x,
                            float *y)
{
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(call, pieces);
    int64_t out = ndm_linear_out(call);

    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        ndm_gemm_args args = {
            .trans_b = !p->transposed,
            .m = call->rows,
            .n = p->width,
            .k = call->in,
            .alpha = 1.0f,
            .a = x,
            .lda = call->in,
            .b = ndm_block_weight(call->block, p->w),
            .ldb = p->transposed ? p->width : call->in,
            .b_dtype = call->block->unit->fsdp.param_dtype,
            .bias = p->b != W_NONE && call->add_bias ? ndm_block_weight(call->block, p->b) : NULL,
            .c = y + p->column,
            .ldc = out,
        };
        NDM_TRY(ndm_gemm(run->model->context->compute, &args));
    }
    return NDM_OK;
}

ndm_status ndm_linear_grad_input(const ndm_run *run, const ndm_linear_call *call, const float *dy,
                                 float *dx)
{
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(call, pieces);
    int64_t out = ndm_linear_out(call);

    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        ndm_gemm_args args = {
            .trans_b = p->transposed,
            .m = call->rows,
            .n = call->in,
            .k = p->width,
            .alpha = 1.0f,
            .beta = i > 0 ? 1.0f : 0.0f,
            .a = dy + p->column,
            .lda = out,
            .b = ndm_block_weight(call->block, p->w),
            .ldb = p->transposed ? p->width : call->in,
            .b_dtype = call->block->unit->fsdp.param_dtype,
            .c = dx,
            .ldc = call->in,
        };
        NDM_TRY(ndm_gemm(run->model->context->compute, &args));
    }
    return NDM_OK;
}

/* dW += dy^T x as [out, in], or x^T dy as [in, out]. */
static ndm_status grad_matrix(const ndm_run *run, const ndm_linear_call *call, const piece *p,
                              const float *x, const float *dy)
{
    int64_t out = ndm_linear_out(call);
    ndm_gemm_args args = {
        .trans_a = true,
        .m = p->transposed ? call->in : p->width,
        .n = p->transposed ? p->width : call->in,
        .k = call->rows,
        .alpha = 1.0f,
        .beta = 1.0f,
        .a = p->transposed ? x : dy + p->column,
        .lda = p->transposed ? call->in : out,
        .b = p->transposed ? dy + p->column : x,
        .ldb = p->transposed ? out : call->in,
        .c = ndm_block_grad(call->block, p->w),
        .ldc = p->transposed ? p->width : call->in,
    };
    return ndm_gemm(run->model->context->compute, &args);
}

ndm_status ndm_linear_grad_weight(const ndm_run *run, const ndm_linear_call *call, const float *x,
                                  const float *dy)
{
    piece pieces[NDM_LINEAR_MAX];
    int n = pieces_of(call, pieces);
    int64_t out = ndm_linear_out(call);

    for (int i = 0; i < n; i++) {
        const piece *p = &pieces[i];
        NDM_TRY(grad_matrix(run, call, p, x, dy));
        if (p->b == W_NONE || !call->add_bias)
            continue;
        ndm_colsum_args bias = {dy + p->column, ndm_block_grad(call->block, p->b), call->rows,
                                p->width, out};
        NDM_TRY(ndm_colsum(run->model->context->compute, &bias));
    }
    return NDM_OK;
}

/* ---- column-parallel: norm output -> features of this rank -------------------------------- */

/* Gradient of a column op's output. Gate and up turn into their gradient in place. */
static float *grad_of_out(const ndm_run *run, const ndm_model_op *op)
{
    return op->out == S_GU ? ndm_run_slot(run, S_GU) : run->model->d_qkv;
}

static ndm_linear_call column_call(const ndm_run *run, const ndm_model_op *op)
{
    return (ndm_linear_call){
        run->block, op->w, op->b, run->model->size.padded, run->model->size.hidden, true};
}

ndm_status ndm_op_column_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_linear_call call = column_call(run, op);

    return ndm_linear_apply(run, &call, ndm_run_slot(run, op->in), ndm_run_slot(run, op->out));
}

ndm_status ndm_op_column_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_linear_call call = column_call(run, op);
    const float *dy = grad_of_out(run, op);

    NDM_TRY(ndm_linear_grad_input(run, &call, dy, m->d_full));
    NDM_TRY(ndm_engine_linear_in(m->context, NDM_BACKWARD, m->d_full + s->row0 * s->hidden,
                                 m->d_full, s->padded, s->hidden));
    return ndm_linear_grad_weight(run, &call, ndm_run_slot(run, op->in), dy);
}

/* ---- row-parallel: features of this rank -> partial sums of the branch -------------------- */

static ndm_linear_call row_call(const ndm_run *run, const ndm_model_op *op)
{
    const ndm_sizes *s = &run->model->size;
    bool first = ndm_context_coord(run->model->context, NDM_TP) == 0;

    return (ndm_linear_call){
        run->block, op->w, op->b, s->padded, op->in == S_ATT ? s->q_width : s->ffn, first};
}

ndm_status ndm_op_row_forward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_linear_call call = row_call(run, op);

    NDM_TRY(ndm_linear_apply(run, &call, ndm_run_slot(run, op->in), m->branch));
    NDM_TRY(ndm_engine_linear_out(m->context, NDM_FORWARD, m->branch + s->row0 * s->hidden,
                                  m->branch, s->padded, s->hidden));
    m->pending = true;
    return NDM_OK;
}

/* The bias of a row-parallel linear belongs to all tp ranks: each sums the rows it holds. */
static ndm_status row_bias_grad(const ndm_run *run, const ndm_model_op *op)
{
    const ndm_model *m = run->model;
    float *grad = op->b[0] == W_NONE ? NULL : ndm_block_grad(run->block, op->b[0]);
    ndm_colsum_args args = {m->grad, grad, m->size.local, m->size.hidden, m->size.hidden};

    return grad ? ndm_colsum(m->context->compute, &args) : NDM_OK;
}

ndm_status ndm_op_row_backward(const ndm_run *run, const ndm_model_op *op)
{
    ndm_model *m = run->model;
    const ndm_sizes *s = &m->size;
    ndm_linear_call call = row_call(run, op);
    float *dy = m->d_out ? m->d_out : m->grad, *dx = op->in == S_ATT ? m->d_att : m->d_act;

    call.add_bias = false;
    NDM_TRY(row_bias_grad(run, op));
    NDM_TRY(ndm_engine_linear_out(m->context, NDM_BACKWARD, m->grad, dy, s->padded, s->hidden));
    NDM_TRY(ndm_linear_grad_input(run, &call, dy, dx));
    return ndm_linear_grad_weight(run, &call, ndm_run_slot(run, op->in), dy);
}
