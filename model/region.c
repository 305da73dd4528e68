/* SPDX-License-Identifier: Apache-2.0 */
/* The regions that tp splits, entered and left in parts: the collective of a part runs on a stream
 * of its own beside the products that make the next part, or need the last one (Wang et al.,
 * "Overlap Communication with Dependent Computation via Decomposition", 2023).
 *
 * Part j of k is rows [j*N/k, (j+1)*N/k) of all, of which rank t owns the t-th of tp pieces: so
 * each part is an array of its own for a collective. What is one rank's is not together in an array
 * of all rows then, and has a place of its own, part after part. With one part, everything is on
 * the compute stream, and own rows lie where they belong. */
#include "core/dtype.h"
#include "model/model.h"

static int64_t part_rows(const ndm_model *m)
{
    return m->size.padded / m->region.parts;
}

static bool split(const ndm_model *m)
{
    return m->size.local != m->size.padded;
}

void *ndm_region_own_in(const ndm_model *m, void *full)
{
    return m->region.own_in ? m->region.own_in
                            : ndm_model_at(m, full, m->size.row0 * m->size.hidden);
}

void *ndm_region_own_out(const ndm_model *m, void *full)
{
    return m->region.own_out ? m->region.own_out
                             : ndm_model_at(m, full, m->size.row0 * m->size.hidden);
}

ndm_status ndm_region_start(ndm_model *m, ndm_region_side side, ndm_direction direction, int64_t j,
                            void *own, void *full)
{
    ndm_regions *r = &m->region;
    int64_t rows = part_rows(m), width = m->size.hidden, own_rows = m->size.local / r->parts;
    ndm_stream *compute = m->context->compute;

    if (r->parts == 1)
        return ndm_engine_region(m->context, side == NDM_REGION_IN, direction, own, full, rows,
                                 width, m->dtype, compute);
    if (j == 0)
        NDM_TRY(ndm_region_settle(m)); /* its events are used again */
    NDM_TRY(ndm_event_record(r->ready[j], compute));
    NDM_TRY(ndm_stream_wait(r->stream, r->ready[j]));
    NDM_TRY(ndm_engine_region(
        m->context, side == NDM_REGION_IN, direction, ndm_model_at(m, own, j * own_rows * width),
        ndm_model_at(m, full, j * rows * width), rows, width, m->dtype, r->stream));
    NDM_TRY(ndm_event_record(r->done[j], r->stream));
    r->started = j + 1;
    return NDM_OK;
}

ndm_status ndm_region_wait(ndm_model *m, int64_t j)
{
    ndm_regions *r = &m->region;

    if (j >= r->started || j < r->waited)
        return NDM_OK;
    r->waited = j + 1; /* parts end in order */
    return ndm_stream_wait(m->context->compute, r->done[j]);
}

ndm_status ndm_region_settle(ndm_model *m)
{
    ndm_regions *r = &m->region;

    if (r->started > 0)
        NDM_TRY(ndm_region_wait(m, r->started - 1));
    r->started = r->waited = 0;
    return NDM_OK;
}

ndm_status ndm_region_pass(ndm_model *m, ndm_region_side side, ndm_direction direction, void *own,
                           void *full)
{
    for (int64_t j = 0; j < m->region.parts; j++)
        NDM_TRY(ndm_region_start(m, side, direction, j, own, full));
    return NDM_OK;
}

/* Own rows are put where the others read them; nobody does any more, since all have been through
 * another collective since the last one did. */
ndm_status ndm_region_place_grad(ndm_model *m, void **own)
{
    int64_t bytes = m->size.local * m->size.hidden * (int64_t)ndm_dtype_bytes(m->dtype);

    *own = m->grad;
    if (!m->region.d_out_shared)
        return NDM_OK;
    *own = ndm_model_at(m, m->d_out, m->size.row0 * m->size.hidden);
    return ndm_copy(m->context->compute, *own, m->grad, bytes, NDM_DEVICE_TO_DEVICE);
}

/* ---- products of parts -------------------------------------------------------------------- */

ndm_status ndm_region_multiply_in(ndm_model *m, const ndm_linear *l, const void *x, void *y)
{
    int64_t rows = part_rows(m), in = ndm_linear_in(l), out = ndm_linear_out(l);

    for (int64_t j = 0; j < m->region.parts; j++) {
        NDM_TRY(ndm_region_wait(m, j));
        NDM_TRY(ndm_linear_multiply(l, rows, ndm_model_at(m, x, j * rows * in),
                                    ndm_model_at(m, y, j * rows * out)));
    }
    return NDM_OK;
}

