/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Units: parameters that are gathered together, and lie together.
 *
 * The tp-local parameters of a unit lie one after another in a flat array, each aligned to 64
 * elements. Rank i of dp_shard x cp owns slice i of n: the fp32 master weights, the gradient and
 * the optimizer state of that range. So an all-gather and a reduce-scatter need no copy-in or
 * copy-out. Zhao et al., "PyTorch FSDP", 2023, section 3.2 (FlatParameter).
 */
#ifndef NDMESH_UNIT_H
#define NDMESH_UNIT_H

#include <ndmesh/context.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_unit ndm_unit;

/** How tensor parallelism cuts a parameter (Shoeybi et al., "Megatron-LM", 2019). */
typedef enum ndm_role {
    NDM_ROLE_REPLICATED = 0, /**< whole on every tp rank; see ndm_unit_reduce_grads() */
    NDM_ROLE_COLUMN,         /**< output features: dim 0 of [out, in], or a bias [out] */
    NDM_ROLE_ROW,            /**< input features: dim 1 of [out, in] */
    NDM_ROLE_VOCAB           /**< vocabulary: dim 0 of [vocabulary, width] */
} ndm_role;

/** A parameter as the whole model knows it. Sizes that tp does not divide are padded with zeros at
 * the end. */
typedef struct ndm_param_spec {
    const char *name; /**< e.g. "model.layers.0.mlp.up_proj.weight"; copied */
    int ndim;         /**< 1 or 2 */
    int64_t shape[2]; /**< global shape */
    ndm_role role;    /**< default NDM_ROLE_REPLICATED */
    bool transposed;  /**< stored [in, out]: column and row change dims */
    bool head_local;  /**< replicated, but every tp rank sees other heads: its gradients are summed
                         over tp */
    int64_t
        blocks; /**< indivisible blocks along the cut dim, such as kv heads; with fewer blocks than
                   tp ranks, ranks share one and sum its gradients; 0 = every index is one */
    int64_t parts; /**< equal parts side by side along the cut dim that are cut each (fused qkv: 3);
                      0 = 1 */
    int64_t fp8_group; /**< products take it as 8-bit numbers (e4m3), with one scale for all
                          parameters of the unit that have this number; 0 = no */
    bool no_decay;     /**< no weight decay; parameters of one dimension never have it */
    float init_mean;   /**< ndm_unit_init(): mean, and */
    float init_std;    /**< standard deviation; 0 = constant */
    bool whole_rows;   /**< the unit's first parameter, [rows, width]: slices that hold many of its
                          rows begin at one, so that a model may make its gradient in pieces */
} ndm_param_spec;

/**
 * Makes a unit; its weights are undefined until ndm_unit_init() or ndm_unit_read().
 *
 * @param specs    [n_specs], copied
 * @param fsdp     NULL = defaults
 * @param unit     receives the unit; destroy with ndm_unit_destroy() before the context
 *
 * Collective over: world, in the same order.
 * @retval NDM_ERR_CONFIG  a shape or role breaks a rule, e.g. tp does not divide the blocks; names
 * the parameter. So does a unit without parameters
 * @retval NDM_ERR_MISMATCH  ranks differ in name, parameters or fsdp: names the rank and what
 * @retval NDM_ERR_MEMORY  on some rank; all ranks return it
 */
NDM_API NDM_MUST_USE ndm_status ndm_unit_create(ndm_context *context, const char *name,
                                                const ndm_param_spec *specs, int64_t n_specs,
                                                const ndm_fsdp_config *fsdp, ndm_unit **unit);
/** Waits for what is queued, which other ranks may need. NULL is fine. */
NDM_API void ndm_unit_destroy(ndm_unit *unit);

NDM_API const char *ndm_unit_name(const ndm_unit *unit);
NDM_API int64_t ndm_unit_params(const ndm_unit *unit); /**< number of parameters */
NDM_API int64_t
ndm_unit_numel(const ndm_unit *unit); /**< elements of the flat array, padding included */
NDM_API int64_t
ndm_unit_slice_numel(const ndm_unit *unit); /**< elements this rank owns, padding included */
NDM_API const ndm_param_spec *ndm_unit_spec(const ndm_unit *unit, int64_t i);
NDM_API const int64_t *ndm_unit_local_shape(const ndm_unit *unit,
                                            int64_t i); /**< [ndim], tp-local and padded */

/** Draws the slice from the counter-based generator: the same global numbers on every mesh.
 * Collective over: dp_shard_cp. Completes: on return. */
