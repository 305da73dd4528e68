/* SPDX-License-Identifier: Apache-2.0 */
/* Tasks of attention: memory, masks, packing. */
#include <assert.h>

#include "kernels/fast_attention.h"

void *NDM_FAST(attention_take)(attention_memory *memory, int64_t bytes)
{
    void *at = memory->base ? memory->base + memory->bytes : NULL;
    memory->bytes += (bytes + 63) / 64 * 64 + 64;
    return at;
}

void NDM_FAST(attention_lay_out)(const ndm_attention_args *a, attention_memory *memory,
                                 attention_task *task)
{
    *task = (attention_task){
        .a = a,
        .group = a->heads / a->kv_heads,
        .padded = (a->head_dim + VL - 1) / VL * VL,
        .key_tiles = attention_tiles(a->tk),
    };
    task->key_index = NDM_FAST(attention_take)(memory, task->key_tiles * ATTENTION_TILE *
                                                           (int64_t)sizeof(int32_t));
    task->range = NDM_FAST(attention_take)(memory, task->key_tiles * (int64_t)sizeof(key_range));
}

void NDM_FAST(attention_enter)(attention_task *task, int64_t item)
{
    const ndm_attention_args *a = task->a;

    task->b = item / a->kv_heads;
    task->kv_head = item % a->kv_heads;
    for (int64_t t = 0; t < task->key_tiles; t++) {
        key_range range = {INT32_MAX, INT32_MIN, false};
        for (int64_t i = t * ATTENTION_TILE; i < (t + 1) * ATTENTION_TILE; i++) {
            int32_t index = INT32_MAX;
            if (i < a->tk) {
                index = a->k_index ? a->k_index[task->b * a->tk + i] : (int32_t)i;
                range.low = index < range.low ? index : range.low;
                range.high = index > range.high ? index : range.high;
            }
            range.padded |= i >= a->tk;
            task->key_index[i] = index;
        }
        task->range[t] = range;
    }
}

void NDM_FAST(attention_queries)(const attention_task *task, int64_t tile, query_tile *queries)
{
    const ndm_attention_args *a = task->a;
    query_tile t = {
        .first = tile * ATTENTION_TILE,
        .low_min = INT32_MAX,
        .low_max = INT32_MIN,
        .high_min = INT32_MAX,
        .high_max = INT32_MIN,
    };

    t.rows = a->tq - t.first < ATTENTION_TILE ? a->tq - t.first : ATTENTION_TILE;
    for (int64_t r = 0; r < t.rows; r++) {
        int64_t row = task->b * a->tq + t.first + r;
        int32_t index = a->q_index ? a->q_index[row] : (int32_t)(t.first + r);
        t.low[r] = a->q_first ? a->q_first[row] : 0;
        t.high[r] = a->causal ? index : INT32_MAX - 1;
        t.low_min = t.low[r] < t.low_min ? t.low[r] : t.low_min;
        t.low_max = t.low[r] > t.low_max ? t.low[r] : t.low_max;
        t.high_min = t.high[r] < t.high_min ? t.high[r] : t.high_min;
        t.high_max = t.high[r] > t.high_max ? t.high[r] : t.high_max;
    }
    *queries = t;
}

sight NDM_FAST(attention_sight)(const attention_task *task, const query_tile *queries,
                                int64_t key_tile)
{
    key_range range = task->range[key_tile];

    if (range.low > queries->high_max || range.high < queries->low_min)
        return SEES_NONE;
    if (!range.padded && range.low >= queries->low_max && range.high <= queries->high_min)
        return SEES_ALL;
    return SEES_SOME;
}

enum { HALF = ATTENTION_TILE / 2 };

bool NDM_FAST(attention_halves)(const attention_task *task, const query_tile *queries,
                                int64_t key_tile)
{
    const int32_t *index = task->key_index + key_tile * ATTENTION_TILE;
    int32_t high = INT32_MIN, low = INT32_MAX;

    for (int64_t i = 0; i < HALF; i++) {
        if (i < queries->rows && queries->high[i] > high)
            high = queries->high[i];
        if (index[HALF + i] < low)
            low = index[HALF + i];
    }
    return high < low;
}

