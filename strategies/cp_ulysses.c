/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism by all-to-all: between two exchanges a rank has all tokens of heads/cp heads
 * (Jacobs et al., "DeepSpeed Ulysses", 2023).
 *
 * Where there are fewer key-value heads than ranks, each goes to the cp/kv_heads ranks whose query
 * heads read it, and their gradients are summed on the way back. Places and first places travel
 * with the tokens, so any order of tokens over ranks is right. The log-sum-exp of the heads done
 * here stays in the call's lse, which has as many elements either way: [B, heads/cp, cp*T]. */
#include "strategies/cp.h"

typedef struct ulysses {
    const ndm_cp_job *job;
    int64_t heads, kv_heads;     /* of this rank between the exchanges */
    int64_t sharers;             /* ranks that a key-value head goes to */
    int64_t width, pair_width;   /* elements of a row of q, and of k and v, between the exchanges */
    int64_t words, pair_words;   /* of these rows */
    ndm_cp_plane in[6], back[2]; /* what comes, and what goes back */
    int64_t n_in, n_back;
    float *send, *recv; /* [cp, block] */
} ulysses;

/* in[] by place; DOUT and DELTA in the backward only. back[] is the output, or dq and dk|dv. */
enum { Q, PAIRS, PLACES, FIRSTS, DOUT, DELTA };

static ulysses shape(const ndm_cp_sizes *s)
{
    ulysses u = {.heads = s->heads / s->cp,
                 .kv_heads = s->kv_heads % s->cp == 0 ? s->kv_heads / s->cp : 1};

    u.sharers = u.kv_heads * s->cp / s->kv_heads;
    u.width = u.heads * s->head_dim;
    u.pair_width = 2 * u.kv_heads * s->head_dim;
    u.words = ndm_cp_words(s->dtype, u.width);
    u.pair_words = ndm_cp_words(s->dtype, u.pair_width);
    return u;
}

/* The arrays that are exchanged, for b sequences of t own tokens. */
static void set_planes(ulysses *u, int64_t b, int64_t t, bool backward)
{
    u->in[Q] = u->in[DOUT] = u->back[0] = (ndm_cp_plane){NULL, b, t * u->words};
    u->in[PAIRS] = u->back[1] = (ndm_cp_plane){NULL, b, t * u->pair_words};
    u->in[PLACES] = u->in[FIRSTS] = (ndm_cp_plane){NULL, b, t};
    u->in[DELTA] = (ndm_cp_plane){NULL, b * u->heads, t};
    u->n_in = backward ? 6 : 4;
    u->n_back = backward ? 2 : 1;
}

static ndm_status init(const ndm_cp_job *job, bool backward, ulysses *u)
{
    int64_t cp = job->sizes.cp, n = 2;
    ndm_cp_piece pieces[10];

    *u = shape(&job->sizes);
    u->job = job;
    set_planes(u, job->call->batch, job->call->tokens, backward);
    int64_t block = ndm_cp_block_words(u->in, u->n_in); /* going back takes less */
    pieces[0] = (ndm_cp_piece){&u->send, cp * block};
    pieces[1] = (ndm_cp_piece){&u->recv, cp * block};
    for (int64_t i = 0; i < u->n_in; i++)
        pieces[n++] = (ndm_cp_piece){&u->in[i].whole, cp * ndm_cp_block_words(&u->in[i], 1)};
    for (int64_t i = 0; i < u->n_back; i++)
        pieces[n++] = (ndm_cp_piece){&u->back[i].whole, cp * ndm_cp_block_words(&u->back[i], 1)};
    return ndm_cp_workspace(job, pieces, n);
}

/* ---- there ----------------------------------------------------------------------------------- */

/* Rows of the query heads of member `to`. */
static ndm_status pack_heads(const ulysses *u, int64_t to, const void *rows, int64_t stride,
                             float *at)
{
    ndm_dtype dtype = u->job->dtype;

    return ndm_cp_copy(u->job->stream, ndm_dtype_at(rows, dtype, to * u->width),
                       ndm_cp_words(dtype, stride), at, u->words, u->job->sizes.rows, u->words);
}

/* k and v rows of the key-value heads that member `to` needs. */
static ndm_status pack_pairs(const ulysses *u, int64_t to, float *at)
{
    const ndm_attention_call *c = u->job->call;
    int64_t column = to / u->sharers * (u->pair_width / 2), half = u->pair_words / 2;
    int64_t stride = ndm_cp_words(c->dtype, c->qkv_stride), rows = u->job->sizes.rows;
    const void *k = ndm_dtype_at(c->k, c->dtype, column), *v = ndm_dtype_at(c->v, c->dtype, column);

    NDM_TRY(ndm_cp_copy(u->job->stream, k, stride, at, u->pair_words, rows, half));
    return ndm_cp_copy(u->job->stream, v, stride, at + half, u->pair_words, rows, half);
}

