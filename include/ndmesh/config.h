/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Declares how a run is laid out: the sizes of the mesh's axes and the sharding of parameters.
 *
 * Every struct starts with its size, so that a later version can add fields; initialise with the
 * macro, then set fields.
 */
#ifndef NDMESH_CONFIG_H
#define NDMESH_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ndmesh/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NDM_AUTO (-1) /**< an axis size that takes the ranks the other axes leave */

/** How attention over a split sequence communicates. */
typedef enum ndm_cp_method {
    NDM_CP_METHOD_AUTO = 0,
    NDM_CP_METHOD_RING,
    NDM_CP_METHOD_ALL_GATHER,
    NDM_CP_METHOD_ULYSSES
} ndm_cp_method;

/** Sizes of the mesh's axes. Their product is the number of ranks; one of them may be NDM_AUTO. */
typedef struct ndm_parallelism_config {
    size_t size;          /**< sizeof(ndm_parallelism_config) */
    int64_t dp_replicate; /**< replicas of the sharded group, >= 1 or NDM_AUTO; default 1 */
    int64_t dp_shard; /**< ranks that shard parameters and see distinct batches; default NDM_AUTO */
    int64_t cp;       /**< ranks that share one sequence; default 1 */
    int64_t tp;       /**< ranks that share one layer's GEMMs; default 1 */
    ndm_cp_method cp_method;   /**< default NDM_CP_METHOD_AUTO */
    bool no_sequence_parallel; /**< replicate the activations between tp regions; default false:
                                  they are split by token */
    const int64_t
        *order;      /**< NULL, or [n_order]: order[p] = world rank that takes mesh position p */
    int64_t n_order; /**< entries of order, checked against the world; 0 = as many as ranks */
} ndm_parallelism_config;

#define NDM_PARALLELISM_CONFIG_INIT                                                           \
    {                                                                                         \
        sizeof(ndm_parallelism_config), 1, NDM_AUTO, 1, 1, NDM_CP_METHOD_AUTO, false, NULL, 0 \
    }

/** How parameters are grouped into units that are gathered together. */
typedef enum ndm_wrap {
    NDM_WRAP_AUTO = 0,    /**< one unit per transformer block, embedding, head */
    NDM_WRAP_TRANSFORMER, /**< one unit per instance of the classes in wrap_classes; the rest is one
                             unit */
    NDM_WRAP_SIZE         /**< consecutive modules until min_num_params is reached */
} ndm_wrap;

/** Values of ndm_fsdp_config.reshard_after_forward besides k > 1. */
#define NDM_RESHARD_NEVER 0
#define NDM_RESHARD_ALWAYS 1

/** How states are sharded over dp_shard x cp (Zhao et al., "PyTorch FSDP", 2023; Rajbhandari et
 * al., "ZeRO", 2020). */
typedef struct ndm_fsdp_config {
    size_t size; /**< sizeof(ndm_fsdp_config) */
    int zero;    /**< 1: optimizer state; 2: and gradients; 3: and weights. Default 3 */
    int64_t reshard_after_forward;   /**< ZeRO-3 only: NDM_RESHARD_ALWAYS (default),
                                        NDM_RESHARD_NEVER, or k > 1: keep a copy sharded over k
                                        neighbouring ranks between forward and backward */
    ndm_wrap wrap;                   /**< default NDM_WRAP_AUTO */
    const char *const *wrap_classes; /**< NULL-terminated class names, e.g. "LlamaDecoderLayer";
                                        NULL: the model's own layers */
    int64_t min_num_params; /**< NDM_WRAP_SIZE: parameters a unit has at least; default 1e8 */
    int64_t live_units;     /**< gathered units held at a time, >= 2; default 3 */
    ndm_dtype param_dtype;  /**< type of gathered weights: NDM_F32 (default) or NDM_BF16 */
    ndm_dtype reduce_dtype; /**< type of gradients on the wire: NDM_F32 (default) or NDM_BF16; sums
                               are fp32 */
    bool defer_sync;     /**< accumulate gradients unsharded, reduce at the last micro-batch only;
                            default false.     ZeRO-1 and plain DDP always do */
    bool defer_replicas; /**< HSDP: all-reduce over dp_replicate at the last micro-batch only;
                            default true */
    bool fp8_gather;     /**< gather parameters of an fp8_group as 8-bit numbers, others as they
                            are; default false */
} ndm_fsdp_config;

#define NDM_FSDP_CONFIG_INIT                                                               \
    {                                                                                      \
        sizeof(ndm_fsdp_config), 3, NDM_RESHARD_ALWAYS, NDM_WRAP_AUTO, NULL, 100000000, 3, \
            NDM_F32, NDM_F32, false, true, false                                           \
    }

#ifdef __cplusplus
}
#endif
#endif
