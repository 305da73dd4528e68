/* SPDX-License-Identifier: Apache-2.0 */
/* Gradients of units: the whole array that kernels add to, and the ways it becomes the sum in
 * slices. Where a product gave the first term once, it does so in every window: such gradients are
 * not cleared.
 *
 * Sums are fp32 whatever the wire carries. With deferral the whole array lives over all
 * micro-batches and is reduced once; without, each micro-batch is reduced and added to the slice.
 * The first micro-batch of a step begins anew, also where no step followed the last one. */
#include "core/dtype.h"
#include "core/given.h"
#include "strategies/internal.h"

static ndm_status zero_part(ndm_stream *stream, float *base, int64_t from, int64_t to)
{
    return to > from ? ndm_zero(stream, base + from, (to - from) * (int64_t)sizeof(float)) : NDM_OK;
}

/* Zeros, but where products will write: these are blank. */
static ndm_status clear_params(ndm_unit *u, float *base, ndm_stream *stream)
{
    int64_t from = 0;

    for (int64_t i = 0; i < u->n_params; i++)
        u->params[i].blank = u->params[i].by_product;
    for (const ndm_param *p = ndm_unit_param_after(u, 0); p;
         p = ndm_unit_param_after(u, p->start + 1)) {
        if (!p->by_product)
            continue;
        NDM_TRY(zero_part(stream, base, from, p->start));
        from = p->start + p->numel;
    }
    return zero_part(stream, base, from, u->numel);
}

/* Of a window that came to no end. */
static ndm_status forget_grads(ndm_unit *u, ndm_stream *stream)
{
    ndm_pool_buffer *old = u->grads;

    u->grads = NULL;
    return ndm_pool_give(old, stream);
}

/* An array that kernels on `stream` may add to; or, in pieces, none yet. */
static ndm_status clear_grads(ndm_unit *u, ndm_stream *stream)
{
    int64_t bytes = u->numel * (int64_t)sizeof(float);

    ndm_unit_pieces_begin(u);
    if (u->grads && (u->pieces.n > 1 || u->grads->bytes < bytes))
        NDM_TRY(forget_grads(u, stream));
    if (u->pieces.n > 1)
        return NDM_OK;
    if (u->shards == 1) {
        NDM_TRY(ndm_stream_wait(stream, u->reduce_done)); /* it is reduced in place */
        return clear_params(u, u->grad_slice, stream);
    }
    if (!u->grads)
        NDM_TRY(ndm_pool_take_shared(u->context, u->shard, bytes, NDM_MEMORY_GRADIENTS, stream,
                                     &u->grads));
    return clear_params(u, u->grads->memory, stream);
}

static float *grads_of(const ndm_unit *u)
{
    return u->shards == 1 ? u->grad_slice : u->grads ? u->grads->memory : NULL;
}

static ndm_status fill_blank(const ndm_unit *u, ndm_param *p, ndm_stream *stream)
{
    float *base = grads_of(u);

    if (!p->blank || !base)
        return NDM_OK;
    p->blank = false;
    return zero_part(stream, base, p->start, p->start + p->numel);
}

float *ndm_unit_grad(const ndm_unit *unit, int64_t i)
{
    if (!ndm_unit_has(unit, i))
        return NULL;
    float *base = grads_of(unit);

    if (base && unit->pieces.n > 1)
        return ndm_unit_grad_in_piece(unit, i);
    if (!base || fill_blank(unit, &unit->params[i], unit->context->compute) != NDM_OK)
        return NULL;
    return base + unit->params[i].start;
}

ndm_status ndm_unit_grad_product(ndm_unit *unit, int64_t i, int64_t numel, ndm_stream *stream,
                                 float **grad, float *beta)
{
    int64_t from = unit->params[i].start, to = from + numel;
    bool blank = true;

    for (int64_t j = 0; j < unit->n_params; j++)
        if (unit->params[j].start >= from && unit->params[j].start < to)
            blank = blank && unit->params[j].blank;
    for (int64_t j = 0; j < unit->n_params; j++) {
        ndm_param *p = &unit->params[j];
        if (p->start < from || p->start >= to)
            continue;
        p->by_product = true;
        if (!blank)
            NDM_TRY(fill_blank(unit, p, stream));
        p->blank = false;
    }
    *grad = grads_of(unit) + from;
    *beta = blank ? 0.0f : 1.0f;
    return NDM_OK;
}

ndm_status ndm_unit_grads_begin(ndm_unit *unit, ndm_stream *stream)
{
    NDM_NEED(unit);
    NDM_NEED(stream);
    bool first = unit->context->micro_batch == 0 && !unit->in_backward;

    if ((first || !unit->grads_begun) && !ndm_unit_by_rows(unit))
        NDM_TRY(clear_grads(unit, stream));
    if (first)
        unit->grads_reduced = false;
    unit->grads_begun = unit->in_backward = true;
    return NDM_OK;
}

