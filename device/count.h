/* SPDX-License-Identifier: Apache-2.0 */
/* A world that has no memory and does nothing, and counts all the same: what a dry run is put on.
 */
#ifndef NDM_DEVICE_COUNT_H
#define NDM_DEVICE_COUNT_H

#include "device/device.h"

/* Register it to use it by its name, "count". Allocations are address space that nobody may touch;
 * kernels and copies are nothing, but that a copy to the host gives zeros. */
extern const ndm_device_ops ndm_device_count;

/* Addresses alone, which are counted nowhere; NULL: there are none left. */
void *ndm_count_reserve(int64_t bytes);
void ndm_count_release(void *memory, int64_t bytes);

#endif
