/* SPDX-License-Identifier: Apache-2.0 */
/* What cudaLaunchKernelEx() becomes: see cuemu.h. C and C++. */
#pragma once

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif
/* thunk: void (*)(void *kernel, void *args), unpacks the arguments' bytes and calls the kernel. */
cudaError_t cuemu_launch(const cudaLaunchConfig_t *config, const void *kernel, const void *thunk,
                         const void *args, size_t args_bytes);
#ifdef __cplusplus
}
#endif
