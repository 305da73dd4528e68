/* SPDX-License-Identifier: Apache-2.0 */
/* Attention backward, tile by tile from the saved log-sum-exp (Dao, "FlashAttention-2", 2023).
 *
 * With q scaled: p = exp(q k' - lse), ds = p (dout v' - delta); dv += p' dout, dk += ds' q, dq +=
 * scale ds k. A task owns the keys of one key-value head, so its sums need no atomics. Where there
 * are fewer tasks than threads, two passes make the scores twice: one cut by queries gives dq, one
 * cut by keys dk and dv, each sum in the same order as in a single pass. */
#include <stdatomic.h>

#include "kernels/fast_attention.h"

typedef struct backward_task {
    attention_task task;
    const ndm_attention_backward_args *args;
    float *keys, *key_panels,
        *value_panels;          /* [key_tiles * 64, padded], [key_tiles][padded][64] twice */
    float *dk, *dv;             /* [key_tiles * 64, padded] */
    float *queries, *dout, *dq; /* [64, padded]; queries scaled */
    float *p, *ds;              /* [64, 64] */
    float lse[ATTENTION_TILE], delta[ATTENTION_TILE];
} backward_task;

/* What a pass does: parts of queries or of keys, and which gradients. */
typedef struct backward_pass {
    int64_t first_query, query_step, first_key, key_step;
    bool dq, dkv;
} backward_pass;

static void backward_lay_out(const ndm_attention_backward_args *a, attention_memory *memory,
                             backward_task *t)
{
    const int64_t size = (int64_t)sizeof(float);

    NDM_FAST(attention_lay_out)(&a->forward, memory, &t->task);
    int64_t all = t->task.key_tiles * ATTENTION_TILE * t->task.padded * size,
            tile = ATTENTION_TILE * t->task.padded * size;
    t->args = a;
    t->keys = NDM_FAST(attention_take)(memory, all);
    t->key_panels = NDM_FAST(attention_take)(memory, all);
    t->value_panels = NDM_FAST(attention_take)(memory, all);
    t->dk = NDM_FAST(attention_take)(memory, all);
    t->dv = NDM_FAST(attention_take)(memory, all);
    t->queries = NDM_FAST(attention_take)(memory, tile);
    t->dout = NDM_FAST(attention_take)(memory, tile);
    t->dq = NDM_FAST(attention_take)(memory, tile);
    t->p = NDM_FAST(attention_take)(memory, ATTENTION_TILE * ATTENTION_TILE * size);
    t->ds = NDM_FAST(attention_take)(memory, ATTENTION_TILE * ATTENTION_TILE * size);
}

static void enter(backward_task *t, int64_t item)
{
    attention_task *task = &t->task;
    const ndm_attention_args *a = task->a;

    NDM_FAST(attention_enter)(task, item);
    int64_t row = task->b * a->tk, column = task->kv_head * a->head_dim;
    NDM_FAST(attention_copy)
    (task, ndm_fast_in(a->v) + row * a->v_stride + column, a->v_stride, a->tk, 1.0f, t->keys);
    NDM_FAST(attention_panels)(task, t->keys, t->value_panels);
    NDM_FAST(attention_copy)
    (task, ndm_fast_in(a->k) + row * a->k_stride + column, a->k_stride, a->tk, 1.0f, t->keys);
    NDM_FAST(attention_panels)(task, t->keys, t->key_panels);
    size_t bytes = (size_t)(task->key_tiles * ATTENTION_TILE * task->padded) * sizeof(float);
    memset(t->dk, 0, bytes);
    memset(t->dv, 0, bytes);
}

/* delta of a query, the sum of dout * out. */
static float make_delta(const float *dout, const float *out, int64_t width)
{
    vf sum = vf_zero();

    SIMD_FOR (d, lanes, width)
        sum = vf_fma(vf_load(dout + d), vf_load_n(out + d, lanes), sum);
    return vf_sum(sum);
}

/* A row that sees no key anywhere has lse -inf; +inf here makes its p 0. */
static void load_statistics(backward_task *t, const query_tile *q, int64_t head, bool make)
{
    const attention_task *task = &t->task;
    const ndm_attention_args *a = task->a;

    for (int64_t r = 0; r < q->rows; r++) {
        int64_t i = q->first + r, at = (task->b * a->heads + head) * a->tq + i;
        t->lse[r] = a->lse[at] == -INFINITY ? INFINITY : a->lse[at];
        if (make)
            t->args->delta[at] = make_delta(
                t->dout + r * task->padded,
                ndm_fast_in(a->out) + (task->b * a->tq + i) * a->out_stride + head * a->head_dim,
                a->head_dim);
        t->delta[r] = t->args->delta[at];
    }
}

