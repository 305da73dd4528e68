/* SPDX-License-Identifier: Apache-2.0 */
/* Backend over MPI messages: any group of a world of MPI ranks, in host memory. */
#include <stdio.h>
#include <stdlib.h>

#include "collectives/schedule.h"

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    if (!world->p2p)
        snprintf(why, why_bytes, "the world was not made by MPI");
    else if (!device->ops->host_accessible)
        snprintf(why, why_bytes, "memory of device %s is out of the host's reach",
                 device->ops->name);
    else
        snprintf(why, why_bytes, "%lld rank(s) on %lld node(s)", (long long)world->size,
                 (long long)world->nodes);
    return world->p2p && device->ops->host_accessible;
}

static ndm_status comm_init(ndm_comm *comm)
{
    comm->state = calloc(1, sizeof(ndm_staging));
    if (!comm->state)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    ndm_staging_finish(comm, comm->state);
    free(comm->state);
    comm->state = NULL;
}

const ndm_comm_backend ndm_comm_backend_mpi = {
    .name = "mpi",
    .summary = "messages of MPI between host memories, in any group",
    .priority = 10,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = ndm_schedule_submit,
};
