/* SPDX-License-Identifier: Apache-2.0 */
/* Where documents start: a table of token offsets, or the index beside a Megatron token file. Both
 * stay in the file. */
#ifndef NDM_TRAIN_DATA_DOCUMENTS_H
#define NDM_TRAIN_DATA_DOCUMENTS_H

#include <stdint.h>

#include <ndmesh/status.h>

#include "train/data_file.h"

typedef struct ndm_documents {
    ndm_mapped map;               /* bytes NULL: no documents are known */
    const unsigned char *offsets; /* int64 each; Megatron: byte offsets of sequences */
    const unsigned char *order;   /* Megatron: int64 sequence that starts each document; or NULL */
    int64_t count;
    int width; /* offsets count units of so many bytes: 1, or Megatron's bytes of a token */
} ndm_documents;

/* int64 offsets, ascending, the first 0, all below `tokens`. NDM_ERR_FORMAT names the entry. */
NDM_MUST_USE ndm_status ndm_documents_open(const char *path, int64_t tokens, ndm_documents *d);

/* Megatron's X.idx for `tokens` tokens of `width` bytes. Documents may be empty: equal starts. */
NDM_MUST_USE ndm_status ndm_documents_open_index(const char *path, int64_t tokens, int width,
                                                 ndm_documents *d);
void ndm_documents_close(ndm_documents *d);

/* First token of document i. Since it was opened, the file was cut short (NDM_ERR_IO), or written
 * over so that an entry leads out of the table (NDM_ERR_FORMAT). */
NDM_MUST_USE ndm_status ndm_documents_start(const ndm_documents *d, int64_t i, int64_t *token);

#endif
