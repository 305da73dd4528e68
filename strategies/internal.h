/* SPDX-License-Identifier: Apache-2.0 */
/* What contexts, units and strategies share behind the public headers. */
#ifndef NDM_STRATEGIES_INTERNAL_H
#define NDM_STRATEGIES_INTERNAL_H

#include "collectives/comm.h"
#include "kernels/kernels.h"
#include <ndmesh/context.h>
#include <ndmesh/optimizer.h>
#include <ndmesh/strategy.h>
#include <ndmesh/unit.h>

enum { NDM_STRATEGIES_MAX = 32, NDM_UNIT_ALIGN = 64 };

/* ---- buffers: device memory that units take in turn (strategies/pool.c) ---------------------- */

/* A buffer that is given back while kernels may still read it: `last_use` orders the next user
 * behind them. */
typedef struct ndm_pool_buffer {
    void *memory;
    int64_t bytes;
    ndm_memory_kind kind;
    ndm_comm *shared; /* NULL, or it is this rank's block of a window of these ranks */
    void *window;     /* the whole window, with shared */
    ndm_event *last_use;
    bool taken;
    bool lent; /* to something smaller, at the last taking */
    struct ndm_pool_buffer *next;
} ndm_pool_buffer;

/* Whether a buffer is as good as one of the bytes that are wanted. Some are nearly alike: an
 * embedding's gradients, and a head's with the last norm's, where these are whole. */
bool ndm_pool_fits(int64_t have, int64_t want);
/* Takes a free buffer of this kind and of nearly these bytes, or makes one; `stream` waits for its
 * last use. */
NDM_MUST_USE ndm_status ndm_pool_take(ndm_context *context, int64_t bytes, ndm_memory_kind kind,
                                      ndm_stream *stream, ndm_pool_buffer **buffer);
/* The same in a window that the members of `comm` share, where the backend has them: collectives
 * then read it in place. Two take turns within a micro-batch, so that nobody waits for the
 * collective that reads the one before; the second may be a larger one that is free. Collective
 * over: comm. */
NDM_MUST_USE ndm_status ndm_pool_take_shared(ndm_context *context, ndm_comm *comm, int64_t bytes,
                                             ndm_memory_kind kind, ndm_stream *stream,
                                             ndm_pool_buffer **buffer);
/* A window of comm, or *window = NULL where the backend or the group has none. */
NDM_MUST_USE ndm_status ndm_window_alloc(ndm_comm *comm, int64_t bytes_per_rank,
                                         ndm_memory_kind kind, void **window);
void ndm_window_free(ndm_comm *comm, void *window);
/* Gives it back; its next user waits for what is on `stream` now. */
NDM_MUST_USE ndm_status ndm_pool_give(ndm_pool_buffer *buffer, ndm_stream *stream);
void ndm_pool_finish(ndm_context *context);

/* ---- the context ----------------------------------------------------------------------------- */

struct ndm_context {
    ndm_world *world;
    ndm_parallelism_config parallelism; /* resolved */
    int64_t *order;                     /* [world] placement, or NULL */
    ndm_mesh *mesh;
    ndm_device *device;
    ndm_comms *comms;
    ndm_stream *compute, *gather, *reduce;
    const ndm_strategy *strategies[NDM_STRATEGIES_MAX]; /* those that apply to the mesh, in order */
    int64_t n_strategies;
    ndm_pool_buffer *pool, *latest; /* latest: shared one taken in this micro-batch, or NULL */
    struct ndm_unit *live;          /* gathered units that can be resharded, oldest first */
    int64_t n_live;
    int64_t micro_batch, micro_batches;
    int64_t n_units;     /* alive; without any, the pool is empty */
    struct ndm_fp8 *fp8; /* of products of 8-bit numbers (strategies/fp8.c) */
    struct ndm_cp *cp;   /* of context parallelism, made by its first use (strategies/cp_state.c) */
};

