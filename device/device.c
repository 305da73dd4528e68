/* SPDX-License-Identifier: Apache-2.0 */
/* The front of all worlds: the registry, accounting of memory, and calls that go through the
 * world's table. */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/given.h"
#include "core/module.h"
#include "device/turn.h"

#define NDM_DEVICE(symbol) extern const ndm_device_ops symbol;
#include "device/devices.def"
#undef NDM_DEVICE

static const ndm_device_ops *const devices[] = {
#define NDM_DEVICE(symbol) &symbol,
#include "device/devices.def"
#undef NDM_DEVICE
    NULL};

enum { DEVICES = sizeof devices / sizeof devices[0] - 1 };

static const int64_t DEFAULT_TIMEOUT_NS = 600ll * 1000 * 1000 * 1000;

/* A live allocation. The table is open addressing by address; `memory` NULL = free, REMOVED = was
 * in use. */
typedef struct entry {
    void *memory;
    int64_t bytes;
    ndm_memory_kind kind;
} entry;

struct ndm_allocation {
    entry *entries; /* [capacity] */
    size_t capacity, used;
};

static char removed;
#define REMOVED ((void *)&removed)

/* ---- the registry: worlds of this binary, then the one in a module ------------------------ */

static bool absent_probe(char *why, size_t why_bytes)
{
    char reason[256];

    (void)!ndm_module_symbol("cuda", "ndm_cuda_device", reason, sizeof reason);
    snprintf(why, why_bytes, "cuda: %s", reason);
    return false;
}

/* In the list where the module is not, to say why. */
static const ndm_device_ops cuda_absent = {
    .name = "cuda", .summary = "GPUs of NVIDIA", .probe = absent_probe};

const ndm_device_ops *const *ndm_device_list(void)
{
    static const ndm_device_ops *list[DEVICES + 2];
    char why[8];
    const ndm_device_ops *cuda = ndm_module_symbol("cuda", "ndm_cuda_device", why, sizeof why);

    memcpy(list, devices, sizeof devices);
    list[DEVICES] = cuda ? cuda : &cuda_absent;
    return list;
}

enum { REGISTERED_MAX = 4 };
static const ndm_device_ops *registered[REGISTERED_MAX];

ndm_status ndm_device_register(const ndm_device_ops *ops)
{
    for (int i = 0; i < REGISTERED_MAX; i++) {
        if (registered[i] && strcmp(registered[i]->name, ops->name) == 0)
            NDM_FAIL(NDM_ERR_USAGE, "device: %s is registered already", ops->name);
        if (registered[i])
            continue;
        registered[i] = ops;
        return NDM_OK;
    }
    NDM_FAIL(NDM_ERR_USAGE, "device: no room for %s: %d are registered", ops->name, REGISTERED_MAX);
}

/* The module's world, where it is meant: by its name, or by `auto` on a machine that looks as if it
 * had a device. */
static const ndm_device_ops *find_cuda(const char *name, char *why, size_t why_bytes)
{
    const ndm_device_ops *cuda = NULL;

    if (strcmp(name, "cuda") == 0)
        cuda = ndm_module_symbol("cuda", "ndm_cuda_device", why, why_bytes);
    else if (strcmp(name, "auto") == 0)
        cuda = ndm_module_offer("cuda", "ndm_cuda_device");
    return cuda && cuda->probe(why, why_bytes) ? cuda : NULL;
}

static const ndm_device_ops *find(const char *name, char *why, size_t why_bytes)
{
    const ndm_device_ops *best;
    bool automatic = strcmp(name, "auto") == 0;

    for (int i = 0; i < REGISTERED_MAX && registered[i]; i++)
        if (strcmp(name, registered[i]->name) == 0)
            return registered[i];
    snprintf(why, why_bytes, "no such device in this build");
    best = find_cuda(name, why, why_bytes);
    for (int i = 0; devices[i]; i++) {
        const ndm_device_ops *d = devices[i];
        if (!automatic && strcmp(name, d->name) != 0)
            continue;
        if (d->probe(why, why_bytes) && (!best || d->priority > best->priority))
            best = d;
    }
    return best;
}

