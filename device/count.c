/* SPDX-License-Identifier: Apache-2.0 */
/* The counting world: allocations are counted and have no memory behind them, so a model larger
 * than the machine can be planned by the code that would run it. */
#include "device/count.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/host.h"

static bool probe(char *why, size_t why_bytes)
{
    if (why_bytes > 0)
        why[0] = '\0';
    return true;
}

static ndm_status create(const ndm_device_options *options, ndm_device **device)
{
    ndm_host_device *d = calloc(1, sizeof *d);

    (void)options;
    if (!d)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the counting device");
    *device = &d->base;
    return NDM_OK;
}

static void destroy(ndm_device *device)
{
    free(device);
}

static size_t mapped_bytes(int64_t bytes)
{
    return bytes > 0 ? (size_t)bytes : 1;
}

/* Whoever touches it is in error, and finds out. */
void *ndm_count_reserve(int64_t bytes)
{
    void *p = mmap(NULL, mapped_bytes(bytes), PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return p == MAP_FAILED ? NULL : p;
}

void ndm_count_release(void *memory, int64_t bytes)
{
    munmap(memory, mapped_bytes(bytes));
}

static ndm_status allocate(ndm_device *device, int64_t bytes, void **memory)
{
    (void)device;
    *memory = ndm_count_reserve(bytes);
    return *memory ? NDM_OK : NDM_ERR_MEMORY;
}

static void release(ndm_device *device, void *memory, int64_t bytes)
{
    (void)device;
    ndm_count_release(memory, bytes);
}

static ndm_status copy(ndm_stream *stream, void *dst, const void *src, int64_t bytes,
                       ndm_copy_kind kind)
{
    (void)stream, (void)src;
    if (kind == NDM_DEVICE_TO_HOST)
        memset(dst, 0, (size_t)bytes);
    return NDM_OK;
}

static ndm_status zero(ndm_stream *stream, void *memory, int64_t bytes)
{
    (void)stream, (void)memory, (void)bytes;
    return NDM_OK;
}

static ndm_status launch(ndm_stream *stream, const ndm_launch *call)
{
    (void)stream, (void)call;
    return NDM_OK;
}

const ndm_device_ops ndm_device_count = {
    .name = "count",
    .summary = "no memory: allocations are counted",
    .priority = -1,
    .host_accessible = true, /* so that the cpu's kernels are chosen */
    .probe = probe,
    .create = create,
    .destroy = destroy,
    .alloc = allocate,
    .free = release,
    .copy = copy,
    .zero = zero,
    .stream_create = ndm_host_stream_create,
    .stream_destroy = ndm_host_stream_destroy,
    .stream_wait = ndm_host_stream_wait,
    .stream_synchronize = ndm_host_stream_synchronize,
    .event_create = ndm_host_event_create,
    .event_destroy = ndm_host_event_destroy,
    .event_record = ndm_host_event_record,
    .event_query = ndm_host_event_query,
    .launch = launch,
};
