/* SPDX-License-Identifier: Apache-2.0 */
/* The gradient of a matrix that is larger than any layer, made and reduced in pieces.
 *
 * Whole, a head's [V, C] needs a buffer that nothing else in a model is large enough for. Piece k
 * of n is part k of the slices of all ranks, [shards, part]: products make it shard by shard, and
 * one reduce-scatter brings it into part k of each slice. So all ranks work at every piece, each
 * element is the same sum in the same order as in the whole, two buffers of a layer's size are
 * enough for the gradients of all units, and a piece travels while the next one is made.
 *
 * Slices begin at rows, and so do parts, at every 16th: where a product reads its operand from is
 * then aligned in any type. Whatever else is in the unit lies in the last piece, which
 * stays open until the unit is reduced. */
#include "strategies/internal.h"

/* ROWS_MIN: of a product; below, pieces cost more than they save. */
enum { ROWS_MIN = 256, ROWS_ALIGN = 16 };

static int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- how many -------------------------------------------------------------------------------- */

/* Whether a unit of `total` elements can come in pieces: it begins with a matrix of which slices
 * hold many rows. */
static bool suits(const ndm_unit *u, int64_t total)
{
    const ndm_param *p = &u->params[0];
    int64_t width = p->local[1], rows = total / (u->shards * width);

    return p->spec.whole_rows && p->spec.ndim == 2 && p->cut <= 0 && p->start == 0 &&
           width % NDM_UNIT_ALIGN == 0 && u->shards > 1 && rows >= 2 * ROWS_MIN &&
           ndm_context_reduces_alone(u->context);
}

int64_t ndm_unit_slice_step(const ndm_unit *unit, int64_t total)
{
    return suits(unit, total) ? ROWS_ALIGN * unit->params[0].local[1] : NDM_UNIT_ALIGN;
}

void ndm_unit_expect_product(ndm_unit *unit, ndm_unit *const *units, int64_t n_units)
{
    if (!suits(unit, unit->numel) || unit->slice % (ROWS_ALIGN * unit->params[0].local[1]) != 0)
        return;
    unit->pieces.units = units;
    unit->pieces.n_units = n_units;
}

/* Elements of the largest array that another unit makes whole in a step like this one. */
static int64_t largest_of_others(const ndm_unit *u)
{
    int64_t largest = 0;

    for (int64_t i = 0; i < u->pieces.n_units; i++) {
        const ndm_unit *other = u->pieces.units[i];
        if (other != u && !ndm_unit_by_rows(other) && other->numel > largest)
            largest = other->numel;
    }
    return largest;
}

/* Whether all parameters but the first lie from `place` of a slice on, each in one slice. */
static bool others_lie_behind(const ndm_unit *u, int64_t place)
{
    for (int64_t i = 1; i < u->n_params; i++) {
        const ndm_param *p = &u->params[i];
        if (p->start % u->slice < place || p->start % u->slice + p->numel > u->slice)
            return false;
    }
    return true;
}

/* Sets n, part and size. Gradients that add up over micro-batches before they are reduced are
 * whole. */
static ndm_unit_pieces choose(const ndm_unit *u)
{
    ndm_unit_pieces whole = u->pieces, p = u->pieces;
    bool adds_up = ndm_unit_defers(u) && u->context->micro_batches > 1;
    int64_t width = u->params[0].local[1], rows = u->slice / width;

    whole.n = 1;
    whole.part = u->slice;
    whole.size = u->numel;
    if (!p.units || adds_up)
        return whole;
    p.size = largest_of_others(u);
    int64_t most = p.size / (u->shards * width) / ROWS_ALIGN * ROWS_ALIGN;
    if (most < ROWS_MIN || p.size >= u->numel || ndm_pool_fits(u->numel, p.size))
        return whole;
    int64_t part = ceil_div(ceil_div(rows, ceil_div(rows, most)), ROWS_ALIGN) * ROWS_ALIGN;
    p.n = ceil_div(rows, part);
    p.part = part * width;
    return part >= ROWS_MIN && others_lie_behind(u, (p.n - 1) * p.part) ? p : whole;
}

int64_t ndm_unit_pieces_of_step(const ndm_unit *unit)
{
    return choose(unit).n;
}

/* ---- one after the other --------------------------------------------------------------------- */

static void set_open(ndm_unit_pieces *p, int64_t piece, int64_t slice)
{
    p->first = piece * p->part;
    p->length = min64(p->part, slice - p->first);
}

