/* SPDX-License-Identifier: Apache-2.0 */
/* Launches of the emulator's test kernels. C and C++. */
#pragma once

#include <cuda_runtime_api.h>
#include <stdbool.h>

enum { WARP_RESULTS = 9 };

#ifdef __cplusplus
#define TEST_API extern "C" __attribute__((visibility("default")))
#else
#define TEST_API
#endif
/* Conversions of CUDA's own headers: 0 bf16, 1 fp16, 2 e4m3, 3 e5m2, fp8 saturating. */
TEST_API unsigned test_bits(int type, float x);
TEST_API float test_value(int type, unsigned bits);
TEST_API cudaError_t test_scale(float *x, float factor, int n, cudaStream_t stream);
TEST_API cudaError_t test_sum(const float *x, float *out, int n, int race, cudaStream_t stream);
TEST_API cudaError_t test_warps(int *out, unsigned threads,
                                cudaStream_t stream); /* [threads][WARP_RESULTS] */
TEST_API cudaError_t test_tile_product(const void *a, const void *b, float *c, int transposed,
                                       cudaStream_t stream);
TEST_API cudaError_t test_half_waited(const float *x, float *out, bool ends, cudaStream_t stream);
TEST_API cudaError_t test_arrivals(int *counter, int *order,
                                   cudaStream_t stream); /* 4 blocks of 96 */
TEST_API cudaError_t test_shared_as_found(float *out, size_t shared, int ask, cudaStream_t stream);
TEST_API cudaError_t test_diverge(float *x, cudaStream_t stream);
TEST_API cudaError_t test_spin(float *x, unsigned threads, int rounds, cudaStream_t stream);
