/* SPDX-License-Identifier: Apache-2.0 */
/* A model on one rank: blocks of ops over slots of activations, weights in units.
 *
 * Letters: N rows = B*T/cp tokens of this rank, padded to a multiple of tp; L local rows = N, or
 * N/tp under sequence parallel; C hidden width; H, K query and key-value heads of this rank; D head
 * dim; F ffn width of this rank; V vocabulary rows here. */
#ifndef NDM_MODEL_MODEL_H
#define NDM_MODEL_MODEL_H

#include "core/dtype.h"
#include "kernels/kernels.h"
#include "model/config.h"
#include "model/memory.h"
#include "model/safetensors_gather.h"
#include "strategies/internal.h"
#include "strategies/linear.h"
#include <ndmesh/linear.h>
#include <ndmesh/model.h>

/* Every weight a decoder may have; a family says which exist, under what names (model/weights.c).
 */
typedef enum ndm_weight {
    W_NONE = 0,
    W_Q,
    W_K,
    W_V,
    W_QKV,
    B_Q,
    B_K,
    B_V,
    B_QKV,
    W_O,
    B_O,
    W_GATE,
    W_UP,
    B_GATE,
    B_UP,
    W_DOWN,
    B_DOWN,
    W_NORM1,
    B_NORM1,
    W_NORM2,
    B_NORM2,
    W_QNORM,
    W_KNORM,
    W_EMBED,
    W_POSITION,
    W_NORM_F,
    B_NORM_F,
    W_HEAD,
    NDM_WEIGHT_COUNT
} ndm_weight;

typedef enum ndm_block_kind { NDM_BLOCK_EMBED, NDM_BLOCK_LAYER, NDM_BLOCK_HEAD } ndm_block_kind;

typedef struct ndm_block {
    ndm_block_kind kind;
    int64_t layer; /* of NDM_BLOCK_LAYER */
    ndm_unit *unit;
    int param[NDM_WEIGHT_COUNT]; /* index in the unit, -1 = the family has none */
} ndm_block;

/* Activations of a layer. */
typedef enum ndm_slot {
    S_X0, /* [L, C] residual stream into the attention branch */
    S_MEAN1,
    S_RSTD1,   /* [L] */
    S_H1,      /* [N, C] normed, gathered over tp */
    S_QKV,     /* [N, (H+2K)D] q | k | v, rotated in place unless the family norms q and k */
    S_QK_RSTD, /* [N, H+K] of the norms over heads */
    S_QKV2,    /* [N, (H+2K)D] normed and rotated, where q and k are normed */
    S_ATT,
    S_LSE, /* [N, HD], [B, H, T] */
    S_X1,  /* [L, C] residual stream into the mlp branch */
    S_MEAN2,
    S_RSTD2,
    S_H2,  /* [N, C] */
    S_GU,  /* [N, 2F] gate | up, or [N, F] */
    S_ACT, /* [N, F] */
    NDM_SLOT_COUNT
} ndm_slot;

/* What the backward finds in a slot. */
typedef enum ndm_keeping {
    NDM_KEPT,       /* each layer has its own */
    NDM_MADE_AGAIN, /* one for all layers; the ops that lead to it run again ahead of the backward
                     */
    NDM_MADE_BY_BACKWARD /* one for all layers: the backward of the op that makes it reads all that
                            it takes, and writes it for the gradients of the weights behind it */
} ndm_keeping;

typedef struct ndm_sizes {
    int64_t batch, tokens;       /* B, and T/cp of this rank */
    int64_t rows, padded, local; /* B*T/cp; N; L */
    int64_t row0;                /* first of the L rows among N */
    int64_t hidden, heads, kv_heads, head_dim, q_width, kv_width, qkv_width, ffn, gu_width;
    int64_t vocab_rows, vocab_first,
        vocab_valid; /* V of this rank, its first id, how many are real */
    int64_t chunk;   /* rows of logits at a time */
} ndm_sizes;

enum { NDM_DATA_ARRAYS = 7, NDM_REGION_PARTS_MAX = 16 };

