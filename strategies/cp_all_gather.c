/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism by all-gather: keys and values of the whole sequence on every rank, in one
 * collective, and one kernel (Llama Team, "The Llama 3 Herd of Models", 2024, section 3.3.2). The
 * backward gathers them again, and reduce-scatters partial sums of dk and dv. */
#include "strategies/cp.h"

typedef struct gathered {
    ndm_cp_plane
        planes[2];      /* pairs and places of the whole batch: [B, cp*T, pair_width], [B, cp*T] */
    ndm_cp_plane grads; /* [B, cp*T, pair_width] */
    bool shared;        /* the planes lie in a window, where all write their rows */
    float *blocks;      /* otherwise: [cp, pairs_words] */
    float *sums; /* backward, [cp, B*T, pair_width], in a window if there are any; else the blocks
                  */
} gathered;

static ndm_status lay_out(const ndm_cp_job *job, bool backward, gathered *g)
{
    int64_t cp = job->sizes.cp, b = job->call->batch, t = job->call->tokens;
    float *window, *own_sums = NULL;

    g->planes[0] = g->grads = (ndm_cp_plane){NULL, b,
                                             t * ndm_cp_words(job->dtype, job->pair_width)};
    g->planes[1] = (ndm_cp_plane){NULL, b, t};
    int64_t wide = cp * ndm_cp_block_words(&g->grads, 1), n = ndm_cp_block_words(g->planes, 2);
    NDM_TRY(ndm_cp_gather_window(job, n, &window));
    if (backward)
        NDM_TRY(ndm_cp_sum_window(job, wide, &own_sums));
    g->shared = window != NULL;
    ndm_cp_piece pieces[] = {{&g->blocks, g->shared ? 0 : cp * n},
                             {&g->planes[0].whole, g->shared ? 0 : wide},
                             {&g->planes[1].whole, g->shared ? 0 : cp * b * t},
                             {&g->grads.whole, backward ? wide : 0}};
    NDM_TRY(ndm_cp_workspace(job, pieces, (int64_t)(sizeof pieces / sizeof pieces[0])));
    if (g->shared) {
        g->planes[0].whole = window;
        g->planes[1].whole = window + wide;
    }
    g->sums = own_sums ? own_sums : g->blocks;
    if (own_sums && b == 1)
        g->grads.whole = own_sums; /* one sequence lies in both in the same way */
    return NDM_OK;
}

/* all-gather over cp: (cp-1) * B*T rows of K and V, and a place each. In a window everybody writes
 * his rows where they belong, and the gather only waits. */
static ndm_status gather(const ndm_cp_job *job, const gathered *g)
{
    int64_t n = ndm_cp_block_words(g->planes, 2), index = ndm_comm_index(job->comm);
    float *all = g->shared ? g->planes[0].whole : g->blocks, *own = all + index * n;

    if (g->shared)
        NDM_TRY(ndm_cp_place_pairs(job, g->planes));
    else
        NDM_TRY(ndm_cp_pack_pairs(job, own));
    NDM_TRY(ndm_all_gather(job->comm, own, all, n, NDM_F32, job->stream));
    return g->shared ? NDM_OK : ndm_cp_join(job, g->blocks, g->planes, 2);
}

static ndm_status forward(const ndm_cp_job *job)
{
    gathered g = {0};

    NDM_TRY(lay_out(job, false, &g));
    NDM_TRY(gather(job, &g));
    ndm_attention_args args = ndm_cp_attention(job, g.planes[0].whole, g.planes[1].whole,
                                               job->sizes.cp * job->call->tokens);
    return ndm_attention(job->stream, &args);
}

/* reduce-scatter over cp: (cp-1) * B*T * pair_width elements. */
static ndm_status scatter_grads(const ndm_cp_job *job, const gathered *g)
{
    int64_t words = ndm_cp_block_words(&g->grads, 1), n = job->sizes.rows * job->pair_width;
    float *own = g->sums + ndm_comm_index(job->comm) * words;

    if (g->sums != g->grads.whole)
        NDM_TRY(ndm_cp_split(job, g->sums, &g->grads, 1));
    NDM_TRY(ndm_reduce_scatter(job->comm, g->sums, own, n, job->dtype, job->dtype, NDM_SUM,
                               job->stream));
    return ndm_cp_unpack_grads(job, own);
}

static ndm_status backward(const ndm_cp_job *job)
{
    gathered g = {0};

    NDM_TRY(lay_out(job, true, &g));
    NDM_TRY(gather(job, &g));
    ndm_attention_backward_args args = ndm_cp_attention_backward(
        job, g.planes[0].whole, g.planes[1].whole, job->sizes.cp * job->call->tokens,
        g.grads.whole);
    NDM_TRY(ndm_attention_backward(job->stream, &args));
    return scatter_grads(job, &g);
}

static void describe(const ndm_cp_sizes *s, ndm_traffic_fn emit, void *user)
{
    int64_t pairs = (s->cp - 1) * ndm_cp_pairs_words(s), grads = pairs - (s->cp - 1) * s->rows;
    ndm_traffic t = {"cp",        "attention", NDM_FORWARD,        NDM_ALL_GATHER,
                     NDM_AXIS_CP, 1,           pairs * NDM_CP_WORD};

    emit(user, &t);
    t.direction = NDM_BACKWARD;
    emit(user, &t);
    t.kind = NDM_REDUCE_SCATTER;
    t.bytes = grads * NDM_CP_WORD;
    emit(user, &t);
}

const ndm_cp_method_ops ndm_cp_all_gather = {
    .name = "all_gather",
    .zigzag = true,
    .forward = forward,
    .backward = backward,
    .describe = describe,
};
