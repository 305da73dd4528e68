/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for the emulator's own tests, and faulty ones that it must catch. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#include <ndm_ptx.cuh>

#include "test_kernels.h"

extern __shared__ __align__(128) unsigned char ndm_smem[];

static cudaLaunchConfig_t config(unsigned blocks, unsigned threads, size_t shared,
                                 cudaStream_t stream)
{
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3(blocks);
    c.blockDim = dim3(threads);
    c.dynamicSmemBytes = shared;
    c.stream = stream;
    return c;
}

__global__ void scale(float *x, float factor, int n)
{
    int i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    if (i + 3 < n) {
        float4 v = *reinterpret_cast<float4 *>(x + i);
        v.x *= factor, v.y *= factor, v.z *= factor, v.w *= factor;
        *reinterpret_cast<float4 *>(x + i) = v;
    } else
        for (; i < n; i++)
            x[i] *= factor;
}

/* A tree in dynamic shared memory. RACE leaves the barrier before it out. */
template <bool RACE> __global__ void sum(const float *x, float *out, int n)
{
    float *s = reinterpret_cast<float *>(ndm_smem), v = 0;
    for (int i = threadIdx.x; i < n; i += blockDim.x)
        v += x[i];
    s[threadIdx.x] = v;
    if (!RACE)
        __syncthreads();
    for (unsigned d = blockDim.x / 2; d; d /= 2) {
        if (threadIdx.x < d)
            s[threadIdx.x] += s[threadIdx.x + d];
        __syncthreads();
    }
    if (threadIdx.x == 0)
        *out = s[0];
}

/* out[thread]: what the warp functions return, as one number each */
__global__ void warps(int *out)
{
    int t = threadIdx.x, lane = t % 32, *mine = out + t * WARP_RESULTS;
    mine[0] = __shfl_xor_sync(0xffffffffu, t, 5);
    mine[1] = __shfl_down_sync(0xffffffffu, t, 3);
    mine[2] = __shfl_up_sync(0xffffffffu, t, 3, 8);
    mine[3] = __shfl_sync(0xffffffffu, t, 7, 16);
    mine[4] = (int)__ballot_sync(0xffffffffu, lane % 3 == 0);
    mine[5] = __reduce_add_sync(0xffffffffu, lane);
    mine[6] = __any_sync(0xffffffffu, lane == 9) + 2 * __all_sync(0xffffffffu, lane < 31);
    mine[7] = lane % 2 ? __reduce_max_sync(0xaaaaaaaau, t) : __reduce_min_sync(0x55555555u, t);
    mine[8] = __syncthreads_count(t % 5 == 0) + 1000 * __syncthreads_and(t >= 0) +
              10000 * __syncthreads_or(t < 0);
}

/* C[16 x 8] = A[16 x 16] B[8 x 16]^T through shared memory, ldmatrix and mma; one warp. */
__global__ void tile_product(const __nv_bfloat16 *a, const __nv_bfloat16 *b, float *c,
                             int transposed)
{
    __nv_bfloat16 *sa = reinterpret_cast<__nv_bfloat16 *>(ndm_smem), *sb = sa + 16 * 16;
    int lane = threadIdx.x, g = lane / 4, t = lane % 4;
    ndm_cp_async_16(sa + 8 * lane, a + 8 * lane, 16);
    ndm_cp_async_commit();
    ndm_cp_async_16(sb + 8 * lane, b + 8 * (lane % 16), lane < 16 ? 16 : 0);
    ndm_cp_async_commit();
    ndm_cp_async_wait<0>();
    __syncthreads();
    unsigned fa[4], fb[4];
    float d[4] = {};
    /* tiles of A: rows 0-7 and 8-15 by columns 0-7, then by columns 8-15 */
    ndm_ldmatrix_x4(fa, sa + 16 * (lane % 16) + 8 * (lane / 16));
    if (transposed) /* b is [16][8] in k-major order: each 8 x 8 tile turned */
        ndm_ldmatrix_x4_trans(fb, sb + 8 * (lane % 16));
    else /* b is [8][16] */
        ndm_ldmatrix_x4(fb, sb + 16 * (lane % 8) + 8 * (lane / 8 % 2));
    ndm_mma_bf16(d, fa, fb);
    for (int i = 0; i < 4; i++)
        c[(g + 8 * (i / 2)) * 8 + 2 * t + i % 2] = d[i];
}

/* Two groups of asynchronous copies; only the first is waited for. out: what shared memory holds
 * then. ends: the second is waited for before the thread ends. */