static ndm_status pack_places(const ulysses *u, const int32_t *places, float *at)
{
    int64_t rows = u->job->sizes.rows;

    if (!places)
        return ndm_zero(u->job->stream, at, rows * (int64_t)sizeof(float));
    return ndm_cp_copy(u->job->stream, places, rows, at, rows, 1, rows);
}

/* The backward's part of a block: dout and delta of the heads of member `to`. */
static ndm_status pack_grads(const ulysses *u, int64_t to, float *at)
{
    const ndm_attention_call *c = u->job->call;
    int64_t rows = u->job->sizes.rows, n = u->heads * c->tokens;

    NDM_TRY(pack_heads(u, to, c->dout, c->dout_stride, at));
    return ndm_cp_copy(u->job->stream, c->delta + to * n, c->heads * c->tokens,
                       at + rows * u->words, n, c->batch, n);
}

static ndm_status pack(const ulysses *u, int64_t to, float *at)
{
    const ndm_attention_call *c = u->job->call;
    int64_t rows = u->job->sizes.rows;

    NDM_TRY(pack_heads(u, to, c->q, c->qkv_stride, at));
    at += rows * u->words;
    NDM_TRY(pack_pairs(u, to, at));
    at += rows * u->pair_words;
    NDM_TRY(pack_places(u, c->index, at));
    NDM_TRY(pack_places(u, c->first, at + rows));
    return u->n_in > DOUT ? pack_grads(u, to, at + 2 * rows) : NDM_OK;
}

