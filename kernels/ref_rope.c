/* SPDX-License-Identifier: Apache-2.0 */
/* Reference rotary positions (Su et al., "RoFormer", 2021) in the half-split layout: pairs are (i,
 * i + D/2). */
#include "kernels/ref.h"

ndm_status ndm_ref_rope(const void *args)
{
    const ndm_rope_args *a = args;
    int64_t half = a->head_dim / 2;

    for (int64_t row = 0; row < a->n; row++) {
        const float *c = a->cos + a->positions[row] * half;
        const float *s = a->sin + a->positions[row] * half;
        for (int64_t head = 0; head < a->heads; head++) {
            ref_row x = ref_row_of(a->x, a->x_dtype, row * a->stride + head * a->head_dim);
            for (int64_t i = 0; i < half; i++) {
                double x0 = ref_get(x, i), x1 = ref_get(x, i + half), sine = (double)a->sign * s[i];
                ref_put(x, i, x0 * c[i] - x1 * sine);
                ref_put(x, i + half, x1 * c[i] + x0 * sine);
            }
        }
    }
    return NDM_OK;
}