void ndm_unit_pieces_begin(ndm_unit *unit)
{
    unit->pieces = choose(unit);
    set_open(&unit->pieces, 0, unit->slice);
    for (int64_t i = 0; i < unit->n_params && unit->pieces.n > 1; i++)
        unit->params[i].blank = false;
}

/* Where the open piece holds a place of the flat array, in a shard's slice. */
static float *in_piece(const ndm_unit *u, int64_t shard, int64_t place)
{
    const ndm_unit_pieces *p = &u->pieces;

    return (float *)u->grads->memory + shard * p->length + (place - shard * u->slice - p->first);
}

/* What products make in a shard's part of the open piece: [*from, *from + return value) of the
 * flat array. */
static int64_t product_part(const ndm_unit *u, int64_t shard, int64_t *from)
{
    int64_t begin = shard * u->slice + u->pieces.first;
    int64_t left = min64(u->params[0].numel - begin, u->pieces.length);

    *from = begin;
    return left > 0 ? left : 0;
}

/* Takes a buffer and clears what no product writes. */
static ndm_status open_piece(ndm_unit *u, int64_t piece, ndm_stream *stream)
{
    ndm_unit_pieces *p = &u->pieces;
    int64_t from;

    NDM_TRY(ndm_pool_take_shared(u->context, u->shard, p->size * (int64_t)sizeof(float),
                                 NDM_MEMORY_GRADIENTS, stream, &u->grads));
    set_open(p, piece, u->slice);
    for (int64_t s = 0; s < u->shards; s++) {
        int64_t made = product_part(u, s, &from), rest = p->length - made;
        if (rest > 0)
            NDM_TRY(ndm_zero(stream, in_piece(u, s, from + made), rest * (int64_t)sizeof(float)));
    }
    return NDM_OK;
}

/* What fsdp and hsdp begin with, which do the last piece and the rest. */
static ndm_status reduce_piece(ndm_unit *u, ndm_stream *stream)
{
    ndm_stream *reduce = u->context->reduce;
    float *target;

    NDM_TRY(ndm_event_record(u->grads_ready, stream));
    NDM_TRY(ndm_stream_wait(reduce, u->grads_ready));
    NDM_TRY(ndm_unit_grad_target(u, &target, reduce));
    NDM_TRY(ndm_unit_reduce_scatter(u, target, reduce));
    NDM_TRY(ndm_pool_give(u->grads, reduce));
    u->grads = NULL;
    return NDM_OK;
}

static ndm_status next_of_pieces(ndm_unit *u, ndm_stream *stream, ndm_product_rows *rows)
{
    int64_t width = u->params[0].local[1], shards = u->shards, from, count;

    rows->rows = 0;
    rows->beta = 0.0f;
    while (rows->rows == 0 && rows->taken < u->pieces.n * shards) {
        int64_t piece = rows->taken / shards, shard = rows->taken % shards;
        if (shard == 0 && piece > 0)
            NDM_TRY(reduce_piece(u, stream));
        if (shard == 0)
            NDM_TRY(open_piece(u, piece, stream));
        count = product_part(u, shard, &from);
        rows->first = from / width;
        rows->rows = count / width;
        rows->grad = in_piece(u, shard, from);
        rows->taken++;
    }
    return NDM_OK;
}

ndm_status ndm_unit_product_next(ndm_unit *unit, int64_t i, ndm_stream *stream,
                                 ndm_product_rows *rows)
{
    const ndm_param *p = &unit->params[i];

    if (unit->pieces.n > 1)
        return next_of_pieces(unit, stream, rows);
    rows->first = 0;
    rows->rows = rows->taken++ == 0 ? p->local[0] : 0;
    return rows->rows == 0
               ? NDM_OK
               : ndm_unit_grad_product(unit, i, p->numel, stream, &rows->grad, &rows->beta);
}

static bool last_is_open(const ndm_unit *u)
{
    return u->grads && u->pieces.first + u->pieces.length == u->slice;
}

float *ndm_unit_grad_in_piece(const ndm_unit *unit, int64_t i)
{
    int64_t start = unit->params[i].start;

    return i > 0 && last_is_open(unit) ? in_piece(unit, start / unit->slice, start) : NULL;
}

ndm_status ndm_unit_pieces_end(const ndm_unit *unit)
{
    if (unit->pieces.n > 1 && !last_is_open(unit))
        NDM_FAIL(NDM_ERR_STATE, "unit %s: the product of its gradient has not been made",
                 unit->name);
    return NDM_OK;
}
