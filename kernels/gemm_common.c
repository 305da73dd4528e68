/* SPDX-License-Identifier: Apache-2.0 */
/* A GEMM cut over OpenMP threads by blocks of C. */
#include <math.h>
#include <stdatomic.h>

#include <omp.h>

#include "kernels/gemm_common.h"

typedef struct grid {
    int rows, columns;
} grid;

static int64_t units(int64_t count, int64_t unit)
{
    return unit ? (count + unit - 1) / unit : 1;
}

/* Time in proportion to the largest block, plus what packing its rows of A and columns of B adds.
 */
static double grid_cost(const ndm_gemm_args *a, const ndm_gemm_cut *cut, grid g)
{
    double rows = (double)(units(units(a->m, cut->row_unit), g.rows) * cut->row_unit);
    double columns = (double)a->n;

    if (cut->column_unit)
        columns = (double)(units(units(a->n, cut->column_unit), g.columns) * cut->column_unit);
    return rows * columns + 16.0 * (rows + columns);
}

static grid choose_grid(const ndm_gemm_args *a, const ndm_gemm_cut *cut)
{
    int64_t most = 2 * a->m * a->n * a->k / cut->least_flops;
    int threads = most > 1 ? ndm_fast_threads_most() : 1;
    grid best = {1, 1};
    double least = INFINITY;

    if (threads > most)
        threads = most > 1 ? (int)most : 1;
    for (int rows = 1; rows <= threads; rows++) {
        grid g = {rows, threads / rows};
        if (rows > 1 && a->m / rows < cut->least_rows + cut->row_unit)
            break;
        if (g.columns > units(a->n, cut->column_unit))
            g.columns = (int)units(a->n, cut->column_unit);
        if (rows <= units(a->m, cut->row_unit) && grid_cost(a, cut, g) < least) {
            least = grid_cost(a, cut, g);
            best = g;
        }
    }
    return best;
}

static const void *element(const void *array, ndm_dtype dtype, int64_t i)
{
    return (const char *)array + i * (int64_t)ndm_dtype_bytes(dtype);
}

/* The product of rows first_row .. and columns first_column .. of C. */
static ndm_gemm_args sub_product(const ndm_gemm_args *a, int64_t first_row, int64_t rows,
                                 int64_t first_column, int64_t columns)
{
    ndm_gemm_args s = *a;

    s.m = rows;
    s.n = columns;
    s.a = element(a->a, a->a_dtype, a->trans_a ? first_row : first_row * a->lda);
    s.b = element(a->b, a->b_dtype, a->trans_b ? first_column * a->ldb : first_column);
    s.c = (float *)a->c + first_row * a->ldc + first_column;
    s.bias = a->bias ? element(a->bias, a->b_dtype, first_column) : NULL;
    return s;
}

ndm_status ndm_gemm_run(const ndm_gemm_args *a, const ndm_gemm_cut *cut, ndm_gemm_piece piece)
{
    int64_t column_unit = cut->column_unit ? cut->column_unit : a->n;
    grid g = choose_grid(a, cut);
    _Atomic int status = NDM_OK;

    if (a->m == 0 || a->n == 0)
        return NDM_OK;
    if (a->a_dtype != NDM_F32 || a->c_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_gemm, a); /* activations are fp32 in the cpu world */
    if (g.rows * g.columns == 1)
        return piece(a);
#pragma omp parallel num_threads(g.rows *g.columns)
    for (int id = omp_get_thread_num(); id < g.rows * g.columns; id += omp_get_num_threads()) {
        int64_t row, row_end, column, column_end;
        ndm_fast_part(a->m, cut->row_unit, id / g.columns, g.rows, &row, &row_end);
        ndm_fast_part(a->n, column_unit, id % g.columns, g.columns, &column, &column_end);
        ndm_gemm_args sub = sub_product(a, row, row_end - row, column, column_end - column);
        ndm_status mine = sub.m && sub.n ? piece(&sub) : NDM_OK;
        if (mine != NDM_OK)
            atomic_store(&status, (int)mine);
    }
    return (ndm_status)atomic_load(&status);
}

void ndm_gemm_add_bias(const ndm_gemm_args *a)
{
    float bias[256];

    for (int64_t first = 0; first < a->n; first += 256) {
        int64_t count = a->n - first < 256 ? a->n - first : 256;
        ndm_convert(element(a->bias, a->b_dtype, first), a->b_dtype, bias, NDM_F32, count);
        for (int64_t i = 0; i < a->m; i++) {
            float *c = (float *)a->c + i * a->ldc + first;
            for (int64_t j = 0; j < count; j++)
                c[j] += bias[j];
        }
    }
}
