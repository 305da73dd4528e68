/* SPDX-License-Identifier: Apache-2.0 */
/* Units: making them, and what they are asked. Gathering is in shard.c, reducing in reduce.c, files
 * in unit_io.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/given.h"
#include "core/sized.h"
#include "strategies/internal.h"

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

/* Together, as each of them, few enough to be told in bytes. */
static ndm_status check_numel(const ndm_unit *u)
{
    int64_t room = INT64_MAX / 16;

    for (int64_t i = 0; i < u->n_params; i++) {
        if (u->params[i].numel > room - NDM_UNIT_ALIGN)
            NDM_FAIL(NDM_ERR_CONFIG, "unit %s has too many elements", u->name);
        room -= u->params[i].numel + NDM_UNIT_ALIGN;
    }
    return NDM_OK;
}

/* Parameters that tp ranks share come last, so that what is summed over tp is one stretch. */
static void lay_out(ndm_unit *u)
{
    int64_t start = 0;

    for (int shared = 0; shared <= 1; shared++)
        for (int64_t i = 0; i < u->n_params; i++)
            if ((u->params[i].cut < 0) == shared) {
                u->params[i].start = start;
                start = round_up(start + u->params[i].numel, NDM_UNIT_ALIGN);
            }
    u->slice = round_up((start + u->shards - 1) / u->shards, ndm_unit_slice_step(u, start));
    u->numel = u->slice * u->shards;
}

static ndm_status place_params(ndm_unit *u, const ndm_param_spec *specs)
{
    for (int64_t i = 0; i < u->n_params; i++) {
        ndm_status status = ndm_param_place(u->context, &specs[i], &u->params[i]);
        u->params[i].spec.name = NULL; /* the caller's, which destroy must not free */
        NDM_TRY(status);
        u->params[i].spec.name = strdup(specs[i].name);
        if (!u->params[i].spec.name)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for unit %s", u->name);
    }
    return NDM_OK;
}

const ndm_param *ndm_unit_param_after(const ndm_unit *u, int64_t start)
{
    const ndm_param *next = NULL;

    for (int64_t i = 0; i < u->n_params; i++)
        if (u->params[i].start >= start && (!next || u->params[i].start < next->start))
            next = &u->params[i];
    return next;
}

static void add_segment(ndm_unit *u, ndm_segment segment)
{
    assert(u->segments); /* [n_params], made by build() */
    ndm_segment *last = u->n_segments ? &u->segments[u->n_segments - 1] : NULL;

    if (last && last->decay == segment.decay && last->counted == segment.counted)
        last->count += segment.count;
    else
        u->segments[u->n_segments++] = segment;
}

/* Cuts the slice into segments; the padding behind a parameter (zeros) goes with it. */
static void make_segments(ndm_unit *u)
{
    int64_t begin = u->index * u->slice, end = begin + u->slice, from = begin;
    int64_t t = ndm_context_coord(u->context, NDM_TP);
    bool first_replica = ndm_context_coord(u->context, NDM_DP_REPLICATE) == 0;

    for (const ndm_param *p = ndm_unit_param_after(u, 0); p;
         p = ndm_unit_param_after(u, p->start + 1)) {
        const ndm_param *next = ndm_unit_param_after(u, p->start + 1);
        int64_t to = next && next->start < end ? next->start : end;
        bool counted = first_replica && t % p->sharers == 0;
        if (to > from)
            add_segment(u, (ndm_segment){from - begin, to - from, p->decay, counted});
        from = to > from ? to : from;
    }
}

static ndm_status create_events(ndm_unit *u)
{
    ndm_device *device = u->context->device;

    NDM_TRY(ndm_event_create(device, &u->changed));
    NDM_TRY(ndm_event_create(device, &u->gather_done));
    NDM_TRY(ndm_event_create(device, &u->grads_ready));
    return ndm_event_create(device, &u->reduce_done);
}

/* The sum over replicas reads the slices themselves, not a copy in another type. */
static bool grads_may_share(const ndm_unit *u)
{
    return ndm_comm_size(u->replicas) > 1 && u->fsdp.reduce_dtype == NDM_F32;
}

/* The slice of gradients, in grad_window if that is there. */
static ndm_status allocate_grads(ndm_unit *u)
{
    int64_t bytes = u->slice * (int64_t)sizeof(float);
    void *memory;

    if (u->grad_window)
        memory = (char *)u->grad_window + ndm_comm_index(u->replicas) * bytes;
    else
        NDM_TRY(ndm_device_alloc(u->context->device, bytes, NDM_MEMORY_GRADIENTS, &memory));
    u->grad_slice = memory;
    return NDM_OK;
}

