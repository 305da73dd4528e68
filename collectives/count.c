/* SPDX-License-Identifier: Apache-2.0 */
/* Backend of the counting device: collectives are counted by the front end, and move nothing. */
#include "collectives/count.h"

#include <stdio.h>
#include <string.h>

#include "collectives/shm.h"

int64_t ndm_count_staging_bytes(const ndm_comm *comm, const char *backend)
{
    enum { MESSAGE_BYTES = 4 << 20 };

    if (comm->size == 1)
        return 0;
    return strcmp(backend, "shm") == 0 ? (int64_t)sizeof(ndm_shm_area) : MESSAGE_BYTES;
}

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    bool counting = strcmp(device->ops->name, "count") == 0;

    (void)world;
    snprintf(why, why_bytes, "%s", counting ? "nothing is moved" : "for dry runs only");
    return counting;
}

static ndm_status comm_init(ndm_comm *comm)
{
    (void)comm;
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    (void)comm;
}

static ndm_status run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    (void)args, (void)stream;
    comm->started++;
    return NDM_OK;
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

const ndm_comm_backend ndm_comm_backend_count = {
    .name = "count",
    .summary = "moves nothing: dry runs",
    .priority = -1,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = run,
    .window_alloc = window_alloc,
    .window_free = window_free,
    .any_world = true,
};