static void make_p_and_ds(const backward_task *t, const query_tile *q, int64_t key_tile, bool some,
                          bool halves)
{
    const int32_t *index = t->task.key_index + key_tile * ATTENTION_TILE;

    for (int64_t r = 0; r < q->rows; r++) {
        vf lse = vf_set(t->lse[r]), delta = vf_set(t->delta[r]);
        for (int64_t j = 0; j < attention_keys(r, halves); j += VL) {
            float *p_at = t->p + r * ATTENTION_TILE + j, *ds_at = t->ds + r * ATTENTION_TILE + j;
            vf p = vf_exp(vf_load(p_at) - lse);
            if (some)
                p = vf_where_between(p, vf_zero(), index + j, q->low[r], q->high[r]);
            vf_store(p_at, p);
            vf_store(ds_at, p * (vf_load(ds_at) - delta));
        }
    }
}

/* Scores into p and dout v' into ds, for a tile of keys. */
static void make_scores(backward_task *t, const query_tile *q, int64_t key_tile, triangle which)
{
    int64_t width = t->task.padded, panel = key_tile * ATTENTION_TILE * width;
    micro_args m = {.k = t->task.a->head_dim,
                    .a = t->queries,
                    .ars = width,
                    .acs = 1,
                    .b = t->key_panels + panel,
                    .ldb = ATTENTION_TILE,
                    .alpha = 1.0f,
                    .c = t->p,
                    .ldc = ATTENTION_TILE};

    NDM_FAST(attention_product)(q->rows, ATTENTION_TILE / VL, &m, which, &t->task.ahead);
    m.a = t->dout;
    m.b = t->value_panels + panel;
    m.c = t->ds;
    NDM_FAST(attention_product)(q->rows, ATTENTION_TILE / VL, &m, which, &t->task.ahead);
}

static void run_pair(backward_task *t, const query_tile *q, int64_t key_tile, sight seen,
                     const backward_pass *pass, bool first)
{
    int64_t width = t->task.padded, vectors = width / VL, at = key_tile * ATTENTION_TILE * width;
    micro_args transposed = {.k = q->rows,
                             .a = t->p,
                             .ars = 1,
                             .acs = ATTENTION_TILE,
                             .b = t->dout,
                             .ldb = width,
                             .alpha = 1.0f,
                             .add = true,
                             .c = t->dv + at,
                             .ldc = width};
    micro_args plain = {.k = ATTENTION_TILE,
                        .a = t->ds,
                        .ars = ATTENTION_TILE,
                        .acs = 1,
                        .b = t->keys + at,
                        .ldb = width,
                        .alpha = t->task.a->scale,
                        .add = !first,
                        .c = t->dq,
                        .ldc = width};

    bool halves = seen == SEES_SOME && NDM_FAST(attention_halves)(&t->task, q, key_tile);

    make_scores(t, q, key_tile, halves ? TRIANGLE_C : TRIANGLE_NONE);
    make_p_and_ds(t, q, key_tile, seen == SEES_SOME, halves);
    if (pass->dkv) {
        NDM_FAST(attention_product)
        (ATTENTION_TILE, vectors, &transposed, halves ? TRIANGLE_AT : TRIANGLE_NONE,
         &t->task.ahead);
        transposed.a = t->ds;
        transposed.b = t->queries;
        transposed.c = t->dk + at;
        NDM_FAST(attention_product)
        (ATTENTION_TILE, vectors, &transposed, halves ? TRIANGLE_AT : TRIANGLE_NONE,
         &t->task.ahead);
    }
    if (pass->dq)
        NDM_FAST(attention_product)
    (q->rows, vectors, &plain, halves ? TRIANGLE_A : TRIANGLE_NONE, &t->task.ahead);
}

/* rows of `stride` = or += from[count, padded] */
static void write_rows(const attention_task *task, const float *from, int64_t count,
                       bool accumulate, float *rows, int64_t stride)
{
    for (int64_t i = 0; i < count; i++) {
        if (i + ATTENTION_FAR < count)
            attention_fetch(rows + (i + ATTENTION_FAR) * stride, task->a->head_dim);
        SIMD_FOR (d, lanes, task->a->head_dim) {
            vf value = vf_load(from + i * task->padded + d);
            if (accumulate)
                value += vf_load_n(rows + i * stride + d, lanes);
            vf_store_n(rows + i * stride + d, value, lanes);
        }
    }
}

/* What this tile writes, and what the next one reads. */
static void look_ahead(backward_task *t, query_place place, const backward_pass *pass)
{
    const ndm_attention_backward_args *b = t->args;
    const ndm_attention_args *a = t->task.a;

    t->task.ahead = (tile_ahead){0};
    if (pass->dq)
        NDM_FAST(attention_ahead)(&t->task, place, ndm_fast_in(b->dq), b->dq_stride);
    if (!NDM_FAST(attention_next)(&t->task, &place, pass->first_query, pass->query_step))
        return;
    NDM_FAST(attention_ahead)(&t->task, place, ndm_fast_in(a->q), a->q_stride);
    NDM_FAST(attention_ahead)(&t->task, place, ndm_fast_in(b->dout), b->dout_stride);
    if (pass->dq && b->make_delta)
        NDM_FAST(attention_ahead)(&t->task, place, ndm_fast_in(a->out), a->out_stride);
}

