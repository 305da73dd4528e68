/* SPDX-License-Identifier: Apache-2.0 */
/* Initial values on CUDA: the numbers of core/rng.c, element by element (Philox4x32-10: Salmon et
 * al., "Parallel random numbers: as easy as 1, 2, 3", 2011; then Box and Muller in double). */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { INIT_BLOCK = 128, PHILOX_ROUNDS = 10, PHILOX_WORDS = 4 };

/* Block `block` of the stream: the counter is (block, stream), the key is the seed. */
static __device__ __forceinline__ void philox(uint64_t seed, uint64_t stream, uint64_t block,
                                              uint32_t out[PHILOX_WORDS])
{
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

#pragma unroll
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* u1 in (0, 1), so that the logarithm is finite. */
static __device__ __forceinline__ void box_muller(const uint32_t words[2], float out[2])
{
    double u1 = ((double)words[0] + 0.5) * (1.0 / 4294967296.0);
    double angle = 6.283185307179586476925 * ((double)words[1] * (1.0 / 4294967296.0));
    double radius = sqrt(-2.0 * log(u1));
    out[0] = (float)(radius * cos(angle));
    out[1] = (float)(radius * sin(angle));
}

/* A thread makes the four numbers of a block of the generator, as far as they are asked for. The
 * product is rounded to fp32 before the sum, as on a CPU: in double the two cannot fuse. */
__global__ void __launch_bounds__(INIT_BLOCK) init_normal(ndm_init_args a)
{
    int64_t block = a.first / PHILOX_WORDS + (int64_t)blockIdx.x * INIT_BLOCK + threadIdx.x;
    uint32_t words[PHILOX_WORDS];
    float normal[PHILOX_WORDS];

    if (block * PHILOX_WORDS >= a.first + a.n)
        return;
    philox(a.seed, a.stream, (uint64_t)block, words);
    box_muller(words, normal);
    box_muller(words + 2, normal + 2);
#pragma unroll
    for (int k = 0; k < PHILOX_WORDS; k++) {
        int64_t i = block * PHILOX_WORDS + k - a.first;
        float scaled = a.std * normal[k];
        if (i >= 0 && i < a.n)
            a.out[i] = (float)((double)a.mean + (double)scaled);
    }
}

__global__ void __launch_bounds__(INIT_BLOCK) init_constant(ndm_init_args a)
{
    int64_t i = (int64_t)blockIdx.x * INIT_BLOCK + threadIdx.x;
    if (i < a.n)
        a.out[i] = a.mean;
}

ndm_status ndm_cuda_init(ndm_stream *stream, const void *args)
{
    const ndm_init_args *a = (const ndm_init_args *)args;
    int64_t blocks = a->n / PHILOX_WORDS + 2;

    if (a->std == 0.0f)
        return ndm_cuda_launch(stream, "init", init_constant,
                               dim3(ndm_cuda_blocks(a->n, INIT_BLOCK)), INIT_BLOCK, 0, *a);
    return ndm_cuda_launch(stream, "init", init_normal, dim3(ndm_cuda_blocks(blocks, INIT_BLOCK)),
                           INIT_BLOCK, 0, *a);
}
