/* SPDX-License-Identifier: Apache-2.0 */
/* Rotary positions on CUDA: a thread rotates eight pairs (i, i + D/2) of one head, in place. */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { ROPE_BLOCK = 128 };

template <class T>
__global__ void __launch_bounds__(ROPE_BLOCK) rope_pairs(ndm_rope_args a, bool vector)
{
    int64_t half = a.head_dim / 2, eights = (half + WIDE - 1) / WIDE;
    int64_t at = (int64_t)blockIdx.x * ROPE_BLOCK + threadIdx.x;
    int64_t row = at / (a.heads * eights), head = at / eights % a.heads, i = at % eights * WIDE;
    int count = at_most(half - i, WIDE);
    float x0[WIDE], x1[WIDE], c[WIDE], s[WIDE];

    if (row >= a.n)
        return;
    T *x = (T *)a.x + row * a.stride + head * a.head_dim + i;
    const float *cosines = a.cos + a.positions[row] * half + i;
    const float *sines = a.sin + a.positions[row] * half + i;
    whole_or_part(count, vector, [&](int n, bool aligned) {
        load_wide(x, n, aligned, x0);
        load_wide(x + half, n, aligned, x1);
        load_wide(cosines, n, aligned, c);
        load_wide(sines, n, aligned, s);
    });
#pragma unroll
    for (int j = 0; j < WIDE; j++) {
        float sine = a.sign * s[j], low = x0[j];
        x0[j] = low * c[j] - x1[j] * sine;
        x1[j] = x1[j] * c[j] + low * sine;
    }
    store_wide(x, count, vector, x0);
    store_wide(x + half, count, vector, x1);
}

ndm_status ndm_cuda_rope(ndm_stream *stream, const void *args)
{
    const ndm_rope_args *a = (const ndm_rope_args *)args;
    int64_t half = a->head_dim / 2, eights = (half + WIDE - 1) / WIDE;
    bool vector = half % WIDE == 0 && ndm_cuda_aligned(a->x, a->stride) &&
                  ndm_cuda_aligned(a->cos, 0) && ndm_cuda_aligned(a->sin, 0);

    return ndm_cuda_typed("rope", "x_dtype", a->x_dtype, [&](auto type) {
        return ndm_cuda_launch(stream, "rope", rope_pairs<decltype(type)>,
                               dim3(ndm_cuda_blocks(a->n * a->heads * eights, ROPE_BLOCK)),
                               ROPE_BLOCK, 0, *a, vector);
    });
}