/* What this rank alone may fail at comes first, and is agreed: a rank without memory must not leave
 * the others in the exchange that makes a window. */
static ndm_status allocate_private(ndm_unit *u)
{
    NDM_TRY(create_events(u));
    return grads_may_share(u) ? NDM_OK : allocate_grads(u);
}

/* Not in the window: the master, unless it is there, and the copy that is kept after forward. */
static ndm_status allocate_rest(ndm_unit *u)
{
    ndm_device *device = u->context->device;
    int64_t bytes = u->slice * (int64_t)sizeof(float), k = u->block ? ndm_comm_size(u->block) : 0;
    void *memory = (float *)u->window + u->index * u->slice;

    if (!ndm_unit_master_in_window(u))
        NDM_TRY(ndm_device_alloc(device, bytes, NDM_MEMORY_WEIGHTS, &memory));
    u->master = memory;
    if (k && !u->window)
        NDM_TRY(ndm_device_alloc(device,
                                 u->numel / k * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype),
                                 NDM_MEMORY_GATHERED, &u->kept));
    return ndm_zero(u->context->compute, u->master, bytes);
}

/* A window of the unit's weights for the shards of a node, where there can be one. */
static ndm_status allocate_window(ndm_unit *u)
{
    if (u->eight)
        return NDM_OK; /* others read bytes, not this slice */
    int64_t bytes = u->slice * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);
    ndm_memory_kind kind = u->fsdp.param_dtype == NDM_F32 ? NDM_MEMORY_WEIGHTS
                                                          : NDM_MEMORY_GATHERED;

    return ndm_window_alloc(u->shard, bytes, kind, &u->window);
}

static ndm_status get_comms(ndm_unit *u)
{
    int64_t k = u->fsdp.reshard_after_forward;

    NDM_TRY(ndm_context_comm(u->context, NDM_AXES_DP_SHARD_CP, &u->shard));
    NDM_TRY(ndm_context_comm(u->context, NDM_AXIS_DP_REPLICATE, &u->replicas));
    u->shards = ndm_comm_size(u->shard);
    u->index = ndm_comm_index(u->shard);
    if (u->fsdp.zero < 3 || k <= 1 || u->shards == 1)
        return NDM_OK;
    if (u->shards % k)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "reshard_after_forward=%lld does not divide the %lld ranks of dp_shard x cp",
                 (long long)k, (long long)u->shards);
    return ndm_comms_get_block(u->context->comms, NDM_AXES_DP_SHARD_CP, k, &u->block);
}

static ndm_status check_fsdp(const ndm_fsdp_config *f)
{
    if (f->zero < 1 || f->zero > 3)
        NDM_FAIL(NDM_ERR_CONFIG, "zero=%d is not a stage; 1, 2 and 3 are", f->zero);
    if (f->reshard_after_forward < 0)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "reshard_after_forward=%lld; true, false or a number of ranks are allowed",
                 (long long)f->reshard_after_forward);
    if (f->zero < 3 && f->reshard_after_forward > 1)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "reshard_after_forward=%lld needs zero=3: with zero=%d weights stay gathered",
                 (long long)f->reshard_after_forward, f->zero);
    if (f->fp8_gather && f->zero == 3 && f->reshard_after_forward > 1)
        NDM_FAIL(
            NDM_ERR_CONFIG,
            "fp8_gather with reshard_after_forward=%lld: the copy that is kept is no 8-bit one",
            (long long)f->reshard_after_forward);
    if (f->live_units < 2)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "live_units=%lld; at least 2 are needed, one in use and one on its way",
                 (long long)f->live_units);
    if (f->param_dtype != NDM_F32 && f->param_dtype != NDM_BF16)
        NDM_FAIL(NDM_ERR_CONFIG, "param_dtype %s; fp32 and bf16 are supported",
                 ndm_dtype_name(f->param_dtype));
    if (f->reduce_dtype != NDM_F32 && f->reduce_dtype != NDM_BF16)
        NDM_FAIL(NDM_ERR_CONFIG, "reduce_dtype %s; fp32 and bf16 are supported",
                 ndm_dtype_name(f->reduce_dtype));
    return NDM_OK;
}

static ndm_status prepare(ndm_unit *u, const char *name, const ndm_param_spec *specs,
                          int64_t n_specs)
{
    u->name = strdup(name);
    u->params = calloc((size_t)n_specs, sizeof *u->params);
    u->segments = calloc((size_t)n_specs, sizeof *u->segments);
    u->n_params = n_specs;
    if (!u->name || !u->params || !u->segments)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for unit %s", name);
    NDM_TRY(check_fsdp(&u->fsdp));
    NDM_TRY(get_comms(u));
    NDM_TRY(place_params(u, specs));
    NDM_TRY(check_numel(u));
    lay_out(u);
    make_segments(u);
    NDM_TRY(ndm_gather_eight_create(u));
    return allocate_private(u);
}

