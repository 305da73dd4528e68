/* SPDX-License-Identifier: Apache-2.0 */
/* One wrapper for each PTX instruction that the kernels use. A second file of this name, with the
 * same functions for a CPU, stands first on the include path where the tests compile kernels as
 * plain C++: so include it as <ndm_ptx.cuh>. All of a warp's lanes call them together, except for
 * the copies. */
#ifndef NDM_KERNELS_CUDA_GPU_PTX_CUH
#define NDM_KERNELS_CUDA_GPU_PTX_CUH

#include <cuda_runtime.h>

/* d[16 x 8] += a[16 x 16] b[16 x 8] in bf16 with sums in fp32. Fragments as in the PTX manual, with
 * g = lane / 4 and t = lane % 4: a holds rows g and g + 8, columns 2t.. and 2t + 8..; b holds
 * column g, rows 2t.. and 2t + 8..; d holds rows g and g + 8, columns 2t and 2t + 1. */
__device__ __forceinline__ void ndm_mma_bf16(float d[4], const unsigned a[4], const unsigned b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ unsigned ndm_shared_address(const void *shared)
{
    return (unsigned)__cvta_generic_to_shared(shared);
}

/* Four 8 x 8 tiles of 16-bit elements: lane l gives the address of row l % 8 of tile l / 8 (16
 * bytes, aligned so); out[i] has row lane / 4 of tile i, elements 2 (lane % 4) and the next. */
__device__ __forceinline__ void ndm_ldmatrix_x4(unsigned out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(ndm_shared_address(row))
                 : "memory");
}

/* The same with each tile transposed. */
__device__ __forceinline__ void ndm_ldmatrix_x4_trans(unsigned out[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(ndm_shared_address(row))
                 : "memory");
}

/* Starts the copy of 16 bytes to shared memory: `bytes` of them (0 or 16) from global memory, the
 * rest zeros. Both addresses are multiples of 16. */
__device__ __forceinline__ void ndm_cp_async_16(void *shared, const void *global, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(ndm_shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

/* Ends a group: the copies since the last one. */
__device__ __forceinline__ void ndm_cp_async_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of the calling thread's groups are still on their way. */
template <int PENDING> __device__ __forceinline__ void ndm_cp_async_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

#endif
