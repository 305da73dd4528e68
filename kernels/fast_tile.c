/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small tiles: strips of 4, 2 and 1 vectors of columns, each from top to bottom. */
#include "kernels/fast_tile.h"

/* Rows that a call of the micro-kernel gets through. */
static int64_t rows_of_call(const tile_ahead *ahead, int64_t k, int64_t tile_rows)
{
    int64_t fetches = k / MICRO_STEP - tile_rows, lines = ahead->block[0].lines;

    return lines > 0 && fetches > 0 ? fetches / lines : 0;
}

static micro_ahead take_ahead(tile_ahead *ahead, int64_t rows)
{
    while (ahead->at < ahead->count && ahead->block[ahead->at].rows == 0)
        ahead->at++;
    if (ahead->at == ahead->count)
        return (micro_ahead){0};
    micro_ahead *block = &ahead->block[ahead->at], part = *block;
    part.rows = rows < block->rows ? rows : block->rows;
    block->from += part.rows * block->step;
    block->rows -= part.rows;
    return part;
}

#define REST_CASE(R, NV)                                  \
    case R:                                               \
        if (R < MICRO_ROWS_##NV)                          \
            micro(R < MICRO_ROWS_##NV ? R : 1, NV, m, 0); \
        break;

/* strip_<NV>(rows, m): NV vectors of columns. The last rows, fewer than a micro-kernel's, go to one
 * made for them. */
#define STRIP(NV)                                                          \
    static void strip_rest_##NV(int64_t rows, const micro_args *m)         \
    {                                                                      \
        switch (rows) {                                                    \
            REST_CASE(1, NV)                                               \
            REST_CASE(2, NV)                                               \
            REST_CASE(3, NV)                                               \
            REST_CASE(4, NV)                                               \
            REST_CASE(5, NV)                                               \
            REST_CASE(6, NV)                                               \
            REST_CASE(7, NV)                                               \
            REST_CASE(8, NV)                                               \
            REST_CASE(9, NV)                                               \
            REST_CASE(10, NV)                                              \
            REST_CASE(11, NV)                                              \
            REST_CASE(12, NV)                                              \
            REST_CASE(13, NV)                                              \
        default:                                                           \
            break;                                                         \
        }                                                                  \
    }                                                                      \
    static void strip_##NV(int64_t rows, micro_args m, tile_ahead *ahead)  \
    {                                                                      \
        const int64_t fetched = rows_of_call(ahead, m.k, MICRO_ROWS_##NV); \
        for (; rows >= MICRO_ROWS_##NV; rows -= MICRO_ROWS_##NV) {         \
            m.ahead = take_ahead(ahead, fetched);                          \
            micro(MICRO_ROWS_##NV, NV, &m, 0);                             \
            m.a += MICRO_ROWS_##NV * m.ars;                                \
            m.c += MICRO_ROWS_##NV * m.ldc;                                \
        }                                                                  \
        m.ahead.rows = 0;                                                  \
        strip_rest_##NV(rows, &m);                                         \
    }

STRIP(1)
STRIP(2)
#if defined(NDM_ISA_AVX512)
STRIP(4)
#define STRIP_WIDEST 4
#define strip_widest strip_4
#else
#define STRIP_WIDEST 2
#define strip_widest strip_2
#endif

void NDM_FAST(tile)(int64_t rows, int64_t vectors, const micro_args *args, tile_ahead *ahead)
{
    micro_args m = *args;
    int64_t width;

    for (; vectors > 0; vectors -= width, m.b += width * VL, m.c += width * VL) {
        width = vectors >= STRIP_WIDEST ? STRIP_WIDEST : vectors >= 2 ? 2 : 1;
        if (width == STRIP_WIDEST)
            strip_widest(rows, m, ahead);
        else if (width == 2)
            strip_2(rows, m, ahead);
        else
            strip_1(rows, m, ahead);
    }
}
