/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz targets share. A target is one LLVMFuzzerTestOneInput; it leaves in ndm_fuzz_status
 * what the library said, so that the replay can tell an input that must be accepted from one that
 * must be refused. */
#ifndef NDM_TESTS_FUZZ_FUZZ_H
#define NDM_TESTS_FUZZ_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ndmesh/status.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Weak: a target has it under libFuzzer, where there is no replay, and shares it with the replay.
 */
__attribute__((weak)) ndm_status ndm_fuzz_status;

/* What must never happen: seen by libFuzzer and by the replay as a crash. */
#define FUZZ_ASSERT(condition)                                              \
    do {                                                                    \
        if (!(condition)) {                                                 \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                        \
        }                                                                   \
    } while (0)

/* A file in memory with a path. Close the descriptor. */
typedef struct fuzz_file {
    int fd;
    char path[64];
} fuzz_file;

static inline fuzz_file fuzz_file_make(const void *data, size_t size)
{
    fuzz_file file = {.fd = memfd_create("input", MFD_CLOEXEC)};

    FUZZ_ASSERT(file.fd >= 0);
    FUZZ_ASSERT(size == 0 || write(file.fd, data, size) == (ssize_t)size);
    snprintf(file.path, sizeof file.path, "/proc/self/fd/%d", file.fd);
    return file;
}

/* Refused with a message, or accepted. */
static inline void fuzz_outcome(ndm_status status)
{
    FUZZ_ASSERT(status == NDM_OK || ndm_error_message()[0] != '\0');
    FUZZ_ASSERT(status != NDM_ERR_INTERNAL);
    ndm_fuzz_status = status;
}

#endif
