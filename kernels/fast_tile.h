/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small tiles that lie in the caches, for attention. */
#ifndef NDM_KERNELS_FAST_TILE_H
#define NDM_KERNELS_FAST_TILE_H

#include "kernels/fast.h"
#include "kernels/fast_micro.h"

enum { TILE_AHEAD = 4 };

/* Blocks of rows that later work reads or writes, to be fetched into L2 during products: a block
 * after the other, a few rows in each call of the micro-kernel. */
typedef struct tile_ahead {
    micro_ahead block[TILE_AHEAD]; /* all of the same number of lines */
    int count, at;                 /* at: the first that has rows left */
} tile_ahead;

/* C[rows, vectors * VL] = or += alpha * A B, as fast_micro.h says; rows and vectors of any number.
 * Takes from `ahead` what it fetches; args->ahead is not used. */
void NDM_FAST(tile)(int64_t rows, int64_t vectors, const micro_args *args, tile_ahead *ahead);

#endif
