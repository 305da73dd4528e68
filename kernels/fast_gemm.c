/* SPDX-License-Identifier: Apache-2.0 */
/* SGEMM after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
 *
 * B is packed by panels of TILE_COLUMNS columns into L3 or L2, A by panels of TILE_ROWS rows into
 * L2, K cut into passes; tiles of C stay in registers for a pass. Both transposes, and bf16 or fp16
 * B, are dealt with by packing. What the last rows and columns of C lack to a tile is made up in a
 * buffer, with the same arithmetic. */
#include "kernels/fast_micro.h"
#include "kernels/gemm_common.h"

enum {
    TILE_ROWS = MICRO_ROWS_2,
    TILE_COLUMNS = 2 * VL,
    PASS_K = 384,                /* at most; passes are equal */
    BLOCK_ROWS = 16 * TILE_ROWS, /* of A */
    BLOCK_COLUMNS = 64 * 2 * VL, /* of B */
};

/* One pass over k .. k + depth of one block of columns of C. */
typedef struct pass {
    const ndm_gemm_args *args;
    int64_t k, depth;
    bool add;      /* C holds something already */
    float *pack_a; /* [rows / TILE_ROWS][depth][TILE_ROWS], and VL floats */
    float *pack_b; /* [columns / TILE_COLUMNS][depth][TILE_COLUMNS] */
} pass;

static void pack_a_panel(const pass *p, int64_t row, int64_t rows, float *to)
{
    const ndm_gemm_args *a = p->args;
    const float *from = a->a;

    if (a->trans_a) {
        from += p->k * a->lda + row;
        for (int64_t k = 0; k < p->depth; k++)
            vf_store(to + k * TILE_ROWS, vf_load_n(from + k * a->lda, rows));
        return;
    }
    for (int64_t k = 0; k < p->depth; k += VL)
        vf_transpose_block(from, NDM_F32, row * a->lda + p->k + k, a->lda, rows, p->depth - k,
                           to + k * TILE_ROWS, TILE_ROWS);
}

/* Half a panel: up to VL columns of op(B). */
static void pack_b_half(const pass *p, int64_t column, int64_t columns, float *to)
{
    const ndm_gemm_args *a = p->args;

    if (columns <= 0) {
        for (int64_t k = 0; k < p->depth; k++)
            vf_store(to + k * TILE_COLUMNS, vf_zero());
    } else if (a->trans_b) {
        for (int64_t k = 0; k < p->depth; k += VL)
            vf_transpose_block(a->b, a->b_dtype, column * a->ldb + p->k + k, a->ldb, columns,
                               p->depth - k, to + k * TILE_COLUMNS, TILE_COLUMNS);
    } else {
        for (int64_t k = 0; k < p->depth; k++)
            vf_store(to + k * TILE_COLUMNS,
                     vf_load_as(a->b, a->b_dtype, (p->k + k) * a->ldb + column, columns));
    }
}

static void pack_b(const pass *p, int64_t first, int64_t columns)
{
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS) {
        float *panel = p->pack_b + j * p->depth;
        pack_b_half(p, first + j, columns - j, panel);
        pack_b_half(p, first + j + VL, columns - j - VL, panel + VL);
    }
}

static void pack_a(const pass *p, int64_t first, int64_t rows)
{
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        pack_a_panel(p, first + i, rows - i < TILE_ROWS ? rows - i : TILE_ROWS,
                     p->pack_a + i * p->depth);
}

#define TILE_CASE(R)                                             \
    case R:                                                      \
        if (R <= TILE_ROWS)                                      \
            micro(R <= TILE_ROWS ? R : 1, 2, m, 16 * TILE_ROWS); \
        break;

static void tile_remainder(int64_t rows, const micro_args *m)
{
    switch (rows) {
        TILE_CASE(1)
        TILE_CASE(2)
        TILE_CASE(3)
        TILE_CASE(4)
        TILE_CASE(5)
        TILE_CASE(6)
        TILE_CASE(7)
        TILE_CASE(8)
        TILE_CASE(9)
        TILE_CASE(10)
        TILE_CASE(11)
        TILE_CASE(12)
        TILE_CASE(13)
    default:
        break;
    }
}

static void tile(int64_t rows, const micro_args *m)
{
    if (rows == TILE_ROWS)
        micro(TILE_ROWS, 2, m, 16 * TILE_ROWS);
    else
        tile_remainder(rows, m);
}

