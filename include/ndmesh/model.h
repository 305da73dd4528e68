/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Decoder models of the Llama family and its relatives over a mesh: weights in units, forward and
 * backward as lists of ops.
 */
#ifndef NDMESH_MODEL_H
#define NDMESH_MODEL_H

#include <ndmesh/context.h>
#include <ndmesh/optimizer.h>
#include <ndmesh/strategy.h>
#include <ndmesh/unit.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_model ndm_model;

/** Which ops run again ahead of the backward, so that less is kept (Korthikanti et al., "Reducing
 * Activation Recomputation", 2022). Outputs of activations are never kept, and those of norms only
 * where tp gathers them: their backward makes them on the way. */
typedef enum ndm_recompute {
    NDM_RECOMPUTE_NONE = 0,
    NDM_RECOMPUTE_FULL,     /**< all: keep the input of each layer only */
    NDM_RECOMPUTE_SELECTIVE /**< norms whose output tp gathers; without such, as none */
} ndm_recompute;

/** Shape of the work: fixed for the life of a model, so that all memory is planned before the first
 * step. */
typedef struct ndm_model_options {
    size_t size;         /**< sizeof(ndm_model_options) */
    int64_t micro_batch; /**< sequences of one forward on this data-parallel rank; default 1 */
    int64_t seq_len;     /**< tokens of a sequence, before cp cuts it; 0 (default): the model's max
                            positions */
    ndm_recompute recompute; /**< default NDM_RECOMPUTE_NONE */
    int64_t head_chunk; /**< rows of logits made at a time; 0 (default): as many as fit 64 MiB */
    double label_smoothing;     /**< 0 <= s < 1; default 0 */
    ndm_dtype activation_dtype; /**< of activations and their gradients: NDM_F32, NDM_BF16, or
                                   NDM_DTYPE_COUNT (default): the units' param_dtype where the
                                   device computes in it, else NDM_F32 */
    int64_t tp_overlap_chunks;  /**< parts in which rows pass into and out of split regions, at most
                                   16, so that products run beside collectives; 0 (default): one */
    bool fp8; /**< products of the layers with 8-bit numbers (ndm_linear); default false */
} ndm_model_options;

#define NDM_MODEL_OPTIONS_INIT                                                                 \
    {                                                                                          \
        sizeof(ndm_model_options), 1, 0, NDM_RECOMPUTE_NONE, 0, 0.0, NDM_DTYPE_COUNT, 0, false \
    }

/** Sequences of one data-parallel rank, in host memory; cp ranks pass the whole sequences and take
 * their part. */
typedef struct ndm_batch {
    int64_t sequences;      /**< B */
    const int32_t *inputs;  /**< [B, seq_len] token ids */
    const int32_t *targets; /**< [B, seq_len] id to predict after each input; negative = ignored */
    const int32_t
        *positions; /**< [B, seq_len] position of a token in its document, or NULL: 0..seq_len-1 */
    const int32_t *first; /**< [B, seq_len] first index in the sequence it may attend to, at most
                             its own, or NULL: 0 */
} ndm_batch;

/**
 * Makes a model without weights from a Hugging Face config.json, its folder, or a preset's name.
 *
 * @param model_name  "path/to/folder", "path/to/config.json" or a preset such as "llama-tiny"
 * @param fsdp        NULL = defaults
 * @param options     NULL = defaults
 *
 * Collective over: world.
 * @retval NDM_ERR_CONFIG  the config, or its fit to the mesh, breaks a rule; names file and key, or
 * the numbers
 * @retval NDM_ERR_FORMAT, NDM_ERR_IO, NDM_ERR_MEMORY
 */
NDM_API NDM_MUST_USE ndm_status ndm_model_create(ndm_context *context, const char *model_name,
                                                 const ndm_fsdp_config *fsdp,
                                                 const ndm_model_options *options,
                                                 ndm_model **model);

/** ndm_model_create() and ndm_model_load() from the same folder. */
NDM_API NDM_MUST_USE ndm_status ndm_model_from_pretrained(ndm_context *context, const char *folder,
                                                          const ndm_fsdp_config *fsdp,
                                                          const ndm_model_options *options,
                                                          ndm_model **model);
