/* SPDX-License-Identifier: Apache-2.0 */
/* What is done with checkpoints outside a run: verify and export. One process. */
#ifndef NDM_TRAIN_CHECKPOINT_TOOLS_H
#define NDM_TRAIN_CHECKPOINT_TOOLS_H

#include "train/checkpoint_files.h"

/* Called for everything that does not hold, one at a time. */
typedef void (*ndm_checkpoint_fault_fn)(void *user, const char *message);

/* Hashes every block of every file again, with several threads. *faults: how many things do not
 * hold, 0 = all is as saved. */
NDM_MUST_USE ndm_status ndm_checkpoint_verify(const char *path, ndm_checkpoint_fault_fn fault,
                                              void *user, int64_t *faults);

/* Writes the weights as a Hugging Face folder of dtype (NDM_DTYPE_COUNT: that of the model's own
 * files). What is read is verified. */
NDM_MUST_USE ndm_status ndm_checkpoint_export(const char *path, const char *folder, ndm_dtype dtype,
                                              int64_t shard_bytes);

/* One stem of a checkpoint, open behind its checksums. */
typedef struct ndm_checkpoint_input {
    ndm_verified verified;
    ndm_safetensors *reader;
    const char *suffix;
} ndm_checkpoint_input;
/* Headers are verified here, ranges as they are read. sums must outlive it. */
NDM_MUST_USE ndm_status ndm_checkpoint_input_open(const char *path, const ndm_sums *sums, int stem,
                                                  ndm_checkpoint_input *input);
void ndm_checkpoint_input_close(ndm_checkpoint_input *input);

#endif