/* Copies up to a tile's width of each row. */
static void copy_tile(const float *from, int64_t from_ld, float *to, int64_t to_ld, int64_t rows,
                      int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        SIMD_FOR (j, lanes, columns)
            vf_store_n(to + i * to_ld + j, vf_load_n(from + i * from_ld + j, lanes), lanes);
}

static void edge_tile(int64_t rows, int64_t columns, const micro_args *m)
{
    float buffer[TILE_ROWS * TILE_COLUMNS] = {0};
    micro_args whole = *m;

    whole.c = buffer;
    whole.ldc = TILE_COLUMNS;
    if (m->add)
        copy_tile(m->c, m->ldc, buffer, TILE_COLUMNS, rows, columns);
    tile(rows, &whole);
    copy_tile(buffer, TILE_COLUMNS, m->c, m->ldc, rows, columns);
}

/* Rows row .. row + rows and columns column .. of C, both packed. */
static void multiply_block(const pass *p, int64_t row, int64_t rows, int64_t column,
                           int64_t columns)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
        for (int64_t i = 0; i < rows; i += TILE_ROWS) {
            int64_t high = rows - i < TILE_ROWS ? rows - i : TILE_ROWS;
            micro_args m = {
                .k = p->depth,
                .a = p->pack_a + i * p->depth,
                .b = p->pack_b + j * p->depth,
                .ars = 1,
                .acs = TILE_ROWS,
                .ldb = TILE_COLUMNS,
                .alpha = a->alpha,
                .add = p->add,
                .c = (float *)a->c + (row + i) * a->ldc + column + j,
                .ldc = a->ldc,
            };
            if (columns - j < TILE_COLUMNS)
                edge_tile(high, columns - j, &m);
            else
                tile(high, &m);
        }
}

static void scale_c(const ndm_gemm_args *a)
{
    for (int64_t i = 0; i < a->m; i++) {
        float *c = (float *)a->c + i * a->ldc;
        SIMD_FOR (j, lanes, a->n)
            vf_store_n(c + j,
                       a->beta == 0.0f ? vf_zero() : vf_set(a->beta) * vf_load_n(c + j, lanes),
                       lanes);
    }
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void run_pass(pass *p)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t column = 0; column < a->n; column += BLOCK_COLUMNS) {
        int64_t columns = smaller(a->n - column, BLOCK_COLUMNS);
        pack_b(p, column, columns);
        for (int64_t row = 0; row < a->m; row += BLOCK_ROWS) {
            int64_t rows = smaller(a->m - row, BLOCK_ROWS);
            pack_a(p, row, rows);
            multiply_block(p, row, rows, column, columns);
        }
    }
}

static ndm_status gemm_piece(const ndm_gemm_args *a)
{
    int64_t passes = (a->k + PASS_K - 1) / PASS_K, k_units = (a->k + VL - 1) / VL;
    int64_t depth = passes ? (k_units + passes - 1) / passes * VL : 0;
    int64_t a_floats = smaller(a->m + TILE_ROWS, BLOCK_ROWS) * depth + VL;
    int64_t b_floats = (smaller(a->n + TILE_COLUMNS, BLOCK_COLUMNS)) * depth + VL;
    int64_t bytes = (a_floats + b_floats + 2 * VL) * (int64_t)sizeof(float);
    float *memory = ndm_fast_scratch(bytes);

    if (!memory)
        return ndm_fast_no_memory("gemm", bytes);
    if (a->beta != 1.0f && (a->beta != 0.0f || passes == 0))
        scale_c(a);
    pass p = {.args = a, .pack_b = memory, .pack_a = memory + (b_floats + VL - 1) / VL * VL};
    for (p.k = 0; p.k < a->k; p.k += depth) {
        p.depth = smaller(depth, a->k - p.k);
        p.add = p.k > 0 || a->beta != 0.0f;
        run_pass(&p);
    }
    if (a->bias)
        ndm_gemm_add_bias(a);
    return NDM_OK;
}

ndm_status NDM_FAST(gemm)(const void *args)
{
    static const ndm_gemm_cut cut = {TILE_ROWS, TILE_COLUMNS, 1, 1200000};
    return ndm_gemm_run(args, &cut, gemm_piece);
}
