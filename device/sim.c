/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated world: clocks instead of work, numbers instead of memory. */
#include "device/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/sim_links.h"

/* An address tells the kind of its memory and whether it is a window. Blocks are farther apart than
 * any offset into them: what is narrower here than in the engine reaches beyond its block's end. */
enum { KIND_SHIFT = 52, WINDOW_BIT = 59, BLOCK_SHIFT = 12 };
#define KIND_MASK ((uintptr_t)0xf)
#define REGION_BYTES ((uintptr_t)1 << KIND_SHIFT)

typedef struct sim_stream {
    ndm_stream base;
    double now;
    unsigned cause; /* of the last collective on it */
} sim_stream;

typedef struct sim_event {
    ndm_event base;
    const sim_stream *stream;
    double at;
    unsigned cause;
} sim_event;

typedef struct sim_device {
    ndm_device base;
    const ndm_sim_options *options;
    uintptr_t next; /* offset of the next block */
    bool making_window;
    int64_t live_rounded, peak_rounded;
    double host; /* the host's clock */
    double last_gemm;
    sim_stream *compute;
    ndm_sim_times links[NDM_SIM_LINKS];
    ndm_sim_state state;
    ndm_sim_phase phase; /* of the last launch */
    int64_t held;        /* temporaries of the stack */
    ndm_sim_totals totals;
    ndm_sim_span *spans; /* [n_spans] */
    int64_t n_spans, capacity;
} sim_device;

static sim_device *sim(ndm_device *device)
{
    return (sim_device *)device;
}

/* ---- making ------------------------------------------------------------------------------- */

static bool probe(char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "no memory and no work: `ndmesh plan`");
    return true;
}

static ndm_status create(const ndm_device_options *options, ndm_device **device)
{
    sim_device *d;

    if (!options->sim)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: sim needs a machine to simulate: use `ndmesh plan`");
    d = calloc(1, sizeof *d);
    if (!d)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the simulated device");
    d->options = options->sim;
    d->base.activation_bytes = options->sim->machine->activation_bytes;
    d->base.others_schedule = !options->sim->stack->own_schedule;
    d->base.keeps_inputs = options->sim->stack->keeps_inputs;
    d->next = (uintptr_t)1 << BLOCK_SHIFT;
    *device = &d->base;
    return NDM_OK;
}

static void destroy(ndm_device *device)
{
    sim_device *d = sim(device);

    for (int i = 0; i < NDM_SIM_LINKS; i++)
        ndm_sim_times_finish(&d->links[i]);
    free(d->spans);
    free(d);
}

/* ---- memory ------------------------------------------------------------------------------- */

static int64_t round_up(const sim_device *d, int64_t bytes)
{
    const ndm_sim_machine *m = d->options->machine;
    int64_t to = bytes < (1 << 20) ? m->alloc_small : m->alloc_large;

    return to > 1 ? (bytes + to - 1) / to * to : bytes;
}

static ndm_status allocate(ndm_device *device, int64_t bytes, void **memory)
{
    sim_device *d = sim(device);
    uintptr_t block = (uintptr_t)1 << BLOCK_SHIFT;
    uintptr_t kind = (uintptr_t)device->allocating << KIND_SHIFT;

    *memory = (void *)(kind | d->next | (uintptr_t)d->making_window << WINDOW_BIT);
    d->next += ((uintptr_t)bytes / block + 2) * block;
    d->live_rounded += round_up(d, bytes);
    if (d->live_rounded > d->peak_rounded)
        d->peak_rounded = d->live_rounded;
    return d->next < REGION_BYTES / 2 ? NDM_OK : NDM_ERR_MEMORY;
}

static void release(ndm_device *device, void *memory, int64_t bytes)
{
    (void)memory;
    sim(device)->live_rounded -= round_up(sim(device), bytes);
}

ndm_status ndm_sim_alloc_window(ndm_device *device, int64_t bytes_per_rank, int64_t ranks,
                                ndm_memory_kind kind, void **all)
{
    sim(device)->making_window = true;
    ndm_status status = ndm_device_alloc(device, bytes_per_rank, kind, all);
    sim(device)->making_window = false;
    sim(device)->next += (uintptr_t)(bytes_per_rank * (ranks - 1)) >> BLOCK_SHIFT << BLOCK_SHIFT;
    return status;
}

ndm_memory_kind ndm_sim_kind_of(const void *address)
{
    uintptr_t kind = (uintptr_t)address >> KIND_SHIFT & KIND_MASK & 7;

    return kind < NDM_MEMORY_KIND_COUNT ? (ndm_memory_kind)kind : NDM_MEMORY_WORKSPACE;
}

bool ndm_sim_is_window(const void *address)
{
    return ((uintptr_t)address >> WINDOW_BIT & 1) != 0;
}

double ndm_sim_element_bytes(const ndm_device *device, const void *address)
{
    ndm_memory_kind kind = ndm_sim_kind_of(address);
    bool narrow = kind == NDM_MEMORY_ACTIVATIONS || kind == NDM_MEMORY_WORKSPACE;

    return narrow ? device->activation_bytes : 4.0;
}

