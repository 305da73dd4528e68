/* SPDX-License-Identifier: Apache-2.0 */
/* Copies past the caches, for what is not read again soon. */
#ifndef NDM_TRAIN_CHECKPOINT_COPY_H
#define NDM_TRAIN_CHECKPOINT_COPY_H

#include <stdint.h>

/* Like memcpy. The target's lines do not come into the caches, and need not be read first; both
 * ends are better aligned to 64 bytes. */
void ndm_copy_past_caches(void *target, const void *source, int64_t bytes);

#endif
