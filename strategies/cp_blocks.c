/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of context parallelism: own rows into what is sent, what is received into the rows that
 * kernels read. A sequence is contiguous for kernels, and cut over the ranks in blocks. */
#include "strategies/cp.h"

ndm_status ndm_cp_copy(ndm_stream *stream, const void *src, int64_t src_stride, void *dst,
                       int64_t dst_stride, int64_t m, int64_t n)
{
    ndm_copy2d_args args = {
        .src = src,
        .dst = dst,
        .m = m,
        .row_bytes = n * NDM_CP_WORD,
        .src_stride_bytes = src_stride * NDM_CP_WORD,
        .dst_stride_bytes = dst_stride * NDM_CP_WORD,
    };

    return ndm_copy2d(stream, &args);
}

int64_t ndm_cp_block_words(const ndm_cp_plane *planes, int64_t n_planes)
{
    int64_t words = 0;

    for (int64_t i = 0; i < n_planes; i++)
        words += planes[i].groups * planes[i].run;
    return words;
}

ndm_status ndm_cp_join(const ndm_cp_job *job, const float *blocks, const ndm_cp_plane *planes,
                       int64_t n_planes)
{
    for (int64_t c = 0; c < job->sizes.cp; c++)
        for (int64_t i = 0; i < n_planes; i++) {
            const ndm_cp_plane *p = &planes[i];
            NDM_TRY(ndm_cp_copy(job->stream, blocks, p->run, p->whole + c * p->run,
                                job->sizes.cp * p->run, p->groups, p->run));
            blocks += p->groups * p->run;
        }
    return NDM_OK;
}

ndm_status ndm_cp_split(const ndm_cp_job *job, float *blocks, const ndm_cp_plane *planes,
                        int64_t n_planes)
{
    for (int64_t c = 0; c < job->sizes.cp; c++)
        for (int64_t i = 0; i < n_planes; i++) {
            const ndm_cp_plane *p = &planes[i];
            NDM_TRY(ndm_cp_copy(job->stream, p->whole + c * p->run, job->sizes.cp * p->run, blocks,
                                p->run, p->groups, p->run));
            blocks += p->groups * p->run;
        }
    return NDM_OK;
}

/* Own rows first .. first + n, to rows [k | v] and their places. */
static ndm_status copy_pairs(const ndm_cp_job *job, int64_t first, int64_t n, float *pairs,
                             float *places)
{
    const ndm_attention_call *c = job->call;
    int64_t width = ndm_cp_words(job->dtype, job->pair_width), half = width / 2;
    int64_t stride = ndm_cp_words(job->dtype, c->qkv_stride), from = first * stride;

    NDM_TRY(ndm_cp_copy(job->stream, (const float *)c->k + from, stride, pairs, width, n, half));
    NDM_TRY(
        ndm_cp_copy(job->stream, (const float *)c->v + from, stride, pairs + half, width, n, half));
    return ndm_cp_copy(job->stream, c->index + first, n, places, n, 1, n);
}

ndm_status ndm_cp_pack_pairs(const ndm_cp_job *job, float *block)
{
    int64_t rows = job->sizes.rows, width = ndm_cp_words(job->dtype, job->pair_width);

    return copy_pairs(job, 0, rows, block, block + rows * width);
}

ndm_status ndm_cp_place_pairs(const ndm_cp_job *job, const ndm_cp_plane planes[2])
{
    int64_t t = job->call->tokens, width = ndm_cp_words(job->dtype, job->pair_width);

    for (int64_t b = 0; b < job->call->batch; b++) {
        int64_t row = (b * job->sizes.cp + ndm_comm_index(job->comm)) * t;
        NDM_TRY(copy_pairs(job, b * t, t, planes[0].whole + row * width, planes[1].whole + row));
    }
    return NDM_OK;
}

ndm_status ndm_cp_unpack_grads(const ndm_cp_job *job, const void *grads)
{
    const ndm_attention_call *c = job->call;
    int64_t width = ndm_cp_words(job->dtype, job->pair_width), half = width / 2;
    int64_t stride = ndm_cp_words(job->dtype, c->dqkv_stride), rows = job->sizes.rows;

    NDM_TRY(ndm_cp_copy(job->stream, grads, width, c->dk, stride, rows, half));
    return ndm_cp_copy(job->stream, (const float *)grads + half, width, c->dv, stride, rows, half);
}

ndm_attention_args ndm_cp_attention(const ndm_cp_job *job, const void *pairs, const void *places,
                                    int64_t tk)
{
    const ndm_attention_call *c = job->call;

    return (ndm_attention_args){
        .x_dtype = job->dtype,
        .out_dtype = job->dtype,
        .q = c->q,
        .k = pairs,
        .v = ndm_dtype_at(pairs, job->dtype, job->pair_width / 2),
        .q_stride = c->qkv_stride,
        .k_stride = job->pair_width,
        .v_stride = job->pair_width,
        .batch = c->batch,
        .tq = c->tokens,
        .tk = tk,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .scale = c->scale,
        .causal = true,
        .q_index = c->index,
        .k_index = places,
        .q_first = c->first,
        .out = c->out,
        .out_stride = c->out_stride,
        .lse = c->lse,
    };
}

ndm_attention_backward_args ndm_cp_attention_backward(const ndm_cp_job *job, const void *pairs,
                                                      const void *places, int64_t tk, void *grads)
{
    const ndm_attention_call *c = job->call;

    return (ndm_attention_backward_args){
        .forward = ndm_cp_attention(job, pairs, places, tk),
        .dout = c->dout,
        .dout_stride = c->dout_stride,
        .make_delta = true,
        .delta = c->delta,
        .d_dtype = job->dtype,
        .dq = c->dq,
        .dk = grads,
        .dv = ndm_dtype_at(grads, job->dtype, job->pair_width / 2),
        .dq_stride = c->dqkv_stride,
        .dk_stride = job->pair_width,
        .dv_stride = job->pair_width,
    };
}