__global__ void half_waited(const float *x, float *out, bool ends)
{
    float *s = reinterpret_cast<float *>(ndm_smem);
    s[4 + 4 * threadIdx.x] = s[4 * blockDim.x + 4 * threadIdx.x] = -1;
    ndm_cp_async_16(s + 4 * threadIdx.x, x + 4 * threadIdx.x, 16);
    ndm_cp_async_commit();
    ndm_cp_async_16(s + 4 * (blockDim.x + threadIdx.x), x + 4 * threadIdx.x, 16);
    ndm_cp_async_commit();
    ndm_cp_async_wait<1>();
    __syncthreads();
    out[threadIdx.x] = s[4 * threadIdx.x];
    out[blockDim.x + threadIdx.x] = s[4 * (blockDim.x + threadIdx.x)];
    if (ends)
        ndm_cp_async_wait<0>();
}

/* The order in which threads came, by an atomic counter, and blocks. */
__global__ void arrivals(int *counter, int *order)
{
    order[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1);
}

__global__ void shared_as_found(float *out)
{
    out[threadIdx.x] = reinterpret_cast<float *>(ndm_smem)[threadIdx.x];
}

__global__ void diverge(float *x)
{
    if (threadIdx.x % 32 < 16)
        x[threadIdx.x] = __shfl_xor_sync(0xffffffffu, 1.0f, 1);
    else
        __syncthreads();
}

__global__ void spin(float *x, int rounds)
{
    for (int i = 0; i < rounds; i++)
        __syncthreads();
    x[threadIdx.x] += 1;
}

extern "C" {
unsigned test_bits(int type, float x)
{
    switch (type) {
    case 0:
        return __bfloat16_as_ushort(__float2bfloat16_rn(x));
    case 1:
        return __half_as_ushort(__float2half_rn(x));
    case 2:
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3);
    default:
        return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2);
    }
}

float test_value(int type, unsigned bits)
{
    switch (type) {
    case 0:
        return __bfloat162float(__ushort_as_bfloat16((unsigned short)bits));
    case 1:
        return __half2float(__ushort_as_half((unsigned short)bits));
    default:
        return __half2float(__half(
            __nv_cvt_fp8_to_halfraw((__nv_fp8_storage_t)bits, type == 2 ? __NV_E4M3 : __NV_E5M2)));
    }
}

cudaError_t test_scale(float *x, float factor, int n, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config((unsigned)(n + 1023) / 1024, 256, 0, stream);
    return cudaLaunchKernelEx(&c, scale, x, factor, n);
}

cudaError_t test_sum(const float *x, float *out, int n, int race, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(1, 256, 256 * sizeof(float), stream);
    return cudaLaunchKernelEx(&c, race ? sum<true> : sum<false>, x, out, n);
}

cudaError_t test_warps(int *out, unsigned threads, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(1, threads, 0, stream);
    return cudaLaunchKernelEx(&c, warps, out);
}

cudaError_t test_tile_product(const void *a, const void *b, float *c, int transposed,
                              cudaStream_t stream)
{
    cudaLaunchConfig_t config_ = config(1, 32, 16 * 16 * 2 + 32 * 16, stream);
    return cudaLaunchKernelEx(&config_, tile_product, (const __nv_bfloat16 *)a,
                              (const __nv_bfloat16 *)b, c, transposed);
}

cudaError_t test_half_waited(const float *x, float *out, bool ends, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(1, 32, 2 * 32 * 16, stream);
    return cudaLaunchKernelEx(&c, half_waited, x, out, ends);
}

cudaError_t test_arrivals(int *counter, int *order, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(4, 96, 0, stream);
    return cudaLaunchKernelEx(&c, arrivals, counter, order);
}

cudaError_t test_shared_as_found(float *out, size_t shared, int ask, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(1, 32, shared, stream);
    if (ask) {
        cudaError_t error = cudaFuncSetAttribute(
            shared_as_found, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (error)
            return error;
    }
    return cudaLaunchKernelEx(&c, shared_as_found, out);
}

cudaError_t test_diverge(float *x, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(1, 64, 0, stream);
    return cudaLaunchKernelEx(&c, diverge, x);
}

cudaError_t test_spin(float *x, unsigned threads, int rounds, cudaStream_t stream)
{
    cudaLaunchConfig_t c = config(1, threads, 0, stream);
    return cudaLaunchKernelEx(&c, spin, x, rounds);
}
}
