/* SPDX-License-Identifier: Apache-2.0 */
/* The tests with known answers: each file gives its tests; they run once on every table of the
 * machine. */
#ifndef NDM_TESTS_KERNELS_ANSWERS_H
#define NDM_TESTS_KERNELS_ANSWERS_H

#include "world.h"

extern world answer_world; /* the table of the moment */

extern const struct CMUnitTest answers_layers[];
extern const size_t answers_layers_count;
extern const struct CMUnitTest answers_attention[];
extern const size_t answers_attention_count;
extern const struct CMUnitTest answers_loss[];
extern const size_t answers_loss_count;

#endif
