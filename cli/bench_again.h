/* SPDX-License-Identifier: Apache-2.0 */
/* The tokens of a benchmark's steps, and the check of a step: it is made again by a new model. */
#ifndef NDM_CLI_BENCH_AGAIN_H
#define NDM_CLI_BENCH_AGAIN_H

#include "core/option.h"
#include <ndmesh/trainer.h>

/* Sequences that this data-parallel rank alone draws for a step: tokens, [2, sequences, seq_len],
 * inputs and targets. */
void ndm_bench_draw(const ndm_options *options, const ndm_model *model, int64_t sequences,
                    int64_t step, int32_t *tokens);

/* Makes the first step with a new model from the same seed: loss and norm of the gradient are those
 * of `first` to the bit, or *wrong of the two are not. `spoil` changes the new loss before.
 * Collective over: world. */
NDM_MUST_USE ndm_status ndm_bench_again(const ndm_options *options, ndm_context *context,
                                        const ndm_batch *batch, const ndm_step_result *first,
                                        bool spoil, int64_t *wrong);

#endif