ndm_status ndm_device_adopt(const ndm_device_ops *ops, const ndm_device_options *options,
                            ndm_device **device)
{
    ndm_device *d = NULL;

    NDM_TRY(ops->create(options, &d));
    d->ops = ops;
    d->options = *options;
    if (d->options.timeout_ns <= 0)
        d->options.timeout_ns = DEFAULT_TIMEOUT_NS;
    if (d->activation_bytes == 0)
        d->activation_bytes = (int)sizeof(float);
    if (d->gradient_bytes == 0)
        d->gradient_bytes = (int)sizeof(float);
    d->allocations = calloc(1, sizeof *d->allocations);
    if (!d->allocations) {
        ops->destroy(d);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for device %s", ops->name);
    }
    *device = d;
    return NDM_OK;
}

ndm_status ndm_device_create(const char *name, const ndm_device_options *options,
                             ndm_device **device)
{
    char why[256];
    const ndm_device_ops *ops = find(name, why, sizeof why);

    if (!ops)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: %s: %s", name, why);
    return ndm_device_adopt(ops, options, device);
}

void ndm_device_destroy(ndm_device *device)
{
    if (!device)
        return;
    free(device->allocations->entries);
    free(device->allocations);
    free((void *)device->kernels);
    device->ops->destroy(device);
}

const char *ndm_device_name(const ndm_device *device)
{
    return device ? device->ops->name : NULL;
}

/* ---- memory ------------------------------------------------------------------------------- */

const char *ndm_memory_kind_name(ndm_memory_kind kind)
{
    static const char *const names[NDM_MEMORY_KIND_COUNT] = {
        "weights", "gathered", "gradients", "optimizer", "activations", "workspace", "comm"};

    return (unsigned)kind < NDM_MEMORY_KIND_COUNT ? names[kind] : "unknown";
}

static size_t slot_of(const struct ndm_allocation *t, const void *memory)
{
    return (size_t)(((uintptr_t)memory >> 8) * 0x9e3779b97f4a7c15ull >> 17) & (t->capacity - 1);
}

static ndm_status table_grow(struct ndm_allocation *t)
{
    size_t capacity = t->capacity ? 2 * t->capacity : 256;
    struct ndm_allocation bigger = {calloc(capacity, sizeof(entry)), capacity, 0};

    if (!bigger.entries)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a table of %zu allocations", capacity);
    for (size_t i = 0; i < t->capacity; i++) {
        if (!t->entries[i].memory || t->entries[i].memory == REMOVED)
            continue;
        size_t s = slot_of(&bigger, t->entries[i].memory);
        while (bigger.entries[s].memory)
            s = (s + 1) & (capacity - 1);
        bigger.entries[s] = t->entries[i];
        bigger.used++;
    }
    free(t->entries);
    *t = bigger;
    return NDM_OK;
}

static void table_add(struct ndm_allocation *t, entry e)
{
    size_t s = slot_of(t, e.memory);
    while (t->entries[s].memory && t->entries[s].memory != REMOVED)
        s = (s + 1) & (t->capacity - 1);
    t->used += !t->entries[s].memory;
    t->entries[s] = e;
}

static entry table_remove(struct ndm_allocation *t, const void *memory)
{
    size_t s = slot_of(t, memory);
    while (t->entries[s].memory != memory)
        s = (s + 1) & (t->capacity - 1);
    entry e = t->entries[s];
    t->entries[s].memory = REMOVED;
    return e;
}

void ndm_device_account(ndm_device *device, ndm_memory_kind kind, int64_t bytes)
{
    ndm_memory_stats *m = &device->memory;

    ndm_turn_take();
    m->live_bytes[kind] += bytes;
    m->live_total_bytes += bytes;
    if (m->live_bytes[kind] > m->peak_bytes[kind])
        m->peak_bytes[kind] = m->live_bytes[kind];
    if (m->live_total_bytes > m->peak_total_bytes)
        m->peak_total_bytes = m->live_total_bytes;
    ndm_turn_give();
}

