/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW on CUDA: weight, both moments and the narrow copy of the weight in one pass; and the factor
 * that gradients are clipped by, for it to read. */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { ADAMW_BLOCK = 256 };

/* Coefficients, rounded once from double: 1 - beta in fp32 would be off. */
typedef struct adamw_factors {
    float grad_scale, beta1, beta2, rest1, rest2, decay, rate, inverse_bias2, eps;
} adamw_factors;

/* The decay is subtracted, not multiplied by 1 - decay, which in fp32 would round a small one. */
static __device__ __forceinline__ float adamw_one(const adamw_factors &f, float w, float g,
                                                  float *m, float *v)
{
    g *= f.grad_scale;
    *m = f.beta1 * *m + f.rest1 * g;
    *v = f.beta2 * *v + f.rest2 * g * g;
    float root = sqrtf(*v * f.inverse_bias2) + f.eps;
    w -= f.decay * w;
    /* eps 0 and an element that never had a gradient: 0/0 in the formula, no step here */
    return root != 0.0f ? w - f.rate * *m / root : w;
}

static __host__ __device__ __forceinline__ adamw_factors factors_of(const ndm_adamw_args &a,
                                                                    const ndm_step_numbers &step)
{
    adamw_factors f = {};

    f.grad_scale = (float)step.grad_scale;
    f.beta1 = (float)a.beta1;
    f.beta2 = (float)a.beta2;
    f.rest1 = (float)(1.0 - a.beta1);
    f.rest2 = (float)(1.0 - a.beta2);
    f.decay = (float)(step.lr * a.weight_decay);
    f.rate = (float)(step.lr / step.bias1);
    f.inverse_bias2 = (float)(1.0 / step.bias2);
    f.eps = (float)a.eps;
    return f;
}

/* FROM_DEVICE: the step's numbers are a.step's. */
template <bool FROM_DEVICE>
__global__ void __launch_bounds__(ADAMW_BLOCK)
    adamw_wide(ndm_adamw_args a, adamw_factors f, bool vector)
{
    int64_t at = ((int64_t)blockIdx.x * ADAMW_BLOCK + threadIdx.x) * WIDE;
    int count = at_most(a.n - at, WIDE);
    float w[WIDE], m[WIDE], v[WIDE], g[WIDE];

    if (count <= 0)
        return;
    if (FROM_DEVICE)
        f = factors_of(a, *a.step);
    if (isnan(f.grad_scale))
        return;
    load_wide(a.w + at, count, vector, w);
    load_wide(a.m + at, count, vector, m);
    load_wide(a.v + at, count, vector, v);
    load_wide(a.g + at, count, vector, g);
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        w[i] = adamw_one(f, w[i], g[i], &m[i], &v[i]);
    store_wide(a.w + at, count, vector, w);
    store_wide(a.m + at, count, vector, m);
    store_wide(a.v + at, count, vector, v);
    if (a.copy)
        store_wide_any(a.copy, a.copy_dtype, at, count, vector, w);
}

ndm_status ndm_cuda_adamw(ndm_stream *stream, const void *args)
{
    const ndm_adamw_args *a = (const ndm_adamw_args *)args;
    bool vector = ndm_cuda_aligned(a->w, 0) && ndm_cuda_aligned(a->m, 0) &&
                  ndm_cuda_aligned(a->v, 0) && ndm_cuda_aligned(a->g, 0) &&
                  ndm_cuda_aligned(a->copy, 0);
    dim3 grid(ndm_cuda_blocks(a->n, ADAMW_BLOCK * WIDE));
    if (a->step)
        return ndm_cuda_launch(stream, "adamw", adamw_wide<true>, grid, ADAMW_BLOCK, 0, *a,
                               adamw_factors{}, vector);
    ndm_step_numbers own = {a->lr, a->bias1, a->bias2, a->grad_scale};
    return ndm_cuda_launch(stream, "adamw", adamw_wide<false>, grid, ADAMW_BLOCK, 0, *a,
                           factors_of(*a, own), vector);
}

__global__ void clip_one(ndm_clip_args a)
{
    double norm = a.largest && !isnan(a.sums[0]) ? *a.largest : sqrt(a.sums[0]);
    bool finite = isfinite(norm);

    for (int64_t i = 1; i < a.n; i++)
        finite = finite && isfinite(a.sums[i]);
    double scale = a.max_norm > 0.0 ? fmin(1.0, a.max_norm / (norm + 1e-6)) : 1.0;
    a.step->grad_scale = finite ? scale : nan("");
}

ndm_status ndm_cuda_clip(ndm_stream *stream, const void *args)
{
    return ndm_cuda_launch(stream, "clip", clip_one, dim3(1), 1, 0, *(const ndm_clip_args *)args);
}