/* all-to-all over cp: (cp-1) blocks of B*T rows. */
static ndm_status fetch(const ulysses *u)
{
    int64_t block = ndm_cp_block_words(u->in, u->n_in);

    for (int64_t to = 0; to < u->job->sizes.cp; to++)
        NDM_TRY(pack(u, to, u->send + to * block));
    NDM_TRY(ndm_all_to_all(u->job->comm, u->send, u->recv, block, NDM_F32, u->job->stream));
    return ndm_cp_join(u->job, u->recv, u->in, u->n_in);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static ndm_attention_args attention_args(const ulysses *u)
{
    const ndm_attention_call *c = u->job->call;
    int64_t tokens = u->job->sizes.cp * c->tokens;

    return (ndm_attention_args){
        .x_dtype = c->dtype,
        .out_dtype = c->dtype,
        .q = u->in[Q].whole,
        .k = u->in[PAIRS].whole,
        .v = ndm_dtype_at(u->in[PAIRS].whole, c->dtype, u->pair_width / 2),
        .q_stride = u->width,
        .k_stride = u->pair_width,
        .v_stride = u->pair_width,
        .batch = c->batch,
        .tq = tokens,
        .tk = tokens,
        .heads = u->heads,
        .kv_heads = u->kv_heads,
        .head_dim = c->head_dim,
        .scale = c->scale,
        .causal = true,
        .q_index = (const int32_t *)(const void *)u->in[PLACES].whole,
        .k_index = (const int32_t *)(const void *)u->in[PLACES].whole,
        .q_first = (const int32_t *)(const void *)u->in[FIRSTS].whole,
        .out = u->back[0].whole, /* forward */
        .out_stride = u->width,
        .lse = c->lse,
    };
}

static ndm_status attend_backward(const ulysses *u)
{
    ndm_attention_backward_args args = {
        .forward = attention_args(u),
        .dout = u->in[DOUT].whole,
        .dout_stride = u->width,
        .delta = u->in[DELTA].whole,
        .d_dtype = u->job->dtype,
        .dq = u->back[0].whole,
        .dk = u->back[1].whole,
        .dv = ndm_dtype_at(u->back[1].whole, u->job->dtype, u->pair_width / 2),
        .dq_stride = u->width,
        .dk_stride = u->pair_width,
        .dv_stride = u->pair_width,
    };

    args.forward.out = u->in[Q].whole; /* not read: delta is made where the output is */
    return ndm_attention_backward(u->job->stream, &args);
}

/* delta of own tokens and all heads, where dout and the output are: a backward without keys. Its dq
 * is 0, and overwritten later. */
static ndm_status make_delta(const ndm_cp_job *job)
{
    ndm_attention_backward_args args = ndm_cp_attention_backward(job, NULL, NULL, 0, NULL);

    args.forward.k = args.forward.v = NULL;
    args.dk = args.dv = NULL;
    args.forward.k_index = job->call->index; /* of no keys */
    return ndm_attention_backward(job->stream, &args);
}

/* ---- back ------------------------------------------------------------------------------------ */

/* all-to-all over cp: (cp-1) blocks of B*T rows. */
static ndm_status send_back(const ulysses *u)
{
    int64_t block = ndm_cp_block_words(u->back, u->n_back);

    NDM_TRY(ndm_cp_split(u->job, u->send, u->back, u->n_back));
    return ndm_all_to_all(u->job->comm, u->send, u->recv, block, NDM_F32, u->job->stream);
}

/* The heads of member `from`, of own tokens: to is out or dq. */
static ndm_status unpack_heads(const ulysses *u, int64_t from, void *to, int64_t stride)
{
    const float *at = u->recv + from * ndm_cp_block_words(u->back, u->n_back);

    ndm_dtype dtype = u->job->dtype;

    return ndm_cp_copy(u->job->stream, at, u->words, ndm_dtype_at(to, dtype, from * u->width),
                       ndm_cp_words(dtype, stride), u->job->sizes.rows, u->words);
}

/* Gradients of the key-value heads that members from .. from + sharers - 1 used. */
static ndm_status unpack_pairs(const ulysses *u, int64_t from)
{
    const ndm_attention_call *c = u->job->call;
    int64_t column = from / u->sharers * (u->pair_width / 2), half = u->pair_words / 2;
    int64_t stride = ndm_cp_words(c->dtype, c->dqkv_stride), rows = u->job->sizes.rows,
            block = ndm_cp_block_words(u->back, u->n_back);
    float *at = u->recv + from * block + rows * u->words;
    void *dk = ndm_dtype_at(c->dk, c->dtype, column), *dv = ndm_dtype_at(c->dv, c->dtype, column);

    for (int64_t i = 1; i < u->sharers; i++) {
        ndm_add_args args = {.y = at,
                             .x = at + i * block,
                             .y_dtype = c->dtype,
                             .x_dtype = c->dtype,
                             .factor = 1.0f,
                             .n = rows * u->pair_width};
        NDM_TRY(ndm_add(u->job->stream, &args));
    }
    NDM_TRY(ndm_cp_copy(u->job->stream, at, u->pair_words, dk, stride, rows, half));
    return ndm_cp_copy(u->job->stream, at + half, u->pair_words, dv, stride, rows, half);
}

static ndm_status forward(const ndm_cp_job *job)
{
    ulysses u;

    NDM_TRY(init(job, false, &u));
    NDM_TRY(fetch(&u));
    ndm_attention_args args = attention_args(&u);
    NDM_TRY(ndm_attention(job->stream, &args));
    NDM_TRY(send_back(&u));
    for (int64_t from = 0; from < job->sizes.cp; from++)
        NDM_TRY(unpack_heads(&u, from, job->call->out, job->call->out_stride));
    return NDM_OK;
}

static ndm_status backward(const ndm_cp_job *job)
{
    ulysses u;

    NDM_TRY(init(job, true, &u));
    NDM_TRY(make_delta(job));
    NDM_TRY(fetch(&u));
    NDM_TRY(attend_backward(&u));
    NDM_TRY(send_back(&u));
    for (int64_t from = 0; from < job->sizes.cp; from++)
        NDM_TRY(unpack_heads(&u, from, job->call->dq, job->call->dqkv_stride));
    for (int64_t from = 0; from < job->sizes.cp; from += u.sharers)
        NDM_TRY(unpack_pairs(&u, from));
    return NDM_OK;
}

static bool fits(const ndm_cp_sizes *s)
{
    return s->heads % s->cp == 0 && (s->kv_heads % s->cp == 0 || s->cp % s->kv_heads == 0);
}

static void describe(const ndm_cp_sizes *s, ndm_traffic_fn emit, void *user)
{
    for (int d = NDM_FORWARD; d <= NDM_BACKWARD; d++) {
        ulysses u = shape(s);
        set_planes(&u, 1, s->rows, d == NDM_BACKWARD);
        int64_t words = ndm_cp_block_words(u.in, u.n_in) + ndm_cp_block_words(u.back, u.n_back);
        emit(user, &(ndm_traffic){"cp", "attention", (ndm_direction)d, NDM_ALL_TO_ALL, NDM_AXIS_CP,
                                  2, (s->cp - 1) * words * NDM_CP_WORD});
    }
}

const ndm_cp_method_ops ndm_cp_ulysses = {
    .name = "ulysses",
    .fits = fits,
    .rule = "cp divides the heads, and it divides the key-value heads or is a multiple of them",
    .forward = forward,
    .backward = backward,
    .describe = describe,
};
