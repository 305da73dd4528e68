/* SPDX-License-Identifier: Apache-2.0 */
/* What reader and writer of safetensors share: a sorted list of tensors, and checked ranges. */
#ifndef NDM_MODEL_SAFETENSORS_INTERNAL_H
#define NDM_MODEL_SAFETENSORS_INTERNAL_H

#include "model/safetensors.h"

#define NDM_SAFETENSORS_MAX_HEADER (100 * 1000 * 1000) /* the format's own limit */
#define NDM_SAFETENSORS_CHUNK_BYTES ((int64_t)1 << 20) /* staging of conversions */

/* Elements and bytes of a shape. False if a dimension is negative or the product overflows. */
bool ndm_tensor_measure(ndm_dtype dtype, int ndim, const int64_t *shape, int64_t *count,
                        int64_t *bytes);

/* The tensor of that name in infos, [n], sorted by name; NULL if there is none. */
const ndm_tensor_info *ndm_tensor_find(const ndm_tensor_info *infos, int64_t n, const char *name);

/* Whether [first, first + n) lies in the tensor, and its type converts to dtype. path: the tensor's
 * file, for the message. */
NDM_MUST_USE ndm_status ndm_tensor_check_range(const ndm_tensor_info *info, const char *path,
                                               int64_t first, int64_t n, ndm_dtype dtype);
NDM_MUST_USE ndm_status ndm_tensor_check_block(const ndm_tensor_info *info, const char *path,
                                               int64_t r0, int64_t r1, int64_t c0, int64_t c1,
                                               ndm_dtype dtype);

/* Copies or converts n elements. */
void ndm_tensor_convert(const void *src, ndm_dtype src_dtype, void *dst, ndm_dtype dst_dtype,
                        int64_t n);

/* "[2, 3]" in buffer; returns buffer. */
const char *ndm_tensor_shape_text(int ndim, const int64_t *shape, char *buffer,
                                  int64_t buffer_bytes);

int ndm_tensor_compare_names(const void *a,
                             const void *b); /* for qsort and bsearch of ndm_tensor_info */

#endif
