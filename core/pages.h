/* SPDX-License-Identifier: Apache-2.0 */
/* Host memory for large arrays, in large pages where the system gives them to those who ask. */
#ifndef NDM_CORE_PAGES_H
#define NDM_CORE_PAGES_H

#include <stdint.h>

enum { NDM_LARGE_PAGE = 2 << 20 };

/* At least `bytes`, 256-byte aligned; of a large page or more, aligned to one. Not touched. free()
 * takes it back. NULL without a message where there is none. */
void *ndm_pages_alloc(int64_t bytes);

#endif
