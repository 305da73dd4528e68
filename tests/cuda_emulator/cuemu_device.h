/* SPDX-License-Identifier: Apache-2.0 */
/* Inside the device process: what executes records. */
#pragma once

#include "cuemu_shared.h"

int cuemu_device_main(void);
void cuemu_launch_execute(const cuemu_record *record, uint32_t seed);
void cuemu_launch_init_thread(void); /* crashes of kernels are reported from here on */
void cuemu_gemm_execute(const cuemu_gemm *gemm);
void cuemu_comm_execute(
    const cuemu_record *record);             /* OPEN, CLOSE, COLLECTIVE, POST, TAKE, DRAIN */
void cuemu_device_fail(uint32_t cuda_error); /* sticky: the first one stays */

typedef struct cuemu_dim {
    unsigned x, y, z;
} cuemu_dim;

/* One thread block on fibres. NULL, or what is wrong with it: a barrier or a warp collective that
 * some thread never reached, or copies that nobody waited for. The seed orders the threads. */
const char *cuemu_block_run(void (*thunk)(void *, void *), void *kernel, void *args,
                            const unsigned block[3], uint32_t seed);
