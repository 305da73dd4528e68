/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding: rows over threads forward; backward each thread owns columns and goes through the rows
 * in order. */
#include "kernels/fast.h"
#include "kernels/simd.h"

static void gather_row(const ndm_embedding_args *a, int64_t i)
{
    int64_t row = a->ids[i] - a->first;
    bool here = row >= 0 && row < a->rows;
    float *out = ndm_fast_out(a->out) + i * a->width;

    SIMD_FOR (j, lanes, a->width) {
        vf value = vf_zero();
        if (here)
            value = vf_set(a->scale) * vf_load_as(a->table, a->dtype, row * a->width + j, lanes);
        if (a->position_table)
            value += vf_load_as(a->position_table, a->dtype, a->positions[i] * a->width + j, lanes);
        vf_store_n(out + j, value, lanes);
    }
}

ndm_status NDM_FAST(embedding)(const void *args)
{
    const ndm_embedding_args *a = args;
    int threads = ndm_fast_threads(a->n * a->width / 4);

    if (a->out_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_embedding, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t i = 0; i < a->n; i++)
        gather_row(a, i);
    return NDM_OK;
}

static void add_row(float *to, const float *from, float scale, int64_t width)
{
    SIMD_FOR (j, lanes, width)
        vf_store_n(to + j,
                   vf_fma(vf_set(scale), vf_load_n(from + j, lanes), vf_load_n(to + j, lanes)),
                   lanes);
}

/* Columns [first, end) of a row of the table, or what of them dtable has. */
static void add_table_row(const ndm_embedding_backward_args *a, int64_t row, const float *gradient,
                          int64_t first, int64_t end)
{
    int64_t base = row * a->width - a->part_first; /* of column 0 in dtable */

    if (a->part_count > 0) {
        first = base + first < 0 ? -base : first;
        end = base + end > a->part_count ? a->part_count - base : end;
    }
    if (first < end)
        add_row(a->dtable + base + first, gradient + first, a->scale, end - first);
}

static void scatter_columns(const ndm_embedding_backward_args *a, int64_t first, int64_t end)
{
    for (int64_t i = 0; i < a->n; i++) {
        const float *gradient = ndm_fast_in(a->dout) + i * a->width;
        int64_t row = a->ids[i] - a->first;
        if (row >= 0 && row < a->rows)
            add_table_row(a, row, gradient, first, end);
        if (a->dposition_table && a->positions[i] >= 0 && a->positions[i] < a->position_rows)
            add_row(a->dposition_table + a->positions[i] * a->width + first, gradient + first, 1.0f,
                    end - first);
    }
}

ndm_status NDM_FAST(embedding_backward)(const void *args)
{
    enum { COLUMN_UNIT = 16 }; /* a cache line */
    const ndm_embedding_backward_args *a = args;
    int threads = ndm_fast_threads(a->n * a->width / 4);

    if (a->dout_dtype != NDM_F32)
        return ndm_kernels_call_ref(NDM_OP_embedding_backward, args);
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int part = 0; part < threads; part++) {
        int64_t first, end;
        ndm_fast_part(a->width, COLUMN_UNIT, part, threads, &first, &end);
        if (first < end)
            scatter_columns(a, first, end);
    }
    return NDM_OK;
}
