/* SPDX-License-Identifier: Apache-2.0 */
/* The collectives as calls of NCCL, on the stream that is given, from and to the caller's buffers.
 *
 * Reductions of 16-bit types that scatter bring the slices together as they are and add them up in
 * fp32, in the order of ranks: as many bytes on the wire, one rounding or none, and the same bits
 * on every run. The all-reduce of 16-bit types is NCCL's own, which may round on its way. */
#include "collectives/nccl_comm.h"
#include "core/dtype.h"

/* What NCCL adds up; other types travel as bytes. */
static bool nccl_type(ndm_dtype dtype, ncclDataType_t *type)
{
    static const struct {
        ndm_dtype dtype;
        ncclDataType_t type;
    } types[] = {{NDM_F32, ncclFloat32}, {NDM_BF16, ncclBfloat16}, {NDM_F16, ncclFloat16},
                 {NDM_F64, ncclFloat64}, {NDM_I32, ncclInt32},     {NDM_I64, ncclInt64}};

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].dtype == dtype) {
            *type = types[i].type;
            return true;
        }
    *type = ncclUint8;
    return false;
}

/* A collective on its way: its parts in NCCL's words. */
typedef struct call {
    ndm_comm *comm;
    const ndm_collective_args *args;
    ndm_stream *stream;
    cudaStream_t on;
    ncclComm_t handle;
    ncclDataType_t type;
    size_t count; /* of type */
    size_t bytes; /* of a block */
} call;

static ndm_status settle(const call *c, ncclResult_t result)
{
    return ndm_nccl_settle(c->handle, result, ndm_collective_name(c->args->kind), c->comm->name,
                           ndm_world_timeout_ns(c->comm->world));
}

static ndm_status copy_block(const call *c, void *dst, const void *src)
{
    return ndm_copy(c->stream, dst, src, (int64_t)c->bytes, NDM_DEVICE_TO_DEVICE);
}

/* Block i of send to member i, and block i of recv from it; the own block is a copy. */
static ndm_status exchange_blocks(const call *c, const char *send, char *recv)
{
    const char *name = c->comm->name;
    ncclResult_t first = ncclSuccess;

    NDM_TRY(copy_block(c, recv + (size_t)c->comm->index * c->bytes,
                       send + (size_t)c->comm->index * c->bytes));
    NDM_NCCL_TRY("group", name, ncclGroupStart());
    for (int64_t i = 0; i < c->comm->size && first == ncclSuccess; i++) {
        size_t at = (size_t)i * c->bytes;
        if (i == c->comm->index)
            continue;
        first = ncclSend(send + at, c->count, c->type, (int)i, c->handle, c->on);
        if (first == ncclSuccess || first == ncclInProgress)
            first = ncclRecv(recv + at, c->count, c->type, (int)i, c->handle, c->on);
        first = first == ncclInProgress ? ncclSuccess : first;
    }
    ncclResult_t result = ncclGroupEnd();
    NDM_NCCL_TRY("blocks", name, first);
    return settle(c, result);
}

static ndm_status send_recv(const call *c)
{
    const ndm_collective_args *a = c->args;
    const char *name = c->comm->name;

    if (a->peer_dst == c->comm->index && a->peer_src == c->comm->index)
        return a->send == a->recv ? NDM_OK : copy_block(c, a->recv, a->send);
    NDM_NCCL_TRY("group", name, ncclGroupStart());
    ncclResult_t sent = ncclSend(a->send, c->count, c->type, (int)a->peer_dst, c->handle, c->on);
    ncclResult_t received = ncclRecv(a->recv, c->count, c->type, (int)a->peer_src, c->handle,
                                     c->on);
    ncclResult_t result = ncclGroupEnd();
    NDM_NCCL_TRY("send", name, sent);
    NDM_NCCL_TRY("receive", name, received);
    return settle(c, result);
}

static bool is_half(ndm_dtype dtype)
{
    return dtype == NDM_BF16 || dtype == NDM_F16;
}

static ndm_status reduce_scatter(const call *c)
{
    const ndm_collective_args *a = c->args;
    void *slices = NULL;

    if (!is_half(a->dtype))
        return settle(c, ncclReduceScatter(a->send, a->recv, c->count, c->type,
                                           a->op == NDM_MAX ? ncclMax : ncclSum, c->handle, c->on));
    NDM_TRY(ndm_cuda_scratch(c->stream, c->comm->size * (int64_t)c->bytes, &slices));
    NDM_TRY(exchange_blocks(c, a->send, slices));
    return ndm_cuda_reduce_slices(c->stream, a->recv, a->recv_dtype, slices, c->comm->size,
                                  a->count, a->count, a->dtype, a->op);
}

static ndm_status barrier(const call *c)
{
    float *token = ((ndm_nccl_comm *)c->comm->state)->token;

    return settle(c, ncclAllReduce(token, token, 1, ncclFloat32, ncclMax, c->handle, c->on));
}

static ndm_status issue(const call *c)
{
    const ndm_collective_args *a = c->args;

    switch (a->kind) {
    case NDM_ALL_GATHER:
        return settle(c, ncclAllGather(a->send, a->recv, c->count, c->type, c->handle, c->on));
    case NDM_REDUCE_SCATTER:
        return reduce_scatter(c);
    case NDM_ALL_REDUCE:
        return settle(c, ncclAllReduce(a->send, a->recv, c->count, c->type,
                                       a->op == NDM_MAX ? ncclMax : ncclSum, c->handle, c->on));
    case NDM_ALL_TO_ALL:
        return exchange_blocks(c, a->send, a->recv);
    case NDM_BROADCAST:
        return settle(c, ncclBroadcast(a->send, a->recv, c->count, c->type, (int)a->peer_src,
                                       c->handle, c->on));
    case NDM_SEND_RECV:
        return send_recv(c);
    case NDM_BARRIER:
    case NDM_COLLECTIVE_COUNT:
        break;
    }
    return barrier(c);
}

ndm_status ndm_nccl_run(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    ndm_nccl_comm *n = comm->state;
    call c = {.comm = comm,
              .args = args,
              .stream = stream,
              .on = ndm_cuda_stream_handle(stream),
              .handle = n->handle};

    if (comm->broken || !n->handle)
        NDM_FAIL(NDM_ERR_COMM, "comm: %s on %s: an earlier collective did not complete",
                 ndm_collective_name(args->kind), comm->name);
    ndm_comm_note(comm, args);
    comm->started++;
    if (args->count == 0 && args->kind != NDM_BARRIER)
        return NDM_OK;
    ndm_nccl_register(n, comm->owner->device, args->send);
    ndm_nccl_register(n, comm->owner->device, args->recv);
    c.bytes = (size_t)args->count * ndm_dtype_bytes(args->dtype);
    c.count = nccl_type(args->dtype, &c.type) ? (size_t)args->count : c.bytes;
    ndm_status status = issue(&c);
    comm->broken = status != NDM_OK;
    return status;
}