NDM_API NDM_MUST_USE ndm_status ndm_unit_init(ndm_unit *unit, uint64_t seed);

/** Reads or writes a range of a parameter's global elements, row-major: values, [count] fp32 host
 * memory. Who writes leaves them as they are: they may be the weights themselves. A failure is
 * relayed on this rank; others do not hear of it (ndm_context_agree()). */
typedef ndm_status (*ndm_unit_range_fn)(void *user, const ndm_param_spec *spec, int64_t first,
                                        int64_t count, float *values);

/** Fills the slice: calls read for every range of global elements this rank owns. Collective over:
 * dp_shard_cp, for ranks may share memory and still read the old weights. Completes: on return. */
NDM_API NDM_MUST_USE ndm_status ndm_unit_read(ndm_unit *unit, ndm_unit_range_fn read, void *user);

/** What ndm_unit_write() hands out: the weights, or the gradient of the last
 * ndm_unit_reduce_grads(). */
typedef enum ndm_unit_part { NDM_UNIT_WEIGHTS, NDM_UNIT_GRADS } ndm_unit_part;

/** Calls write for every range of global elements that this rank, and no other, is to write.
 * Completes: on return. */
NDM_API NDM_MUST_USE ndm_status ndm_unit_write(ndm_unit *unit, ndm_unit_part part,
                                               ndm_unit_range_fn write, void *user);

/**
 * Gathers the unit's weights from all ranks that share it, so that kernels can read them.
 *
 * After this, ndm_unit_weight(unit, i) is the whole tp-local parameter i. Units that are already
 * gathered return at once. At most fsdp.live_units units are gathered at a time; the oldest one
 * that is not in use is resharded to make room.
 *
 * @param stream  kernels launched on it after this call see the gathered weights
 *
 * Collective over: dp_shard_cp. Bytes received: (n-1)/n of the flat array. Completes: on stream.
 * @retval NDM_ERR_COMM, NDM_ERR_TIMEOUT, NDM_ERR_MEMORY
 */
NDM_API NDM_MUST_USE ndm_status ndm_unit_unshard(ndm_unit *unit, ndm_stream *stream);

/** Starts ndm_unit_unshard() without making any stream wait for it. Does nothing when live_units
 * are in use. */
NDM_API NDM_MUST_USE ndm_status ndm_unit_prefetch(ndm_unit *unit, ndm_stream *stream);

/** Gives the gathered weights back, once kernels on stream are done with them. What stays follows
 * the FSDP config.
 * @retval NDM_ERR_STATE  there were as many calls as of ndm_unit_unshard() */
NDM_API NDM_MUST_USE ndm_status ndm_unit_reshard(ndm_unit *unit, ndm_stream *stream);

/** tp-local parameter i, of fsdp.param_dtype, valid between unshard and reshard; NULL where nothing
 * is gathered. Device memory. */
NDM_API const void *ndm_unit_weight(const ndm_unit *unit, int64_t i);

/**
 * Makes ready the gradients of the whole tp-local unit: zero at the first call after a reduction,
 * or of a step (micro-batch 0, see ndm_context_micro_batch()), kept otherwise. Kernels on stream
 * add to ndm_unit_grad(unit, i).
 */
NDM_API NDM_MUST_USE ndm_status ndm_unit_grads_begin(ndm_unit *unit, ndm_stream *stream);

/** Gradient of tp-local parameter i, fp32, local shape, valid from grads_begin to reduce_grads;
 * NULL where there is none, and in the unit of a model's head that is made in pieces. Device
 * memory. */
NDM_API float *ndm_unit_grad(const ndm_unit *unit, int64_t i);

/**
 * Sums the gradients over all ranks that share the parameters: over dp_shard_cp into slices, over
 * dp_replicate, and over tp where ranks hold the same parameter but see other rows or heads: those
 * of head_local and of shared blocks, and with sequence parallelism all replicated ones. Without it
 * (no_sequence_parallel) tp ranks see the same rows, and must make the same gradient of a
 * replicated parameter: it is not summed. Adds to the slice's gradient of earlier micro-batches of
 * the step. With defer_sync, does nothing before the last micro-batch (ndm_context_micro_batch()).
 *
 * Collective over: dp_shard_cp, dp_replicate, tp. Completes: before ndm_optimizer_step() reads the
 * slice.
 * @retval NDM_ERR_STATE  without ndm_unit_grads_begin()
 */
NDM_API NDM_MUST_USE ndm_status ndm_unit_reduce_grads(ndm_unit *unit, ndm_stream *stream);

#ifdef __cplusplus
}
#endif
#endif
