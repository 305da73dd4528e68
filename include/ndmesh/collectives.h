/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * Collectives over a group of ranks of the mesh.
 *
 * A communicator comes from ndm_context_comm() and belongs to the context. All members call the
 * same collectives in the same order with the same counts and types. Buffers are device memory and
 * stay untouched until the stream has passed the call.
 *
 * Every call: Completes on stream.
 * @retval NDM_ERR_USAGE     count < 0 or beyond what bytes can count, a buffer or the stream is
 * NULL, or a type the operation does not take
 * @retval NDM_ERR_COMM      a rank is lost
 * @retval NDM_ERR_TIMEOUT   a rank is late: the message names it, and what it last did
 * @retval NDM_ERR_MISMATCH  a rank called something else: the message names both calls
 * The last three may come from a later wait on the stream.
 *
 * Sums of bf16 and fp16 are made in fp32, in rank order, and rounded once: the same bits on every
 * run.
 */
#ifndef NDMESH_COLLECTIVES_H
#define NDMESH_COLLECTIVES_H

#include <ndmesh/device.h>
#include <ndmesh/status.h>
#include <ndmesh/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_comm ndm_comm;

/** Number of members, own place among them, world rank of a member, and a name such as
 * "dp_shard_cp". */
NDM_API int64_t ndm_comm_size(const ndm_comm *comm);
NDM_API int64_t ndm_comm_index(const ndm_comm *comm);
NDM_API int64_t ndm_comm_world_rank(const ndm_comm *comm, int64_t index);
NDM_API const char *ndm_comm_name(const ndm_comm *comm);

/** recv, [n*count]: block i is member i's send, [count]. In place if send == block index of recv.
 * Any type. Bytes received: (n-1) * count. */
NDM_API NDM_MUST_USE ndm_status ndm_all_gather(ndm_comm *comm, const void *send, void *recv,
                                               int64_t count, ndm_dtype dtype, ndm_stream *stream);

/** recv, [count] of recv_dtype: the reduction over members of block index of send, [n*count] of
 * dtype. recv may be block `index` of send if the types are equal. recv_dtype is dtype, or NDM_F32
 * for a 16-bit dtype (the sum is not rounded). fp32, fp64, bf16, fp16, int32, int64. Bytes
 * received: (n-1) * count. */
NDM_API NDM_MUST_USE ndm_status ndm_reduce_scatter(ndm_comm *comm, const void *send, void *recv,
                                                   int64_t count, ndm_dtype dtype,
                                                   ndm_dtype recv_dtype, ndm_reduce_op op,
                                                   ndm_stream *stream);

/** buffer, [count], in place: the reduction over members, the same bits on all. Bytes received:
 * 2(n-1)/n * count. */
NDM_API NDM_MUST_USE ndm_status ndm_all_reduce(ndm_comm *comm, void *buffer, int64_t count,
                                               ndm_dtype dtype, ndm_reduce_op op,
                                               ndm_stream *stream);

/** recv, [n*count]: block i is block `index` of member i's send, [n*count]. Not in place. */
NDM_API NDM_MUST_USE ndm_status ndm_all_to_all(ndm_comm *comm, const void *send, void *recv,
                                               int64_t count, ndm_dtype dtype, ndm_stream *stream);

/** buffer, [count], becomes that of member root. */
NDM_API NDM_MUST_USE ndm_status ndm_broadcast(ndm_comm *comm, void *buffer, int64_t count,
                                              ndm_dtype dtype, int64_t root, ndm_stream *stream);

/** Sends send, [count], to member dst and receives recv, [count], from member src (members; both
 * may be itself). */
NDM_API NDM_MUST_USE ndm_status ndm_send_recv(ndm_comm *comm, const void *send, int64_t dst,
                                              void *recv, int64_t src, int64_t count,
                                              ndm_dtype dtype, ndm_stream *stream);

/** Completes when all members have reached it on their streams. */
NDM_API NDM_MUST_USE ndm_status ndm_barrier(ndm_comm *comm, ndm_stream *stream);

/** Calls and bytes of one kind of collective, since the communicator was made. */
typedef enum ndm_collective {
    NDM_ALL_GATHER,
    NDM_REDUCE_SCATTER,
    NDM_ALL_REDUCE,
    NDM_ALL_TO_ALL,
    NDM_BROADCAST,
    NDM_SEND_RECV,
    NDM_BARRIER,
    NDM_COLLECTIVE_COUNT
} ndm_collective;

typedef struct ndm_comm_stats {
    int64_t calls[NDM_COLLECTIVE_COUNT];
    int64_t received_bytes[NDM_COLLECTIVE_COUNT];
} ndm_comm_stats;

NDM_API ndm_comm_stats ndm_comm_statistics(const ndm_comm *comm);
NDM_API const char *ndm_collective_name(ndm_collective kind); /**< "all_gather", ... */

#ifdef __cplusplus
}
#endif
#endif