int64_t ndm_sim_peak_rounded(const ndm_device *device)
{
    return ((const sim_device *)device)->peak_rounded;
}

/* Memory that nobody allocated, beyond (or short of) what the engine takes. */
void ndm_sim_hold(ndm_device *device, int64_t bytes)
{
    sim_device *d = sim(device);

    ndm_device_account(device, NDM_MEMORY_ACTIVATIONS, bytes);
    d->live_rounded += bytes;
    if (d->live_rounded > d->peak_rounded)
        d->peak_rounded = d->live_rounded;
}

/* ---- the account of time ------------------------------------------------------------------ */

static ndm_status remember(sim_device *d, ndm_sim_span span)
{
    if (!d->options->trace)
        return NDM_OK;
    if (d->n_spans == d->capacity) {
        int64_t capacity = d->capacity ? 2 * d->capacity : 1024;
        ndm_sim_span *spans = realloc(d->spans, (size_t)capacity * sizeof *spans);
        if (!spans)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for a trace of %lld spans", (long long)capacity);
        d->spans = spans;
        d->capacity = capacity;
    }
    d->spans[d->n_spans++] = span;
    return NDM_OK;
}

/* The compute stream stands until t, for lack of launches. */
static void wait_for_host(sim_device *d, sim_stream *s)
{
    if (s->now >= d->host)
        return;
    if (s == d->compute)
        d->totals.host[d->phase] += d->host - s->now;
    s->now = d->host;
}

/* Busy time of every link slows compute: kernels of collectives take cores and bandwidth. */
static double end_of_compute(const sim_device *d, double begin, double ns)
{
    double share = d->options->machine->contention, end = begin + ns;

    for (int i = 0; i < NDM_SIM_LINKS && share > 0.0; i++) {
        double slowed = ndm_sim_times_slowed(&d->links[i], begin, ns, share);
        end = slowed > end ? slowed : end;
    }
    return end;
}

static ndm_status run_kernel(sim_stream *s, const char *name, const ndm_sim_charge *c)
{
    sim_device *d = sim(s->base.device);
    double begin, end;

    d->host += c->host_ns;
    if (s == d->compute)
        d->phase = c->phase;
    if ((int64_t)c->held != d->held) {
        ndm_sim_hold(&d->base, (int64_t)c->held - d->held);
        d->held = (int64_t)c->held;
    }
    wait_for_host(d, s);
    begin = s->now;
    end = begin + c->ns;
    if (s == d->compute) {
        end = end_of_compute(d, begin, c->ns);
        d->totals.busy[c->phase][c->category] += end - begin;
        d->totals.slowed += end - begin - c->ns;
        d->totals.flops += c->flops;
        d->last_gemm = c->category == NDM_SIM_GEMM ? c->ns : d->last_gemm;
    }
    d->totals.launches++;
    s->now = end;
    return remember(d, (ndm_sim_span){name, &s->base, begin, end, 0});
}

static ndm_status launch(ndm_stream *stream, const ndm_launch *call)
{
    sim_device *d = sim(stream->device);
    ndm_sim_charge charge = {0};

    d->options->price(d->options, &d->state, call, &charge);
    return run_kernel((sim_stream *)stream, call->name, &charge);
}

void ndm_sim_charge_compute(ndm_device *device, const char *name, double ns)
{
    sim_device *d = sim(device);
    ndm_sim_charge charge = {.ns = ns,
                             .host_ns = d->options->machine->launch_ns,
                             .category = NDM_SIM_MEMORY,
                             .held = (double)d->held,
                             .phase = d->state.phase};

    if (d->compute && ns > 0.0)
        (void)!run_kernel(d->compute, name, &charge);
}

ndm_status ndm_sim_collect(ndm_stream *stream, const ndm_sim_work *work)
{
    sim_device *d = sim(stream->device);
    sim_stream *s = (sim_stream *)stream;
    double ns = work->ns, begin, end;

    d->host += work->host_ns;
    wait_for_host(d, s);
    if (s == d->compute && work->overlap > 0.0) {
        double hidden = work->overlap * d->last_gemm, most = 0.9 * ns;
        ns -= hidden < most ? hidden : most;
    }
    begin = s->now;
    double past = d->compute && d->compute->now < d->host ? d->compute->now : d->host;
    NDM_TRY(ndm_sim_times_take(&d->links[work->link], past, begin, ns, &end));
    if (s == d->compute)
        d->totals.exposed[d->phase][work->cause] += end - begin;
    d->totals.collective_ns[work->cause] += work->ns;
    d->totals.collectives[work->cause]++;
    s->now = end;
    s->cause = work->cause;
    return remember(d, (ndm_sim_span){work->name, stream, begin, end, work->cause});
}