/* Coordinate of this rank along an axis, and the size of an axis set. */
int64_t ndm_context_coord(const ndm_context *context, ndm_axis axis);
int64_t ndm_context_axes_size(const ndm_context *context, ndm_axis_set axes);
/* Sum of one double over the world, on all ranks. */
NDM_MUST_USE ndm_status ndm_context_sum(ndm_context *context, double *value);
/* Whether activations between tp regions are split by token. */
bool ndm_context_sequence_parallel(const ndm_context *context);

/* Waits for all that is queued, before memory goes that it reads or writes, here and on other
 * ranks. After a failure, which nothing queued survives, it returns at once. Keeps the last
 * message. */
void ndm_context_settle(ndm_context *context);

/* Frees what context parallelism holds; its streams are idle. */
void ndm_cp_finish(ndm_context *context);
void ndm_fp8_finish(ndm_context *context); /* strategies/fp8.c */

/* ---- layout: where a parameter lies (strategies/layout.c) ------------------------------------ */

/* A parameter's tp-local part. Along the cut dim it is `parts` runs: local [p*run, p*run +
 * valid[p]) is global [p*whole + offset, ...); the rest of each run is padding. */
typedef struct ndm_param {
    ndm_param_spec spec; /* name owned */
    int cut;             /* dim that tp cuts, -1 = none */
    int64_t local[2];    /* tp-local shape, padded */
    int64_t parts, run, whole, offset, valid;
    int64_t numel, start;  /* local elements; place in the unit's flat array */
    int64_t sharers;       /* tp ranks that hold the same part: consecutive ones */
    bool sum_over_sharers; /* their gradients are partial sums */
    bool decay;
    bool by_product; /* its gradient's first term comes from ndm_unit_grad_product() */
    bool blank;      /* its gradient holds nothing of this window, not even zeros */
} ndm_param;

NDM_MUST_USE ndm_status ndm_param_place(const ndm_context *context, const ndm_param_spec *spec,
                                        ndm_param *param);

/* Calls visit for every run of global elements inside local elements [first, first + count) of the
 * parameter: `local` is the local index of the run's first element. Padding is passed over. */
typedef ndm_status (*ndm_param_run_fn)(void *user, int64_t local, int64_t global, int64_t count);
NDM_MUST_USE ndm_status ndm_param_runs(const ndm_param *param, int64_t first, int64_t count,
                                       ndm_param_run_fn visit, void *user);

/* ---- units ----------------------------------------------------------------------------------- */

/* A stretch of the slice whose elements are treated alike. */
typedef struct ndm_segment {
    int64_t start, count; /* in the slice */
    bool decay;           /* weight decay */
    bool counted;         /* this rank adds them to the global norm */
} ndm_segment;

/* How the gradient of a unit that is one table travels, where it comes by rows. */
typedef struct ndm_unit_rows {
    ndm_comm *comm;   /* dp x cp: all that have rows; NULL: it never comes by rows */
    int64_t ranks, n; /* of comm; rows of a rank and micro-batch */
    ndm_dtype wire;
    ndm_pool_buffer
        *buffer;   /* [n of all ranks, width] of wire, then their ids; NULL between uses */
    int64_t first; /* id of the table's first row */
    float scale;
} ndm_unit_rows;

/* How the gradient of a unit is made and reduced: piece by piece, or whole, which is one piece. */
typedef struct ndm_unit_pieces {
    ndm_unit *const *units; /* [n_units], borrowed: all of the model; NULL: always whole */
    int64_t n_units;
    int64_t n;             /* pieces of this window; 0: there has been none */
    int64_t part;          /* elements of a slice in a piece; the last one may have fewer */
    int64_t size;          /* elements of the buffers that pieces take in turn */
    int64_t first, length; /* of the piece that is open, in a slice */
} ndm_unit_pieces;

struct ndm_unit {
    ndm_context *context;
    char *name;
    ndm_fsdp_config fsdp;
    ndm_param *params; /* [n_params] */
    int64_t n_params;
    ndm_segment *segments; /* [n_segments], ascending, covering the slice */
    int64_t n_segments;