/* How rows enter and leave the regions that tp splits (model/region.c). */
typedef struct ndm_regions {
    int64_t parts;          /* 1: whole, on the compute stream */
    ndm_stream *stream;     /* of the parts' collectives; NULL with one part */
    void *own_in, *own_out; /* [L, C] this rank's rows on either side; NULL: they lie among all */
    ndm_event *ready[NDM_REGION_PARTS_MAX], *done[NDM_REGION_PARTS_MAX];
    int64_t started, waited; /* parts of the present passage; those that compute has waited for */
    bool d_out_shared;       /* the ranks of tp see one d_out */
} ndm_regions;

struct ndm_model {
    ndm_context *context;
    ndm_model_config config;
    char *folder; /* that the config came from; NULL for a preset */
    ndm_model_options options;
    ndm_sizes size;
    ndm_regions region;
    ndm_block *blocks; /* [n_blocks]: embed, layers, head */
    int64_t n_blocks;
    ndm_unit **units; /* [n_units] */
    int64_t n_units;
    int64_t *visits; /* [n_units] blocks whose gradients a unit still waits for in this backward */

    /* data of a micro-batch, device, [N] each; NDM_DATA_ARRAYS of them */
    int32_t *ids, *grad_ids, *targets, *positions, *index, *first, *window_first;
    int32_t *host;  /* staging, [NDM_DATA_ARRAYS * N] */
    int32_t *picks; /* host, [seq_len]: this rank's tokens of a sequence */
    bool use_index; /* the sequence is cut: tokens carry their places */
    bool use_first; /* documents: some tokens do not see from 0 */

    float *rope_cos, *rope_sin; /* [positions, D/2] */
    ndm_dtype dtype; /* of activations and their gradients; statistics and sums are fp32 */
    void *
        *slots[NDM_SLOT_COUNT]; /* [layers] places of each slot; the same one where it is shared */
    ndm_model_memory memory;
    ndm_keeping keeping[NDM_SLOT_COUNT];
    void *x_final, *h_final;        /* [L, C], [N, C] */
    float *mean_final, *rstd_final; /* [L] */
    void *logits;                   /* [chunk, V] */
    float *stats, *stats_all;       /* [chunk, 4], [tp, chunk, 4] */
    void *branch;                   /* [N, C] output of a branch, before it joins the stream */
    void *grad;                     /* [L, C] gradient of the stream */
    void *d_full,
        *d_out; /* [N, C] gradient of a gathered input; of a branch's output over all rows */
    void *d_att, *d_qkv, *d_act; /* [N, HD], [N, (H+2K)D], [N, F] */
    float *delta;                /* [B, H, T] */
    float *workspace;            /* of norm_backward */
    double *loss;                /* [1] */
    bool loss_untaken;           /* it may hold what a program's own micro-batches added */

    void *tap; /* NULL, or host, [T/cp, V]: where logits of the first sequence are copied */

    const void *stream; /* the residual stream so far, and whether `branch` must be added to it */
    bool pending;
    double grad_scale;
    const int64_t *tokens; /* device, [1]: what gradients are divided by as well; NULL = 1 */
};

/* What an op needs to know while it runs. */
typedef struct ndm_run {
    ndm_model *model;
    const ndm_block *block;
    bool again; /* making activations again in the backward */
} ndm_run;

typedef struct ndm_model_op ndm_model_op;
typedef ndm_status (*ndm_op_fn)(const ndm_run *run, const ndm_model_op *op);

/* One op of a layer: what it reads and writes, and how to go both ways. */
struct ndm_model_op {
    const char *name;
    ndm_op_fn forward, backward;
    ndm_op_fn weights; /* gradients of matrices, apart from that of their input; NULL = none */
    ndm_slot in,
        out; /* out: the slot it makes; S_X1 for a branch's last op, which feeds the stream */
    ndm_slot stream, mean, rstd; /* norm: where the stream is kept, and the statistics */
    ndm_weight w[NDM_LINEAR_MAX],
        b[NDM_LINEAR_MAX]; /* matrices side by side, their biases; W_NONE or absent = none */
    bool last;             /* nothing in the backward reads what it makes */
};

extern const ndm_model_op ndm_decoder_ops[];
extern const int ndm_decoder_op_count;

/* Whether the op runs again ahead of its layer's backward. */
bool ndm_op_runs_again(const ndm_model *model, const ndm_model_op *op);

