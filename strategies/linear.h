/* SPDX-License-Identifier: Apache-2.0 */
/* A piece of a linear layer for models that place its collectives themselves. */
#ifndef NDM_STRATEGIES_LINEAR_H
#define NDM_STRATEGIES_LINEAR_H

#include "strategies/internal.h"
#include <ndmesh/linear.h>

/* y = x W^T + b without any collective: x is whole already, [N, in], or y is partial sums. */
NDM_MUST_USE ndm_status ndm_linear_multiply(const ndm_linear *linear, int64_t rows, const void *x,
                                            void *y);

#endif
