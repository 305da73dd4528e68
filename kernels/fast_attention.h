/* SPDX-License-Identifier: Apache-2.0 */
/* What attention's forward and backward share: tiles of 64 queries by 64 keys, what each query
 * sees, and packed keys.
 *
 * A task is one (sequence, key-value head) and its group of query heads, on one thread. Keys and
 * values are copied out of their strided rows, padded to whole tiles and vectors with 0. Scratch
 * grows with Tk * D, never with Tq * Tk. */
#ifndef NDM_KERNELS_FAST_ATTENTION_H
#define NDM_KERNELS_FAST_ATTENTION_H

#include "kernels/fast_tile.h"

enum { ATTENTION_TILE = 64, ATTENTION_FAR = 8 }; /* rows fetched ahead */

typedef enum sight { SEES_NONE, SEES_SOME, SEES_ALL } sight;

/* 64 or fewer queries of one head. Query r sees the keys of low[r] <= index <= high[r]. */
typedef struct query_tile {
    int64_t first, rows;
    int32_t low[ATTENTION_TILE], high[ATTENTION_TILE];
    int32_t low_min, low_max, high_min, high_max;
} query_tile;

/* Lowest and highest index of a tile of keys; padded: the last tile has keys that nobody sees. */
typedef struct key_range {
    int32_t low, high;
    bool padded;
} key_range;

typedef struct attention_task {
    const ndm_attention_args *a;
    int64_t b, kv_head, group; /* group: query heads of a key-value head */
    int64_t padded;            /* head_dim in whole vectors, in floats */
    int64_t key_tiles;
    int32_t *key_index; /* [key_tiles * 64]; INT32_MAX = padding */
    key_range *range;   /* [key_tiles] */
    tile_ahead ahead;   /* rows of the next tile of queries, and those that this one writes */
} attention_task;

/* A heap that is one block of the thread's scratch; base NULL measures. */
typedef struct attention_memory {
    char *base;
    int64_t bytes;
} attention_memory;

/* Takes memory, 64-byte aligned and a cache line off from what a power of two would give. */
void *NDM_FAST(attention_take)(attention_memory *memory, int64_t bytes);

/* Sets the sizes of a task and takes its memory. */
void NDM_FAST(attention_lay_out)(const ndm_attention_args *a, attention_memory *memory,
                                 attention_task *task);

/* Enters task `item` of batch * kv_heads: key indices and their ranges. */
void NDM_FAST(attention_enter)(attention_task *task, int64_t item);

void NDM_FAST(attention_queries)(const attention_task *task, int64_t tile, query_tile *queries);

sight NDM_FAST(attention_sight)(const attention_task *task, const query_tile *queries,
                                int64_t key_tile);

/* Which operand of a product of a tile is a triangle, where the first half of its queries sees no
 * key of the second half, as on the diagonal of a causal mask. */
typedef enum triangle {
    TRIANGLE_NONE,
    TRIANGLE_C,  /* scores: queries by keys */
    TRIANGLE_A,  /* weights of keys by queries; before this tile of keys may come whole ones */
    TRIANGLE_AT, /* their transpose */
} triangle;

bool NDM_FAST(attention_halves)(const attention_task *task, const query_tile *queries,
                                int64_t key_tile);

/* NDM_FAST(tile)(), without the quarter that is zero or that nobody needs: that part of a
 * triangular C is left as it is. */
void NDM_FAST(attention_product)(int64_t rows, int64_t vectors, const micro_args *m, triangle which,
                                 tile_ahead *ahead);

/* A tile of queries of one head. */
typedef struct query_place {
    int64_t head, tile;
} query_place;

/* The tile after this one among those first, first + step, ... of each head of the group. Returns
 * whether there is one. */
bool NDM_FAST(attention_next)(const attention_task *task, query_place *place, int64_t first,
                              int64_t step);

/* Lets the products that follow fetch a tile of an array of queries, its heads side by side. */
void NDM_FAST(attention_ahead)(attention_task *task, query_place place, const float *rows,
                               int64_t stride);

/* Keys of a tile that query r looks at: half of them in the first half of a triangle. */
static inline int64_t attention_keys(int64_t r, bool halves)
{
    return halves && r < ATTENTION_TILE / 2 ? ATTENTION_TILE / 2 : ATTENTION_TILE;
}

/* to[count, padded] = scale * rows of `stride`, and 0 in whole tiles and vectors beyond. */
void NDM_FAST(attention_copy)(const attention_task *task, const float *rows, int64_t stride,
                              int64_t count, float scale, float *to);

/* panels[key_tiles][padded][64], the transpose of rows[key_tiles * 64, padded] tile by tile. */
void NDM_FAST(attention_panels)(const attention_task *task, const float *rows, float *panels);

/* In how many parts to cut each task so that threads are evenly busy. */
int64_t NDM_FAST(attention_splits)(const ndm_attention_args *a, int threads);

/* Threads for flops_per_pair floating-point operations a (query, key, dimension). */
int NDM_FAST(attention_threads)(const ndm_attention_args *a, int64_t flops_per_pair);

/* Rows of a head are far apart: the caches do not see them coming. */
static inline void attention_fetch(const float *row, int64_t floats)
{
    for (int64_t i = 0; i < floats; i += MICRO_LINE)
        __builtin_prefetch(row + i);
}

static inline int64_t attention_tiles(int64_t rows)
{
    return (rows + ATTENTION_TILE - 1) / ATTENTION_TILE;
}

#endif
