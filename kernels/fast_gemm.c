/* SPDX-License-Identifier: Apache-2.0 */
/* SGEMM after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
 *
 * K is cut into passes. Of a pass, B is packed by panels of TILE_COLUMNS columns, as many as L2
 * holds beside what streams through; A is packed by panels of TILE_ROWS rows, right before each
 * goes over all of these, with its rows on their way into L2 during the tiles before. So both are
 * read from L2 at most, which the micro-kernel keeps up with, and C is fetched long before its sums
 * are complete. Both transposes, and bf16 or fp16 B, are dealt with by packing. What the last rows
 * and columns of C lack to a tile is made up in a buffer, with the same arithmetic. */
#include "kernels/fast_micro.h"
#include "kernels/gemm_common.h"

enum {
    TILE_ROWS = MICRO_ROWS_2,
    TILE_COLUMNS = 2 * VL,
    PASS_K = 704,     /* at most; passes are equal */
    GROUP_PANELS = 4, /* of a transposed A packed together: its rows are then whole cache lines */
    FAR_ROWS = 8,     /* of B as it is stored, the same while it is packed */
    FAR = 16,         /* rows of B fetched ahead */
};

/* One pass over k .. k + depth of one block of columns of C. */
typedef struct pass {
    const ndm_gemm_args *args;
    int64_t k, depth;
    bool add;              /* C holds something already */
    int64_t group_rows;    /* of A packed at once */
    int64_t block_columns; /* of B packed at once */
    float *pack_a;         /* [rows / TILE_ROWS][depth][TILE_ROWS], and VL floats */
    float *pack_b;         /* [columns / TILE_COLUMNS][depth][TILE_COLUMNS] */
} pass;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Row by row of what is stored, all panels at once. */
static void pack_a_transposed(const pass *p, int64_t first, int64_t rows)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t k = 0; k < p->depth; k++) {
        const float *from = (const float *)a->a + (p->k + k) * a->lda + first;
        float *to = p->pack_a + k * TILE_ROWS;
        for (int64_t i = 0; i < rows; i += MICRO_LINE)
            __builtin_prefetch(from + FAR_ROWS * a->lda + i);
        for (int64_t i = 0; i < rows; i += TILE_ROWS)
            SIMD_FOR (j, lanes, smaller(rows - i, TILE_ROWS))
                vf_store_n(to + i * p->depth + j, vf_load_n(from + i + j, lanes), lanes);
    }
}

static void pack_a(const pass *p, int64_t first, int64_t rows)
{
    const ndm_gemm_args *a = p->args;

    if (a->trans_a) {
        pack_a_transposed(p, first, rows);
        return;
    }
    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        for (int64_t k = 0; k < p->depth; k += VL)
            vf_transpose_block(a->a, NDM_F32, (first + i) * a->lda + p->k + k, a->lda,
                               smaller(rows - i, TILE_ROWS), p->depth - k,
                               p->pack_a + i * p->depth + k * TILE_ROWS, TILE_ROWS);
}

/* What the caches do not see coming: rows of B, far apart. */
static void fetch_b(const ndm_gemm_args *a, int64_t i)
{
    __builtin_prefetch((const char *)a->b + i * (int64_t)ndm_dtype_bytes(a->b_dtype));
}

/* Columns first .. first + VL, into half a panel. */
static void pack_b_transposed(const pass *p, int64_t first, int64_t columns, float *to)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t k = 0; k < p->depth && columns <= 0; k++)
        vf_store(to + k * TILE_COLUMNS, vf_zero());
    for (int64_t k = 0; k < p->depth && columns > 0; k += VL) {
        SIMD_UNROLL
        for (int64_t i = VL; i < 2 * VL; i++)
            fetch_b(a, (first + i) * a->ldb + p->k + k);
        vf_transpose_block(a->b, a->b_dtype, first * a->ldb + p->k + k, a->ldb, columns,
                           p->depth - k, to + k * TILE_COLUMNS, TILE_COLUMNS);
    }
}

static void pack_b_row(const pass *p, int64_t k, int64_t first, int64_t columns, float *to)
{
    const ndm_gemm_args *a = p->args;
    int64_t from = (p->k + k) * a->ldb + first;

    for (int64_t j = 0; j < columns; j += TILE_COLUMNS, to += TILE_COLUMNS * p->depth)
        for (int64_t i = 0; i < TILE_COLUMNS; i += VL) {
            int64_t lanes = columns - j - i;
            fetch_b(a, from + j + i + FAR_ROWS * a->ldb);
            vf_store(to + i,
                     lanes > 0 ? vf_load_as(a->b, a->b_dtype, from + j + i, lanes) : vf_zero());
        }
}

static void pack_b(const pass *p, int64_t first, int64_t columns)
{
    if (!p->args->trans_b) {
        for (int64_t k = 0; k < p->depth; k++)
            pack_b_row(p, k, first, columns, p->pack_b + k * TILE_COLUMNS);
        return;
    }
    for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
        for (int64_t i = 0; i < TILE_COLUMNS; i += VL)
            pack_b_transposed(p, first + j + i, columns - j - i, p->pack_b + j * p->depth + i);
}