    ndm_comm *shard;       /* dp_shard x cp */
    ndm_comm *replicas;    /* dp_replicate */
    ndm_comm *block;       /* blocks of k for reshard_after_forward = k, else NULL */
    int64_t shards, index; /* size of shard, own place in it */
    int64_t numel, slice;  /* numel = shards * slice; multiples of NDM_UNIT_ALIGN */

    void *window; /* [numel] of param_dtype that all shards see, if they are on one node: its gather
                     is a barrier, and it is never resharded; NULL where there is none */
    float *master;     /* [slice]; in fp32 this rank's part of the window, if there is one */
    float *grad_slice; /* [slice]; this rank's part of grad_window, if there is one */
    void *grad_window; /* the slices of all replicas on one node, which are summed where they lie */
    ndm_pool_buffer
        *part;  /* [slice] a micro-batch's share, until it is added to grad_slice; NULL otherwise */
    void *kept; /* [numel / k] of param_dtype, with block */
    ndm_pool_buffer *gathered; /* [numel] of param_dtype; NULL while sharded, and with a window */
    ndm_pool_buffer *grads;    /* [numel] fp32, or a piece, [shards, length]; NULL while there are
                                  none, or where grad_slice is the whole */

    ndm_unit_rows rows;
    ndm_unit_pieces pieces;

    bool stale;                     /* the gathered array is older than the master */
    bool kept_valid;                /* kept is the current weights */
    bool grads_begun;               /* the gradient array holds something of this window */
    bool grads_reduced;             /* grad_slice holds this step's gradient so far */
    bool in_backward;               /* between grads_begin and reduce_grads */
    int64_t users;                  /* unshard() calls not yet given back */
    struct ndm_gather_eight *eight; /* NULL: it is gathered in param_dtype */
    ndm_event *changed;             /* the master's last change, on compute */
    ndm_event *gather_done;
    ndm_event *grads_ready; /* gradients complete, on compute */
    ndm_event *reduce_done;
    ndm_unit *live_next; /* gathered units that could be resharded, oldest first */
};

/* The master lies in the window. */
static inline bool ndm_unit_master_in_window(const ndm_unit *unit)
{
    return unit->window && unit->fsdp.param_dtype == NDM_F32;
}

/* One shard in fp32: the master is the gathered array. */
static inline bool ndm_unit_master_is_whole(const ndm_unit *unit)
{
    return unit->shards == 1 && unit->fsdp.param_dtype == NDM_F32;
}

/* The gathered array; valid while it is gathered, and NULL where nothing is. */
static inline void *ndm_unit_whole(const ndm_unit *unit)
{
    return unit->window                     ? unit->window
           : ndm_unit_master_is_whole(unit) ? unit->master
           : unit->gathered                 ? unit->gathered->memory
                                            : NULL;
}

/* The gathered array stays between uses, until the optimizer changes the master. */
static inline bool ndm_unit_keeps_weights(const ndm_unit *unit)
{
    return unit->shards == 1 || unit->window || unit->fsdp.zero < 3 ||
           unit->fsdp.reshard_after_forward == NDM_RESHARD_NEVER;
}

/* Gradients are accumulated whole and reduced once a step. */
static inline bool ndm_unit_defers(const ndm_unit *unit)
{
    return unit->shards == 1 || unit->fsdp.zero == 1 || unit->fsdp.defer_sync;
}

bool ndm_unit_has(const ndm_unit *unit, int64_t i); /* parameter i; unit may be NULL */
/* The parameter that lies first at `start` or behind it in the flat array; NULL behind the last. */
const ndm_param *ndm_unit_param_after(const ndm_unit *unit, int64_t start);

/* Starts the gather of weights that have just changed and that the next step begins with. Does
 * nothing where a gather moves no data, for a unit that is in use, and where one would have to give
 * another back. Collective over: dp_shard_cp. */
NDM_MUST_USE ndm_status ndm_unit_gather_ahead(ndm_unit *unit);

/* Before the master is written outside an optimizer's step: waits for a gather that reads it, and,
 * where ranks share a window, until none reads the old weights. A barrier over dp_shard_cp, if they
 * were gathered since they last changed. */