ndm_status ndm_unit_reduce_grads(ndm_unit *unit, ndm_stream *stream)
{
    NDM_NEED(unit);
    NDM_NEED(stream);
    ndm_context *c = unit->context;
    bool waits = ndm_unit_defers(unit) && !ndm_unit_by_rows(unit);

    if (!unit->in_backward)
        NDM_FAIL(NDM_ERR_STATE, "unit %s has no gradients to reduce", unit->name);
    unit->in_backward = false;
    for (int64_t i = 0; i < unit->n_params; i++)
        NDM_TRY(fill_blank(unit, &unit->params[i], stream)); /* no product came */
    if (waits && !ndm_context_last_micro_batch(c))
        return NDM_OK;
    NDM_TRY(ndm_unit_pieces_end(unit));
    NDM_TRY(ndm_event_record(unit->grads_ready, stream));
    NDM_TRY(ndm_stream_wait(c->reduce, unit->grads_ready));
    for (int64_t i = 0; i < c->n_strategies; i++)
        if (c->strategies[i]->grads)
            NDM_TRY(c->strategies[i]->grads(c, unit, c->reduce));
    if (unit->grads) {
        NDM_TRY(ndm_pool_give(unit->grads, c->reduce));
        unit->grads = NULL;
    }
    unit->grads_reduced = true;
    unit->grads_begun = false;
    return ndm_event_record(unit->reduce_done, c->reduce);
}

ndm_status ndm_unit_grad_target(ndm_unit *unit, float **target, ndm_stream *stream)
{
    int64_t bytes = unit->slice * (int64_t)sizeof(float);

    *target = unit->grad_slice;
    if (!unit->grads_reduced)
        return NDM_OK;
    if (!unit->part) /* by the first piece */
        NDM_TRY(ndm_pool_take(unit->context, bytes, NDM_MEMORY_GRADIENTS, stream, &unit->part));
    *target = unit->part->memory;
    return NDM_OK;
}

/* The slice of the sum over dp_shard_cp, or a piece's part of it; (n-1)/n of the flat array
 * received in the reduce type, over all pieces. */
ndm_status ndm_unit_reduce_scatter(ndm_unit *unit, float *target, ndm_stream *stream)
{
    const ndm_unit_pieces *p = &unit->pieces;
    ndm_dtype wire = unit->fsdp.reduce_dtype;
    ndm_pool_buffer *staging;

    target += p->first;
    if (wire == NDM_F32)
        return ndm_reduce_scatter(unit->shard, unit->grads->memory, target, p->length, NDM_F32,
                                  NDM_F32, NDM_SUM, stream);
    NDM_TRY(ndm_pool_take(unit->context, p->size * (int64_t)ndm_dtype_bytes(wire), NDM_MEMORY_COMM,
                          stream, &staging));
    NDM_TRY(ndm_cast(stream, &(ndm_cast_args){.src = unit->grads->memory,
                                              .dst = staging->memory,
                                              .src_dtype = NDM_F32,
                                              .dst_dtype = wire,
                                              .n = unit->shards * p->length}));
    NDM_TRY(ndm_reduce_scatter(unit->shard, staging->memory, target, p->length, wire, NDM_F32,
                               NDM_SUM, stream));
    return ndm_pool_give(staging, stream);
}

/* Sum over dp_replicate, in place; 2(n-1)/n of the slice received in the reduce type. */
ndm_status ndm_unit_reduce_replicas(ndm_unit *unit, float *target, ndm_stream *stream)
{
    ndm_dtype wire = unit->fsdp.reduce_dtype;
    ndm_pool_buffer *staging;

    if (wire == NDM_F32)
        return ndm_all_reduce(unit->replicas, target, unit->slice, NDM_F32, NDM_SUM, stream);
    NDM_TRY(ndm_pool_take(unit->context, unit->slice * (int64_t)ndm_dtype_bytes(wire),
                          NDM_MEMORY_COMM, stream, &staging));
    NDM_TRY(ndm_cast(stream, &(ndm_cast_args){.src = target,
                                              .dst = staging->memory,
                                              .src_dtype = NDM_F32,
                                              .dst_dtype = wire,
                                              .n = unit->slice}));
    NDM_TRY(ndm_all_reduce(unit->replicas, staging->memory, unit->slice, wire, NDM_SUM, stream));
    NDM_TRY(ndm_cast(stream, &(ndm_cast_args){.src = staging->memory,
                                              .dst = target,
                                              .src_dtype = wire,
                                              .dst_dtype = NDM_F32,
                                              .n = unit->slice}));
    return ndm_pool_give(staging, stream);
}

ndm_status ndm_unit_grad_merge(ndm_unit *unit, ndm_stream *stream)
{
    if (!unit->part)
        return NDM_OK;
    NDM_TRY(ndm_add(stream, &(ndm_add_args){.y = unit->grad_slice,
                                            .x = unit->part->memory,
                                            .factor = 1.0f,
                                            .n = unit->slice}));
    NDM_TRY(ndm_pool_give(unit->part, stream));
    unit->part = NULL;
    return NDM_OK;
}
