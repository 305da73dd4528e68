/* SPDX-License-Identifier: Apache-2.0 */
/* Plain vectors and rows on CUDA: casts, scaling, sums, strided and indexed copies. */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { COPY_BLOCK = 256 };

/* First of the calling thread's eight elements. */
static __device__ __forceinline__ int64_t first_of_eight(void)
{
    return ((int64_t)blockIdx.x * COPY_BLOCK + threadIdx.x) * WIDE;
}

/* ---- casts ----------------------------------------------------------------------------------- */

/* Each rounds once, also from double. */
template <class S> static __device__ __forceinline__ void convert(S x, double *to)
{
    *to = (double)to_float(x);
}

static __device__ __forceinline__ void convert(double x, float *to)
{
    *to = (float)x;
}

static __device__ __forceinline__ void convert(double x, __nv_bfloat16 *to)
{
    *to = __double2bfloat16(x);
}

static __device__ __forceinline__ void convert(double x, __half *to)
{
    *to = __double2half(x);
}

template <class S, class D> static __device__ __forceinline__ void convert(S x, D *to)
{
    from_float(to_float(x), to);
}

template <class S, class D>
__global__ void __launch_bounds__(COPY_BLOCK) cast_wide(const S *src, D *dst, int64_t n)
{
    int64_t at = first_of_eight();
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        if (at + i < n)
            convert(src[at + i], &dst[at + i]);
}

/* Without double, and with addresses that allow it, by 128 bits. */
template <class S, class D>
__global__ void __launch_bounds__(COPY_BLOCK) cast_vector(const S *src, D *dst, int64_t n)
{
    int64_t at = first_of_eight();
    int count = at_most(n - at, WIDE);
    float v[WIDE];

    if (count <= 0)
        return;
    load_wide(src + at, count, true, v);
    store_wide(dst + at, count, true, v);
}

template <class S, class D>
static ndm_status cast_launch(ndm_stream *stream, const ndm_cast_args *a)
{
    return ndm_cuda_launch(stream, "cast", cast_wide<S, D>,
                           dim3(ndm_cuda_blocks(a->n, COPY_BLOCK * WIDE)), COPY_BLOCK, 0,
                           (const S *)a->src, (D *)a->dst, a->n);
}

static ndm_status cast_narrow(ndm_stream *stream, const ndm_cast_args *a)
{
    bool vector = ndm_cuda_aligned(a->src, 0) && ndm_cuda_aligned(a->dst, 0);

    return ndm_cuda_typed("cast", "src_dtype", a->src_dtype, [&](auto source) {
        return ndm_cuda_typed("cast", "dst_dtype", a->dst_dtype, [&](auto target) {
            using S = decltype(source);
            using D = decltype(target);
            return ndm_cuda_launch(stream, "cast", vector ? cast_vector<S, D> : cast_wide<S, D>,
                                   dim3(ndm_cuda_blocks(a->n, COPY_BLOCK * WIDE)), COPY_BLOCK, 0,
                                   (const S *)a->src, (D *)a->dst, a->n);
        });
    });
}

static size_t float_bytes(ndm_dtype dtype)
{
    return dtype == NDM_F64 ? 8 : dtype == NDM_F32 ? 4 : 2;
}

ndm_status ndm_cuda_cast(ndm_stream *stream, const void *args)
{
    const ndm_cast_args *a = (const ndm_cast_args *)args;

    if (a->src_dtype == a->dst_dtype) {
        NDM_CUDA_TRY("cast",
                     cudaMemcpyAsync(a->dst, a->src, (size_t)a->n * float_bytes(a->src_dtype),
                                     cudaMemcpyDeviceToDevice, ndm_cuda_stream_handle(stream)));
        return NDM_OK;
    }
    if (a->src_dtype == NDM_F64)
        return ndm_cuda_typed("cast", "dst_dtype", a->dst_dtype, [&](auto target) {
            return cast_launch<double, decltype(target)>(stream, a);
        });
    if (a->dst_dtype == NDM_F64)
        return ndm_cuda_typed("cast", "src_dtype", a->src_dtype, [&](auto source) {
            return cast_launch<decltype(source), double>(stream, a);
        });
    return cast_narrow(stream, a);
}

