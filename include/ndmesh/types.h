/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Element types, reductions and mesh axes: the vocabulary shared by all public headers.
 */
#ifndef NDMESH_TYPES_H
#define NDMESH_TYPES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** Element type of a tensor or message. */
typedef enum ndm_dtype {
    NDM_F32 = 0,
    NDM_BF16 = 1,
    NDM_F16 = 2,
    NDM_F64 = 3,
    NDM_I32 = 4,
    NDM_I64 = 5,
    NDM_U8 = 6,
    NDM_U16 = 7,
    NDM_F8E4M3 = 8, /**< 4 bits of exponent, 3 of mantissa; no infinity */
    NDM_F8E5M2 = 9, /**< 5 bits of exponent, 2 of mantissa */
    NDM_DTYPE_COUNT
} ndm_dtype;

/** Reduction of a collective. */
typedef enum ndm_reduce_op { NDM_SUM = 0, NDM_MAX = 1 } ndm_reduce_op;

/** Axes of the mesh, outermost first; an axis set is a bit mask of `1u << axis`. */
typedef enum ndm_axis {
    NDM_DP_REPLICATE = 0,
    NDM_DP_SHARD = 1,
    NDM_CP = 2,
    NDM_TP = 3,
    NDM_AXIS_COUNT
} ndm_axis;

typedef unsigned ndm_axis_set;

#define NDM_AXIS_DP_REPLICATE (1u << NDM_DP_REPLICATE)
#define NDM_AXIS_DP_SHARD (1u << NDM_DP_SHARD)
#define NDM_AXIS_CP (1u << NDM_CP)
#define NDM_AXIS_TP (1u << NDM_TP)
#define NDM_AXES_DP (NDM_AXIS_DP_REPLICATE | NDM_AXIS_DP_SHARD) /**< distinct batches */
#define NDM_AXES_DP_SHARD_CP (NDM_AXIS_DP_SHARD | NDM_AXIS_CP)  /**< what FSDP shards over */
#define NDM_AXES_DP_CP (NDM_AXES_DP | NDM_AXIS_CP) /**< axes that split tokens: loss and counts */
#define NDM_AXES_ALL (NDM_AXES_DP_CP | NDM_AXIS_TP)

#ifdef __cplusplus
}
#endif
#endif
