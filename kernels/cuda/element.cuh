/* SPDX-License-Identifier: Apache-2.0 */
/* Elements in memory and in registers: kernels compute in float and convert at the edges, eight
 * elements at a time, by 128-bit accesses where the addresses allow them. */
#ifndef NDM_KERNELS_CUDA_ELEMENT_CUH
#define NDM_KERNELS_CUDA_ELEMENT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/body.h"

enum { WIDE = 8 };

static __device__ __forceinline__ float to_float(float x)
{
    return x;
}

static __device__ __forceinline__ float to_float(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

static __device__ __forceinline__ float to_float(__half x)
{
    return __half2float(x);
}

static __device__ __forceinline__ void from_float(float x, float *to)
{
    *to = x;
}

static __device__ __forceinline__ void from_float(float x, __nv_bfloat16 *to)
{
    *to = __float2bfloat16_rn(x);
}

static __device__ __forceinline__ void from_float(float x, __half *to)
{
    *to = __float2half_rn(x);
}

/* The first `count` of eight elements, the others 0. vector: p is aligned for eight. */
template <class T>
static __device__ __forceinline__ void load_wide(const T *p, int count, bool vector, float v[WIDE])
{
    if (vector && count >= WIDE) {
        uint4 raw[WIDE * sizeof(T) / 16];
        const T *element = reinterpret_cast<const T *>(raw);
#pragma unroll
        for (size_t i = 0; i < WIDE * sizeof(T) / 16; i++)
            raw[i] = reinterpret_cast<const uint4 *>(p)[i];
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            v[i] = to_float(element[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        v[i] = i < count ? to_float(p[i]) : 0.0f;
}

template <class T>
static __device__ __forceinline__ void store_wide(T *p, int count, bool vector, const float v[WIDE])
{
    if (vector && count >= WIDE) {
        uint4 raw[WIDE * sizeof(T) / 16];
        T *element = reinterpret_cast<T *>(raw);
#pragma unroll
        for (int i = 0; i < WIDE; i++)
            from_float(v[i], &element[i]);
#pragma unroll
        for (size_t i = 0; i < WIDE * sizeof(T) / 16; i++)
            reinterpret_cast<uint4 *>(p)[i] = raw[i];
        return;
    }
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (i < count)
            from_float(v[i], &p[i]);
}

/* f(count, vector), with constants where all eight are there, so that all loads of f are under way
 * together. load_wide() by itself is a branch with the conversion in it: the next one starts when
 * the elements of the one before have come. */
template <class F> static __device__ __forceinline__ void whole_or_part(int count, bool vector, F f)
{
    if (vector && count >= WIDE)
        f((int)WIDE, true);
    else
        f(count, false);
}

/* The same for arrays whose type is known only when the kernel runs: element `at` is the first. */
static __device__ __forceinline__ void load_wide_any(const void *array, ndm_dtype dtype, int64_t at,
                                                     int count, bool vector, float v[WIDE])
{
    if (dtype == NDM_F32)
        load_wide((const float *)array + at, count, vector, v);
    else if (dtype == NDM_BF16)
        load_wide((const __nv_bfloat16 *)array + at, count, vector, v);
    else
        load_wide((const __half *)array + at, count, vector, v);
}

static __device__ __forceinline__ void store_wide_any(void *array, ndm_dtype dtype, int64_t at,
                                                      int count, bool vector, const float v[WIDE])
{
    if (dtype == NDM_F32)
        store_wide((float *)array + at, count, vector, v);
    else if (dtype == NDM_BF16)
        store_wide((__nv_bfloat16 *)array + at, count, vector, v);
    else
        store_wide((__half *)array + at, count, vector, v);
}

static __device__ __forceinline__ float load_any(const void *array, ndm_dtype dtype, int64_t at)
{
    if (dtype == NDM_F32)
        return ((const float *)array)[at];
    if (dtype == NDM_BF16)
        return to_float(((const __nv_bfloat16 *)array)[at]);
    return to_float(((const __half *)array)[at]);
}

static __device__ __forceinline__ void store_any(void *array, ndm_dtype dtype, int64_t at, float x)
{
    if (dtype == NDM_F32)
        ((float *)array)[at] = x;
    else if (dtype == NDM_BF16)
        from_float(x, (__nv_bfloat16 *)array + at);
    else
        from_float(x, (__half *)array + at);
}

/* Row and first column of the calling thread's eight elements, of rows of `width` over the whole
 * grid; false past the last row. */
static __device__ __forceinline__ bool place_of_thread(int64_t rows, int64_t width, int64_t *row,
                                                       int64_t *column)
{
    int64_t eights = (width + WIDE - 1) / WIDE;
    int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    *row = at / eights;
    *column = at % eights * WIDE;
    return *row < rows;
}

static __device__ __forceinline__ int at_most(int64_t x, int limit)
{
    return x < limit ? (int)x : limit;
}

#endif