NDM_MUST_USE ndm_status ndm_unit_change(ndm_unit *unit);

/* Marks the gathered weights as old; called after kernels on the compute stream changed the master.
 */
NDM_MUST_USE ndm_status ndm_unit_changed(ndm_unit *unit);

/* Gathering of 8-bit numbers (strategies/gather_eight.c): made where the config asks for it and
 * there is something to gather. The slice in param_dtype lies in its place of the gathered array,
 * or is the master; the whole array is what comes out. */
NDM_MUST_USE ndm_status ndm_gather_eight_create(ndm_unit *unit);
void ndm_gather_eight_destroy(ndm_unit *unit);
NDM_MUST_USE ndm_status ndm_gather_eight_run(ndm_unit *unit, const void *slice, ndm_stream *stream);
int64_t ndm_gather_eight_bytes(const ndm_unit *unit); /* of a rank's message */
/* The account of a gather's scales; its messages are FSDP's. */
void ndm_gather_eight_describe(const ndm_unit *unit, ndm_direction direction, ndm_traffic_fn emit,
                               void *user);

/* NDM_ERR_MISMATCH, with the rank and the parameter, unless all ranks make the same unit.
 * Collective over: world. */
NDM_MUST_USE ndm_status ndm_unit_verify(const ndm_unit *u);

/* Gives buffers back, before the unit goes; streams are idle. */
void ndm_unit_forget(ndm_unit *unit);

/* The gradient of parameter i and what follows it, `numel` elements in all, for a product that adds
 * to beta times it: 0 at the first of a window, so that nobody has to clear the array before. */
NDM_MUST_USE ndm_status ndm_unit_grad_product(ndm_unit *unit, int64_t i, int64_t numel,
                                              ndm_stream *stream, float **grad, float *beta);

/* What the sharding strategies are made of (strategies/reduce.c), all on `stream`. A target is
 * where a micro-batch's reduced gradient goes: grad_slice itself, or a part that merge adds to it.
 * The reduce-scatter is of the piece that is open. */
NDM_MUST_USE ndm_status ndm_unit_grad_target(ndm_unit *unit, float **target, ndm_stream *stream);
NDM_MUST_USE ndm_status ndm_unit_reduce_scatter(ndm_unit *unit, float *target, ndm_stream *stream);
NDM_MUST_USE ndm_status ndm_unit_reduce_replicas(ndm_unit *unit, float *target, ndm_stream *stream);
NDM_MUST_USE ndm_status ndm_unit_grad_merge(ndm_unit *unit, ndm_stream *stream);

/* Gradients by rows (strategies/rows.c). A micro-batch touches few rows of a large table: instead
 * of the whole one, cleared, added to and reduced, ranks exchange ids and rows, and each adds what
 * falls into its slice, in the order of ranks and rows.
 *
 * Tells that each micro-batch's gradient of the unit is `n` rows of dtype, the same number on all
 * ranks. Collective over: world. */
NDM_MUST_USE ndm_status ndm_unit_expect_rows(ndm_unit *unit, int64_t n, ndm_dtype dtype);
/* Whether it comes by rows in this step: where less travels so. The same on all ranks. */
bool ndm_unit_by_rows(const ndm_unit *unit);
/* Instead of adding to ndm_unit_grad(): ids, [n], and rows, [n, width], which may be overwritten by
 * what follows on the stream. An id that is not in [first, first + rows of the table) has none. */
NDM_MUST_USE ndm_status ndm_unit_grad_rows(ndm_unit *unit, const int32_t *ids, const void *rows,
                                           ndm_dtype dtype, int64_t first, float scale,
                                           ndm_stream *stream);
/* Adds the rows of all ranks to grad_slice: all that the strategies for data have to do. */
NDM_MUST_USE ndm_status ndm_unit_reduce_rows(ndm_unit *unit, ndm_stream *stream);
/* The strategy's account of it; nothing if the unit's gradient does not come by rows. */
void ndm_unit_describe_rows(const ndm_unit *unit, const char *strategy, ndm_axis_set axes,
                            ndm_traffic_fn emit, void *user);

