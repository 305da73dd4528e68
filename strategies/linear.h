/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of a linear layer for models that place its collectives themselves. */
#ifndef NDM_STRATEGIES_LINEAR_H
#define NDM_STRATEGIES_LINEAR_H

#include "strategies/internal.h"
#include <ndmesh/linear.h>

/* y = x W^T + b without any collective: x is whole already, [N, in], or y is partial sums. */
NDM_MUST_USE ndm_status ndm_linear_multiply(const ndm_linear *linear, int64_t rows, const void *x,
                                            void *y);

/* Of its backward, likewise: dx from the whole dy, dW += from x and dy, and the bias's sums over
 * rows that are this rank's alone (row-parallel) or whole. */
NDM_MUST_USE ndm_status ndm_linear_grad_input(const ndm_linear *linear, int64_t rows,
                                              const void *dy, void *dx);
NDM_MUST_USE ndm_status ndm_linear_grad_weight(const ndm_linear *linear, int64_t rows,
                                               const void *x, const void *dy);
NDM_MUST_USE ndm_status ndm_linear_grad_bias(const ndm_linear *linear, int64_t rows,
                                             const void *dy);

#endif
