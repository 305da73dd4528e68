/* SPDX-License-Identifier: Apache-2.0 */
/* Local reduction of several arrays: the arithmetic of all host collectives. */
#ifndef NDM_COLLECTIVES_REDUCE_H
#define NDM_COLLECTIVES_REDUCE_H

#include <stdbool.h>

#include <ndmesh/types.h>

/* Does the arithmetic exist for this type? fp32, fp64, bf16, fp16, int32, int64. */
bool ndm_reduce_supports(ndm_dtype dtype);

/* out[i] = slices[0][i] op slices[1][i] op ... in this order. 16-bit types are summed in fp32 and
 * rounded once, or not at all with out_dtype NDM_F32; else out_dtype is dtype. out may be one of
 * the slices. A NaN in any slice gives NaN, for the maximum too. result_bytes: of the whole result,
 * of which this may be a part: what is more than a near cache holds is written past the caches; 0:
 * never, since it is read at once. */
void ndm_reduce_slices(void *out, ndm_dtype out_dtype, const void *const *slices, int64_t n_slices,
                       int64_t count, ndm_dtype dtype, ndm_reduce_op op, int64_t result_bytes);

/* Likewise, and every slice gets the result. */
void ndm_reduce_slices_to_all(void *const *slices, int64_t n_slices, int64_t count, ndm_dtype dtype,
                              ndm_reduce_op op);

#endif
