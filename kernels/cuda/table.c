/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table of the cuda world: complete, with cuBLAS for the matrix product. */
#include "kernels/cuda/body.h"

/* Where the device is, so are its kernels. */
static bool probe(char *why, size_t why_bytes)
{
    return ndm_cuda_device.probe(why, why_bytes);
}

const ndm_kernel_table ndm_cuda_kernels = {
    .name = "cuda",
    .summary = "own CUDA kernels, cuBLAS for the matrix product",
    .device = "cuda",
    .priority = 100,
    .probe = probe,
    .body =
        {
#define CUDA_BODY(name, doc) [NDM_OP_##name] = (void (*)(void))ndm_cuda_##name,
            NDM_KERNEL_LIST(CUDA_BODY)
#undef CUDA_BODY
        },
};
