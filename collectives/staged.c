/* SPDX-License-Identifier: Apache-2.0 */
/* Backend for ranks that share a device: through pinned host memory and messages of MPI.
 *
 * The host waits in every call. It is there so that meshes of many ranks can be verified on one
 * device, not for speed. Calls run to their end in the order of the program, which is the same on
 * all ranks, so none can wait for another. Sums are the mpi backend's: in rank order, rounded once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collectives/nccl_comm.h"
#include "collectives/schedule.h"
#include "core/dtype.h"
#include "device/cuda/cuda.h"

typedef struct pinned {
    void *memory;
    int64_t bytes;
} pinned;

typedef struct staged_comm {
    ndm_staging staging; /* first: what schedules find in comm->state */
    pinned send, recv;
} staged_comm;

static bool probe(ndm_world *world, ndm_device *device, char *why, size_t why_bytes)
{
    bool cuda = strcmp(ndm_device_name(device), "cuda") == 0;
    bool messages = ((const ndm_world *)world)->p2p != NULL;

    if (!cuda)
        snprintf(why, why_bytes, "device %s needs no staging", ndm_device_name(device));
    else if (!messages)
        snprintf(why, why_bytes, "the world was not made by MPI");
    else
        snprintf(why, why_bytes, "%lld rank(s), which may share devices",
                 (long long)ndm_world_size(world));
    return cuda && messages;
}

static ndm_status comm_init(ndm_comm *comm)
{
    comm->state = calloc(1, sizeof(staged_comm));
    if (!comm->state)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for communicator %s", comm->name);
    return NDM_OK;
}

static void comm_finish(ndm_comm *comm)
{
    staged_comm *s = comm->state;

    if (!s)
        return;
    ndm_staging_finish(comm, &s->staging);
    ndm_cuda_unpin(s->send.memory);
    ndm_cuda_unpin(s->recv.memory);
    free(s);
    comm->state = NULL;
}

static ndm_status need(pinned *p, int64_t bytes)
{
    if (bytes <= p->bytes)
        return NDM_OK;
    ndm_cuda_unpin(p->memory);
    *p = (pinned){0};
    NDM_TRY(ndm_cuda_pin(bytes, &p->memory));
    p->bytes = bytes;
    return NDM_OK;
}

/* Bytes that a call reads and writes. */
static void sizes(const ndm_comm *comm, const ndm_collective_args *a, int64_t *send, int64_t *recv)
{
    bool many_sent = a->kind == NDM_REDUCE_SCATTER || a->kind == NDM_ALL_TO_ALL;
    bool many_received = a->kind == NDM_ALL_GATHER || a->kind == NDM_ALL_TO_ALL;

    *send = (many_sent ? comm->size : 1) * a->count * (int64_t)ndm_dtype_bytes(a->dtype);
    *recv = (many_received ? comm->size : 1) * a->count * (int64_t)ndm_dtype_bytes(a->recv_dtype);
}

static ndm_status from_device(ndm_stream *stream, void *host, const void *device, int64_t bytes)
{
    if (bytes > 0)
        NDM_CUDA_TRY("staging", cudaMemcpyAsync(host, device, (size_t)bytes, cudaMemcpyDeviceToHost,
                                                ndm_cuda_stream_handle(stream)));
    return ndm_stream_synchronize(stream);
}

static ndm_status to_device(ndm_stream *stream, void *device, const void *host, int64_t bytes)
{
    if (bytes > 0)
        NDM_CUDA_TRY("staging", cudaMemcpyAsync(device, host, (size_t)bytes, cudaMemcpyHostToDevice,
                                                ndm_cuda_stream_handle(stream)));
    return ndm_stream_synchronize(stream); /* the next call uses the same host memory */
}

static ndm_status run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    staged_comm *s = comm->state;
    ndm_collective_args host = *args;
    int64_t send_bytes, recv_bytes;
    bool in_place = args->kind == NDM_ALL_REDUCE || args->kind == NDM_BROADCAST;

    sizes(comm, args, &send_bytes, &recv_bytes);
    NDM_TRY(need(&s->recv, recv_bytes));
    if (!in_place)
        NDM_TRY(need(&s->send, send_bytes));
    host.send = in_place ? s->recv.memory : s->send.memory;
    host.recv = s->recv.memory;
    NDM_TRY(from_device(stream, in_place ? s->recv.memory : s->send.memory, args->send,
                        args->kind == NDM_BARRIER ? 0 : send_bytes));
    NDM_TRY(ndm_schedule_execute(comm, &host));
    return to_device(stream, args->recv, s->recv.memory,
                     args->kind == NDM_BARRIER ? 0 : recv_bytes);
}

const ndm_comm_backend ndm_cuda_staged = {
    .name = "staged",
    .summary = "MPI through pinned host memory, for ranks that share a device",
    .priority = 5,
    .probe = probe,
    .comm_init = comm_init,
    .comm_finish = comm_finish,
    .run = run,
};
