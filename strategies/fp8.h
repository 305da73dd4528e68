/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of 8-bit numbers (strategies/fp8.c). */
#ifndef NDM_STRATEGIES_FP8_H
#define NDM_STRATEGIES_FP8_H

#include "strategies/internal.h"

enum { NDM_FP8_TENSORS = 8 };

/* A matrix on its way to 8 bits: rows of `stride`, of src_dtype; the result is packed. */
typedef struct ndm_fp8_tensor {
    const void *src;
    int64_t rows, width, stride;
    ndm_dtype src_dtype, dtype;
    int tensor;     /* parts of one tensor have one scale: its number, from 0 without gaps */
    uint8_t *bytes; /* [rows, width] of dtype */
    float *scale;   /* [1], what elements count */
} ndm_fp8_tensor;

/* Sets bytes and scale of n <= NDM_FP8_TENSORS matrices, in the context's workspace: what the last
 * call left there is lost. The largest magnitude of a tensor is that of all ranks, so every cut of
 * it has one scale: all-reduce over all axes, 4 bytes a tensor. */
NDM_MUST_USE ndm_status ndm_fp8_quantize(ndm_context *context, ndm_fp8_tensor *tensors, int n);

/* Its account, for linears that are multiplied once in this direction: one call each in the
 * forward, two in the backward, of two tensors. */
void ndm_fp8_describe(const ndm_context *context, ndm_direction direction, int64_t linears,
                      ndm_traffic_fn emit, void *user);

#endif
