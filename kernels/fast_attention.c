/* SPDX-License-Identifier: Apache-2.0 */
/* Attention forward (Dao et al., "FlashAttention", 2022, in tiles of a CPU's caches): 64 queries
 * against up to 512 visible keys at a time, with a running maximum and sum. */
#include <stdatomic.h>

#include "kernels/fast_attention.h"

enum { CHUNK_TILES = 8, SCORES_LD = CHUNK_TILES * ATTENTION_TILE + 16, VALUE_TILES = 2 };

typedef struct forward_task {
    attention_task task;
    float *key_panels; /* [key_tiles][padded][64] */
    float *values;     /* [key_tiles * 64, padded] */
    float *queries;    /* [64, padded], scaled */
    float *sums;       /* [64, padded], of values */
    float *scores;     /* [64, SCORES_LD] */
    float max[ATTENTION_TILE], total[ATTENTION_TILE];
} forward_task;

/* Visible tiles of keys, at most CHUNK_TILES; their scores lie side by side. */
typedef struct chunk {
    int64_t tile[CHUNK_TILES];
    sight seen[CHUNK_TILES];
    bool halves[CHUNK_TILES];
    int64_t count;
    bool first; /* of a tile of queries */
} chunk;

/* Where the last tile is a triangle, the first queries' scores end with its first half. */
static int64_t keys_of_row(const chunk *c, int64_t r)
{
    int64_t last = c->count - 1;

    return last * ATTENTION_TILE + attention_keys(r, c->halves[last]);
}

static void forward_lay_out(const ndm_attention_args *a, attention_memory *memory, forward_task *f)
{
    const int64_t size = (int64_t)sizeof(float);

    NDM_FAST(attention_lay_out)(a, memory, &f->task);
    int64_t keys = f->task.key_tiles * ATTENTION_TILE * f->task.padded;
    f->key_panels = NDM_FAST(attention_take)(memory, keys * size);
    f->values = NDM_FAST(attention_take)(memory, keys * size);
    f->queries = NDM_FAST(attention_take)(memory, ATTENTION_TILE * f->task.padded * size);
    f->sums = NDM_FAST(attention_take)(memory, ATTENTION_TILE * f->task.padded * size);
    f->scores = NDM_FAST(attention_take)(memory, ATTENTION_TILE * SCORES_LD * size);
}

static void enter(forward_task *f, int64_t item)
{
    attention_task *t = &f->task;
    const ndm_attention_args *a = t->a;

    NDM_FAST(attention_enter)(t, item);
    int64_t row = t->b * a->tk, column = t->kv_head * a->head_dim;
    NDM_FAST(attention_copy)
    (t, ndm_fast_in(a->k) + row * a->k_stride + column, a->k_stride, a->tk, 1.0f, f->values);
    NDM_FAST(attention_panels)(t, f->values, f->key_panels);
    NDM_FAST(attention_copy)
    (t, ndm_fast_in(a->v) + row * a->v_stride + column, a->v_stride, a->tk, 1.0f, f->values);
}

static void make_scores(forward_task *f, const query_tile *q, const chunk *c)
{
    attention_task *t = &f->task;
    micro_args m = {.k = t->a->head_dim,
                    .a = f->queries,
                    .ars = t->padded,
                    .acs = 1,
                    .ldb = ATTENTION_TILE,
                    .alpha = 1.0f,
                    .ldc = SCORES_LD};

    for (int64_t i = 0; i < c->count; i++) {
        m.b = f->key_panels + c->tile[i] * ATTENTION_TILE * t->padded;
        m.c = f->scores + i * ATTENTION_TILE;
        NDM_FAST(attention_product)
        (q->rows, ATTENTION_TILE / VL, &m, c->halves[i] ? TRIANGLE_C : TRIANGLE_NONE, &t->ahead);
        for (int64_t r = 0; r < q->rows && c->seen[i] == SEES_SOME; r++)
            for (int64_t j = 0; j < attention_keys(r, c->halves[i] && i == c->count - 1); j += VL) {
                float *s = m.c + r * SCORES_LD + j;
                const int32_t *index = t->key_index + c->tile[i] * ATTENTION_TILE + j;
                vf_store(s, vf_where_between(vf_load(s), vf_set(-INFINITY), index, q->low[r],
                                             q->high[r]));
            }
    }
}

/* Scores become exp(score - new maximum). Returns what earlier sums shrink by. */
static float soften_row(float *s, int64_t count, float *max, float *total)
{
    vf top[2] = {vf_set(*max), vf_set(*max)}, sum[2] = {vf_zero(), vf_zero()};

    for (int64_t j = 0; j < count; j += 2 * VL) {
        top[0] = vf_max(top[0], vf_load(s + j));
        top[1] = vf_max(top[1], vf_load(s + j + VL));
    }
    float now = vf_hmax(vf_max(top[0], top[1])), factor = *max == now ? 1.0f : expf(*max - now);
    vf shift = vf_set(now == -INFINITY ? 0.0f : now); /* nothing seen yet: exp(-inf) is 0 */
    for (int64_t j = 0; j < count; j += 2 * VL) {
        vf a = vf_exp(vf_load(s + j) - shift), b = vf_exp(vf_load(s + j + VL) - shift);
        vf_store(s + j, a);
        vf_store(s + j + VL, b);
        sum[0] += a;
        sum[1] += b;
    }
    *max = now;
    *total = *total * factor + vf_sum(sum[0] + sum[1]);
    return factor;
}

static void soften(forward_task *f, const query_tile *q, const chunk *c)
{
    for (int64_t r = 0; r < q->rows; r++) {
        float *sums = f->sums + r * f->task.padded;
        float factor = soften_row(f->scores + r * SCORES_LD, keys_of_row(c, r), &f->max[r],
                                  &f->total[r]);
        for (int64_t d = 0; d < f->task.padded && factor != 1.0f && !c->first; d += VL)
            vf_store(sums + d, vf_set(factor) * vf_load(sums + d));
    }
}

