/* SPDX-License-Identifier: Apache-2.0 */
/* SGEMM after Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008.
 *
 * K is cut into passes. Of a pass, B is packed by panels of TILE_COLUMNS columns, as many as L2
 * holds beside what streams through. A goes over all of these by panels of TILE_ROWS rows, packed a
 * bit after each tile of the panels before, from lines that were fetched during that tile: they
 * need to stay in L2 for no longer, where rows a power of two apart would push each other out. So
 * both are read from L2 at most, which the micro-kernel keeps up with, and C is fetched long before
 * its sums are complete. Both transposes, and bf16 or fp16 B, are dealt with by packing: rows of A
 * are copied as they are, columns of a transposed A by TILE_ROWS. What the last rows and columns of
 * C lack to a tile is made up in a buffer, with the same arithmetic. */
#include "kernels/fast_micro.h"
#include "kernels/gemm_common.h"

enum {
    TILE_ROWS = MICRO_ROWS_2,
    TILE_COLUMNS = 2 * VL,
    PASS_K = 704,     /* at most; passes are equal */
    ROW_LD = 720,     /* of A's rows as they are copied: an odd number of cache lines */
    GROUP_PANELS = 4, /* of a transposed A packed together: its rows are then whole cache lines */
    FAR_ROWS = 8,     /* of B as it is stored, the same while it is packed */
    FAR_K = 64,       /* of a transposed B, along its rows */
    FAR = 16,         /* rows of B fetched ahead */
};

_Static_assert((int)TILE_ROWS <= (int)VL, "a panel's row of a transposed A is stored as a vector");

/* Rows of A that are packed together. */
typedef struct group {
    int64_t k, depth, row, rows;
} group;

/* One pass over k .. k + depth of one block of columns of C. */
typedef struct pass {
    const ndm_gemm_args *args;
    int64_t k, depth;
    bool add;                  /* C holds something already */
    int64_t group_rows;        /* of A packed at once */
    int64_t block_columns;     /* of B packed at once */
    int64_t panel_a, panel_b;  /* floats from a panel to the next; a: of a transposed A */
    group now;                 /* the group packed last, or being packed */
    float *pack_a, *pack_next; /* [TILE_ROWS][ROW_LD]; transposed [panels][depth][TILE_ROWS] */
    float *pack_b;             /* [columns / TILE_COLUMNS][depth][TILE_COLUMNS] */
} pass;

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- packing -------------------------------------------------------------------------------- */

/* Part t of n of a group: rows of what is stored. */
typedef struct group_part {
    const float *from;
    int64_t first, end, length;
} group_part;

static group_part part_of(const pass *p, const group *g, int64_t t, int64_t n)
{
    const ndm_gemm_args *a = p->args;
    int64_t rows = a->trans_a ? g->depth : g->rows;
    group_part part = {.first = rows * t / n, .end = rows * (t + 1) / n};

    part.length = a->trans_a ? g->rows : g->depth;
    part.from = (const float *)a->a + (a->trans_a ? (g->k + part.first) * a->lda + g->row
                                                  : (g->row + part.first) * a->lda + g->k);
    return part;
}

/* A row of a transposed A, over all panels. What a vector has more than a panel's row is
 * overwritten by the next row, or lies between panels. */
static void pack_a_row(const pass *p, const float *from, int64_t rows, float *to)
{
    int64_t i = 0;

    for (; i + TILE_ROWS <= rows && i + VL <= rows; i += TILE_ROWS, to += p->panel_a)
        vf_store(to, vf_load(from + i));
    for (; i < rows; i += TILE_ROWS, to += p->panel_a)
        SIMD_FOR (j, lanes, smaller(rows - i, TILE_ROWS))
            vf_store_n(to + j, vf_load_n(from + i + j, lanes), lanes);
}

static void pack_a(const pass *p, const group *g, int64_t t, int64_t n, float *to)
{
    const ndm_gemm_args *a = p->args;
    group_part part = part_of(p, g, t, n);

    for (int64_t i = part.first; i < part.end; i++, part.from += a->lda) {
        if (a->trans_a) {
            pack_a_row(p, part.from, part.length, to + i * TILE_ROWS);
            continue;
        }
        SIMD_FOR (k, lanes, part.length)
            vf_store(to + i * ROW_LD + k, vf_load_n(part.from + k, lanes));
    }
}

/* What the caches do not see coming: rows of B, far apart. Into L2: a core has more misses of that
 * cache in flight than of the first, and packing waits for them alone. */
SIMD void fetch_far(const void *at)
{
    __builtin_prefetch(at, 0, 2);
}

SIMD void fetch_b(const ndm_gemm_args *a, int64_t i)
{
    fetch_far((const char *)a->b + (a->b_dtype == NDM_F32 ? 4 : 2) * i);
}

/* Columns first .. first + VL, into half a panel. */
static void pack_b_transposed(const pass *p, int64_t first, int64_t columns, float *to)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t k = 0; k < p->depth && columns <= 0; k++)
        vf_store(to + k * TILE_COLUMNS, vf_zero());
    for (int64_t k = 0; k < p->depth && columns > 0; k += VL) {
        SIMD_UNROLL
        for (int64_t i = 0; i < VL; i++)
            fetch_b(a, (first + i) * a->ldb + p->k + k + FAR_K);
        vf_transpose_block(a->b, a->b_dtype, first * a->ldb + p->k + k, a->ldb, columns,
                           p->depth - k, to + k * TILE_COLUMNS, TILE_COLUMNS);
    }
}

