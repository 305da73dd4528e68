/* SPDX-License-Identifier: Apache-2.0 */
/* The reader's insides, shared by its three sources: headers, folders, ranges. */
#ifndef NDM_MODEL_SAFETENSORS_READER_H
#define NDM_MODEL_SAFETENSORS_READER_H

#include <jansson.h>

#include "model/safetensors_internal.h"

struct ndm_safetensors_file {
    int fd;
    char *path;
};

struct ndm_safetensors {
    struct ndm_safetensors_file *files;
    int64_t file_count;
    ndm_tensor_info *infos; /* [count], sorted by name once opened; names are owned */
    int64_t count;
    json_t *metadata;              /* of the first file; may be NULL */
    ndm_safetensors_source source; /* NULL = the files as they are */
    void *source_user;
};

/* Opens a file and appends its tensors; then finish_open() sorts them and refuses names that two
 * files have. */
NDM_MUST_USE ndm_status ndm_safetensors_add_file(ndm_safetensors *reader, const char *path);
NDM_MUST_USE ndm_status ndm_safetensors_finish_open(ndm_safetensors *reader);

/* The tensor of that name; NDM_ERR_FORMAT, with the nearest name, if there is none. */
NDM_MUST_USE ndm_status ndm_safetensors_lookup(const ndm_safetensors *reader, const char *name,
                                               const ndm_tensor_info **info);

/* Reads exactly n bytes at offset; a file that ends before is NDM_ERR_FORMAT. */
NDM_MUST_USE ndm_status ndm_safetensors_pread(int fd, const char *path, void *dst, int64_t n,
                                              int64_t offset);

#endif