/* Adjacent tiles go together: half the loads and stores of the sums. */
static void add_values(forward_task *f, const query_tile *q, const chunk *c)
{
    int64_t width = f->task.padded, run;
    micro_args m = {.ars = SCORES_LD,
                    .acs = 1,
                    .ldb = width,
                    .alpha = 1.0f,
                    .add = !c->first,
                    .c = f->sums,
                    .ldc = width};

    for (int64_t i = 0; i < c->count; i += run) {
        for (run = 1; run < VALUE_TILES && i + run < c->count && !c->halves[i + run - 1] &&
                      c->tile[i + run] == c->tile[i] + run;)
            run++;
        m.k = run * ATTENTION_TILE;
        m.a = f->scores + i * ATTENTION_TILE;
        m.b = f->values + c->tile[i] * ATTENTION_TILE * width;
        NDM_FAST(attention_product)
        (q->rows, width / VL, &m, c->halves[i + run - 1] ? TRIANGLE_A : TRIANGLE_NONE,
         &f->task.ahead);
        m.add = true;
    }
}

static void run_chunk(forward_task *f, const query_tile *q, chunk *c)
{
    if (c->count == 0)
        return;
    make_scores(f, q, c);
    soften(f, q, c);
    add_values(f, q, c);
    c->count = 0;
    c->first = false;
}

static void write_rows(const forward_task *f, const query_tile *q, int64_t head)
{
    const attention_task *t = &f->task;
    const ndm_attention_args *a = t->a;

    for (int64_t r = 0; r < q->rows; r++) {
        int64_t i = q->first + r;
        float *out = ndm_fast_out(a->out) + (t->b * a->tq + i) * a->out_stride + head * a->head_dim;
        bool blind = f->max[r] == -INFINITY;
        vf share = vf_set(1.0f / f->total[r]);
        SIMD_FOR (d, lanes, a->head_dim)
            vf_store_n(out + d, blind ? vf_zero() : vf_load(f->sums + r * t->padded + d) * share,
                       lanes);
        a->lse[(t->b * a->heads + head) * a->tq + i] = blind ? -INFINITY
                                                             : f->max[r] + logf(f->total[r]);
    }
}

/* What this tile writes, and what the next one reads. */
static void look_ahead(forward_task *f, query_place place, int64_t first, int64_t step)
{
    attention_task *t = &f->task;
    const ndm_attention_args *a = t->a;

    t->ahead = (tile_ahead){0};
    NDM_FAST(attention_ahead)(t, place, ndm_fast_in(a->out), a->out_stride);
    if (NDM_FAST(attention_next)(t, &place, first, step))
        NDM_FAST(attention_ahead)(t, place, ndm_fast_in(a->q), a->q_stride);
}

static void run_queries(forward_task *f, int64_t head, int64_t tile)
{
    const attention_task *t = &f->task;
    const ndm_attention_args *a = t->a;
    chunk c = {.first = true};
    query_tile q;

    NDM_FAST(attention_queries)(t, tile, &q);
    NDM_FAST(attention_copy)
    (t, ndm_fast_in(a->q) + (t->b * a->tq + q.first) * a->q_stride + head * a->head_dim,
     a->q_stride, q.rows, a->scale, f->queries);
    for (int64_t r = 0; r < q.rows; r++) {
        f->max[r] = -INFINITY;
        f->total[r] = 0.0f;
    }
    for (int64_t j = 0; j < t->key_tiles; j++) {
        sight seen = NDM_FAST(attention_sight)(t, &q, j);
        if (seen == SEES_NONE)
            continue;
        c.tile[c.count] = j;
        c.halves[c.count] = seen == SEES_SOME && NDM_FAST(attention_halves)(t, &q, j);
        c.seen[c.count++] = seen;
        if (c.count == CHUNK_TILES)
            run_chunk(f, &q, &c);
    }
    run_chunk(f, &q, &c);
    write_rows(f, &q, head);
}

/* Part of `splits` of a task: every splits-th tile of queries, so that causal parts weigh the same.
 */
static void run_task(forward_task *f, int64_t item, int64_t part, int64_t splits)
{
    const attention_task *t = &f->task;

    enter(f, item);
    for (int64_t g = 0; g < t->group; g++)
        for (int64_t tile = part; tile < attention_tiles(t->a->tq); tile += splits) {
            query_place place = {t->kv_head * t->group + g, tile};
            look_ahead(f, place, part, splits);
            run_queries(f, place.head, tile);
        }
}

ndm_status NDM_FAST(attention)(const void *args)
{
    const ndm_attention_args *a = args;
    int threads = NDM_FAST(attention_threads)(a, 4);
    int64_t splits = NDM_FAST(attention_splits)(a, threads),
            tasks = a->batch * a->kv_heads * splits;
    attention_memory need = {0};
    forward_task measure;
    _Atomic bool failed = false;

    if (a->x_dtype != NDM_F32 || a->out_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_attention, args);
    forward_lay_out(a, &need, &measure);
#pragma omp parallel num_threads(threads) if (threads > 1)
    {
        forward_task f;
        attention_memory memory = {.base = ndm_fast_scratch(need.bytes)};
        if (memory.base)
            forward_lay_out(a, &memory, &f);
        else
            failed = true;
#pragma omp for schedule(dynamic, 1)
        for (int64_t i = 0; i < tasks; i++)
            if (memory.base)
                run_task(&f, i / splits, i % splits, splits);
    }
    return failed ? ndm_fast_no_memory("attention", need.bytes) : NDM_OK;
}
