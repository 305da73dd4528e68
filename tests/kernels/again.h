/* SPDX-License-Identifier: Apache-2.0 */
/* What a backward makes again of its forward, compared to the bit. */
#ifndef NDM_TESTS_KERNELS_AGAIN_H
#define NDM_TESTS_KERNELS_AGAIN_H

#include "world.h"

/* On the world's table, laid over dy as models have it; fails the test that calls it. */
void check_norm_again(const world *w);
void check_act_again(const world *w);

#endif