static ndm_status copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                       ndm_copy_kind kind)
{
    ndm_sim_copy args = {dst, src, bytes, kind};

    if (kind == NDM_DEVICE_TO_HOST)
        memset(dst, 0, (size_t)bytes);
    return launch(stream, &(ndm_launch){"copy", NULL, &args, sizeof args, NDM_SIM_OP_COPY});
}

static ndm_status zero(ndm_stream *stream, void *memory, int64_t bytes)
{
    ndm_sim_copy args = {memory, NULL, bytes, NDM_DEVICE_TO_DEVICE};

    return launch(stream, &(ndm_launch){"zero", NULL, &args, sizeof args, NDM_SIM_OP_ZERO});
}

/* ---- streams and events ------------------------------------------------------------------- */

static ndm_status stream_create(ndm_device *device, ndm_stream_kind kind, ndm_stream **stream)
{
    sim_stream *s = calloc(1, sizeof *s);

    if (!s)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a stream");
    s->base.device = device;
    s->base.kind = kind;
    if (kind == NDM_STREAM_COMPUTE && !sim(device)->compute)
        sim(device)->compute = s;
    *stream = &s->base;
    return NDM_OK;
}

static void stream_destroy(ndm_stream *stream)
{
    if (sim(stream->device)->compute == (sim_stream *)stream)
        sim(stream->device)->compute = NULL;
    free(stream);
}

static ndm_status stream_wait(ndm_stream *stream, ndm_event *event)
{
    const sim_event *e = (const sim_event *)event;
    sim_stream *s = (sim_stream *)stream;
    sim_device *d = sim(stream->device);

    if (e->stream == s || e->at <= s->now)
        return NDM_OK;
    if (s == d->compute) {
        d->totals.exposed[d->phase][e->cause] += e->at - s->now;
        stream->waited_ns += (int64_t)(e->at - s->now);
    }
    s->now = e->at;
    return NDM_OK;
}

static ndm_status stream_synchronize(ndm_stream *stream)
{
    const sim_stream *s = (const sim_stream *)stream;
    sim_device *d = sim(stream->device);

    d->host = s->now > d->host ? s->now : d->host;
    return NDM_OK;
}

static ndm_status event_create(ndm_device *device, ndm_event **event)
{
    sim_event *e = calloc(1, sizeof *e);

    if (!e)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for an event");
    e->base.device = device;
    *event = &e->base;
    return NDM_OK;
}

static void event_destroy(ndm_event *event)
{
    free(event);
}

static ndm_status event_record(ndm_event *event, ndm_stream *stream)
{
    sim_event *e = (sim_event *)event;

    e->stream = (const sim_stream *)stream;
    e->at = e->stream->now;
    e->cause = e->stream->cause;
    return NDM_OK;
}

static ndm_status event_query(ndm_event *event, bool *done)
{
    *done = ((const sim_event *)event)->at <= sim(event->device)->host;
    return NDM_OK;
}

/* ---- what is read ------------------------------------------------------------------------- */

double ndm_sim_now(const ndm_device *device)
{
    const sim_device *d = (const sim_device *)device;

    return d->compute && d->compute->now > d->host ? d->compute->now : d->host;
}

double ndm_sim_exposed(const ndm_sim_totals *totals)
{
    double sum = 0.0;

    for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++)
        for (int c = 0; c < NDM_SIM_CAUSES; c++)
            sum += totals->exposed[p][c];
    return sum;
}

double ndm_sim_total(const ndm_sim_totals *totals)
{
    double sum = ndm_sim_exposed(totals);

    for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++) {
        sum += totals->host[p];
        for (int c = 0; c < NDM_SIM_CATEGORY_COUNT; c++)
            sum += totals->busy[p][c];
    }
    return sum;
}

ndm_sim_totals ndm_sim_get_totals(const ndm_device *device)
{
    return ((const sim_device *)device)->totals;
}

void ndm_sim_reset(ndm_device *device)
{
    sim_device *d = sim(device);

    if (d->compute)
        wait_for_host(d, d->compute);
    d->totals = (ndm_sim_totals){0};
    d->n_spans = 0;
}

const ndm_sim_span *ndm_sim_trace(const ndm_device *device, int64_t *n)
{
    *n = ((const sim_device *)device)->n_spans;
    return ((const sim_device *)device)->spans;
}

const ndm_sim_options *ndm_sim_options_of(const ndm_device *device)
{
    return ((const sim_device *)device)->options;
}

const ndm_device_ops ndm_device_sim = {
    .name = "sim",
    .summary = "no memory and virtual clocks: plans",
    .priority = -2,
    .probe = probe,
    .create = create,
    .destroy = destroy,
    .alloc = allocate,
    .free = release,
    .copy = copy,
    .zero = zero,
    .stream_create = stream_create,
    .stream_destroy = stream_destroy,
    .stream_wait = stream_wait,
    .stream_synchronize = stream_synchronize,
    .event_create = event_create,
    .event_destroy = event_destroy,
    .event_record = event_record,
    .event_query = event_query,
    .launch = launch,
};