static void pack_b_row(const pass *p, int64_t k, int64_t first, int64_t columns, float *to)
{
    const ndm_gemm_args *a = p->args;
    int64_t from = (p->k + k) * a->ldb + first, j = 0;
    int64_t whole = a->b_dtype == NDM_F32 ? columns / TILE_COLUMNS * TILE_COLUMNS : 0;
    const float *row = (const float *)a->b + from;

    for (; j < whole; j += TILE_COLUMNS, to += p->panel_b) {
        SIMD_UNROLL
        for (int i = 0; i < TILE_COLUMNS; i += VL) {
            fetch_far(row + FAR_ROWS * a->ldb + j + i);
            vf_store(to + i, vf_load(row + j + i));
        }
    }
    for (; j < columns; j += TILE_COLUMNS, to += p->panel_b)
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
            pack_b_transposed(p, first + j + i, columns - j - i,
                              p->pack_b + j / TILE_COLUMNS * p->panel_b + i);
}

/* ---- tiles ---------------------------------------------------------------------------------- */

/* A's strides are constants of the code, either way it was packed. */
SIMD void strided(const int rows, const micro_args *m)
{
    micro_args s = *m;

    if (m->acs == 1) {
        s.ars = ROW_LD;
        s.acs = 1;
        micro(rows, 2, &s, FAR);
    } else {
        s.ars = 1;
        s.acs = TILE_ROWS;
        micro(rows, 2, &s, FAR);
    }
}

#define TILE_CASE(R)                            \
    case R:                                     \
        if (R <= TILE_ROWS)                     \
            strided(R <= TILE_ROWS ? R : 1, m); \
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
        strided(TILE_ROWS, m);
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

/* What is packed during the tiles of a group: the next one. */
static group next_group(const pass *p, const group *now, bool last_block)
{
    const ndm_gemm_args *a = p->args;
    group g = {now->k, now->depth, now->row + now->rows, 0};

    if (g.row >= a->m) {
        g.row = 0;
        g.k += last_block ? p->depth : 0;
        g.depth = smaller(p->depth, a->k - g.k);
    }
    g.rows = g.depth > 0 ? smaller(p->group_rows, a->m - g.row) : 0;
    return g;
}

/* Its part of a tile, to fetch before it is packed. */
static micro_ahead ahead_of(const pass *p, const group *g, int64_t t, int64_t n)
{
    group_part part = part_of(p, g, t, n);

    return (micro_ahead){part.from, p->args->lda, part.end - part.first,
                         (part.length + 2 * MICRO_LINE - 2) / MICRO_LINE};
}

/* Rows of group g and columns column .. of C, both packed; packs the next group meanwhile. */
static void multiply_block(const pass *p, const group *g, int64_t column, int64_t columns,
                           const group *next)
{
    const ndm_gemm_args *a = p->args;
    int64_t t = 0, tiles = ((g->rows + TILE_ROWS - 1) / TILE_ROWS) *
                           ((columns + TILE_COLUMNS - 1) / TILE_COLUMNS);

    for (int64_t i = 0; i < g->rows; i += TILE_ROWS)
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS, t++) {
            int64_t high = smaller(g->rows - i, TILE_ROWS);
            micro_args m = {
                .k = p->depth,
                .a = p->pack_a + i / TILE_ROWS * p->panel_a,
                .b = p->pack_b + j / TILE_COLUMNS * p->panel_b,
                .ars = a->trans_a ? 1 : ROW_LD,
                .acs = a->trans_a ? TILE_ROWS : 1,
                .ldb = TILE_COLUMNS,
                .alpha = a->alpha,
                .add = p->add,
                .c = (float *)a->c + (g->row + i) * a->ldc + column + j,
                .ldc = a->ldc,
                .ahead = ahead_of(p, next, t, tiles),
            };
            if (columns - j < TILE_COLUMNS)
                edge_tile(high, columns - j, &m);
            else
                tile(high, &m);
            pack_a(p, next, t, tiles, p->pack_next);
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

static void swap_packed(pass *p)
{
    float *packed = p->pack_next;

    p->pack_next = p->pack_a;
    p->pack_a = packed;
}

static void run_pass(pass *p)
{
    const ndm_gemm_args *a = p->args;

    for (int64_t column = 0; column < a->n; column += p->block_columns) {
        int64_t columns = smaller(a->n - column, p->block_columns);
        bool last = column + columns == a->n;
        pack_b(p, column, columns);
        do {
            group now = p->now;
            p->now = next_group(p, &now, last);
            multiply_block(p, &now, column, columns, &p->now);
            swap_packed(p);
        } while (p->now.row > 0);
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
    p.panel_b = depth * TILE_COLUMNS + 3 * VL;
    p.panel_a = depth * TILE_ROWS + VL;
    int64_t a_floats = a->trans_a ? GROUP_PANELS * p.panel_a + VL : TILE_ROWS * ROW_LD + VL,
            b_floats = p.block_columns / TILE_COLUMNS * p.panel_b + 2 * FAR * VL;
    int64_t bytes = (2 * a_floats + b_floats + 3 * VL) * (int64_t)sizeof(float);
    float *memory = ndm_fast_scratch(bytes);

    if (!memory)
        return ndm_fast_no_memory("gemm", bytes);
    if (a->beta != 1.0f && (a->beta != 0.0f || passes == 0))
        scale_c(a);
    p.pack_b = memory;
    p.pack_a = memory + (b_floats + VL - 1) / VL * VL;
    p.pack_next = p.pack_a + (a_floats + VL - 1) / VL * VL;
    p.depth = depth;
    p.now = (group){0, smaller(depth, a->k), 0, smaller(p.group_rows, a->m)};
    pack_a(&p, &p.now, 0, 1, p.pack_a);
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