/* ---- tiles ---------------------------------------------------------------------------------- */

#define TILE_CASE(R)                                  \
    case R:                                           \
        if (R <= TILE_ROWS)                           \
            micro(R <= TILE_ROWS ? R : 1, 2, m, FAR); \
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
        micro(TILE_ROWS, 2, m, FAR);
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

/* ---- the product ---------------------------------------------------------------------------- */

/* Rows of A that are packed next. */
typedef struct group {
    int64_t k, depth, row, rows;
} group;

static group next_group(const pass *p, int64_t row, bool last_block)
{
    const ndm_gemm_args *a = p->args;
    group g = {p->k, p->depth, row + p->group_rows, 0};

    if (g.row >= a->m) {
        g.row = 0;
        g.k += last_block ? p->depth : 0;
        g.depth = smaller(p->depth, a->k - g.k);
    }
    g.rows = g.depth > 0 ? smaller(p->group_rows, a->m - g.row) : 0;
    return g;
}

/* The part of it to fetch during tile t of n. */
static micro_ahead ahead_of(const pass *p, const group *g, int64_t t, int64_t n)
{
    const ndm_gemm_args *a = p->args;
    const float *from = a->a;
    int64_t lines = ((a->trans_a ? g->rows : g->depth) + MICRO_LINE - 1) / MICRO_LINE;

    if (g->rows <= 0)
        return (micro_ahead){0};
    if (a->trans_a) { /* a column of lines, some of its rows */
        int64_t parts = n >= lines ? n / lines : 1, part = t / lines, line = t % lines;
        int64_t first = g->depth * part / parts, end = g->depth * (part + 1) / parts;
        if (part >= parts)
            return (micro_ahead){0};
        return (micro_ahead){from + (g->k + first) * a->lda + g->row + line * MICRO_LINE, a->lda,
                             end - first};
    }
    int64_t first = lines * g->rows * t / n, end = lines * g->rows * (t + 1) / n;
    return (micro_ahead){from + (g->row + first / lines) * a->lda + g->k +
                             first % lines * MICRO_LINE,
                         MICRO_LINE, end - first};
}

/* Rows row .. row + rows and columns column .. of C, both packed. */
static void multiply_block(const pass *p, int64_t row, int64_t rows, int64_t column,
                           int64_t columns, const group *next)
{
    const ndm_gemm_args *a = p->args;
    int64_t t = 0, tiles = ((rows + TILE_ROWS - 1) / TILE_ROWS) *
                           ((columns + TILE_COLUMNS - 1) / TILE_COLUMNS);

    for (int64_t i = 0; i < rows; i += TILE_ROWS)
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS, t++) {
            int64_t high = smaller(rows - i, TILE_ROWS);
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
                .ahead = ahead_of(p, next, t, tiles),
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

static void run_pass(pass *p)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t column = 0; column < a->n; column += p->block_columns) {
        int64_t columns = smaller(a->n - column, p->block_columns);
        bool last = column + columns == a->n;
        pack_b(p, column, columns);
        for (int64_t row = 0; row < a->m; row += p->group_rows) {
            int64_t rows = smaller(a->m - row, p->group_rows);
            group next = next_group(p, row, last);
            pack_a(p, row, rows);
            multiply_block(p, row, rows, column, columns, &next);
        }
    }
}

/* Blocks of about the same number of columns. */
static int64_t block_columns(int64_t n, int64_t depth)
{
    int64_t most = ndm_fast_l2_bytes() * 7 / 10 / (int64_t)sizeof(float) / (depth + 1);
    int64_t units = (n + TILE_COLUMNS - 1) / TILE_COLUMNS, most_units = most / TILE_COLUMNS;

    if (most_units < 1)
        most_units = 1;
    int64_t blocks = (units + most_units - 1) / most_units;
    return (units + blocks - 1) / blocks * TILE_COLUMNS;
}

static ndm_status gemm_piece(const ndm_gemm_args *a)
{
    int64_t passes = (a->k + PASS_K - 1) / PASS_K, k_units = (a->k + VL - 1) / VL;
    int64_t depth = passes ? (k_units + passes - 1) / passes * VL : 0;
    pass p = {.args = a,
              .group_rows = a->trans_a ? GROUP_PANELS * TILE_ROWS : TILE_ROWS,
              .block_columns = block_columns(a->n, depth)};
    int64_t a_floats = p.group_rows * depth + VL, b_floats = p.block_columns * depth + FAR * VL;
    int64_t bytes = (a_floats + b_floats + 2 * VL) * (int64_t)sizeof(float);
    float *memory = ndm_fast_scratch(bytes);

    if (!memory)
        return ndm_fast_no_memory("gemm", bytes);
    if (a->beta != 1.0f && (a->beta != 0.0f || passes == 0))
        scale_c(a);
    p.pack_b = memory;
    p.pack_a = memory + (b_floats + VL - 1) / VL * VL;
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
