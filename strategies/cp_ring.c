/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism by a ring: blocks of keys and values go round, the next one on its way while
 * the kernel works on the present one, and partial results are merged by their log-sum-exp in fp32
 * (Liu et al., "Ring Attention with Blockwise Transformers", 2023).
 *
 * In the backward a block's dk and dv follow it, one step behind: each rank adds its share to the
 * sum that arrives and sends it on; after cp steps the sum is home. */
#include "strategies/cp.h"

typedef struct ring {
    const ndm_cp_job *job;
    struct ndm_cp *state;
    bool narrow;            /* activations are not fp32: sums are, and are rounded at the end */
    float *pairs[2];        /* [pairs_words]: present and next block, by turns */
    float *grads[2], *part; /* backward, [B*T, pair_width]: travelling sums, own share */
    float *out, *lse;       /* forward, [B*T, heads*D], [B, heads, T]: a block's result */
    float *sum;             /* narrow, [B*T, heads*D]: running output, or dq */
    float *rounded;         /* narrow, [B*T, the wider of heads*D and pair_width] of dtype */
    int64_t pairs_words, grads_numel, width;
} ring;

static int64_t wider(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static ndm_status init(const ndm_cp_job *job, bool backward, ring *r)
{
    const ndm_cp_sizes *s = &job->sizes;

    int64_t width = s->heads * s->head_dim, heads = s->rows * s->heads;

    *r = (ring){.job = job,
                .narrow = job->dtype != NDM_F32,
                .pairs_words = ndm_cp_pairs_words(s),
                .grads_numel = s->rows * job->pair_width,
                .width = width};
    int64_t rounded = s->rows * ndm_cp_words(job->dtype, wider(width, job->pair_width));
    NDM_TRY(ndm_cp_state(job->context, &r->state));
    ndm_cp_piece pieces[] = {{&r->pairs[0], r->pairs_words},
                             {&r->pairs[1], r->pairs_words},
                             {&r->grads[0], backward ? r->grads_numel : 0},
                             {&r->grads[1], backward ? r->grads_numel : 0},
                             {&r->part, backward ? r->grads_numel : 0},
                             {&r->out, backward ? 0 : s->rows * width},
                             {&r->lse, backward ? 0 : heads},
                             {&r->sum, r->narrow ? s->rows * width : 0},
                             {&r->rounded, r->narrow ? rounded : 0}};
    NDM_TRY(ndm_cp_workspace(job, pieces, (int64_t)(sizeof pieces / sizeof pieces[0])));
    return ndm_cp_pack_pairs(job, r->pairs[0]);
}

/* To the next rank, from the one before, once the kernels launched so far are done: n elements each
 * way. `here` is recorded behind the arrival. */
static ndm_status hop(const ring *r, const float *from, float *to, int64_t n, ndm_event *here)
{
    ndm_comm *comm = r->job->comm;
    int64_t size = ndm_comm_size(comm), index = ndm_comm_index(comm);

    NDM_TRY(ndm_event_record(r->state->ready, r->job->stream));
    NDM_TRY(ndm_stream_wait(r->state->ring, r->state->ready));
    NDM_TRY(ndm_send_recv(comm, from, (index + 1) % size, to, (index + size - 1) % size, n, NDM_F32,
                          r->state->ring));
    return ndm_event_record(here, r->state->ring);
}

/* Step s: waits for its block of pairs, and sets the next one going. The buffer that the next one
 * takes was read by kernels of the step before, which hop() waits for. */
static ndm_status turn(const ring *r, int64_t s)
{
    if (s > 0)
        NDM_TRY(ndm_stream_wait(r->job->stream, r->state->pairs_here));
    if (s + 1 == r->job->sizes.cp)
        return NDM_OK;
    return hop(r, r->pairs[s % 2], r->pairs[(s + 1) % 2], r->pairs_words, r->state->pairs_here);
}

/* Rows of n elements that were summed in fp32, to activations. */
static ndm_status round_to(const ring *r, const float *from, int64_t n)
{
    ndm_cast_args args = {.src = from,
                          .dst = r->rounded,
                          .src_dtype = NDM_F32,
                          .dst_dtype = r->job->dtype,
                          .n = r->job->sizes.rows * n};

    return ndm_cast(r->job->stream, &args);
}

/* The sum over all blocks is the call's output, or dq. */
static ndm_status hand_over(const ring *r, void *to, int64_t stride)
{
    ndm_dtype dtype = r->job->dtype;
    int64_t width = ndm_cp_words(dtype, r->width);

    NDM_TRY(round_to(r, r->sum, r->width));
    return ndm_cp_copy(r->job->stream, r->rounded, width, to, ndm_cp_words(dtype, stride),
                       r->job->sizes.rows, width);
}

static ndm_status merge(const ring *r)
{
    const ndm_attention_call *c = r->job->call;
    ndm_attention_merge_args args = {
        .out = r->narrow ? r->sum : c->out,
        .lse = c->lse,
        .part = r->out,
        .part_lse = r->lse,
        .batch = c->batch,
        .t = c->tokens,
        .heads = c->heads,
        .head_dim = c->head_dim,
        .out_stride = r->narrow ? r->width : c->out_stride,
        .part_stride = c->heads * c->head_dim,
    };

    return ndm_attention_merge(r->job->stream, &args);
}

static const float *places_of(const ring *r, const float *pairs)
{
    return pairs + ndm_cp_words(r->job->dtype, r->grads_numel);
}

static ndm_status attend(const ring *r, int64_t s)
{
    const ndm_attention_call *c = r->job->call;
    const float *pairs = r->pairs[s % 2];
    ndm_attention_args args = ndm_cp_attention(r->job, pairs, places_of(r, pairs), c->tokens);

    if (r->narrow) {
        args.out_dtype = NDM_F32;
        args.out = r->sum;
        args.out_stride = r->width;
    }
    if (s == 0)
        return ndm_attention(r->job->stream, &args);
    args.out = r->out;
    args.out_stride = r->width;
    args.lse = r->lse;
    NDM_TRY(ndm_attention(r->job->stream, &args));
    return merge(r);
}

static ndm_status forward(const ndm_cp_job *job)
{
    ring r;

    NDM_TRY(init(job, false, &r));
    for (int64_t s = 0; s < job->sizes.cp; s++) {
        NDM_TRY(turn(&r, s));
        NDM_TRY(attend(&r, s));
    }
    return r.narrow ? hand_over(&r, job->call->out, job->call->out_stride) : NDM_OK;
}

static ndm_status attend_backward(const ring *r, int64_t s)
{
    const float *pairs = r->pairs[s % 2];
    ndm_attention_backward_args args = ndm_cp_attention_backward(
        r->job, pairs, places_of(r, pairs), r->job->call->tokens, s == 0 ? r->grads[0] : r->part);

    if (r->narrow) {
        args.d_dtype = NDM_F32;
        args.dv = (float *)args.dk + r->job->pair_width / 2;
        args.dq = r->sum;
        args.dq_stride = r->width;
    }
    args.make_delta = s == 0;
    args.accumulate_dq = s > 0;
    return ndm_attention_backward(r->job->stream, &args);
}

/* Adds the own share to the sum that came with step s's block, and sends it on. */
static ndm_status pass_grads(const ring *r, int64_t s)
{
    float *sum = r->grads[s % 2];

    if (s > 0) {
        NDM_TRY(ndm_stream_wait(r->job->stream, r->state->grads_here));
        NDM_TRY(
            ndm_add(r->job->stream,
                    &(ndm_add_args){.y = sum, .x = r->part, .factor = 1.0f, .n = r->grads_numel}));
    }
    return hop(r, sum, r->grads[(s + 1) % 2], r->grads_numel, r->state->grads_here);
}

static ndm_status backward(const ndm_cp_job *job)
{
    ring r;

    NDM_TRY(init(job, true, &r));
    for (int64_t s = 0; s < job->sizes.cp; s++) {
        NDM_TRY(turn(&r, s));
        NDM_TRY(attend_backward(&r, s));
        NDM_TRY(pass_grads(&r, s));
    }
    NDM_TRY(ndm_stream_wait(job->stream, r.state->grads_here));
    const float *sum = r.grads[job->sizes.cp % 2];
    if (!r.narrow)
        return ndm_cp_unpack_grads(job, sum);
    NDM_TRY(hand_over(&r, job->call->dq, job->call->dqkv_stride));
    NDM_TRY(round_to(&r, sum, job->pair_width));
    return ndm_cp_unpack_grads(job, r.rounded);
}

static void describe(const ndm_cp_sizes *s, ndm_traffic_fn emit, void *user)
{
    int64_t pairs = (s->cp - 1) * ndm_cp_pairs_words(s),
            grads = s->cp * 2 * s->rows * s->kv_heads * s->head_dim;
    ndm_traffic t = {"cp",        "attention", NDM_FORWARD,        NDM_SEND_RECV,
                     NDM_AXIS_CP, s->cp - 1,   pairs * NDM_CP_WORD};

    emit(user, &t);
    t.direction = NDM_BACKWARD;
    t.calls = 2 * s->cp - 1;
    t.bytes = (pairs + grads) * NDM_CP_WORD;
    emit(user, &t);
}

const ndm_cp_method_ops ndm_cp_ring = {
    .name = "ring",
    .zigzag = true,
    .forward = forward,
    .backward = backward,
    .describe = describe,
};
