/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * A trainer: optimizer steps of a model, each over several micro-batches.
 */
#ifndef NDMESH_TRAINER_H
#define NDMESH_TRAINER_H

#include <ndmesh/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_trainer ndm_trainer;

typedef enum ndm_lr_schedule { NDM_LR_CONSTANT = 0, NDM_LR_LINEAR, NDM_LR_COSINE } ndm_lr_schedule;

typedef struct ndm_trainer_options {
    size_t size;                 /**< sizeof(ndm_trainer_options) */
    int64_t grad_accum;          /**< micro-batches of a step; default 1 */
    int64_t steps;               /**< of the whole run, for the schedule; default 1 */
    ndm_step_options optimizer;  /**< lr is that of the end of the warm-up */
    ndm_lr_schedule lr_schedule; /**< default NDM_LR_CONSTANT */
    int64_t warmup;              /**< steps of linear warm-up; default 0 */
    double min_lr_ratio;         /**< last lr over lr, linear and cosine; default 0 */
    /** Launch a step as one graph, from the third on; default auto: where the device has graphs and
     * steps are alike, which takes one micro-batch and collectives that the device makes itself */
    ndm_toggle graphs;
} ndm_trainer_options;

#define NDM_TRAINER_OPTIONS_INIT                                                           \
    {                                                                                      \
        sizeof(ndm_trainer_options), 1, 1, NDM_STEP_OPTIONS_INIT, NDM_LR_CONSTANT, 0, 0.0, \
            NDM_TOGGLE_AUTO                                                                \
    }

/** What a step gives, the same on all ranks but for times of this rank. */
typedef struct ndm_step_result {
    int64_t step;     /**< from 1 */
    double loss;      /**< sum over valid tokens of the step / their number; 0 without any */
    double grad_norm; /**< before clipping */
    double lr;
    int64_t tokens;       /**< valid tokens of the step, over all ranks */
    int64_t tokens_total; /**< since the first step */
    double step_ms;
    double comm_exposed_ms; /**< worst rank: time that compute stood waiting for communication */
    int64_t mem_peak_bytes; /**< worst rank */
    bool stop;              /**< some rank called ndm_trainer_request_stop() */
} ndm_step_result;

/** @param options  NULL = defaults. @retval NDM_ERR_CONFIG  an option is out of range. @retval
 * NDM_ERR_MISMATCH ranks differ in an option. @retval NDM_ERR_UNSUPPORTED graphs are on and cannot
 * be. Collective over: world. The model must outlive the trainer. */
NDM_API NDM_MUST_USE ndm_status ndm_trainer_create(ndm_model *model,
                                                   const ndm_trainer_options *options,
                                                   ndm_trainer **trainer);
NDM_API void ndm_trainer_destroy(ndm_trainer *trainer); /**< NULL is fine */

/**
 * One optimizer step.
 *
 * @param batch   micro_batch * grad_accum sequences of this data-parallel rank, micro-batch after
 * micro-batch
 * @param result  receives loss, norm and times
 *
 * The loss is one sum over one count: ranks and micro-batches may hold any number of valid tokens,
 * also none. Collective over: world. Completes: on return.
 * @retval NDM_ERR_CONFIG     an id or label is outside the vocabulary, or a position outside the
 * sequence, on some rank
 * @retval NDM_ERR_USAGE      the batch has another number of sequences, or lacks inputs or targets,
 * on some rank. After either, the trainer is as it was: the next step may be right
 * @retval NDM_ERR_NONFINITE  loss or norm is not finite: no weight was changed, on any rank
 * @retval NDM_ERR_MISMATCH   ranks were given unlike rates (ndm_trainer_set_lr())
 */
NDM_API NDM_MUST_USE ndm_status ndm_trainer_step(ndm_trainer *trainer, const ndm_batch *batch,
                                                 ndm_step_result *result);

/**
 * Loss over batches without training: sum and number of valid tokens, over the world.
 * @param batch  micro_batch sequences. Collective over: world.
 */
NDM_API NDM_MUST_USE ndm_status ndm_trainer_evaluate(ndm_trainer *trainer, const ndm_batch *batch,
                                                     double *loss_sum, int64_t *tokens);

/**
 * The learning rate of the steps that follow, in place of the schedule's: for programs that have a
 * schedule of their own. Not collective, but every rank gives the same number before a step; else
 * that step, which has changed the weights, ends in NDM_ERR_MISMATCH.
 *
 * @param lr  NAN: the schedule's again
 * @retval NDM_ERR_CONFIG  lr is negative or infinite
 */
NDM_API NDM_MUST_USE ndm_status ndm_trainer_set_lr(ndm_trainer *trainer, double lr);

/** Makes the next step, and those after it, report stop on all ranks. May be called from a signal
 * handler. */
NDM_API void ndm_trainer_request_stop(ndm_trainer *trainer);

NDM_API ndm_optimizer *ndm_trainer_optimizer(const ndm_trainer *trainer);
NDM_API int64_t ndm_trainer_steps(const ndm_trainer *trainer); /**< steps done */

#ifdef __cplusplus
}
#endif
#endif
