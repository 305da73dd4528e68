/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * AdamW on the slices of units, with clipping by the global norm.
 */
#ifndef NDMESH_OPTIMIZER_H
#define NDMESH_OPTIMIZER_H

#include <ndmesh/unit.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_optimizer ndm_optimizer;

/** Which norm of all gradients together is measured, and clipped by. */
typedef enum ndm_grad_norm {
    NDM_GRAD_NORM_2 = 0, /**< square root of the sum of squares */
    NDM_GRAD_NORM_INF    /**< largest absolute value */
} ndm_grad_norm;

/** Hyper-parameters of one step, as torch.optim.AdamW and clip_grad_norm_ define them. */
typedef struct ndm_step_options {
    size_t size;             /**< sizeof(ndm_step_options) */
    double lr;               /**< default 1e-3 */
    double beta1, beta2;     /**< default 0.9, 0.95 */
    double eps;              /**< default 1e-8; 0: elements without any gradient stay as they are */
    double weight_decay;     /**< on parameters of 2 dimensions; default 0.1 */
    double grad_clip;        /**< largest global norm; 0 = no clipping; default 1 */
    ndm_grad_norm grad_norm; /**< default NDM_GRAD_NORM_2 */
} ndm_step_options;

#define NDM_STEP_OPTIONS_INIT                                                      \
    {                                                                              \
        sizeof(ndm_step_options), 1e-3, 0.9, 0.95, 1e-8, 0.1, 1.0, NDM_GRAD_NORM_2 \
    }

/** Makes state for the slices of units, [n_units], each once, zero. The units must outlive it. A
 * unit that is in none is never changed. Not collective. */
NDM_API NDM_MUST_USE ndm_status ndm_optimizer_create(ndm_context *context, ndm_unit *const *units,
                                                     int64_t n_units, ndm_optimizer **optimizer);
NDM_API void ndm_optimizer_destroy(ndm_optimizer *optimizer); /**< NULL is fine */

/**
 * Norm, clip, AdamW. The norm counts every logical parameter once, whatever is replicated or tied;
 * squares are summed in double, and the infinity norm is a maximum.
 *
 * @param options  NULL = defaults
 * @param sums  NULL, or [n_sums] doubles of this rank, at most 8, that are summed over the world in
 * the same message (loss, counts)
 * @param norm  receives the norm before clipping, the same on all ranks; like sums also where it is
 * not finite
 *
 * Collective over: world. Completes: on return for norm and sums; on the context's stream for the
 * weights.
 * @retval NDM_ERR_CONFIG     a hyper-parameter is not in its range: 0 <= beta < 1, the others
 * finite and not negative
 * @retval NDM_ERR_NONFINITE  the norm or a sum is not finite: no weight was touched, on any rank,
 * and the gradients are dropped
 * @retval NDM_ERR_STATE      a unit has no reduced gradient
 */
NDM_API NDM_MUST_USE ndm_status ndm_optimizer_step(ndm_optimizer *optimizer,
                                                   const ndm_step_options *options, double *sums,
                                                   int64_t n_sums, double *norm);

NDM_API int64_t ndm_optimizer_steps(const ndm_optimizer *optimizer); /**< steps done */
NDM_API void ndm_optimizer_set_steps(ndm_optimizer *optimizer,
                                     int64_t steps); /**< after loading state */

/** The two moments of AdamW. */
typedef enum ndm_moment { NDM_EXP_AVG, NDM_EXP_AVG_SQ } ndm_moment;

/** As ndm_unit_read() and ndm_unit_write(), for a moment of a unit. */
NDM_API NDM_MUST_USE ndm_status ndm_optimizer_read(ndm_optimizer *optimizer, int64_t unit,
                                                   ndm_moment moment, ndm_unit_range_fn read,
                                                   void *user);
NDM_API NDM_MUST_USE ndm_status ndm_optimizer_write(ndm_optimizer *optimizer, int64_t unit,
                                                    ndm_moment moment, ndm_unit_range_fn write,
                                                    void *user);

#ifdef __cplusplus
}
#endif
#endif
