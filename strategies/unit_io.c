/* SPDX-License-Identifier: Apache-2.0 */
/* Slices in and out: between a rank's slice on the device and ranges of global elements in files or
 * generators. */
#include <stdlib.h>
#include <string.h>

#include "core/given.h"
#include "core/rng.h"
#include "strategies/internal.h"

enum { WINDOW = 4 << 20 }; /* elements staged at a time */

/* A stretch of the slice in host memory, and what is done with its runs. */
typedef struct window {
    const ndm_param *param;
    float *values; /* [WINDOW], or the slice if that is less */
    int64_t first; /* flat index of values[0] */
    ndm_unit_range_fn call;
    ndm_status (*flush)(void *user); /* after the last run of a window; may be NULL */
    void *user;
} window;

static ndm_status visit_run(void *user, int64_t local, int64_t global, int64_t count)
{
    window *w = user;

    return w->call(w->user, &w->param->spec, global, count,
                   w->values + (w->param->start + local - w->first));
}

/* Calls w->call for every run of every parameter inside the window's flat range. */
static ndm_status visit_window(const ndm_unit *u, window *w, int64_t count, bool as_writer)
{
    int64_t t = ndm_context_coord(u->context, NDM_TP);

    for (int64_t i = 0; i < u->n_params; i++) {
        const ndm_param *p = &u->params[i];
        int64_t from = p->start > w->first ? p->start : w->first;
        int64_t to = p->start + p->numel < w->first + count ? p->start + p->numel
                                                            : w->first + count;
        if (from >= to || (as_writer && t % p->sharers != 0))
            continue;
        w->param = p;
        NDM_TRY(ndm_param_runs(p, from - p->start, to - from, visit_run, w));
    }
    return NDM_OK;
}

static ndm_status read_windows(ndm_unit *u, float *array, window *w)
{
    ndm_stream *stream = u->context->compute;

    for (int64_t at = 0; at < u->slice; at += WINDOW) {
        int64_t count = u->slice - at < WINDOW ? u->slice - at : WINDOW;
        w->first = u->index * u->slice + at;
        memset(w->values, 0, (size_t)count * sizeof(float));
        NDM_TRY(visit_window(u, w, count, false));
        if (w->flush)
            NDM_TRY(w->flush(w->user));
        NDM_TRY(ndm_copy(stream, array + at, w->values, count * (int64_t)sizeof(float),
                         NDM_HOST_TO_DEVICE));
        NDM_TRY(ndm_stream_synchronize(stream));
    }
    return NDM_OK;
}

static ndm_status write_windows(ndm_unit *u, const float *array, window *w)
{
    ndm_stream *stream = u->context->compute;

    for (int64_t at = 0; at < u->slice; at += WINDOW) {
        int64_t count = u->slice - at < WINDOW ? u->slice - at : WINDOW;
        w->first = u->index * u->slice + at;
        NDM_TRY(ndm_copy(stream, w->values, array + at, count * (int64_t)sizeof(float),
                         NDM_DEVICE_TO_HOST));
        NDM_TRY(ndm_stream_synchronize(stream));
        NDM_TRY(visit_window(u, w, count, true));
    }
    return NDM_OK;
}

static ndm_status open_window(const ndm_unit *u, window *w, ndm_unit_range_fn call, void *user)
{
    int64_t n = u->slice < WINDOW ? u->slice : WINDOW;

    *w = (window){.call = call, .user = user, .values = malloc((size_t)n * sizeof(float))};
    if (!w->values)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to stage %lld elements", (long long)n);
    return NDM_OK;
}

/* Where files may be read into device memory, the whole slice is one window of itself. Padding is
 * not touched: it is zero since the array was made. */
static ndm_status read_in_place(ndm_unit *u, float *array, ndm_unit_range_fn read, void *user)
{
    window w = {.call = read, .user = user, .values = array, .first = u->index * u->slice};

    NDM_TRY(ndm_stream_synchronize(u->context->compute));
    return visit_window(u, &w, u->slice, false);
}

