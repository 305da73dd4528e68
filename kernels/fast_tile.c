/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small tiles: strips of 4, 2 and 1 vectors of columns, each from top to bottom. */
#include "kernels/fast_tile.h"

#define REST_CASE(R, NV)                                  \
    case R:                                               \
        if (R < MICRO_ROWS_##NV)                          \
            micro(R < MICRO_ROWS_##NV ? R : 1, NV, m, 0); \
        break;

/* strip_<NV>(rows, m): NV vectors of columns. The last rows, fewer than a micro-kernel's, go to one
 * made for them. */
#define STRIP(NV)                                                  \
    static void strip_rest_##NV(int64_t rows, const micro_args *m) \
    {                                                              \
        switch (rows) {                                            \
            REST_CASE(1, NV)                                       \
            REST_CASE(2, NV)                                       \
            REST_CASE(3, NV)                                       \
            REST_CASE(4, NV)                                       \
            REST_CASE(5, NV)                                       \
            REST_CASE(6, NV)                                       \
            REST_CASE(7, NV)                                       \
            REST_CASE(8, NV)                                       \
            REST_CASE(9, NV)                                       \
            REST_CASE(10, NV)                                      \
            REST_CASE(11, NV)                                      \
            REST_CASE(12, NV)                                      \
            REST_CASE(13, NV)                                      \
        default:                                                   \
            break;                                                 \
        }                                                          \
    }                                                              \
    static void strip_##NV(int64_t rows, micro_args m)             \
    {                                                              \
        for (; rows >= MICRO_ROWS_##NV; rows -= MICRO_ROWS_##NV) { \
            micro(MICRO_ROWS_##NV, NV, &m, 0);                     \
            m.a += MICRO_ROWS_##NV * m.ars;                        \
            m.c += MICRO_ROWS_##NV * m.ldc;                        \
        }                                                          \
        strip_rest_##NV(rows, &m);                                 \
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

void NDM_FAST(tile)(int64_t rows, int64_t vectors, const micro_args *args)
{
    micro_args m = *args;
    int64_t width;

    for (; vectors > 0; vectors -= width, m.b += width * VL, m.c += width * VL) {
        width = vectors >= STRIP_WIDEST ? STRIP_WIDEST : vectors >= 2 ? 2 : 1;
        if (width == STRIP_WIDEST)
            strip_widest(rows, m);
        else if (width == 2)
            strip_2(rows, m);
        else
            strip_1(rows, m);
    }
}
