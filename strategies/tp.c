/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism: column-parallel, then row-parallel matrices, so that a branch needs one
 * collective at each end. Shoeybi et al., "Megatron-LM", 2019; with sequence parallelism between
 * the regions: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models",
 * 2022, section 4.2.
 *
 *                     enter a column op            leave a row op
 * sequence parallel   forward all-gather rows      forward reduce-scatter rows
 *                     backward reduce-scatter      backward all-gather
 * replicated          forward nothing              forward all-reduce
 *                     backward all-reduce          backward nothing */
#include "core/dtype.h"
#include "strategies/internal.h"

static bool applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)fsdp;
    return ndm_context_axes_size(context, NDM_AXIS_TP) > 1;
}

static ndm_status tp_comm(ndm_context *context, ndm_comm **comm)
{
    return ndm_context_comm(context, NDM_AXIS_TP, comm);
}

/* Own rows -> all rows; each rank's block lies at its place. Not in place unless x is that block.
 */
static ndm_status gather_rows(ndm_context *context, const void *x, void *full, int64_t rows,
                              int64_t width, ndm_dtype dtype, ndm_stream *stream)
{
    ndm_comm *tp;

    NDM_TRY(tp_comm(context, &tp));
    return ndm_all_gather(tp, x, full, rows / ndm_comm_size(tp) * width, dtype, stream);
}

/* Partial sums of all rows -> the sum of own rows. */
static ndm_status scatter_rows(ndm_context *context, void *x, const void *full, int64_t rows,
                               int64_t width, ndm_dtype dtype, ndm_stream *stream)
{
    ndm_comm *tp;

    NDM_TRY(tp_comm(context, &tp));
    return ndm_reduce_scatter(tp, full, x, rows / ndm_comm_size(tp) * width, dtype, dtype, NDM_SUM,
                              stream);
}

static ndm_status sum_rows(ndm_context *context, void *full, int64_t rows, int64_t width,
                           ndm_dtype dtype, ndm_stream *stream)
{
    ndm_comm *tp;

    NDM_TRY(tp_comm(context, &tp));
    return ndm_all_reduce(tp, full, rows * width, dtype, NDM_SUM, stream);
}

static ndm_status linear_in(ndm_context *context, ndm_direction direction, void *x, void *full,
                            int64_t rows, int64_t width, ndm_dtype dtype, ndm_stream *stream)
{
    bool split = ndm_context_sequence_parallel(context);

    if (direction == NDM_FORWARD)
        return split ? gather_rows(context, x, full, rows, width, dtype, stream) : NDM_OK;
    return split ? scatter_rows(context, x, full, rows, width, dtype, stream)
                 : sum_rows(context, full, rows, width, dtype, stream);
}

static ndm_status linear_out(ndm_context *context, ndm_direction direction, void *x, void *full,
                             int64_t rows, int64_t width, ndm_dtype dtype, ndm_stream *stream)
{
    bool split = ndm_context_sequence_parallel(context);

    if (direction == NDM_BACKWARD)
        return split ? gather_rows(context, x, full, rows, width, dtype, stream) : NDM_OK;
    return split ? scatter_rows(context, x, full, rows, width, dtype, stream)
                 : sum_rows(context, full, rows, width, dtype, stream);
}

/* all-gather of 4 floats a row: logits themselves never travel. */
static ndm_status loss_stats(ndm_context *context, float *stats, float *all, int64_t rows,
                             ndm_stream *stream)
{
    ndm_comm *tp;

    NDM_TRY(tp_comm(context, &tp));
    NDM_TRY(ndm_all_gather(tp, stats, all, 4 * rows, NDM_F32, stream));
    return ndm_ce_merge(
        stream,
        &(ndm_ce_merge_args){.all = all, .stats = stats, .n = rows, .parts = ndm_comm_size(tp)});
}

/* ---- gradients of parameters that tp ranks share ------------------------------------------ */

/* Neighbouring parameters whose gradients the same tp ranks sum: one message for all of them. What
 * lies between two of them is padding, zero on every rank. */
typedef struct stretch {
    int64_t from, to; /* in the unit's flat array */
    int64_t sharers;
} stretch;

static bool same_sum(const ndm_param *p, const ndm_param *next)
{
    return next && next->sum_over_sharers && next->sharers == p->sharers;
}

/* The first stretch that begins at *place or behind it; *place moves behind it. */
static bool next_stretch(const ndm_unit *u, int64_t *place, stretch *s)
{
    const ndm_param *p = ndm_unit_param_after(u, *place);

    while (p && !p->sum_over_sharers)
        p = ndm_unit_param_after(u, p->start + 1);
    if (!p)
        return false;
    *s = (stretch){.from = p->start, .sharers = p->sharers};
    for (const ndm_param *next = p; same_sum(p, next);
         next = ndm_unit_param_after(u, next->start + 1))
        s->to = next->start + next->numel;
    *place = s->to;
    return true;
}

