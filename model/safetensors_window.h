/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of short runs through a window over the file. */
#ifndef NDM_MODEL_SAFETENSORS_WINDOW_H
#define NDM_MODEL_SAFETENSORS_WINDOW_H

#include "model/safetensors_reader.h"

/* All-zero is ready. One thread at a time. */
typedef struct ndm_window {
    int fd;
    int64_t begin, end; /* of the file's bytes in data; equal: none */
    char *data;
} ndm_window;
void ndm_window_finish(ndm_window *window);

/* An ndm_safetensors_source; user: ndm_window. */
ndm_status ndm_window_read(void *user, int fd, const char *path, void *dst, int64_t n,
                           int64_t offset);

#endif