NDM_API void ndm_model_destroy(ndm_model *model); /**< NULL is fine */

/** Draws the weights: normal(0, initializer_range), norms 1, biases 0; the same numbers on every
 * mesh. Collective over: world. */
NDM_API NDM_MUST_USE ndm_status ndm_model_init(ndm_model *model, uint64_t seed);

/** Reads safetensors of a folder; every rank reads only its slices. Missing, extra or misshapen
 * tensors are named. Collective over: world. */
NDM_API NDM_MUST_USE ndm_status ndm_model_load(ndm_model *model, const char *folder);

/** Writes a Hugging Face folder: config.json and safetensors of dtype (fp32, bf16, fp16, or
 * NDM_DTYPE_COUNT: the model's), in shards of up to shard_bytes (0 = one file). Collective over:
 * world. */
NDM_API NDM_MUST_USE ndm_status ndm_model_save(ndm_model *model, const char *folder,
                                               ndm_dtype dtype, int64_t shard_bytes);

/** Writes the reduced gradients of this step as FILE.safetensors, fp32, global shapes. Collective
 * over: world. */
NDM_API NDM_MUST_USE ndm_status ndm_model_save_grads(ndm_model *model, const char *file);

/**
 * Writes the logits of the first sequence of the first data-parallel rank as FILE.safetensors:
 * "logits", fp32, [seq_len, vocabulary], the same on every mesh. Runs a forward over batch, of
 * micro_batch sequences, and leaves model and losses as they are. Collective over: world.
 */
NDM_API NDM_MUST_USE ndm_status ndm_model_save_logits(ndm_model *model, const ndm_batch *batch,
                                                      const char *file);

/** Its units in the order of the forward, [*n], owned by the model. */
NDM_API ndm_unit *const *ndm_model_units(const ndm_model *model, int64_t *n);

NDM_API int64_t
ndm_model_parameters(const ndm_model *model); /**< of the whole model, tied ones once */
NDM_API double ndm_model_flops_per_token(
    const ndm_model *model); /**< 6 * (parameters - embedding) + causal attention */
NDM_API int64_t ndm_model_vocab(const ndm_model *model);
NDM_API const ndm_model_options *
ndm_model_get_options(const ndm_model *model); /**< seq_len resolved */
NDM_API ndm_context *ndm_model_context(const ndm_model *model);

/**
 * Forward and backward of one micro-batch; gradients are reduced as the FSDP config says.
 *
 * @param grad_scale  what the sum of token losses is multiplied by in the gradient: 1 / valid
 * tokens of the step, world-wide
 *
 * Adds this rank's part of the sum of token losses to the model's accumulator: see
 * ndm_model_take_loss(). A batch that is wrong on one rank is NDM_ERR_CONFIG or NDM_ERR_USAGE on
 * all. Collective over: world.
 */
NDM_API NDM_MUST_USE ndm_status ndm_model_train(ndm_model *model, const ndm_batch *batch,
                                                double grad_scale);

/** Forward only. */
NDM_API NDM_MUST_USE ndm_status ndm_model_evaluate(ndm_model *model, const ndm_batch *batch);

/**
 * The collectives of ndm_model_train() and of the reductions that belong to it, for a step of one
 * micro-batch: what each strategy's describe() says, times its uses. Lines of one strategy, place,
 * direction and kind may come in several parts. A trainer and its optimizer add three sums of a few
 * bytes a step, which are not told.
 *
 * @param block  0 is the embedding, then layers, last the head; -1 = all of them. A unit of several
 *               blocks is told with its first
 */
NDM_API void ndm_model_describe(const ndm_model *model, int64_t block, ndm_traffic_fn emit,
                                void *user);

/** This rank's accumulated sum of token losses since the last call, of ndm_model_train() and
 * ndm_model_evaluate(); the sum over the world is the whole. A trainer's step or evaluation has its
 * own sum, and drops one that was not taken. Waits for compute. */
NDM_API NDM_MUST_USE ndm_status ndm_model_take_loss(ndm_model *model, double *sum);

#ifdef __cplusplus
}
#endif
#endif