/* Cuts the stretch to this rank's slice, in whose places it then is; false if nothing is left. */
static bool cut_to_slice(const ndm_unit *u, stretch *s)
{
    int64_t begin = u->index * u->slice, end = begin + u->slice;

    s->from = (s->from > begin ? s->from : begin) - begin;
    s->to = (s->to < end ? s->to : end) - begin;
    return s->from < s->to;
}

static ndm_status sharers_comm(ndm_context *context, int64_t sharers, ndm_comm **comm)
{
    if (sharers == ndm_context_axes_size(context, NDM_AXIS_TP))
        return tp_comm(context, comm);
    return ndm_comms_get_block(context->comms, NDM_AXIS_TP, sharers, comm);
}

/* Every sharer holds the same slice of the same parameters, since their layouts are equal. */
static ndm_status sum_shared_grads(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    int64_t place = 0;
    stretch s;

    if (!ndm_context_last_micro_batch(context))
        return NDM_OK;
    while (next_stretch(unit, &place, &s)) {
        ndm_comm *comm;
        if (!cut_to_slice(unit, &s))
            continue;
        NDM_TRY(sharers_comm(context, s.sharers, &comm));
        NDM_TRY(ndm_all_reduce(comm, unit->grad_slice + s.from, s.to - s.from, NDM_F32, NDM_SUM,
                               stream));
    }
    return NDM_OK;
}

/* ---- account ------------------------------------------------------------------------------ */

static void describe_linear(const ndm_context *context, const ndm_describe_args *a,
                            ndm_traffic_fn emit, void *user)
{
    int64_t n = ndm_context_axes_size(context, NDM_AXIS_TP),
            bytes = a->rows * a->hidden * (int64_t)ndm_dtype_bytes(a->dtype);
    bool split = ndm_context_sequence_parallel(context);
    ndm_traffic t = {"tp", "linear", NDM_FORWARD, NDM_ALL_GATHER, NDM_AXIS_TP, a->column_inputs, 0};

    if (!split) {
        t.kind = NDM_ALL_REDUCE;
        t.calls = a->row_outputs;
        t.bytes = t.calls * 2 * (n - 1) * bytes / n;
        emit(user, &t);
        t.direction = NDM_BACKWARD;
        t.calls = a->column_inputs;
        t.bytes = t.calls * 2 * (n - 1) * bytes / n;
        emit(user, &t);
        return;
    }
    for (int direction = NDM_FORWARD; direction <= NDM_BACKWARD; direction++) {
        bool forward = direction == NDM_FORWARD;
        t.direction = (ndm_direction)direction;
        t.kind = NDM_ALL_GATHER;
        t.calls = forward ? a->column_inputs : a->row_outputs;
        t.bytes = t.calls * (n - 1) * bytes / n;
        emit(user, &t);
        t.kind = NDM_REDUCE_SCATTER;
        t.calls = forward ? a->row_outputs : a->column_inputs;
        t.bytes = t.calls * (n - 1) * bytes / n;
        emit(user, &t);
    }
}

static void describe_shared(const ndm_describe_args *a, ndm_traffic_fn emit, void *user)
{
    ndm_traffic t = {"tp", "unit", NDM_BACKWARD, NDM_ALL_REDUCE, NDM_AXIS_TP, 0, 0};
    int64_t place = 0;
    stretch s;

    while (next_stretch(a->unit, &place, &s)) {
        if (!cut_to_slice(a->unit, &s))
            continue;
        t.calls++;
        t.bytes += 2 * (s.sharers - 1) * (s.to - s.from) * (int64_t)sizeof(float) / s.sharers;
    }
    if (t.calls > 0)
        emit(user, &t);
}

/* 4 floats a row from every rank of tp. */
static void describe_loss(const ndm_context *context, const ndm_describe_args *a,
                          ndm_traffic_fn emit, void *user)
{
    int64_t n = ndm_context_axes_size(context, NDM_AXIS_TP);

    emit(user, &(ndm_traffic){"tp", "loss", NDM_FORWARD, NDM_ALL_GATHER, NDM_AXIS_TP, a->loss_calls,
                              (n - 1) * 4 * a->loss_rows * (int64_t)sizeof(float)});
}

static void describe(const ndm_context *context, const ndm_describe_args *args, ndm_traffic_fn emit,
                     void *user)
{
    if (args->loss_calls > 0)
        describe_loss(context, args, emit, user);
    if (args->column_inputs + args->row_outputs > 0)
        describe_linear(context, args, emit, user);
    if (args->unit)
        describe_shared(args, emit, user);
}

const ndm_strategy ndm_strategy_tp = {
    .name = "tp",
    .summary = "cut matrices by output or input features over tp",
    .axes = NDM_AXIS_TP,
    .applies = applies,
    .linear_in = linear_in,
    .linear_out = linear_out,
    .loss_stats = loss_stats,
    .grads = sum_shared_grads,
    .describe = describe,
};
