/* SPDX-License-Identifier: Apache-2.0 */
/* Algorithms of the mpi backend, one a file, and the two building blocks that they share. */
#ifndef NDM_COLLECTIVES_ALGO_H
#define NDM_COLLECTIVES_ALGO_H

#include "collectives/schedule.h"

ndm_status ndm_algo_all_gather(ndm_schedule *s, bool *done);
ndm_status ndm_algo_reduce_scatter(ndm_schedule *s, bool *done);
ndm_status ndm_algo_all_reduce(ndm_schedule *s, bool *done);
ndm_status ndm_algo_all_to_all(ndm_schedule *s, bool *done);
ndm_status ndm_algo_broadcast(ndm_schedule *s, bool *done);
ndm_status ndm_algo_send_recv(ndm_schedule *s, bool *done);
ndm_status ndm_algo_barrier(ndm_schedule *s, bool *done);

/* `total` bytes cut into blocks of `block`, one a member; the last ones may be short or empty. */
typedef struct ndm_blocks {
    char *base;
    int64_t block, total;
} ndm_blocks;

char *ndm_blocks_at(const ndm_blocks *blocks, int64_t member);
int64_t ndm_blocks_bytes(const ndm_blocks *blocks, int64_t member);

/* Gathers every member's block to all; own block is in place. step counts from 0. */
ndm_status ndm_algo_gather_blocks(ndm_schedule *s, const ndm_blocks *blocks, int64_t step,
                                  bool *done);

/* Reduces the members' versions of own block of `blocks` into out. step counts from 0. */
typedef struct ndm_reduction {
    ndm_blocks blocks; /* what this rank contributes */
    char *out;         /* [own block] of recv_dtype; may be own block of blocks */
    ndm_dtype dtype, recv_dtype;
    ndm_reduce_op op;
} ndm_reduction;
ndm_status ndm_algo_reduce_blocks(ndm_schedule *s, const ndm_reduction *r, int64_t step,
                                  bool *done);

/* Elements of dtype in bytes, and back. */
int64_t ndm_algo_bytes(int64_t count, ndm_dtype dtype);

#endif
