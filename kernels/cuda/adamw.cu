/* SPDX-License-Identifier: Apache-2.0 */
/* AdamW on CUDA: weight, both moments and the narrow copy of the weight in one pass. */
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

__global__ void __launch_bounds__(ADAMW_BLOCK)
    adamw_wide(ndm_adamw_args a, adamw_factors f, bool vector)
{
    int64_t at = ((int64_t)blockIdx.x * ADAMW_BLOCK + threadIdx.x) * WIDE;
    int count = at_most(a.n - at, WIDE);
    float w[WIDE], m[WIDE], v[WIDE], g[WIDE];

    if (count <= 0)
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
    adamw_factors f = {};

    f.grad_scale = (float)a->grad_scale;
    f.beta1 = (float)a->beta1;
    f.beta2 = (float)a->beta2;
    f.rest1 = (float)(1.0 - a->beta1);
    f.rest2 = (float)(1.0 - a->beta2);
    f.decay = (float)(a->lr * a->weight_decay);
    f.rate = (float)(a->lr / a->bias1);
    f.inverse_bias2 = (float)(1.0 / a->bias2);
    f.eps = (float)a->eps;
    bool vector = ndm_cuda_aligned(a->w, 0) && ndm_cuda_aligned(a->m, 0) &&
                  ndm_cuda_aligned(a->v, 0) && ndm_cuda_aligned(a->g, 0) &&
                  ndm_cuda_aligned(a->copy, 0);
    return ndm_cuda_launch(stream, "adamw", adamw_wide,
                           dim3(ndm_cuda_blocks(a->n, ADAMW_BLOCK * WIDE)), ADAMW_BLOCK, 0, *a, f,
                           vector);
}
