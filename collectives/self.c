/* SPDX-License-Identifier: Apache-2.0 */
/* Backend of groups of one: a collective is a copy, or nothing. Works on every device. */
#include <stdio.h>
#include <stdlib.h>

#include "collectives/comms.h"
#include "core/dtype.h"

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    (void)device;
    if (ndm_world_size(world) == 1)
        snprintf(why, why_bytes, "one rank");
    else
        snprintf(why, why_bytes, "there are %lld ranks", (long long)ndm_world_size(world));
    return ndm_world_size(world) == 1;
}

static ndm_status comm_init(ndm_comm *comm)
{
    if (comm->size != 1)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: %s has %lld ranks, backend self takes one", comm->name,
                 (long long)comm->size);
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    (void)comm;
}

/* A 16-bit reduce_scatter into fp32, over one rank: a conversion, on the host if it can be. */
typedef struct widen_task {
    ndm_task task;
    ndm_collective_args args;
} widen_task;

static ndm_status widen_start(ndm_task *task)
{
    const ndm_collective_args *a = &((widen_task *)task)->args;

    ndm_convert(a->send, a->dtype, a->recv, a->recv_dtype, a->count);
    return NDM_OK;
}

static void widen_release(ndm_task *task)
{
    free(task);
}

static ndm_status widen(const ndm_collective_args *args, ndm_stream *stream)
{
    const ndm_device *device = ndm_stream_device(stream);
    widen_task *w;

    if (device->ops->widen)
        return device->ops->widen(stream, args->recv, args->send, args->dtype, args->count);
    if (!device->ops->host_accessible)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "comm: reduce_scatter of %s into %s over one rank is not made on device %s",
                 ndm_dtype_name(args->dtype), ndm_dtype_name(args->recv_dtype), device->ops->name);
    w = calloc(1, sizeof *w);
    if (!w)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for a conversion");
    w->task = (ndm_task){.start = widen_start, .release = widen_release};
    w->args = *args;
    return ndm_host_submit(stream, &w->task);
}

static ndm_status run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    int64_t bytes = args->count * (int64_t)ndm_dtype_bytes(args->dtype);

    comm->started++;
    if (args->kind == NDM_REDUCE_SCATTER && args->dtype != args->recv_dtype)
        return widen(args, stream);
    if (args->kind == NDM_BARRIER || args->send == args->recv)
        return NDM_OK;
    return ndm_copy(stream, args->recv, args->send, bytes, NDM_DEVICE_TO_DEVICE);
}

static ndm_status window_alloc(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                               void **all)
{
    return ndm_device_alloc(comm->owner->device, bytes_per_rank, kind, all);
}

static void window_free(ndm_comm *comm, void *all)
{
    ndm_device_free(comm->owner->device, all);
}

const ndm_comm_backend ndm_comm_backend_self = {
    .name = "self",
    .summary = "groups of one rank: copies",
    .priority = 0,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = run,
    .launches = true,
    .window_alloc = window_alloc,
    .window_free = window_free,
};