static int64_t bytes_here(const ndm_device *device, int64_t bytes, ndm_memory_kind kind)
{
    int element = sizeof(float);

    if (kind == NDM_MEMORY_ACTIVATIONS || kind == NDM_MEMORY_WORKSPACE)
        element = device->activation_bytes;
    else if (kind == NDM_MEMORY_GRADIENTS)
        element = device->gradient_bytes;
    return element == (int)sizeof(float) ? bytes : bytes / (int64_t)sizeof(float) * element;
}

static ndm_status allocate(ndm_device *device, int64_t bytes, ndm_memory_kind kind, void **memory)
{
    int64_t limit = device->options.memory_limit_bytes, live = device->memory.live_total_bytes;
    struct ndm_allocation *t = device->allocations;
    void *p = NULL;

    if (bytes < 0)
        NDM_FAIL(NDM_ERR_USAGE, "device: %s: %lld bytes for %s", device->ops->name,
                 (long long)bytes, ndm_memory_kind_name(kind));
    bytes = bytes_here(device, bytes, kind);
    device->allocating = kind;
    if (t->used + 1 > t->capacity / 2)
        NDM_TRY(table_grow(t));
    ndm_status status = limit > 0 && bytes > limit - live ? NDM_ERR_MEMORY
                                                          : device->ops->alloc(device, bytes, &p);
    if (status == NDM_ERR_MEMORY)
        NDM_FAIL(NDM_ERR_MEMORY, "device: %s: no %lld bytes for %s, %lld bytes are in use%s",
                 device->ops->name, (long long)bytes, ndm_memory_kind_name(kind), (long long)live,
                 limit > 0 ? " (a limit is set)" : "");
    NDM_TRY(status);
    table_add(t, (entry){p, bytes, kind});
    ndm_device_account(device, kind, bytes);
    *memory = p;
    return NDM_OK;
}

/* Collectives allocate too, and they may run in a helper thread. */
ndm_status ndm_device_alloc(ndm_device *device, int64_t bytes, ndm_memory_kind kind, void **memory)
{
    NDM_NEED(device);
    NDM_NEED(memory);
    if ((unsigned)kind >= NDM_MEMORY_KIND_COUNT)
        NDM_FAIL(NDM_ERR_USAGE, "device: there is no kind %d of memory", kind);
    ndm_turn_take();
    ndm_status status = allocate(device, bytes, kind, memory);
    ndm_turn_give();
    return status;
}

void ndm_device_free(ndm_device *device, void *memory)
{
    if (!device || !memory)
        return;
    ndm_turn_take();
    entry e = table_remove(device->allocations, memory);
    ndm_device_account(device, e.kind, -e.bytes);
    device->ops->free(device, memory, e.bytes);
    ndm_turn_give();
}

ndm_memory_stats ndm_device_memory(const ndm_device *device)
{
    return device ? device->memory : (ndm_memory_stats){0};
}

bool ndm_device_pool(const ndm_device *device, ndm_memory_pool *pool)
{
    *pool = (ndm_memory_pool){0};
    if (device->ops->pool)
        device->ops->pool(device, pool);
    return device->ops->pool != NULL;
}

void ndm_device_reset_peak(ndm_device *device)
{
    if (!device)
        return;
    ndm_memory_stats *m = &device->memory;

    memcpy(m->peak_bytes, m->live_bytes, sizeof m->peak_bytes);
    m->peak_total_bytes = m->live_total_bytes;
}

/* ---- streams and events: through the world's table ---------------------------------------- */

ndm_status ndm_copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                    ndm_copy_kind kind)
{
    NDM_NEED(stream);
    if (bytes < 0 || (unsigned)kind > NDM_DEVICE_TO_DEVICE)
        NDM_FAIL(NDM_ERR_USAGE, "device: a copy of %lld bytes, of kind %d", (long long)bytes, kind);
    if (bytes > 0 && (!dst || !src))
        NDM_FAIL(NDM_ERR_USAGE, "device: a copy of %lld bytes %s NULL", (long long)bytes,
                 dst ? "from" : "to");
    return bytes > 0 ? stream->device->ops->copy(stream, dst, src, bytes, kind) : NDM_OK;
}