static ndm_status finish(ndm_unit *u)
{
    NDM_TRY(allocate_window(u));
    if (grads_may_share(u))
        NDM_TRY(ndm_window_alloc(u->replicas, u->slice * (int64_t)sizeof(float),
                                 NDM_MEMORY_GRADIENTS, &u->grad_window));
    if (!u->grad_slice)
        NDM_TRY(allocate_grads(u));
    NDM_TRY(allocate_rest(u));
    return ndm_unit_changed(u);
}

static ndm_status build(ndm_unit *u, const char *name, const ndm_param_spec *specs, int64_t n_specs)
{
    NDM_TRY(ndm_context_agree(u->context, prepare(u, name, specs, n_specs)));
    NDM_TRY(ndm_unit_verify(u));
    return ndm_context_agree(u->context, finish(u));
}

ndm_status ndm_unit_create(ndm_context *context, const char *name, const ndm_param_spec *specs,
                           int64_t n_specs, const ndm_fsdp_config *fsdp, ndm_unit **unit)
{
    ndm_fsdp_config mine;
    ndm_unit *u;

    NDM_NEED(context);
    NDM_NEED(name);
    NDM_NEED(specs);
    NDM_NEED(unit);
    if (n_specs < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "unit %s has no parameters", name);
    NDM_TRY(NDM_SIZED_TAKE(ndm_fsdp_config, &mine, NDM_FSDP_CONFIG_INIT, fsdp));
    u = calloc(1, sizeof *u);
    if (!u)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for unit %s", name);
    u->context = context;
    u->fsdp = mine;
    context->n_units++;
    ndm_status status = build(u, name, specs, n_specs);
    if (status != NDM_OK) {
        ndm_unit_destroy(u);
        return status;
    }
    *unit = u;
    return NDM_OK;
}

void ndm_unit_destroy(ndm_unit *u)
{
    if (!u)
        return;
    ndm_device *device = u->context->device;

    ndm_context_settle(u->context);
    ndm_unit_forget(u);
    ndm_gather_eight_destroy(u);
    if (u->master && !ndm_unit_master_in_window(u))
        ndm_device_free(device, u->master);
    if (u->window)
        ndm_window_free(u->shard, u->window);
    if (!u->grad_window)
        ndm_device_free(device, u->grad_slice);
    ndm_window_free(u->replicas, u->grad_window);
    ndm_device_free(device, u->kept);
    ndm_event_destroy(u->changed);
    ndm_event_destroy(u->gather_done);
    ndm_event_destroy(u->grads_ready);
    ndm_event_destroy(u->reduce_done);
    for (int64_t i = 0; u->params && i < u->n_params; i++)
        free((char *)u->params[i].spec.name);
    free(u->params);
    free(u->segments);
    free(u->name);
    if (--u->context->n_units == 0)
        ndm_pool_finish(u->context);
    free(u);
}

bool ndm_unit_has(const ndm_unit *unit, int64_t i)
{
    return unit && i >= 0 && i < unit->n_params;
}

const char *ndm_unit_name(const ndm_unit *unit)
{
    return unit ? unit->name : NULL;
}

int64_t ndm_unit_params(const ndm_unit *unit)
{
    return unit ? unit->n_params : 0;
}

int64_t ndm_unit_numel(const ndm_unit *unit)
{
    return unit ? unit->numel : 0;
}

int64_t ndm_unit_slice_numel(const ndm_unit *unit)
{
    return unit ? unit->slice : 0;
}

const ndm_param_spec *ndm_unit_spec(const ndm_unit *unit, int64_t i)
{
    return ndm_unit_has(unit, i) ? &unit->params[i].spec : NULL;
}

const int64_t *ndm_unit_local_shape(const ndm_unit *unit, int64_t i)
{
    return ndm_unit_has(unit, i) ? unit->params[i].local : NULL;
}

float *ndm_unit_master(ndm_unit *unit)
{
    return unit ? unit->master : NULL;
}

float *ndm_unit_grad_slice(ndm_unit *unit)
{
    return unit ? unit->grad_slice : NULL;
}

const void *ndm_unit_weight(const ndm_unit *unit, int64_t i)
{
    if (!ndm_unit_has(unit, i))
        return NULL;
    size_t bytes = ndm_dtype_bytes(unit->fsdp.param_dtype);
    const char *whole = ndm_unit_whole(unit);

    return whole ? whole + (size_t)unit->params[i].start * bytes : NULL;
}
