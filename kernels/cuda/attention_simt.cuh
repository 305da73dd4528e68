/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of attention without tensor cores: rows as fp32 in shared memory. */
#ifndef NDM_KERNELS_CUDA_ATTENTION_SIMT_CUH
#define NDM_KERNELS_CUDA_ATTENTION_SIMT_CUH

#include "kernels/cuda/attention.cuh"

/* ROWS rows from `row` on; what is not there becomes 0. */
template <int DIM, int ROWS>
static __device__ __forceinline__ void simt_load(float (*to)[DIM + 1], const head_rows &from,
                                                 int64_t row, int head_dim, bool vector)
{
    for (int i = threadIdx.x; i < ROWS * (DIM / WIDE); i += ATTENTION_BLOCK) {
        int r = i / (DIM / WIDE), d = i % (DIM / WIDE) * WIDE;
        int count = row + r < from.rows ? at_most(head_dim - d, WIDE) : 0;
        float v[WIDE];
        load_wide_any(from.data, from.dtype, from.at + (row + r) * from.stride + d, count, vector,
                      v);
        store_wide(&to[r][d], WIDE, false, v);
    }
}

#endif