/* ---- scaling and sums ------------------------------------------------------------------------ */

__global__ void __launch_bounds__(COPY_BLOCK) scale_wide(ndm_scale_args a, bool vector)
{
    int64_t at = first_of_eight();
    int count = at_most(a.n - at, WIDE);
    float x[WIDE];

    if (count <= 0)
        return;
    load_wide_any(a.x, a.x_dtype, at, count, vector, x);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        x[i] *= a.factor;
    store_wide_any(a.x, a.x_dtype, at, count, vector, x);
}

ndm_status ndm_cuda_scale(ndm_stream *stream, const void *args)
{
    const ndm_scale_args *a = (const ndm_scale_args *)args;

    return ndm_cuda_launch(stream, "scale", scale_wide,
                           dim3(ndm_cuda_blocks(a->n, COPY_BLOCK * WIDE)), COPY_BLOCK, 0, *a,
                           ndm_cuda_aligned(a->x, 0));
}

__global__ void __launch_bounds__(COPY_BLOCK) add_wide(ndm_add_args a, bool vector)
{
    int64_t at = first_of_eight();
    int count = at_most(a.n - at, WIDE);
    float y[WIDE], x[WIDE];

    if (count <= 0)
        return;
    load_wide_any(a.y, a.y_dtype, at, count, vector, y);
    load_wide_any(a.x, a.x_dtype, at, count, vector, x);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        y[i] += a.factor * x[i];
    store_wide_any(a.y, a.y_dtype, at, count, vector, y);
}

ndm_status ndm_cuda_add(ndm_stream *stream, const void *args)
{
    const ndm_add_args *a = (const ndm_add_args *)args;

    return ndm_cuda_launch(stream, "add", add_wide, dim3(ndm_cuda_blocks(a->n, COPY_BLOCK * WIDE)),
                           COPY_BLOCK, 0, *a,
                           ndm_cuda_aligned(a->x, 0) && ndm_cuda_aligned(a->y, 0));
}

/* ---- rows ------------------------------------------------------------------------------------ */

/* A thread copies one unit of one row; strides and row are whole units. */
template <class U> __global__ void __launch_bounds__(COPY_BLOCK) copy_rows(ndm_copy2d_args a)
{
    int64_t units = a.row_bytes / (int64_t)sizeof(U);
    int64_t at = (int64_t)blockIdx.x * COPY_BLOCK + threadIdx.x;
    int64_t i = at / units, j = at % units;

    if (i >= a.m)
        return;
    int64_t from = a.index && a.gather ? a.index[i] : i;
    int64_t to = a.index && !a.gather ? a.index[i] : i;
    const U *src = (const U *)((const char *)a.src + from * a.src_stride_bytes);
    U *dst = (U *)((char *)a.dst + to * a.dst_stride_bytes);
    dst[j] = src[j];
}

template <class U> static ndm_status copy_launch(ndm_stream *stream, const ndm_copy2d_args *a)
{
    return ndm_cuda_launch(
        stream, "copy2d", copy_rows<U>,
        dim3(ndm_cuda_blocks(a->m * (a->row_bytes / (int64_t)sizeof(U)), COPY_BLOCK)), COPY_BLOCK,
        0, *a);
}

ndm_status ndm_cuda_copy2d(ndm_stream *stream, const void *args)
{
    const ndm_copy2d_args *a = (const ndm_copy2d_args *)args;
    uint64_t bits = (uint64_t)(uintptr_t)a->src | (uint64_t)(uintptr_t)a->dst |
                    (uint64_t)a->row_bytes | (uint64_t)a->src_stride_bytes |
                    (uint64_t)a->dst_stride_bytes;

    if (bits % 16 == 0)
        return copy_launch<uint4>(stream, a);
    if (bits % 4 == 0)
        return copy_launch<uint32_t>(stream, a);
    if (bits % 2 == 0)
        return copy_launch<uint16_t>(stream, a);
    return copy_launch<uint8_t>(stream, a);
}
