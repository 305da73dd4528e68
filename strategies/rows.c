/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a table by rows: of an embedding, a micro-batch makes as many as it has tokens.
 *
 * All ranks that split tokens gather ids and rows, and each adds those that fall into its slice of
 * the flat array, which may begin and end within a row. Every rank has the same rows in the same
 * order, so the sums are the same bits on every replica and in every run. With n ranks of N rows of
 * width C, (n - 1) N C elements are received; by a reduce-scatter of a table of V rows it would be
 * (n - 1) V C / n. */
#include "core/dtype.h"
#include "strategies/internal.h"

static int64_t width_of(const ndm_unit *u)
{
    return u->params[0].local[1];
}

static bool is_one_table(const ndm_unit *u)
{
    const ndm_param *p = &u->params[0];

    return u->n_params == 1 && p->spec.ndim == 2 && p->cut <= 0 && p->parts == 1 &&
           !p->sum_over_sharers;
}

/* The narrower one of what is there and what gradients travel in. */
static ndm_dtype wire_of(const ndm_unit *u, ndm_dtype dtype)
{
    bool narrow = u->context->device->activation_bytes < (int)sizeof(float);

    return narrow || u->fsdp.reduce_dtype != NDM_F32 ? NDM_BF16 : dtype;
}

/* What a rank receives of a micro-batch's rows. */
static int64_t rows_bytes(const ndm_unit *u)
{
    const ndm_unit_rows *r = &u->rows;

    return (r->ranks - 1) * r->n *
           (width_of(u) * (int64_t)ndm_dtype_bytes(r->wire) + (int64_t)sizeof(int32_t));
}

/* What it receives in a step of so many micro-batches if the whole table is reduced. */
static int64_t whole_bytes(const ndm_unit *u, int64_t micro_batches)
{
    int64_t slice = u->slice * (int64_t)ndm_dtype_bytes(u->fsdp.reduce_dtype);
    int64_t replicas = ndm_comm_size(u->replicas);
    int64_t scatters = ndm_unit_defers(u) ? 1 : micro_batches;
    int64_t sums = ndm_unit_defers(u) || u->fsdp.defer_replicas ? 1 : micro_batches;

    return scatters * (u->shards - 1) * slice + sums * 2 * (replicas - 1) * slice / replicas;
}

static bool less_travels(const ndm_unit *u, int64_t micro_batches)
{
    return micro_batches * rows_bytes(u) < whole_bytes(u, micro_batches);
}

ndm_status ndm_unit_expect_rows(ndm_unit *unit, int64_t n, ndm_dtype dtype)
{
    ndm_context *c = unit->context;
    int64_t ranks = ndm_context_axes_size(c, NDM_AXES_DP_CP);

    if (ranks == 1 || !is_one_table(unit) || !ndm_context_reduces_alone(c))
        return NDM_OK;
    unit->rows = (ndm_unit_rows){.ranks = ranks, .n = n, .wire = wire_of(unit, dtype)};
    if (!less_travels(unit, 1)) /* and so not with more of them */
        return NDM_OK;
    return ndm_context_comm(c, NDM_AXES_DP_CP, &unit->rows.comm);
}

bool ndm_unit_by_rows(const ndm_unit *unit)
{
    return unit->rows.comm && less_travels(unit, unit->context->micro_batches);
}

/* Where a rank's rows begin, and its ids, which lie behind the rows of all. */
static void *rows_at(const ndm_unit *u, int64_t rank)
{
    return ndm_dtype_at(u->rows.buffer->memory, u->rows.wire, rank * u->rows.n * width_of(u));
}

static int32_t *ids_at(const ndm_unit *u, int64_t rank)
{
    return (int32_t *)rows_at(u, u->rows.ranks) + rank * u->rows.n;
}

ndm_status ndm_unit_grad_rows(ndm_unit *unit, const int32_t *ids, const void *rows, ndm_dtype dtype,
                              int64_t first, float scale, ndm_stream *stream)
{
    ndm_unit_rows *r = &unit->rows;
    int64_t self = ndm_comm_index(r->comm), all = r->ranks * r->n;
    int64_t row = width_of(unit) * (int64_t)ndm_dtype_bytes(r->wire) + (int64_t)sizeof *ids;

    NDM_TRY(ndm_pool_take(unit->context, all * row, NDM_MEMORY_COMM, stream, &r->buffer));
    r->first = first;
    r->scale = scale;
    NDM_TRY(ndm_copy(stream, ids_at(unit, self), ids, r->n * (int64_t)sizeof *ids,
                     NDM_DEVICE_TO_DEVICE));
    return ndm_cast(stream, &(ndm_cast_args){.src = rows,
                                             .dst = rows_at(unit, self),
                                             .src_dtype = dtype,
                                             .dst_dtype = r->wire,
                                             .n = r->n * width_of(unit)});
}

/* all-gathers over dp x cp: (n-1)/n of the ids and rows of all ranks received. */
static ndm_status gather_rows(ndm_unit *u, ndm_stream *stream)
{
    const ndm_unit_rows *r = &u->rows;
    int64_t self = ndm_comm_index(r->comm);

    NDM_TRY(ndm_all_gather(r->comm, ids_at(u, self), ids_at(u, 0), r->n, NDM_I32, stream));
    return ndm_all_gather(r->comm, rows_at(u, self), rows_at(u, 0), r->n * width_of(u), r->wire,
                          stream);
}

/* To the part of the table that is in this rank's slice; padding may follow, or be all there is. */
static ndm_status add_rows(ndm_unit *u, ndm_stream *stream)
{
    const ndm_unit_rows *r = &u->rows;
    const ndm_param *p = &u->params[0];
    int64_t first = u->index * u->slice, left = p->numel - first;
    ndm_embedding_backward_args args = {.ids = ids_at(u, 0),
                                        .dout = rows_at(u, 0),
                                        .dout_dtype = r->wire,
                                        .scale = r->scale,
                                        .n = r->ranks * r->n,
                                        .width = width_of(u),
                                        .first = r->first,
                                        .rows = p->local[0],
                                        .dtable = u->grad_slice,
                                        .part_first = first,
                                        .part_count = left < u->slice ? left : u->slice};

    return left > 0 ? ndm_embedding_backward(stream, &args) : NDM_OK;
}

ndm_status ndm_unit_reduce_rows(ndm_unit *unit, ndm_stream *stream)
{
    if (!unit->rows.buffer)
        NDM_FAIL(NDM_ERR_STATE, "unit %s has no rows of gradients to reduce", unit->name);
    if (!unit->grads_reduced)
        NDM_TRY(ndm_zero(stream, unit->grad_slice, unit->slice * (int64_t)sizeof(float)));
    NDM_TRY(gather_rows(unit, stream));
    NDM_TRY(add_rows(unit, stream));
    NDM_TRY(ndm_pool_give(unit->rows.buffer, stream));
    unit->rows.buffer = NULL;
    return NDM_OK;
}

void ndm_unit_describe_rows(const ndm_unit *unit, const char *strategy, ndm_axis_set axes,
                            ndm_traffic_fn emit, void *user)
{
    if (ndm_unit_by_rows(unit))
        emit(user, &(ndm_traffic){strategy, "rows", NDM_BACKWARD, NDM_ALL_GATHER, axes, 2,
                                  rows_bytes(unit)});
}
