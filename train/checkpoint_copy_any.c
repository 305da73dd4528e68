/* SPDX-License-Identifier: Apache-2.0 */
/* Where the library's copy has to do. */
#include "train/checkpoint_copy.h"

#include <string.h>

void ndm_copy_past_caches(void *target, const void *source, int64_t bytes)
{
    memcpy(target, source, (size_t)bytes);
}