void NDM_FAST(attention_product)(int64_t rows, int64_t vectors, const micro_args *m, triangle which,
                                 tile_ahead *ahead)
{
    micro_args first = *m, second = *m;
    int64_t rest = rows > HALF ? rows - HALF : 0;

    if (which == TRIANGLE_NONE) {
        NDM_FAST(tile)(rows, vectors, m, ahead);
        return;
    }
    second.a += HALF * m->ars;
    second.c += HALF * m->ldc;
    if (which == TRIANGLE_A)
        first.k -= HALF;
    if (which == TRIANGLE_AT) {
        second.k -= HALF;
        second.a += HALF * m->acs;
        second.b += HALF * m->ldb;
    }
    NDM_FAST(tile)(rows - rest, which == TRIANGLE_C ? vectors / 2 : vectors, &first, ahead);
    if (rest > 0 && second.k > 0)
        NDM_FAST(tile)(rest, vectors, &second, ahead);
}

bool NDM_FAST(attention_next)(const attention_task *task, query_place *place, int64_t first,
                              int64_t step)
{
    place->tile += step;
    if (place->tile >= attention_tiles(task->a->tq))
        *place = (query_place){place->head + 1, first};
    return place->head < (task->kv_head + 1) * task->group;
}

void NDM_FAST(attention_ahead)(attention_task *task, query_place place, const float *rows,
                               int64_t stride)
{
    const ndm_attention_args *a = task->a;
    int64_t first = place.tile * ATTENTION_TILE, left = a->tq - first;

    assert(task->ahead.count < TILE_AHEAD);
    task->ahead.block[task->ahead.count++] = (micro_ahead){
        .from = rows + (task->b * a->tq + first) * stride + place.head * a->head_dim,
        .step = stride,
        .rows = left < ATTENTION_TILE ? left : ATTENTION_TILE,
        .lines = (a->head_dim + MICRO_LINE - 1) / MICRO_LINE,
    };
}

void NDM_FAST(attention_copy)(const attention_task *task, const float *rows, int64_t stride,
                              int64_t count, float scale, float *to)
{
    int64_t whole = attention_tiles(count) * ATTENTION_TILE;

    for (int64_t i = 0; i < count; i++) {
        if (i + ATTENTION_FAR < count)
            attention_fetch(rows + (i + ATTENTION_FAR) * stride, task->a->head_dim);
        SIMD_FOR (d, lanes, task->a->head_dim)
            vf_store(to + i * task->padded + d,
                     vf_set(scale) * vf_load_n(rows + i * stride + d, lanes));
    }
    memset(to + count * task->padded, 0, (size_t)((whole - count) * task->padded) * sizeof *to);
}

void NDM_FAST(attention_panels)(const attention_task *task, const float *rows, float *panels)
{
    int64_t width = task->padded;

    for (int64_t i = 0; i < task->key_tiles * ATTENTION_TILE; i += VL) {
        float *panel = panels + i / ATTENTION_TILE * ATTENTION_TILE * width + i % ATTENTION_TILE;
        for (int64_t d = 0; d < width; d += VL)
            vf_transpose_block(rows, NDM_F32, i * width + d, width, VL, VL,
                               panel + d * ATTENTION_TILE, ATTENTION_TILE);
    }
}

int64_t NDM_FAST(attention_splits)(const ndm_attention_args *a, int threads)
{
    int64_t x = a->batch * a->kv_heads, y = threads,
            most = attention_tiles(a->tq < a->tk ? a->tq : a->tk);

    while (y != 0) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    if (most < 1)
        return 1; /* without keys there are still dq and delta to write */
    return threads / x < most ? threads / x : most;
}

int NDM_FAST(attention_threads)(const ndm_attention_args *a, int64_t flops_per_pair)
{
    int64_t flops_a_unit = a->causal ? 128 : 64; /* half of the square, about */
    return ndm_fast_threads(a->batch * a->heads * a->tq * a->tk / flops_a_unit * a->head_dim *
                            flops_per_pair);
}
