/* SPDX-License-Identifier: Apache-2.0 */
/* Unshard and reshard: which units are gathered, and in what memory.
 *
 * Gathers run on the context's gather stream. A unit that is given back keeps nothing (ZeRO-3), a
 * copy sharded over k ranks (reshard to k, between forward and backward), or everything until the
 * optimizer has changed the master (ZeRO-1, 2). Waits are keyed on the unit, never on the expected
 * order. */
#include <assert.h>

#include "core/dtype.h"
#include "core/given.h"
#include "strategies/internal.h"

/* ---- the list of gathered units that could be given back, oldest first -------------------- */

static void live_add(ndm_unit *u)
{
    ndm_unit **link = &u->context->live;

    while (*link)
        link = &(*link)->live_next;
    *link = u;
    u->live_next = NULL;
    u->context->n_live++;
}

static void live_remove(ndm_unit *u)
{
    ndm_unit **link = &u->context->live;

    while (*link && *link != u)
        link = &(*link)->live_next;
    if (!*link)
        return;
    *link = u->live_next;
    u->context->n_live--;
}

static ndm_status give_back(ndm_unit *u, ndm_stream *stream)
{
    live_remove(u);
    NDM_TRY(ndm_pool_give(u->gathered, stream));
    u->gathered = NULL;
    return NDM_OK;
}

void ndm_unit_forget(ndm_unit *u)
{
    live_remove(u);
    if (u->gathered)
        u->gathered->taken = false;
    if (u->grads)
        u->grads->taken = false;
    if (u->rows.buffer)
        u->rows.buffer->taken = false;
    u->gathered = u->grads = u->rows.buffer = NULL;
}

/* Reshards the oldest idle unit if as many as allowed are gathered; *room: whether there is place
 * now. */
static ndm_status make_room(ndm_unit *u, bool *room)
{
    ndm_context *c = u->context;

    *room = true;
    if (ndm_unit_keeps_weights(u) || c->n_live < u->fsdp.live_units)
        return NDM_OK;
    for (ndm_unit *old = c->live; old; old = old->live_next)
        if (old->users == 0)
            return give_back(old,
                             c->gather); /* idle units are read by nothing but their own gather */
    *room = false;
    return NDM_OK;
}

/* ---- gather ------------------------------------------------------------------------------- */

/* From the masters of all shards; a bf16 unit rounds its own slice first, so the wire carries 2
 * bytes an element. */
static ndm_status gather_masters(ndm_unit *u, ndm_stream *stream)
{
    ndm_dtype dtype = u->fsdp.param_dtype;
    const void *send = u->master;

    if (dtype != NDM_F32) {
        char *own = (char *)ndm_unit_whole(u) +
                    u->index * u->slice * (int64_t)ndm_dtype_bytes(dtype);
        NDM_TRY(ndm_cast(stream, &(ndm_cast_args){.src = u->master,
                                                  .dst = own,
                                                  .src_dtype = NDM_F32,
                                                  .dst_dtype = dtype,
                                                  .n = u->slice}));
        send = own;
    }
    if (u->eight)
        return ndm_gather_eight_run(u, send, stream);
    return ndm_all_gather(u->shard, send, ndm_unit_whole(u), u->slice, dtype, stream);
}

/* all-gather over dp_shard_cp: (n-1)/n of the flat array received; over a block of k: (k-1)/k of
 * it; in a window a barrier, once a step: ranks have left the last backward when the optimizer
 * writes, since the norm is summed over all of them first. */
static ndm_status gather(ndm_unit *u)
{
    ndm_context *c = u->context;
    int64_t bytes = u->numel * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);

    if (!u->gathered && !u->window) {
        NDM_TRY(ndm_pool_take(c, bytes, NDM_MEMORY_GATHERED, c->gather, &u->gathered));
        if (!ndm_unit_keeps_weights(u))
            live_add(u);
    }
    NDM_TRY(ndm_stream_wait(c->gather, u->changed));
    assert(u->gathered || !u->kept_valid); /* what a window holds is not kept a second time */
    if (u->kept_valid)
        NDM_TRY(ndm_all_gather(u->block, u->kept, u->gathered->memory,
                               u->numel / ndm_comm_size(u->block), u->fsdp.param_dtype, c->gather));
    else
        NDM_TRY(gather_masters(u, c->gather));
    u->stale = false;
    return ndm_event_record(u->gather_done, c->gather);
}

static bool needs_gather(const ndm_unit *u)
{
    return !ndm_unit_master_is_whole(u) && (u->stale || (!u->gathered && !u->window));
}

ndm_status ndm_unit_unshard(ndm_unit *unit, ndm_stream *stream)
{
    bool room;

    NDM_NEED(unit);
    NDM_NEED(stream);
    if (needs_gather(unit)) {
        NDM_TRY(make_room(
            unit, &room)); /* without room there is one unit too many, rather than a deadlock */
        NDM_TRY(gather(unit));
    }
    unit->users++;
    return ndm_unit_master_is_whole(unit) ? NDM_OK : ndm_stream_wait(stream, unit->gather_done);
}

ndm_status ndm_unit_prefetch(ndm_unit *unit, ndm_stream *stream)
{
    bool room;

    NDM_NEED(unit);
    (void)stream;
    if (!needs_gather(unit))
        return NDM_OK;
    NDM_TRY(make_room(unit, &room));
    return room ? gather(unit) : NDM_OK;
}

ndm_status ndm_unit_gather_ahead(ndm_unit *unit)
{
    bool moves = unit->shards > 1 && !unit->window;

    if (!moves || unit->users > 0 || !needs_gather(unit))
        return NDM_OK;
    if (!ndm_unit_keeps_weights(unit) && unit->context->n_live >= unit->fsdp.live_units)
        return NDM_OK;
    return gather(unit);
}

/* ---- reshard ------------------------------------------------------------------------------ */

/* Keeps this rank's part of its block: 1/k of the flat array, for the gather in the backward. */
static ndm_status keep_part(ndm_unit *u, ndm_stream *stream)
{
    int64_t part = u->numel / ndm_comm_size(u->block) *
                   (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);
    const char *own = (const char *)u->gathered->memory + ndm_comm_index(u->block) * part;

    NDM_TRY(ndm_copy(stream, u->kept, own, part, NDM_DEVICE_TO_DEVICE));
    NDM_TRY(ndm_event_record(u->changed, stream));
    u->kept_valid = true;
    return NDM_OK;
}

ndm_status ndm_unit_reshard(ndm_unit *unit, ndm_stream *stream)
{
    NDM_NEED(unit);
    NDM_NEED(stream);
    if (unit->users < 1)
        NDM_FAIL(NDM_ERR_STATE, "unit %s is not unsharded", unit->name);
    unit->users--;
    if (unit->users > 0 || ndm_unit_keeps_weights(unit))
        return NDM_OK;
    if (unit->block && !unit->kept_valid && !unit->in_backward)
        NDM_TRY(keep_part(unit, stream));
    return give_back(unit, stream);
}

ndm_status ndm_unit_change(ndm_unit *unit)
{
    NDM_TRY(ndm_stream_wait(unit->context->compute, unit->gather_done));
    if (!unit->window || unit->stale)
        return NDM_OK;
    NDM_TRY(ndm_barrier(unit->shard, unit->context->compute));
    return ndm_unit_changed(unit);
}

ndm_status ndm_unit_changed(ndm_unit *unit)
{
    unit->stale = true;
    unit->kept_valid = false;
    return ndm_event_record(unit->changed, unit->context->compute);
}
