/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima of slices in their order, a thread for each element: what collectives do after
 * they have brought the slices together. With one slice it is a change of type. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "device/cuda/ops.h"

enum { THREADS = 256 };
static const int64_t BLOCKS_MAX = 65535;

template <class In, class Out>
__global__ void __launch_bounds__(THREADS)
    reduce_slices(Out *out, const In *slices, long long n_slices, long long stride, long long count,
                  int max)
{
    long long step = (long long)gridDim.x * blockDim.x;

    for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
        float sum = (float)slices[i];
        for (long long k = 1; k < n_slices; k++) {
            float x = (float)slices[k * stride + i];
            if (max)
                sum = sum > x || sum != sum ? sum : x;
            else
                sum += x;
        }
        out[i] = (Out)sum;
    }
}

template <class In, class Out>
static ndm_status start(ndm_stream *stream, void *out, const void *slices, int64_t n_slices,
                        int64_t stride, int64_t count, ndm_reduce_op op)
{
    int64_t blocks = (count + THREADS - 1) / THREADS;
    cudaLaunchConfig_t config = {};

    config.gridDim = dim3((unsigned)(blocks < BLOCKS_MAX ? blocks : BLOCKS_MAX));
    config.blockDim = dim3(THREADS);
    config.stream = ndm_cuda_stream_handle(stream);
    NDM_CUDA_TRY("reduce_slices",
                 cudaLaunchKernelEx(&config, reduce_slices<In, Out>, (Out *)out, (const In *)slices,
                                    (long long)n_slices, (long long)stride, (long long)count,
                                    (int)(op == NDM_MAX)));
    return NDM_OK;
}

template <class In>
static ndm_status start_into(ndm_stream *stream, void *out, ndm_dtype out_dtype, const void *slices,
                             int64_t n_slices, int64_t stride, int64_t count, ndm_reduce_op op)
{
    return out_dtype == NDM_F32 ? start<In, float>(stream, out, slices, n_slices, stride, count, op)
                                : start<In, In>(stream, out, slices, n_slices, stride, count, op);
}

extern "C" ndm_status ndm_cuda_reduce_slices(ndm_stream *stream, void *out, ndm_dtype out_dtype,
                                             const void *slices, int64_t n_slices, int64_t stride,
                                             int64_t count, ndm_dtype dtype, ndm_reduce_op op)
{
    if (count == 0)
        return NDM_OK;
    if (dtype == NDM_BF16)
        return start_into<__nv_bfloat16>(stream, out, out_dtype, slices, n_slices, stride, count,
                                         op);
    if (dtype == NDM_F16)
        return start_into<__half>(stream, out, out_dtype, slices, n_slices, stride, count, op);
    if (dtype == NDM_F32)
        return start<float, float>(stream, out, slices, n_slices, stride, count, op);
    NDM_FAIL(NDM_ERR_INTERNAL, "device: cuda: slices of type %d are not reduced", (int)dtype);
}

extern "C" ndm_status ndm_cuda_widen(ndm_stream *stream, float *dst, const void *src,
                                     ndm_dtype dtype, int64_t n)
{
    return ndm_cuda_reduce_slices(stream, dst, NDM_F32, src, 1, n, n, dtype, NDM_SUM);
}
