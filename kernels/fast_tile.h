/* SPDX-License-Identifier: Apache-2.0 */
/* Products of small tiles that lie in the caches, for attention. */
#ifndef NDM_KERNELS_FAST_TILE_H
#define NDM_KERNELS_FAST_TILE_H

#include "kernels/fast.h"
#include "kernels/fast_micro.h"

/* C[rows, vectors * VL] = or += alpha * A B, as fast_micro.h says; rows and vectors of any number.
 */
void NDM_FAST(tile)(int64_t rows, int64_t vectors, const micro_args *args);

#endif
