/* SPDX-License-Identifier: Apache-2.0 */
/* How a body starts its kernels, and the host's side of types and alignment. */
#ifndef NDM_KERNELS_CUDA_LAUNCH_CUH
#define NDM_KERNELS_CUDA_LAUNCH_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/body.h"

/* All dynamic shared memory of all kernels has this name; a kernel casts it to what it keeps there.
 */
extern __shared__ __align__(128) unsigned char ndm_smem[];

enum { NDM_CUDA_SHARED_FREE = 48 << 10 }; /* bytes a block may take without asking */

/* Starts kernel(args...) on the stream. `op` names it in messages. */
template <class... Parameters, class... Arguments>
static ndm_status ndm_cuda_launch(ndm_stream *stream, const char *op, void (*kernel)(Parameters...),
                                  dim3 grid, int threads, size_t shared_bytes,
                                  Arguments &&...arguments)
{
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = ndm_cuda_stream_handle(stream);
    if (shared_bytes > NDM_CUDA_SHARED_FREE)
        NDM_CUDA_TRY(op, cudaFuncSetAttribute((const void *)kernel,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize,
                                              (int)shared_bytes));
    NDM_CUDA_TRY(op, cudaLaunchKernelEx(&config, kernel, (Parameters)arguments...));
    return NDM_OK;
}

/* Blocks of `size` that cover n. */
static inline unsigned ndm_cuda_blocks(int64_t n, int64_t size)
{
    return (unsigned)((n + size - 1) / size);
}

/* A pointer (NULL passes) and a stride in elements that 16-byte loads of 8 elements may use. */
static inline bool ndm_cuda_aligned(const void *pointer, int64_t stride)
{
    return (uintptr_t)pointer % 16 == 0 && stride % 8 == 0;
}

/* Calls f with a value of the element type: fp32, bf16 or fp16. */
template <class F>
static ndm_status ndm_cuda_typed(const char *op, const char *field, ndm_dtype dtype, F f)
{
    if (dtype == NDM_F32)
        return f(float{});
    if (dtype == NDM_BF16)
        return f(__nv_bfloat16{});
    if (dtype == NDM_F16)
        return f(__half{});
    NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel %s: %s is dtype %d; on cuda it is fp32, bf16 or fp16", op,
             field, (int)dtype);
}

#endif