/* ---- pieces ---------------------------------------------------------------------------------- */

/* Element i of an array of activations. */
static inline void *ndm_model_at(const ndm_model *model, const void *array, int64_t i)
{
    return ndm_dtype_at(array, model->dtype, i);
}

/* Slot of the run's layer. */
static inline void *ndm_run_slot(const ndm_run *run, ndm_slot slot)
{
    return run->model->slots[slot][run->block->layer];
}

/* Where a backward writes what its op wrote in the forward, or NULL. */
static inline void *ndm_run_remade(const ndm_run *run, ndm_slot slot)
{
    return run->model->keeping[slot] == NDM_MADE_BY_BACKWARD ? ndm_run_slot(run, slot) : NULL;
}

static inline bool ndm_block_has(const ndm_block *block, ndm_weight w)
{
    return block->param[w] >= 0;
}

static inline const void *ndm_block_weight(const ndm_block *block, ndm_weight w)
{
    return block->param[w] < 0 ? NULL : ndm_unit_weight(block->unit, block->param[w]);
}

static inline float *ndm_block_grad(const ndm_block *block, ndm_weight w)
{
    return block->param[w] < 0 ? NULL : ndm_unit_grad(block->unit, block->param[w]);
}

/* io.c: pieces that checkpoints are made of, on this rank alone. */

/* Files STEM*.safetensors in a folder that hold one tensor a parameter, named with a suffix. */
typedef struct ndm_model_files {
    const char *folder, *stem, *suffix;
    ndm_dtype dtype;
    int64_t shard_bytes; /* 0 = one file */
} ndm_model_files;
NDM_MUST_USE ndm_status ndm_model_plan_files(const ndm_model *model, const ndm_model_files *files,
                                             ndm_safetensors_writer **writer);
/* Whether the tensors of open files are those of the model. */
NDM_MUST_USE ndm_status ndm_model_check_tensors(const ndm_model *model,
                                                const ndm_safetensors *file);
/* How this rank reads many ranges at a time. */
ndm_gather_options ndm_model_gather_options(const ndm_model *model);
/* Before weights are read: from here on none reads the old ones. Ahead of all that may fail on one
 * rank alone. Collective over: world. */
NDM_MUST_USE ndm_status ndm_model_change(ndm_model *model);
/* Whether a folder's tensors are those of the model, by their headers alone. */
NDM_MUST_USE ndm_status ndm_model_check_weights(const ndm_model *model, const char *folder);
/* config.json, and the companions that the model's folder has. */
NDM_MUST_USE ndm_status ndm_model_write_config(const ndm_model *model, const char *folder,
                                               ndm_dtype dtype);
/* Copies tokenizer files and the like from folder to folder; from NULL: nothing. */
NDM_MUST_USE ndm_status ndm_model_write_companions(const char *from, const char *folder);

/* FILE.safetensors as folder and stem; the caller frees both. */
NDM_MUST_USE ndm_status ndm_model_split_path(const char *file, char **folder, char **stem);

/* logits.c: copies a chunk's logits, rows [row, row + rows), to the tap, if there is one. */
NDM_MUST_USE ndm_status ndm_model_tap_logits(ndm_model *model, int64_t row, int64_t rows);

/* region.c: passing into and out of a split region. Own rows and all rows; a passage in parts goes
 * on until settle() or the next one, before which nobody reads or writes them. */
typedef enum ndm_region_side { NDM_REGION_IN, NDM_REGION_OUT } ndm_region_side;
int64_t ndm_region_parts(const ndm_model *model, int64_t rows, int64_t tp);
NDM_MUST_USE ndm_status ndm_region_init(ndm_model *model);
void ndm_region_finish(ndm_model *model);
void *ndm_region_own_in(const ndm_model *model, void *full);
void *ndm_region_own_out(const ndm_model *model, void *full);
NDM_MUST_USE ndm_status ndm_region_start(ndm_model *model, ndm_region_side side,
                                         ndm_direction direction, int64_t part, void *own,
                                         void *full);
NDM_MUST_USE ndm_status ndm_region_wait(ndm_model *model, int64_t part);
NDM_MUST_USE ndm_status ndm_region_settle(ndm_model *model);
NDM_MUST_USE ndm_status ndm_region_pass(ndm_model *model, ndm_region_side side,
                                        ndm_direction direction, void *own, void *full);
