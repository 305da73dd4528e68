/* SPDX-License-Identifier: Apache-2.0 */
/* What kernels call through cuemu.h and ndm_ptx.cuh: barriers, warp exchange, asynchronous copies.
 * C and C++. */
#pragma once

#include <stddef.h>

enum { CUEMU_LANE_BYTES = 32 };

#ifdef __cplusplus
extern "C" {
#endif
void cuemu_syncthreads(void);
int cuemu_syncthreads_vote(int predicate, int *voters); /* how many said yes, of how many */
extern __thread int cuemu_thread __attribute__((tls_model("initial-exec"))); /* in its block */
static inline int cuemu_lane(void)
{
    return cuemu_thread & 31;
}
/* Every lane of the mask gives up to 32 bytes; returns the 32 lanes' values, 32 bytes apart. */
const char *cuemu_exchange(unsigned mask, const void *value, size_t bytes);
/* The same, and the last lane to come changes the 32 lanes' values before any lane goes on. */
typedef void cuemu_change(char (*lanes)[CUEMU_LANE_BYTES]);
const char *cuemu_exchange_changed(unsigned mask, const void *value, size_t bytes,
                                   cuemu_change *change);
void cuemu_cp_async(void *dst, const void *src, size_t bytes); /* 16 at dst: the rest zeros */
void cuemu_cp_async_commit(void);
void cuemu_cp_async_wait(unsigned groups_left);
#ifdef __cplusplus
}
#endif
