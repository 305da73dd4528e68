/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's collectives and messages, alone and in groups: checked here, executed by cuemu_comm.c. */
#include "cuemu_nccl.h"

#include <stdio.h>
#include <stdlib.h>

enum { GROUPED = 4096 };

typedef struct {
    ncclComm_t comm;
    cudaStream_t stream;
    cuemu_record record;
} grouped_call;

static _Thread_local int group_depth, n_grouped;
static _Thread_local grouped_call *grouped;

static ncclResult_t type_of(ncclDataType_t type, cuemu_type *out)
{
    static const int map[ncclNumTypes] = {
        [ncclInt8] = CUEMU_I8,       [ncclUint8] = CUEMU_U8,        [ncclInt32] = CUEMU_I32,
        [ncclUint32] = CUEMU_U32,    [ncclInt64] = CUEMU_I64,       [ncclUint64] = CUEMU_U64,
        [ncclFloat16] = CUEMU_F16,   [ncclFloat32] = CUEMU_F32,     [ncclFloat64] = CUEMU_F64,
        [ncclBfloat16] = CUEMU_BF16, [ncclFloat8e4m3] = CUEMU_E4M3, [ncclFloat8e5m2] = CUEMU_E5M2,
    };
    if ((int)type < 0 || type >= ncclNumTypes)
        return ncclInvalidArgument;
    *out = (cuemu_type)map[type];
    return ncclSuccess;
}

static ncclResult_t issue(cudaStream_t stream, const cuemu_record *record)
{
    return cuemu_push(stream, record) ? ncclUnhandledCudaError : ncclSuccess;
}

/* nccl.h declares these two without a prototype */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

ncclResult_t ncclGroupStart(void)
{
    if (!grouped && !(grouped = calloc(GROUPED, sizeof *grouped)))
        abort();
    group_depth++;
    return ncclSuccess;
}

static ncclResult_t issue_kind(cuemu_kind kind)
{
    ncclResult_t result = ncclSuccess;
    for (int i = 0; i < n_grouped; i++)
        if (grouped[i].record.kind == kind && !result)
            result = issue(grouped[i].stream, &grouped[i].record);
    return result;
}

/* All sends are posted before any receive waits, so a group cannot block itself. */
ncclResult_t ncclGroupEnd(void)
{
    static const cuemu_kind order[] = {CUEMU_COLLECTIVE, CUEMU_POST, CUEMU_TAKE, CUEMU_DRAIN};
    ncclResult_t result = ncclSuccess;
    if (!group_depth)
        return ncclInvalidUsage;
    if (--group_depth)
        return ncclSuccess;
    for (size_t i = 0; i < sizeof order / sizeof *order; i++) {
        ncclResult_t one = issue_kind(order[i]);
        result = result ? result : one;
    }
    for (int i = 0; i < n_grouped && (!result || result == ncclInProgress); i++)
        if (cuemu_comm_issued(grouped[i].comm) == ncclInProgress)
            result = ncclInProgress;
    n_grouped = 0;
    return result;
}

static ncclResult_t enqueue(ncclComm_t comm, cudaStream_t stream, const cuemu_record *record)
{
    if (n_grouped == GROUPED)
        return ncclInternalError;
    grouped[n_grouped++] = (grouped_call){comm, stream, *record};
    return ncclSuccess;
}

static bool in_device(const void *at, size_t bytes)
{
    if (cuemu_is_device(at, bytes))
        return true;
    fprintf(stderr, "cuemu: NCCL: %p is not device memory\n", at);
    return false;
}

/* send and recv hold send_factor and recv_factor times count. */
static ncclResult_t collective(ncclComm_t comm, const cuemu_record *proto, ncclDataType_t type,
                               size_t send_factor, size_t recv_factor, cudaStream_t stream)
{
    cuemu_record r = *proto;
    cuemu_type mine;
    ncclResult_t result = cuemu_comm_ready(comm);
    if (!result)
        result = type_of(type, &mine);
    if (result)
        return result;
    size_t bytes = r.u.call.count * cuemu_type_bytes(mine);
    if (!in_device((void *)r.u.call.send, bytes * send_factor) ||
        !in_device((void *)r.u.call.recv, bytes * recv_factor))
        return ncclInvalidArgument;
    r.kind = CUEMU_COLLECTIVE;
    r.u.call.comm = comm->index;
    r.u.call.queue = comm->queue;
    r.u.call.nvls = comm->nvls;
    r.u.call.type = (int)mine;
    if (group_depth)
        return enqueue(comm, stream, &r);
    result = issue(stream, &r);
    return result ? result : cuemu_comm_issued(comm);
}