/* Gradients in pieces (strategies/pieces.c): of a matrix that is larger than what the other units
 * of a model need. Tells that its whole gradient is the one product that a micro-batch makes
 * between ndm_unit_grads_begin() and any other gradient of the unit; `units`, [n_units], are those
 * of the model, and stay. Parameter 0, with whole_rows; does nothing where there can be no pieces.
 */
void ndm_unit_expect_product(ndm_unit *unit, ndm_unit *const *units, int64_t n_units);
/* Pieces that the gradient comes in, in a step like this one; 1: whole. The same on all ranks. */
int64_t ndm_unit_pieces_of_step(const ndm_unit *unit);
/* What slices are multiples of, in a unit of `total` elements. */
int64_t ndm_unit_slice_step(const ndm_unit *unit, int64_t total);
/* Chooses the pieces of a window that begins. */
void ndm_unit_pieces_begin(ndm_unit *unit);
/* NDM_ERR_STATE unless the last one is open. */
NDM_MUST_USE ndm_status ndm_unit_pieces_end(const ndm_unit *unit);
/* ndm_unit_grad() while there are several: of what lies in the last one, once that is open. */
float *ndm_unit_grad_in_piece(const ndm_unit *unit, int64_t i);

/* Rows of a parameter's gradient that a product makes: grad = beta * grad + product. */
typedef struct ndm_product_rows {
    int64_t first, rows; /* rows 0: there are no more */
    float *grad;         /* [rows, width] */
    float beta;
    int64_t taken; /* ranges so far */
} ndm_product_rows;
/* The next rows of parameter i's gradient that are to be made, after those of the call before,
 * which are complete on `stream`: when a piece is, its reduction begins. */
NDM_MUST_USE ndm_status ndm_unit_product_next(ndm_unit *unit, int64_t i, ndm_stream *stream,
                                              ndm_product_rows *rows);

/* Copies a slice-shaped device array, [slice], from or to a user's range function. */
NDM_MUST_USE ndm_status ndm_unit_read_array(ndm_unit *unit, float *array, ndm_unit_range_fn read,
                                            void *user);
NDM_MUST_USE ndm_status ndm_unit_write_array(ndm_unit *unit, const float *array,
                                             ndm_unit_range_fn write, void *user);

/* As ndm_unit_read_array(), but values need not be there when `ask` returns. Where they go to by
 * way of the host's memory, `flush` is called for what was asked for so far; otherwise the caller
 * fills in the values when it likes. */
NDM_MUST_USE ndm_status ndm_unit_ask_array(ndm_unit *unit, float *array, ndm_unit_range_fn ask,
                                           ndm_status (*flush)(void *user), void *user);

/* Whether this rank writes ranges of the unit: the first replica does. */
bool ndm_unit_writes(const ndm_unit *unit);
/* As ndm_unit_write_array(), which writes from any replica, from a slice in host memory, [slice]:
 * whole runs, no copies, no device; any thread may. */
NDM_MUST_USE ndm_status ndm_unit_write_host(const ndm_unit *unit, const float *slice,
                                            ndm_unit_range_fn write, void *user);
/* A moment's array, [slice], device memory. */
float *ndm_optimizer_moment(const ndm_optimizer *optimizer, int64_t unit, ndm_moment moment);

/* NDM_ERR_CONFIG where one is out of its range. */
NDM_MUST_USE ndm_status ndm_step_options_check(const ndm_step_options *options);

/* ndm_optimizer_step() in its parts, for a trainer that has more to launch before it waits. First,
 * what differs from step to step goes to the device. */
NDM_MUST_USE ndm_status ndm_optimizer_prepare(ndm_optimizer *optimizer,
                                              const ndm_step_options *options);
/* Whether a step starts the first gathers of the next one beside its updates; it does by itself,
 * unless a strategy writes weights after it. Not where the step is a graph: the next one, which may
 * be an evaluation's, would have to leave gathered weights where the graph has them. */
