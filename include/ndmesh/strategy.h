/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Strategies as plugins: which parameter, batch or op is cut along which axis, and which collective
 * repairs it.
 *
 * A strategy is one const struct; NULL hooks are skipped. A context walks the strategies whose
 * applies() says yes, in the order of the registry, built-in ones first. Hooks run on every rank in
 * the same order; they launch on streams and do not wait.
 */
#ifndef NDMESH_STRATEGY_H
#define NDMESH_STRATEGY_H

#include <ndmesh/unit.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ndm_direction { NDM_FORWARD, NDM_BACKWARD } ndm_direction;

/** What a strategy may look at to judge a configuration. Sizes of 0 are unknown. */
typedef struct ndm_demands {
    int64_t heads, kv_heads, head_dim, hidden, ffn, vocab;
    int64_t seq_len, micro_batch;
    bool causal;
    int64_t sliding_window; /**< 0 = none */
    ndm_dtype dtype;        /**< of activations */
} ndm_demands;

/** One attention over a sequence that may be split. Rows are tokens; all pointers are device
 * memory, strides in elements. */
typedef struct ndm_attention_call {
    ndm_dtype dtype; /**< NDM_F32 or NDM_BF16: of all rows; lse and delta are fp32 */
    void *q, *k,
        *v; /**< [B*T, heads*D] and [B*T, kv_heads*D], rows of qkv_stride; backward: inputs */
    void *dq, *dk, *dv; /**< backward: outputs, rows of dqkv_stride */
    void *out;          /**< [B*T, heads*D] rows of out_stride */
    float *lse;         /**< [B, heads, T], which only the backward of the same call reads */
    const void *dout;   /**< backward: rows of dout_stride */
    float *delta;       /**< backward: scratch, [B, heads, T] */
    int64_t qkv_stride, dqkv_stride, out_stride, dout_stride;
    int64_t batch, tokens;             /**< B, and T of this rank */
    int64_t heads, kv_heads, head_dim; /**< of this rank */
    float scale;
    const int32_t *index; /**< [B*T] place of a token in its sequence, or NULL: 0..T-1 */
    const int32_t *first; /**< [B*T] first place it may attend to, or NULL: 0 */
} ndm_attention_call;

/** One line of a strategy's account of its collectives, per unit or layer and step. */
typedef struct ndm_traffic {
    const char *strategy; /**< its name; "fp8": what products of 8-bit numbers agree on */
    const char *where;    /**< "unit", "rows" (a unit's gradients, by rows), "attention", "linear",
                             "loss", "scales" (largest magnitudes of what becomes 8 bits) */
    ndm_direction direction;
    ndm_collective kind;
    ndm_axis_set axes;
    int64_t calls;
    int64_t bytes; /**< received by one rank, all calls together */
} ndm_traffic;
typedef void (*ndm_traffic_fn)(void *user, const ndm_traffic *traffic);

/** What describe() accounts for: one unit or layer. */
typedef struct ndm_describe_args {
    const ndm_unit *unit; /**< or NULL */
    int64_t rows;         /**< token rows of this rank in split regions (B*T/cp) */
    int64_t hidden,
        kv_width; /**< elements of a row of activations; of K and V together on this rank */
    int64_t column_inputs, row_outputs; /**< split GEMM regions entered and left by a layer */
    int64_t heads, kv_heads, head_dim;  /**< of one attention on this rank; 0 = there is none */
    int64_t loss_rows, loss_calls;      /**< rows of logits, and parts they are made in; 0 = none */
    ndm_dtype dtype;                    /**< of activations */
} ndm_describe_args;

typedef struct ndm_strategy {
    const char *name;
    const char *summary;
    ndm_axis_set axes; /**< axes it communicates over */

    const char *replaces; /**< NULL, or the strategy that stands back wherever this one applies */

    /** Whether it takes part, given the mesh and a unit's sharding (NULL: the context as a whole).
     * NULL = always. */
    bool (*applies)(const ndm_context *context, const ndm_fsdp_config *fsdp);
    /** NDM_ERR_CONFIG with the rule in one sentence if the model does not fit the mesh. */
    ndm_status (*check)(ndm_context *context, const ndm_demands *demands);
    /** Which tokens of a sequence are this rank's: picks, [*n], ascending; on entry *n is the
     * whole. There is room for 2 more: picks from the whole's number on are padding. */
    ndm_status (*batch)(ndm_context *context, int32_t *picks, int64_t *n);
    /** Around the use of a unit: gather, prefetch, free. */
    ndm_status (*unit_enter)(ndm_context *context, ndm_unit *unit, ndm_stream *stream);
    ndm_status (*unit_leave)(ndm_context *context, ndm_unit *unit, ndm_stream *stream);
    /** Before a split GEMM. Forward: x, [rows, width] of dtype -> *full; backward: full (partial
     * sums) -> x. */
    ndm_status (*linear_in)(ndm_context *context, ndm_direction direction, void *x, void *full,
                            int64_t rows, int64_t width, ndm_dtype dtype, ndm_stream *stream);
    /** After a split GEMM. Forward: full (partial sums), [rows, width] -> x; backward: x -> full.
     */
    ndm_status (*linear_out)(ndm_context *context, ndm_direction direction, void *x, void *full,
                             int64_t rows, int64_t width, ndm_dtype dtype, ndm_stream *stream);
    /** Merges softmax statistics of vocabulary slices: stats, [rows, 4], in place; all, [slices,
     * rows, 4], is scratch. */
    ndm_status (*loss_stats)(ndm_context *context, float *stats, float *all, int64_t rows,
                             ndm_stream *stream);
    /** Attention over a split sequence; the first strategy that has it does it. */
    ndm_status (*attention)(ndm_context *context, ndm_direction direction,
                            const ndm_attention_call *call, ndm_stream *stream);
    /** Reduces a unit's gradients, after the strategies before it: all that have it do their part.
     */
    ndm_status (*grads)(ndm_context *context, ndm_unit *unit, ndm_stream *stream);
    /** After the optimizer's step: weights of units, [n_units], may be changed (local SGD). */
    ndm_status (*step_end)(ndm_context *context, ndm_unit *const *units, int64_t n_units,
                           int64_t step);
    /** Its collectives, for plans and docs. */
    void (*describe)(const ndm_context *context, const ndm_describe_args *args, ndm_traffic_fn emit,
                     void *user);
} ndm_strategy;

/** The i-th strategy of the registry, built-in ones first; NULL after the last. */
NDM_API const ndm_strategy *ndm_strategy_at(int64_t i);

/**
 * Adds a strategy to the registry, for contexts made after this call. It must stay valid.
 * @retval NDM_ERR_USAGE  its name is taken, or the registry (32) is full
 */
NDM_API NDM_MUST_USE ndm_status ndm_strategy_register(const ndm_strategy *strategy);

/** This rank's master weights of a unit, fp32 device memory, [ndm_unit_slice_numel()]: for step_end
 * hooks. */
NDM_API float *ndm_unit_master(ndm_unit *unit);

/** This rank's gradient of the same elements, fp32 device memory, [ndm_unit_slice_numel()]: what
 * the strategies before have reduced so far, summed over the micro-batches so far, for grads hooks.
 * A hook that is not linear in it waits for ndm_context_last_micro_batch(). Its memory stays the
 * same for the life of the unit. */
NDM_API float *ndm_unit_grad_slice(ndm_unit *unit);

#ifdef __cplusplus
}
#endif
#endif
