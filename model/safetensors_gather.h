/* SPDX-License-Identifier: Apache-2.0 */
/* Many ranges of tensors at a time: put in the order of the files, read by large requests, each
 * byte once, by several threads, so that disk, checksums and conversions overlap. */
#ifndef NDM_MODEL_SAFETENSORS_GATHER_H
#define NDM_MODEL_SAFETENSORS_GATHER_H

#include "model/safetensors.h"

typedef struct ndm_gather_options {
    int threads;         /* that read, check and convert; 0 = 1 */
    bool shared;         /* other processes of the machine want the same bytes: by the page cache */
    int64_t rank, ranks; /* each begins at another place, so that what ranks share is read by one
                            and in memory when the next comes to it; 0, 0 = alone */

    /* Is shown every block of block_bytes (the last one of a file may be shorter) that has a byte
     * which is wanted, before any of it is used; by any thread. NULL: nothing is checked. */
    ndm_status (*check)(const void *user, int64_t file, int64_t begin, const void *data,
                        int64_t bytes);
    int64_t block_bytes;
    const void *user;
} ndm_gather_options;

typedef struct ndm_gather ndm_gather;

/* The reader must outlive it. Its source is not asked: files are read as they are. */
NDM_MUST_USE ndm_status ndm_gather_create(const ndm_safetensors *reader,
                                          const ndm_gather_options *options, ndm_gather **gather);
void ndm_gather_destroy(ndm_gather *gather); /* NULL is fine */

/* Asks for elements [first, first + n) of a tensor. They are in values, [n], when run() has
 * returned, or before. */
NDM_MUST_USE ndm_status ndm_gather_add(ndm_gather *gather, const char *name, int64_t first,
                                       int64_t n, float *values);
NDM_MUST_USE ndm_status ndm_gather_run(ndm_gather *gather);

#endif