void ndm_optimizer_set_ahead(ndm_optimizer *optimizer, bool ahead);
/* Everything up to the new weights: launches that are the same in every step. `sums` lie where
 * `from` copies from. */
NDM_MUST_USE ndm_status ndm_optimizer_launch(ndm_optimizer *optimizer,
                                             const ndm_step_options *options, const double *sums,
                                             int64_t n_sums, ndm_copy_kind from);
/* What was measured, to the host: valid once the compute stream was synchronized. */
NDM_MUST_USE ndm_status ndm_optimizer_fetch(ndm_optimizer *optimizer);
/* After that: sums and norm; NDM_ERR_NONFINITE if the step was not taken, else it counts. */
NDM_MUST_USE ndm_status ndm_optimizer_conclude(ndm_optimizer *optimizer,
                                               const ndm_step_options *options, double *sums,
                                               int64_t n_sums, double *norm);

/* registry.c */
bool ndm_strategy_is_built_in(const ndm_strategy *strategy);
/* Whether nobody else has a say in how gradients are reduced: a strategy from elsewhere may want
 * them whole, and simulated stacks of others have ways of their own. */
bool ndm_context_reduces_alone(const ndm_context *context);

/* ---- walking the strategies (strategies/engine.c) ----------------------------------------- */

/* Around the use of a unit by a model; `next` (or NULL) is the unit that will be used after it, and
 * is prefetched. */
NDM_MUST_USE ndm_status ndm_engine_unit_enter(ndm_unit *unit, ndm_unit *next);
NDM_MUST_USE ndm_status ndm_engine_unit_leave(ndm_unit *unit);
NDM_MUST_USE ndm_status ndm_engine_check(ndm_context *context, const ndm_demands *demands);
/* Picks this rank's tokens out of 0..n-1; returns their number in *n. */
NDM_MUST_USE ndm_status ndm_engine_batch(ndm_context *context, int32_t *picks, int64_t *n);
/* The collective around a split GEMM; without one, x and full are the same array and nothing
 * happens. */
NDM_MUST_USE ndm_status ndm_engine_linear_in(ndm_context *context, ndm_direction direction, void *x,
                                             void *full, int64_t rows, int64_t width,
                                             ndm_dtype dtype);
NDM_MUST_USE ndm_status ndm_engine_linear_out(ndm_context *context, ndm_direction direction,
                                              void *x, void *full, int64_t rows, int64_t width,
                                              ndm_dtype dtype);
/* Either of them, on a stream. */
NDM_MUST_USE ndm_status ndm_engine_region(ndm_context *context, bool in, ndm_direction direction,
                                          void *x, void *full, int64_t rows, int64_t width,
                                          ndm_dtype dtype, ndm_stream *stream);
/* Merges the softmax statistics of vocabulary slices, in place; all: room for every slice's. */
NDM_MUST_USE ndm_status ndm_engine_loss_stats(ndm_context *context, float *stats, float *all,
                                              int64_t rows);
NDM_MUST_USE ndm_status ndm_engine_attention(ndm_context *context, ndm_direction direction,
                                             const ndm_attention_call *call);
NDM_MUST_USE ndm_status ndm_engine_step_end(ndm_context *context, ndm_unit *const *units,
                                            int64_t n_units, int64_t step);
void ndm_engine_describe(const ndm_context *context, const ndm_describe_args *args,
                         ndm_traffic_fn emit, void *user);

/* Sharding hooks that local, ddp, fsdp and hsdp share (strategies/fsdp.c). */
ndm_status ndm_fsdp_unit_enter(ndm_context *context, ndm_unit *unit, ndm_stream *stream);
ndm_status ndm_fsdp_unit_leave(ndm_context *context, ndm_unit *unit, ndm_stream *stream);
void ndm_fsdp_describe(const ndm_context *context, const ndm_describe_args *args,
                       ndm_traffic_fn emit, void *user);

/* bind.c: what the options ask for, before the ranks tell where they are. */
bool ndm_bind_is_set(void);
NDM_MUST_USE ndm_status ndm_bind_self(const ndm_context *context, ndm_bind bind, int threads);

#endif