#define CALL(what, op, root)         \
    &(cuemu_record)                  \
    {                                \
        .u.call = {                  \
            .operation = (what),     \
            .send = (uintptr_t)send, \
            .recv = (uintptr_t)recv, \
            .count = count,          \
            .reduction = (int)(op),  \
            .peer = (root)           \
        }                            \
    }

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, CALL(CUEMU_ALL_GATHER, 0, 0), type, 1, (size_t)comm->ranks, stream);
}

ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, CALL(CUEMU_REDUCE_SCATTER, op, 0), type, (size_t)comm->ranks, 1,
                      stream);
}

ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return collective(comm, CALL(CUEMU_ALL_REDUCE, op, 0), type, 1, 1, stream);
}

ncclResult_t ncclBroadcast(const void *send, void *recv, size_t count, ncclDataType_t type,
                           int root, ncclComm_t comm, cudaStream_t stream)
{
    if (root < 0 || root >= comm->ranks)
        return ncclInvalidArgument;
    if (comm->rank != root)
        send = recv; /* only the root's counts */
    return collective(comm, CALL(CUEMU_BROADCAST, 0, root), type, 1, 1, stream);
}

ncclResult_t ncclAlltoAll(const void *send, void *recv, size_t count, ncclDataType_t type,
                          ncclComm_t comm, cudaStream_t stream)
{
    size_t ranks = (size_t)comm->ranks;
    return collective(comm, CALL(CUEMU_ALL_TO_ALL, 0, 0), type, ranks, ranks, stream);
}

static ncclResult_t message(ncclComm_t comm, cuemu_kind kind, const void *at, size_t count,
                            ncclDataType_t type, int peer, cudaStream_t stream)
{
    cuemu_type mine;
    ncclResult_t result = cuemu_comm_ready(comm);
    if (!result)
        result = type_of(type, &mine);
    if (result)
        return result;
    if (peer < 0 || peer >= comm->ranks || !in_device(at, count * cuemu_type_bytes(mine)))
        return ncclInvalidArgument;
    cuemu_record r = {.kind = kind,
                      .u.call = {.comm = comm->index,
                                 .queue = comm->queue,
                                 .type = (int)mine,
                                 .peer = peer,
                                 .send = (uintptr_t)at,
                                 .recv = (uintptr_t)at,
                                 .count = count}};
    ncclGroupStart();
    result = enqueue(comm, stream, &r);
    r.kind = CUEMU_DRAIN;
    if (!result && kind == CUEMU_POST)
        result = enqueue(comm, stream, &r);
    ncclResult_t ended = ncclGroupEnd();
    return result ? result : ended;
}

ncclResult_t ncclSend(const void *send, size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream)
{
    return message(comm, CUEMU_POST, send, count, type, peer, stream);
}

ncclResult_t ncclRecv(void *recv, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream)
{
    return message(comm, CUEMU_TAKE, recv, count, type, peer, stream);
}

/* ---- memory and errors ---- */

ncclResult_t ncclCommRegister(const ncclComm_t comm, void *at, size_t bytes, void **handle)
{
    *handle = at;
    return comm && in_device(at, bytes) ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclCommDeregister(const ncclComm_t comm, void *handle)
{
    return comm && handle ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ncclMemAlloc(void **at, size_t bytes)
{
    return cudaMalloc(at, bytes) ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t ncclMemFree(void *at)
{
    return cudaFree(at) ? ncclUnhandledCudaError : ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t result)
{
    static const char *texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };
    return (size_t)result < sizeof texts / sizeof *texts ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t comm)
{
    (void)comm;
    return "";
}
