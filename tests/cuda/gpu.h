/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda world of a test: on the emulator, or on a GPU where NDM_MODULE_PATH names the real
 * module. */
#ifndef NDM_TESTS_CUDA_GPU_H
#define NDM_TESTS_CUDA_GPU_H

#include <stdio.h>

#include "device/device.h"

/* 0, or -1 with the reason on stderr. */
static inline int gpu_open(int64_t local_rank, ndm_device **device)
{
    ndm_device_options options = {.timeout_ns = 60ll * 1000000000, .local_rank = (int)local_rank};

    if (ndm_device_create("cuda", &options, device) == NDM_OK)
        return 0;
    fprintf(stderr, "%s\n", ndm_error_message());
    return -1;
}

#endif