ndm_status ndm_region_multiply_out(ndm_model *m, const ndm_linear *l, const void *x)
{
    int64_t rows = part_rows(m), in = ndm_linear_in(l), out = ndm_linear_out(l);

    NDM_TRY(ndm_region_settle(m));
    for (int64_t j = 0; j < m->region.parts; j++) {
        NDM_TRY(ndm_linear_multiply(l, rows, ndm_model_at(m, x, j * rows * in),
                                    ndm_model_at(m, m->branch, j * rows * out)));
        NDM_TRY(ndm_region_start(m, NDM_REGION_OUT, NDM_FORWARD, j,
                                 ndm_region_own_out(m, m->branch), m->branch));
    }
    return NDM_OK;
}

/* Its sums travel while gradients of weights are made. */
ndm_status ndm_region_backward_in(ndm_model *m, const ndm_linear *l, const void *dy)
{
    int64_t rows = part_rows(m), in = ndm_linear_in(l), out = ndm_linear_out(l);

    NDM_TRY(ndm_region_settle(m)); /* x, where it was gathered again */
    for (int64_t j = 0; j < m->region.parts; j++) {
        NDM_TRY(ndm_linear_grad_input(l, rows, ndm_model_at(m, dy, j * rows * out),
                                      ndm_model_at(m, m->d_full, j * rows * in)));
        NDM_TRY(ndm_region_start(m, NDM_REGION_IN, NDM_BACKWARD, j,
                                 ndm_region_own_out(m, m->d_full), m->d_full));
    }
    return NDM_OK;
}

static void *whole_grad(const ndm_model *m)
{
    return split(m) ? m->d_out : m->grad;
}

const void *ndm_region_whole_grad(const ndm_model *m)
{
    return whole_grad(m);
}

ndm_status ndm_region_backward_out(ndm_model *m, const ndm_linear *l, void *dx)
{
    int64_t rows = part_rows(m), in = ndm_linear_in(l), out = ndm_linear_out(l);
    void *whole = whole_grad(m), *own;

    NDM_TRY(ndm_region_place_grad(m, &own));
    NDM_TRY(ndm_region_pass(m, NDM_REGION_OUT, NDM_BACKWARD, own, whole));
    for (int64_t j = 0; j < m->region.parts; j++) {
        NDM_TRY(ndm_region_wait(m, j));
        NDM_TRY(ndm_linear_grad_input(l, rows, ndm_model_at(m, whole, j * rows * out),
                                      ndm_model_at(m, dx, j * rows * in)));
    }
    return NDM_OK;
}

/* ---- making ------------------------------------------------------------------------------- */

/* By itself, in one part: on a CPU, whose ranks move the data themselves, parts only cost. */
int64_t ndm_region_parts(const ndm_model *m, int64_t rows, int64_t tp)
{
    int64_t parts = m->options.tp_overlap_chunks, most = rows / tp;

    most = most > NDM_REGION_PARTS_MAX ? NDM_REGION_PARTS_MAX : most;
    parts = parts > most ? most : parts;
    return tp == 1 || parts < 1 ? 1 : parts;
}

ndm_status ndm_region_init(ndm_model *m)
{
    ndm_regions *r = &m->region;
    ndm_device *device = m->context->device;

    if (r->parts == 1)
        return NDM_OK;
    NDM_TRY(ndm_stream_create(device, NDM_STREAM_COMM, "tp", &r->stream));
    for (int64_t j = 0; j < r->parts; j++) {
        NDM_TRY(ndm_event_create(device, &r->ready[j]));
        NDM_TRY(ndm_event_create(device, &r->done[j]));
    }
    return NDM_OK;
}

void ndm_region_finish(ndm_model *m)
{
    ndm_regions *r = &m->region;

    ndm_stream_destroy(r->stream);
    for (int64_t j = 0; j < NDM_REGION_PARTS_MAX; j++) {
        ndm_event_destroy(r->ready[j]);
        ndm_event_destroy(r->done[j]);
    }
    *r = (ndm_regions){.parts = 1};
}
