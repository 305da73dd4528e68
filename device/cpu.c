/* SPDX-License-Identifier: Apache-2.0 */
/* The cpu world: host memory, kernels inline with OpenMP, communication queues. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/pages.h"
#include "device/host.h"

static bool probe(char *why, size_t why_bytes)
{
    snprintf(why, why_bytes, "host memory, %d processor(s) for OpenMP", omp_get_num_procs());
    return true;
}

static ndm_status create(const ndm_device_options *options, ndm_device **device)
{
    ndm_host_device *d = calloc(1, sizeof *d);
    if (!d)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the cpu device");
    if (options->threads > 0)
        omp_set_num_threads(options->threads);
    *device = &d->base;
    return NDM_OK;
}

static void destroy(ndm_device *device)
{
    free(device);
}

static ndm_status allocate(ndm_device *device, int64_t bytes, void **memory)
{
    (void)device;
    *memory = ndm_pages_alloc(bytes);
    return *memory ? NDM_OK : NDM_ERR_MEMORY;
}

static void release(ndm_device *device, void *memory, int64_t bytes)
{
    (void)device, (void)bytes;
    free(memory);
}

const ndm_device_ops ndm_device_cpu = {
    .name = "cpu",
    .summary = "host memory and OpenMP",
    .priority = 10,
    .host_accessible = true,
    .in_place = true,
    .probe = probe,
    .create = create,
    .destroy = destroy,
    .alloc = allocate,
    .free = release,
    .copy = ndm_host_copy,
    .zero = ndm_host_zero,
    .stream_create = ndm_host_stream_create,
    .stream_destroy = ndm_host_stream_destroy,
    .stream_wait = ndm_host_stream_wait,
    .stream_synchronize = ndm_host_stream_synchronize,
    .event_create = ndm_host_event_create,
    .event_destroy = ndm_host_event_destroy,
    .event_record = ndm_host_event_record,
    .event_query = ndm_host_event_query,
    .launch = ndm_host_launch,
};