/* Where the gradient of the stream goes out from: the own rows of d_out, if all ranks see it. */
NDM_MUST_USE ndm_status ndm_region_place_grad(ndm_model *model, void **own);
/* The products of linears at a region's sides, part by part. */
NDM_MUST_USE ndm_status ndm_region_multiply_in(ndm_model *model, const ndm_linear *linear,
                                               const void *x, void *y);
NDM_MUST_USE ndm_status ndm_region_multiply_out(ndm_model *model, const ndm_linear *linear,
                                                const void *x);
NDM_MUST_USE ndm_status ndm_region_backward_in(ndm_model *model, const ndm_linear *linear,
                                               const void *dy);
NDM_MUST_USE ndm_status ndm_region_backward_out(ndm_model *model, const ndm_linear *linear,
                                                void *dx);
/* The gradient of the region's output over all rows, once ndm_region_backward_out() has begun. */
const void *ndm_region_whole_grad(const ndm_model *model);

/* weights.c: the specs of one block; sets block->param relative to `base`. Names are malloc'ed into
 * specs. */
NDM_MUST_USE ndm_status ndm_block_specs(const ndm_model_config *config, ndm_block *block, int base,
                                        ndm_param_spec *specs, int *n);
enum { NDM_BLOCK_SPECS_MAX = 20 };

/* Whether a block and the one after it are of one unit, which is held from the first to the last of
 * them; false for block -1. */
bool ndm_model_same_unit(const ndm_model *model, int64_t block);

/* wrap.c: unit of each block, [n_blocks] numbers from 0, ascending by first use. */
NDM_MUST_USE ndm_status ndm_wrap_plan(const ndm_model_config *config, const ndm_fsdp_config *fsdp,
                                      int64_t n_blocks, int64_t *unit_of, int64_t *n_units);

/* plan.c: sizes, slots and buffers. Collective over: world. */
NDM_MUST_USE ndm_status ndm_model_plan(ndm_model *model, const ndm_fsdp_config *fsdp);
void ndm_model_unplan(ndm_model *model);

/* batch.c: whether a batch has so many sequences of tokens that the model can take. */
NDM_MUST_USE ndm_status ndm_model_check_batch(const ndm_model *model, const ndm_batch *batch,
                                              int64_t sequences);
/* This rank's tokens of a micro-batch that was checked, to the device. */
NDM_MUST_USE ndm_status ndm_model_feed(ndm_model *model, const ndm_batch *batch);

/* model.c: ndm_model_train() and ndm_model_evaluate() of batches that all ranks have checked and
 * agreed on, as a trainer does once for all micro-batches of a step. */
NDM_MUST_USE ndm_status ndm_model_train_agreed(ndm_model *model, const ndm_batch *batch,
                                               double grad_scale);
/* The same of the batch that was fed last. `tokens`, in device memory: what gradients are divided
 * by. */
NDM_MUST_USE ndm_status ndm_model_train_fed(ndm_model *model, const int64_t *tokens);
NDM_MUST_USE ndm_status ndm_model_evaluate_agreed(ndm_model *model, const ndm_batch *batch);

/* Begins the sum of losses anew. */
NDM_MUST_USE ndm_status ndm_model_drop_loss(ndm_model *model);

/* rope.c: tables of the config's positions. */
NDM_MUST_USE ndm_status ndm_rope_tables(ndm_model *model, int64_t positions);

/* block ops */
ndm_status ndm_embed_forward(const ndm_run *run);
ndm_status ndm_embed_backward(const ndm_run *run);
ndm_status
ndm_head_forward(const ndm_run *run,
                 bool grad); /* loss; with grad also its whole backward, into model->grad */
ndm_status ndm_op_norm_forward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_norm_backward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_column_forward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_column_backward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_column_weights(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_row_forward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_row_backward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_row_weights(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_qk_forward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_qk_backward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_attention_forward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_attention_backward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_act_forward(const ndm_run *run, const ndm_model_op *op);
ndm_status ndm_op_act_backward(const ndm_run *run, const ndm_model_op *op);

#endif