static ndm_status write_in_place(ndm_unit *u, const float *array, ndm_unit_range_fn write,
                                 void *user)
{
    NDM_TRY(ndm_stream_synchronize(u->context->compute));
    return ndm_unit_write_host(u, array, write, user);
}

ndm_status ndm_unit_read_array(ndm_unit *unit, float *array, ndm_unit_range_fn read, void *user)
{
    return ndm_unit_ask_array(unit, array, read, NULL, user);
}

ndm_status ndm_unit_ask_array(ndm_unit *unit, float *array, ndm_unit_range_fn ask,
                              ndm_status (*flush)(void *user), void *user)
{
    window w;

    if (unit->context->device->ops->in_place)
        return read_in_place(unit, array, ask, user);
    NDM_TRY(open_window(unit, &w, ask, user));
    w.flush = flush;
    ndm_status status = read_windows(unit, array, &w);
    free(w.values);
    return status;
}

ndm_status ndm_unit_write_array(ndm_unit *unit, const float *array, ndm_unit_range_fn write,
                                void *user)
{
    window w;

    if (unit->context->device->ops->in_place)
        return write_in_place(unit, array, write, user);
    NDM_TRY(open_window(unit, &w, write, user));
    ndm_status status = write_windows(unit, array, &w);
    free(w.values);
    return status;
}

bool ndm_unit_writes(const ndm_unit *unit)
{
    return ndm_context_coord(unit->context, NDM_DP_REPLICATE) == 0;
}

ndm_status ndm_unit_write_host(const ndm_unit *unit, const float *slice, ndm_unit_range_fn write,
                               void *user)
{
    window w = {
        .call = write, .user = user, .values = (float *)slice, .first = unit->index * unit->slice};

    return visit_window(unit, &w, unit->slice, true);
}

ndm_status ndm_unit_read(ndm_unit *unit, ndm_unit_range_fn read, void *user)
{
    NDM_NEED(unit);
    NDM_NEED(read);
    NDM_TRY(ndm_unit_change(unit));
    NDM_TRY(ndm_unit_read_array(unit, unit->master, read, user));
    return ndm_unit_changed(unit);
}

ndm_status ndm_unit_write(ndm_unit *unit, ndm_unit_part part, ndm_unit_range_fn write, void *user)
{
    bool grads = part == NDM_UNIT_GRADS;

    NDM_NEED(unit);
    NDM_NEED(write);
    if (!grads && part != NDM_UNIT_WEIGHTS)
        NDM_FAIL(NDM_ERR_USAGE, "unit %s: there is no part %d", unit->name, part);
    if (grads && !unit->grads_reduced)
        NDM_FAIL(NDM_ERR_STATE, "unit %s has no reduced gradient", unit->name);
    if (grads) /* also where nothing is written: others wait for this rank's part in the sum */
        NDM_TRY(ndm_stream_wait(unit->context->compute, unit->reduce_done));
    if (!ndm_unit_writes(unit))
        return NDM_OK;
    return ndm_unit_write_array(unit, grads ? unit->grad_slice : unit->master, write, user);
}

/* Numbers depend on (seed, parameter's name, global index) alone. */
static ndm_status draw(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                       float *values)
{
    uint64_t seed = *(const uint64_t *)user;

    if (spec->init_std != 0.0f)
        ndm_rng_normal_fill(seed, ndm_rng_stream(spec->name), (uint64_t)first, count, values);
    for (int64_t i = 0; i < count; i++)
        values[i] = spec->init_mean + (spec->init_std != 0.0f ? spec->init_std * values[i] : 0.0f);
    return NDM_OK;
}

ndm_status ndm_unit_init(ndm_unit *unit, uint64_t seed)
{
    NDM_NEED(unit);
    return ndm_unit_read(unit, draw, &seed);
}