ndm_status ndm_zero(ndm_stream *stream, void *memory, int64_t bytes)
{
    NDM_NEED(stream);
    if (bytes < 0 || (bytes > 0 && !memory))
        NDM_FAIL(NDM_ERR_USAGE, "device: %lld bytes to zero at %s", (long long)bytes,
                 memory ? "an address" : "NULL");
    return bytes > 0 ? stream->device->ops->zero(stream, memory, bytes) : NDM_OK;
}

ndm_status ndm_stream_create(ndm_device *device, ndm_stream_kind kind, const char *name,
                             ndm_stream **stream)
{
    NDM_NEED(device);
    NDM_NEED(stream);
    if ((unsigned)kind > NDM_STREAM_COMM)
        NDM_FAIL(NDM_ERR_USAGE, "device: there is no kind %d of streams", kind);
    NDM_TRY(device->ops->stream_create(device, kind, stream));
    snprintf((*stream)->name, sizeof(*stream)->name, "%s", name ? name : "");
    return NDM_OK;
}

void ndm_stream_destroy(ndm_stream *stream)
{
    if (stream)
        stream->device->ops->stream_destroy(stream);
}

ndm_device *ndm_stream_device(const ndm_stream *stream)
{
    return stream ? stream->device : NULL;
}

void *ndm_stream_native(const ndm_stream *stream)
{
    bool has = stream && stream->device->ops->stream_native;

    return has ? stream->device->ops->stream_native(stream) : NULL;
}

ndm_status ndm_stream_wait(ndm_stream *stream, ndm_event *event)
{
    NDM_NEED(stream);
    NDM_NEED(event);
    return stream->device->ops->stream_wait(stream, event);
}

ndm_status ndm_stream_synchronize(ndm_stream *stream)
{
    NDM_NEED(stream);
    return stream->device->ops->stream_synchronize(stream);
}

int64_t ndm_stream_waited_ns(const ndm_stream *stream)
{
    return stream ? stream->waited_ns : 0;
}

ndm_status ndm_stream_launch(ndm_stream *stream, const ndm_launch *launch)
{
    if (launch->args_bytes > NDM_LAUNCH_ARGS_MAX)
        NDM_FAIL(NDM_ERR_INTERNAL, "kernel %s has %zu bytes of arguments, %d is the limit",
                 launch->name, launch->args_bytes, NDM_LAUNCH_ARGS_MAX);
    return stream->device->ops->launch(stream, launch);
}

ndm_status ndm_event_create(ndm_device *device, ndm_event **event)
{
    NDM_NEED(device);
    NDM_NEED(event);
    return device->ops->event_create(device, event);
}

void ndm_event_destroy(ndm_event *event)
{
    if (event)
        event->device->ops->event_destroy(event);
}

ndm_status ndm_event_record(ndm_event *event, ndm_stream *stream)
{
    NDM_NEED(event);
    NDM_NEED(stream);
    return event->device->ops->event_record(event, stream);
}

ndm_status ndm_event_query(ndm_event *event, bool *done)
{
    NDM_NEED(event);
    NDM_NEED(done);
    return event->device->ops->event_query(event, done);
}

bool ndm_device_has_graphs(const ndm_device *device)
{
    return device->ops->graph_begin != NULL;
}

ndm_status ndm_graph_begin(ndm_stream *stream)
{
    if (!ndm_device_has_graphs(stream->device))
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: %s has no graphs", stream->device->ops->name);
    return stream->device->ops->graph_begin(stream);
}

ndm_status ndm_graph_end(ndm_stream *stream, ndm_graph **graph)
{
    return stream->device->ops->graph_end(stream, graph);
}

ndm_status ndm_graph_launch(ndm_graph *graph, ndm_stream *stream)
{
    return stream->device->ops->graph_launch(graph, stream);
}

void ndm_graph_destroy(ndm_device *device, ndm_graph *graph)
{
    if (graph)
        device->ops->graph_destroy(graph);
}
