/* SPDX-License-Identifier: Apache-2.0 */
/* The writer's insides, shared by plan and output. */
#ifndef NDM_MODEL_SAFETENSORS_WRITER_H
#define NDM_MODEL_SAFETENSORS_WRITER_H

#include <stdatomic.h>

#include "core/text.h"
#include "model/safetensors_internal.h"

struct ndm_safetensors_out {
    char *path;        /* where it is written */
    char *final;       /* its name once it is complete; NULL: it is written there */
    char *name;        /* in the folder, in the end */
    atomic_int fd;     /* -1 until this process first writes to it */
    int64_t bytes;     /* of the whole file */
    ndm_buffer header; /* the JSON, padded to a multiple of 8 */
};

struct ndm_safetensors_writer {
    char *folder, *stem;
    ndm_tensor_info *infos; /* [count], sorted by name once planned */
    int64_t count;
    struct ndm_safetensors_out *files; /* [file_count] */
    int64_t file_count;
    bool staged;
    bool begun; /* by this process, and not committed */
};

/* One file has no index; one left from an earlier export would win over the file, so it goes. */
NDM_MUST_USE ndm_status ndm_safetensors_write_index(const ndm_safetensors_writer *w);

/* Removes what begin() made under names of its own. */
void ndm_safetensors_writer_abandon(const ndm_safetensors_writer *w);

#endif
