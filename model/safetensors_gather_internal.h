/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of a gather share: files that are read in large pieces. */
#ifndef NDM_MODEL_SAFETENSORS_GATHER_INTERNAL_H
#define NDM_MODEL_SAFETENSORS_GATHER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>

enum { NDM_GATHER_ALIGN = 4096 }; /* of offsets, sizes and memory of direct reads */

typedef struct ndm_gather_file {
    int fd, direct; /* direct: past the page cache; -1 where the file system has no such reads */
    const char *path;
    int64_t bytes;
    unsigned char *map; /* asked which pages are in memory, never read; NULL: it cannot be asked */
} ndm_gather_file;

/* ahead: the kernel may read more than was asked for. */
NDM_MUST_USE ndm_status ndm_gather_file_open(int fd, const char *path, bool ahead,
                                             ndm_gather_file *file);
void ndm_gather_file_close(ndm_gather_file *file);

/* Reads bytes [begin, end) into data. begin is a multiple of NDM_GATHER_ALIGN, data is aligned to
 * it and has room up to the next multiple behind end. past_cache: what is not in the page cache
 * does not come into it. */
NDM_MUST_USE ndm_status ndm_gather_file_read(const ndm_gather_file *file, char *data, int64_t begin,
                                             int64_t end, bool past_cache);

#endif
