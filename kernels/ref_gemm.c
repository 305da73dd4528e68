/* SPDX-License-Identifier: Apache-2.0 */
/* Reference matrix product: every element is one sum in double over ascending k. */
#include "kernels/ref.h"

enum { BLOCK = 64 };

/* sum[j] = op(A)[row, :] op(B)[:, first + j] for j < count. */
static void row_times_columns(const ndm_gemm_args *a, int64_t row, int64_t first, int64_t count,
                              double *sum)
{
    for (int64_t j = 0; j < count; j++)
        sum[j] = 0.0;
    for (int64_t k = 0; k < a->k; k++) {
        double x = ref_load(a->a, a->a_dtype, a->trans_a ? k * a->lda + row : row * a->lda + k);
        for (int64_t j = 0; j < count; j++) {
            int64_t col = first + j;
            sum[j] += x *
                      ref_load(a->b, a->b_dtype, a->trans_b ? col * a->ldb + k : k * a->ldb + col);
        }
    }
}

static void finish_row(const ndm_gemm_args *a, int64_t row, int64_t first, int64_t count,
                       const double *sum)
{
    ndm_dtype bias_dtype = ndm_dtype_is_f8(a->b_dtype) ? a->bias_dtype : a->b_dtype;
    double scale = (double)a->alpha * (a->a_scale ? *a->a_scale : 1.0f);

    scale *= a->b_scale ? *a->b_scale : 1.0f;
    for (int64_t j = 0; j < count; j++) {
        int64_t at = row * a->ldc + first + j;
        double value = scale * sum[j];
        if (a->beta != 0.0f)
            value += (double)a->beta * ref_load(a->c, a->c_dtype, at);
        if (a->bias)
            value += ref_load(a->bias, bias_dtype, first + j);
        ref_store(a->c, a->c_dtype, at, (float)value);
    }
}

ndm_status ndm_ref_gemm(const void *args)
{
    const ndm_gemm_args *a = args;
    double sum[BLOCK];

    for (int64_t row = 0; row < a->m; row++) {
        for (int64_t first = 0; first < a->n; first += BLOCK) {
            int64_t count = a->n - first < BLOCK ? a->n - first : BLOCK;
            row_times_columns(a, row, first, count, sum);
            finish_row(a, row, first, count, sum);
        }
    }
    return NDM_OK;
}
