/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: arguments are checked, calls are counted and observed, and a backend runs them.
 */
#include <ndmesh/collectives.h>

#include <stdlib.h>

#include "collectives/comms.h"
#include "collectives/reduce.h"
#include "core/dtype.h"
#include "device/turn.h"

const char *ndm_collective_name(ndm_collective kind)
{
    static const char *const names[NDM_COLLECTIVE_COUNT] = {
        "all_gather", "reduce_scatter", "all_reduce", "all_to_all",
        "broadcast",  "send_recv",      "barrier"};

    return kind >= 0 && kind < NDM_COLLECTIVE_COUNT ? names[kind] : "unknown collective";
}

/* As documented at each call. */
static int64_t received_bytes(const ndm_comm *comm, const ndm_collective_args *a)
{
    int64_t n = comm->size, bytes = a->count * (int64_t)ndm_dtype_bytes(a->dtype);

    switch (a->kind) {
    case NDM_ALL_GATHER:
    case NDM_REDUCE_SCATTER:
    case NDM_ALL_TO_ALL:
        return (n - 1) * bytes;
    case NDM_ALL_REDUCE:
        return 2 * (n - 1) * bytes / n;
    case NDM_BROADCAST:
    case NDM_SEND_RECV:
        return a->peer_src == comm->index ? 0 : bytes;
    case NDM_BARRIER:
    case NDM_COLLECTIVE_COUNT:
        break;
    }
    return 0;
}

static ndm_status check(const ndm_comm *comm, const ndm_collective_args *a,
                        const ndm_stream *stream)
{
    const char *name = ndm_collective_name(a->kind);

    if (!stream)
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: the stream is NULL", name, comm->name);
    if (a->count < 0)
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: count %lld is negative", name, comm->name,
                 (long long)a->count);
    if ((unsigned)a->dtype >= NDM_DTYPE_COUNT)
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: there is no type %d", name, comm->name, a->dtype);
    if (a->count > INT64_MAX / 16 / comm->size)
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: count %lld is too large", name, comm->name,
                 (long long)a->count);
    if (a->count > 0 && (!a->send || !a->recv))
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: a buffer of %lld elements is NULL", name,
                 comm->name, (long long)a->count);
    if (a->peer_src < 0 || a->peer_src >= comm->size || a->peer_dst < 0 ||
        a->peer_dst >= comm->size)
        NDM_FAIL(
            NDM_ERR_USAGE, "comm: %s on %s: member %lld is not among its %lld", name, comm->name,
            (long long)(a->peer_src < 0 || a->peer_src >= comm->size ? a->peer_src : a->peer_dst),
            (long long)comm->size);
    return NDM_OK;
}

static ndm_status check_reduction(const ndm_comm *comm, const ndm_collective_args *a)
{
    const char *name = ndm_collective_name(a->kind);
    if (!comm)
        return NDM_OK; /* issue() says so */
    bool half = a->dtype == NDM_BF16 || a->dtype == NDM_F16;

    if ((unsigned)a->dtype >= NDM_DTYPE_COUNT || !ndm_reduce_supports(a->dtype))
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: %s is not a type that is reduced", name,
                 comm->name,
                 (unsigned)a->dtype < NDM_DTYPE_COUNT ? ndm_dtype_name(a->dtype) : "an unknown");
    if (a->op != NDM_SUM && a->op != NDM_MAX)
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: there is no reduction %d", name, comm->name,
                 a->op);
    if (a->recv_dtype != a->dtype && !(half && a->recv_dtype == NDM_F32))
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s on %s: %s cannot be received as type %d", name,
                 comm->name, ndm_dtype_name(a->dtype), a->recv_dtype);
    return NDM_OK;
}

static ndm_status issue(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    if (!comm)
        NDM_FAIL(NDM_ERR_USAGE, "comm: %s: the communicator is NULL",
                 ndm_collective_name(args->kind));
    NDM_TRY(check(comm, args, stream));
    ndm_comms *owner = comm->owner;

    if (owner->observer) {
        ndm_collective_call call = {args->kind, comm, args->count, args->dtype, stream->name};
        owner->observer(owner->observer_user, &call);
    }
    ndm_turn_take();
    comm->stats.calls[args->kind]++;
    comm->stats.received_bytes[args->kind] += received_bytes(comm, args);
    comm->sequence++;
    ndm_status status = comm->backend->run(comm, args, stream);
    ndm_turn_give();
    return status;
}

ndm_status ndm_all_gather(ndm_comm *comm, const void *send, void *recv, int64_t count,
                          ndm_dtype dtype, ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_ALL_GATHER,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .recv_dtype = dtype};

    return issue(comm, &args, stream);
}

ndm_status ndm_reduce_scatter(ndm_comm *comm, const void *send, void *recv, int64_t count,
                              ndm_dtype dtype, ndm_dtype recv_dtype, ndm_reduce_op op,
                              ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_REDUCE_SCATTER,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .recv_dtype = recv_dtype,
                                .op = op};

    NDM_TRY(check_reduction(comm, &args));
    return issue(comm, &args, stream);
}

ndm_status ndm_all_reduce(ndm_comm *comm, void *buffer, int64_t count, ndm_dtype dtype,
                          ndm_reduce_op op, ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_ALL_REDUCE,
                                .send = buffer,
                                .recv = buffer,
                                .count = count,
                                .dtype = dtype,
                                .recv_dtype = dtype,
                                .op = op};

    NDM_TRY(check_reduction(comm, &args));
    return issue(comm, &args, stream);
}

ndm_status ndm_all_to_all(ndm_comm *comm, const void *send, void *recv, int64_t count,
                          ndm_dtype dtype, ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_ALL_TO_ALL,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .recv_dtype = dtype};

    if (comm && count > 0 && send && send == recv)
        NDM_FAIL(NDM_ERR_USAGE, "comm: all_to_all on %s: send and recv are one buffer", comm->name);
    return issue(comm, &args, stream);
}

ndm_status ndm_broadcast(ndm_comm *comm, void *buffer, int64_t count, ndm_dtype dtype, int64_t root,
                         ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_BROADCAST,
                                .send = buffer,
                                .recv = buffer,
                                .count = count,
                                .dtype = dtype,
                                .recv_dtype = dtype,
                                .peer_src = root};

    return issue(comm, &args, stream);
}

ndm_status ndm_send_recv(ndm_comm *comm, const void *send, int64_t dst, void *recv, int64_t src,
                         int64_t count, ndm_dtype dtype, ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_SEND_RECV,
                                .send = send,
                                .recv = recv,
                                .count = count,
                                .dtype = dtype,
                                .recv_dtype = dtype,
                                .peer_dst = dst,
                                .peer_src = src};

    return issue(comm, &args, stream);
}

ndm_status ndm_barrier(ndm_comm *comm, ndm_stream *stream)
{
    ndm_collective_args args = {.kind = NDM_BARRIER, .dtype = NDM_U8, .recv_dtype = NDM_U8};

    return issue(comm, &args, stream);
}

int64_t ndm_comm_size(const ndm_comm *comm)
{
    return comm ? comm->size : 0;
}

int64_t ndm_comm_index(const ndm_comm *comm)
{
    return comm ? comm->index : 0;
}

int64_t ndm_comm_world_rank(const ndm_comm *comm, int64_t index)
{
    return comm && index >= 0 && index < comm->size ? comm->ranks[index] : -1;
}

const char *ndm_comm_name(const ndm_comm *comm)
{
    return comm ? comm->name : NULL;
}

ndm_comm_stats ndm_comm_statistics(const ndm_comm *comm)
{
    return comm ? comm->stats : (ndm_comm_stats){0};
}
