/* SPDX-License-Identifier: Apache-2.0 */
/* Reference embedding. Ids outside [first, first + rows) belong to another tp rank, or to none:
 * their rows are 0. Whether an id is below the vocabulary is checked where the data is read. */
#include "kernels/ref.h"

ndm_status ndm_ref_embedding(const void *args)
{
    const ndm_embedding_args *a = args;

    for (int64_t i = 0; i < a->n; i++) {
        int64_t row = a->ids[i] - a->first;
        bool here = row >= 0 && row < a->rows;
        for (int64_t j = 0; j < a->width; j++) {
            float value = here ? a->scale * ref_load(a->table, a->dtype, row * a->width + j) : 0.0f;
            if (a->position_table)
                value += ref_load(a->position_table, a->dtype, a->positions[i] * a->width + j);
            ref_store(a->out, a->out_dtype, i * a->width + j, value);
        }
    }
    return NDM_OK;
}

/* To elements [from, to) of the table, which lie at `table`. */
static void add_row(float *table, int64_t from, int64_t to, int64_t row, ref_row gradient,
                    float scale, int64_t width)
{
    for (int64_t j = 0; j < width; j++) {
        int64_t at = row * width + j;
        if (at >= from && at < to)
            table[at - from] += scale * ref_get(gradient, j);
    }
}

/* Row after row, in fp32: the order is part of the definition. */
ndm_status ndm_ref_embedding_backward(const void *args)
{
    const ndm_embedding_backward_args *a = args;
    int64_t from = a->part_count > 0 ? a->part_first : 0;
    int64_t to = a->part_count > 0 ? from + a->part_count : a->rows * a->width;

    for (int64_t i = 0; i < a->n; i++) {
        ref_row gradient = ref_row_of(a->dout, a->dout_dtype, i * a->width);
        int64_t row = a->ids[i] - a->first;
        if (row >= 0 && row < a->rows)
            add_row(a->dtable, from, to, row, gradient, a->scale, a->width);
        if (a->dposition_table && a->positions[i] >= 0 && a->positions[i] < a->position_rows)
            add_row(a->dposition_table, 0, a->position_rows * a->width, a->positions[i], gradient,
                    1.0f, a->width);
    }
    return NDM_OK;
}