static void run_queries(backward_task *t, int64_t head, int64_t tile, const backward_pass *pass)
{
    const attention_task *task = &t->task;
    const ndm_attention_args *a = task->a;
    query_tile q;
    bool first = true;

    NDM_FAST(attention_queries)(task, tile, &q);
    int64_t row = task->b * a->tq + q.first, column = head * a->head_dim;
    NDM_FAST(attention_copy)
    (task, ndm_fast_in(a->q) + row * a->q_stride + column, a->q_stride, q.rows, a->scale,
     t->queries);
    NDM_FAST(attention_copy)
    (task, ndm_fast_in(t->args->dout) + row * t->args->dout_stride + column, t->args->dout_stride,
     q.rows, 1.0f, t->dout);
    load_statistics(t, &q, head, pass->dq && t->args->make_delta);
    for (int64_t j = pass->first_key; j < task->key_tiles; j += pass->key_step) {
        sight seen = NDM_FAST(attention_sight)(task, &q, j);
        if (seen == SEES_NONE)
            continue;
        run_pair(t, &q, j, seen, pass, first);
        first = false;
    }
    if (!pass->dq)
        return;
    if (first)
        memset(t->dq, 0, (size_t)(ATTENTION_TILE * task->padded) * sizeof(float));
    write_rows(task, t->dq, q.rows, t->args->accumulate_dq,
               ndm_fast_out(t->args->dq) + row * t->args->dq_stride + column, t->args->dq_stride);
}

static void write_keys(const backward_task *t, const backward_pass *pass)
{
    const attention_task *task = &t->task;
    const ndm_attention_backward_args *b = t->args;
    const ndm_attention_args *a = task->a;

    for (int64_t j = pass->first_key; j < task->key_tiles; j += pass->key_step) {
        int64_t first = j * ATTENTION_TILE, row = task->b * a->tk + first,
                column = task->kv_head * a->head_dim;
        int64_t count = a->tk - first < ATTENTION_TILE ? a->tk - first : ATTENTION_TILE;
        write_rows(task, t->dk + first * task->padded, count, b->accumulate_dkv,
                   ndm_fast_out(b->dk) + row * b->dk_stride + column, b->dk_stride);
        write_rows(task, t->dv + first * task->padded, count, b->accumulate_dkv,
                   ndm_fast_out(b->dv) + row * b->dv_stride + column, b->dv_stride);
    }
}

static void run_task(backward_task *t, int64_t item, const backward_pass *pass)
{
    const attention_task *task = &t->task;

    enter(t, item);
    for (int64_t g = 0; g < task->group; g++)
        for (int64_t tile = pass->first_query; tile < attention_tiles(task->a->tq);
             tile += pass->query_step) {
            query_place place = {task->kv_head * task->group + g, tile};
            look_ahead(t, place, pass);
            run_queries(t, place.head, tile, pass);
        }
    if (pass->dkv)
        write_keys(t, pass);
}

/* Numbers of a parallel region: all tasks once, or their parts by queries and then by keys. */
static void run_tasks(backward_task *t, int64_t items, int64_t splits, bool ready)
{
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < items * splits; i++) {
        backward_pass pass = {.first_query = i % splits,
                              .query_step = splits,
                              .key_step = 1,
                              .dq = true,
                              .dkv = splits == 1};
        if (ready)
            run_task(t, i / splits, &pass);
    }
    if (splits == 1)
        return;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < items * splits; i++) {
        backward_pass pass = {
            .query_step = 1, .first_key = i % splits, .key_step = splits, .dkv = true};
        if (ready)
            run_task(t, i / splits, &pass);
    }
}

ndm_status NDM_FAST(attention_backward)(const void *args)
{
    const ndm_attention_backward_args *a = args;
    int threads = NDM_FAST(attention_threads)(&a->forward, 10);
    int64_t splits = NDM_FAST(attention_splits)(&a->forward, threads);
    int64_t items = a->forward.batch * a->forward.kv_heads;
    attention_memory need = {0};
    backward_task measure;
    _Atomic bool failed = false;

    if (a->forward.x_dtype != NDM_F32 || a->forward.out_dtype != NDM_F32 || a->d_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_attention_backward, args);
    backward_lay_out(a, &need, &measure);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        backward_task t;
        attention_memory memory = {.base = ndm_fast_scratch(need.bytes)};
        if (memory.base)
            backward_lay_out(a, &memory, &t);
        else
            failed = true;
        run_tasks(&t, items, splits, memory.base != NULL);
    }
    return failed ? ndm_fast_no_memory("attention_backward", need.bytes) : NDM_OK;
}
