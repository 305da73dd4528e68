/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Linear layers that tensor parallelism cuts, for models of one's own: GEMMs and the collectives
 * around them (Shoeybi et al., "Megatron-LM", 2019; Korthikanti et al., "Reducing Activation
 * Recomputation", 2022).
 *
 * The role of the weight says how it is cut; the caller never asks which rank it is:
 *
 *     NDM_ROLE_COLUMN      x [L, in]    -> y [N, out/tp]   enters a region that tp splits
 *     NDM_ROLE_ROW         x [N, in/tp] -> y [L, out]      leaves it
 *     NDM_ROLE_REPLICATED  x [N, in]    -> y [N, out]      no collective; N: the rows it is given
 *
 * N rows are the tokens of this rank's dp and cp coordinates. L of them are this rank's own between
 * the regions: N/tp with sequence parallelism, else all N: ndm_linear_rows(). Sizes that tp does
 * not divide are rounded up (ndm_unit_local_shape()); what is too much is zero, in y as well.
 *
 * All arrays are device memory of the linear's dtype, row-major without gaps; weights are of the
 * unit's param_dtype.
 * Everything runs on the context's stream.
 */
#ifndef NDMESH_LINEAR_H
#define NDMESH_LINEAR_H

#include <ndmesh/unit.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { NDM_LINEAR_MAX = 4 };

/** y = x W^T + b, for up to 4 matrices that read the same x: their outputs lie side by side in a
 * row of y. Matrices of neighbouring parameters are one GEMM. A plain value, nothing to destroy. */
typedef struct ndm_linear {
    ndm_unit *unit;
    int n;                      /**< matrices, 1 to NDM_LINEAR_MAX, all of one role */
    int weight[NDM_LINEAR_MAX]; /**< [n] parameters of the unit, [out, in] or transposed */
    int bias[NDM_LINEAR_MAX];   /**< [n] parameters of the unit, [out], of the weight's role or,
                                   with rows, replicated; -1 = none */
    ndm_dtype dtype; /**< of x, y and their gradients: NDM_F32 (0), or NDM_BF16; cpu kernels are
                        slow in the latter */
    bool fp8; /**< products of 8-bit numbers: x and W in e4m3, dy in e5m2, each with one scale that
                 all ranks have: one all-reduce of 8 bytes more, over all ranks, a product */
} ndm_linear;

/** One matrix. */
#define NDM_LINEAR_INIT(unit, weight, bias)             \
    {                                                   \
        (unit), 1, {(weight)}, {(bias)}, NDM_F32, false \
    }

/**
 * Which of N rows are this rank's own: [*first, *first + *count).
 *
 * @retval NDM_ERR_CONFIG  sequence parallelism needs that tp divides the rows: pad them with tokens
 *                         that no loss counts
 */
NDM_API NDM_MUST_USE ndm_status ndm_linear_rows(const ndm_context *context, int64_t rows,
                                                int64_t *first, int64_t *count);

/** Widths of this rank: elements of a row of x and of y. */
NDM_API int64_t ndm_linear_in(const ndm_linear *linear);
NDM_API int64_t ndm_linear_out(const ndm_linear *linear);

/**
 * y = x W^T + b. The unit is unsharded.
 *
 * @param rows  N
 * @param x     shape by role, see above
 * @param all   where L < N, room for all rows of the side that L splits: a column linear fills [N,
 *              in], which the backward reads as x; a row linear scribbles over [N, out]. Elsewhere
 *              it is not looked at and may be NULL. x (column) or y (row) may be their own rows in
 *              it: then nothing is copied
 * @param y     shape by role
 *
 * Collective over: tp. Bytes received by a rank: a column linear (tp-1)/tp of [N, in] with sequence
 * parallelism, else nothing; a row linear (tp-1)/tp of [N, out] with it, else twice that.
 * Completes: on stream.
 * @retval NDM_ERR_USAGE  no such parameter, unlike roles, or a NULL array
 * @retval NDM_ERR_STATE  the unit is not unsharded
 */
NDM_API NDM_MUST_USE ndm_status ndm_linear_forward(const ndm_linear *linear, int64_t rows,
                                                   const void *x, void *all, void *y);

/**
 * Gradients: those of weight and bias are added to the unit's, dx is written. The unit is unsharded
 * and its gradients are begun. A bias counts once, whatever tp is.
 *
 * @param x    what the forward multiplied: [N, in] (a column linear's `all`, where L < N) or [N,
 *             in/tp]
 * @param dy   gradient of y, shaped like it
 * @param all  where L < N, room for [N, in] (column) or [N, out] (row), as in the forward
 * @param dx   gradient of the forward's x, shaped like it; NULL = not wanted, on all ranks of tp
 *
 * Collective over: tp, with the bytes of the forward of the other role. Completes: on stream.
 */
NDM_API NDM_MUST_USE ndm_status ndm_linear_backward(const ndm_linear *linear, int64_t rows,
                                                    const void *x, const void *dy, void *all,
                                                    void *dx);

#ifdef __cplusplus
}
#endif
#endif
