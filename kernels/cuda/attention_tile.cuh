/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles of attention on tensor cores: rows of bf16 in shared memory, DIM wide (the head's width
 * rounded up, zeros behind it), and products of a warp's 16 rows with them.
 *
 * Rows lie PITCH apart, 16 bytes more than they are long, so that eight rows of an ldmatrix fall
 * into different banks. */
#ifndef NDM_KERNELS_CUDA_ATTENTION_TILE_CUH
#define NDM_KERNELS_CUDA_ATTENTION_TILE_CUH

#include <ndm_ptx.cuh>

#include "kernels/cuda/attention.cuh"

enum { MMA = 16, QUAD = 4 }; /* rows of a warp's product; lanes that share a row of it */

template <int DIM> struct tile_shape {
    enum { PITCH = DIM + 8 };
};

/* tile_load() by 16-byte copies, which arrive at the next wait. A thread stays in one column of the
 * tile: of a copy's addresses one addition is left, and the copies lie behind one another. */
template <int DIM, int ROWS>
static __device__ __forceinline__ void tile_copy(__nv_bfloat16 *to, const head_rows &from,
                                                 int64_t row, int head_dim)
{
    enum { PITCH = tile_shape<DIM>::PITCH, LANES = DIM / WIDE, AT_ONCE = ATTENTION_BLOCK / LANES };
    static_assert(ROWS % AT_ONCE == 0, "all threads have as many rows");
    int r = threadIdx.x / LANES, d = threadIdx.x % LANES * WIDE;
    int rows = d < head_dim ? at_most(from.rows - row, ROWS) : 0; /* that are there */
    const __nv_bfloat16 *first = (const __nv_bfloat16 *)from.data + from.at;
    const __nv_bfloat16 *source = first + (row + r) * from.stride + d;
    int64_t step = AT_ONCE * from.stride;

    to += r * PITCH + d;
#pragma unroll
    for (int i = 0; i < ROWS; i += AT_ONCE) {
        bool inside = r + i < rows;
        ndm_cp_async_16(to + i * PITCH, inside ? source : first, inside ? 16 : 0);
        source += step;
    }
}

/* Starts the load of ROWS rows from `row` on; what is not there becomes 0. vector: rows allow
 * 16-byte accesses. */
template <int DIM, int ROWS>
static __device__ __forceinline__ void tile_load(__nv_bfloat16 *to, const head_rows &from,
                                                 int64_t row, int head_dim, bool vector)
{
    if (vector && from.dtype == NDM_BF16) {
        tile_copy<DIM, ROWS>(to, from, row, head_dim);
        return;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < ROWS * (DIM / WIDE); i += ATTENTION_BLOCK) {
        int r = i / (DIM / WIDE), d = i % (DIM / WIDE) * WIDE;
        int count = row + r < from.rows ? at_most(head_dim - d, WIDE) : 0;
        int64_t at = from.at + (count > 0 ? (row + r) * from.stride + d : 0);
        __nv_bfloat16 *place = to + r * tile_shape<DIM>::PITCH + d;
        float v[WIDE];
        load_wide_any(from.data, from.dtype, at, count, vector, v);
        store_wide(place, WIDE, true, v);
    }
}

static __device__ __forceinline__ unsigned pack_bf16(float low, float high)
{
    __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<unsigned *>(&pair);
}

/* sum[16 x ROWS] += a[16 x DIM] b[ROWS x DIM]'. */
template <int DIM, int ROWS>
static __device__ __forceinline__ void
product_of_rows(float sum[ROWS / 8][4], const __nv_bfloat16 *a, const __nv_bfloat16 *b)
{
    enum {
        PITCH = tile_shape<DIM>::PITCH,
        STEPS = DIM > 128                 ? 4
                : DIM > ROWS && DIM == 64 ? 2
                                          : DIM / MMA
    };
    int lane = threadIdx.x % 32;
    const __nv_bfloat16 *left = a + lane % 16 * PITCH + lane / 16 * 8;
    const __nv_bfloat16 *right = b + (lane / 16 * 8 + lane % 8) * PITCH + lane / 8 % 2 * 8;

#pragma unroll STEPS
    for (int k = 0; k < DIM; k += MMA) {
        unsigned x[4];
        ndm_ldmatrix_x4(x, left + k);
#pragma unroll
        for (int n = 0; n < ROWS; n += 16) {
            unsigned y[4];
            ndm_ldmatrix_x4(y, right + n * PITCH + k);
            ndm_mma_bf16(sum[n / 8], x, y);
            ndm_mma_bf16(sum[n / 8 + 1], x, y + 2);
        }
    }
}

/* sum[16 x DIM] += p[16 x ROWS] b[ROWS x DIM]; p is as a product leaves it, rounded to bf16 here.
 */
template <int DIM, int ROWS>
static __device__ __forceinline__ void
product_of_columns(float sum[DIM / 8][4], const float p[ROWS / 8][4], const __nv_bfloat16 *b)
{
    enum { PITCH = tile_shape<DIM>::PITCH };
    int lane = threadIdx.x % 32;
    const __nv_bfloat16 *right = b + lane % 16 * PITCH + lane / 16 * 8;

#pragma unroll
    for (int k = 0; k < ROWS; k += MMA) {
        const float *low = p[k / 8], *high = p[k / 8 + 1];
        unsigned x[4] = {pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]),
                         pack_bf16(high[0], high[1]), pack_bf16(high[2], high[3])};
#pragma unroll
        for (int n = 0; n < DIM; n += 16) {
            unsigned y[4];
            ndm_ldmatrix_x4_trans(y, right + k * PITCH + n);
            ndm_mma_bf16(sum[n / 8], x, y);
            ndm_mma_bf16(sum[n / 8 + 1], x, y + 2);
        }
    }
}

/* Where a lane's numbers of a product are: rows lane / 4 and + 8, columns 8n + 2 (lane % 4) and
 * the next. */
static __device__ __forceinline__ int lane_row(int half)
{
    return threadIdx.x % 32 / QUAD + 8 * half;
}

static __device__ __forceinline__ int lane_column(int n, int e)
{
    return 8 * n + 2 * (threadIdx.x % QUAD) + e;
}

/* Two neighbours at once: the type is fp32 or bf16 and `at` even. */
static __device__ __forceinline__ void load_pair(const void *data, ndm_dtype dtype, int64_t at,
                                                 float pair[2])
{
    if (dtype == NDM_F32) {
        float2 raw = *reinterpret_cast<const float2 *>((const float *)data + at);
        pair[0] = raw.x;
        pair[1] = raw.y;
        return;
    }
    const __nv_bfloat16 *from = (const __nv_bfloat16 *)data + at;
    unsigned raw = *reinterpret_cast<const unsigned *>(from);
    pair[0] = to_float(reinterpret_cast<const __nv_bfloat16 *>(&raw)[0]);
    pair[1] = to_float(reinterpret_cast<const __nv_bfloat16 *>(&raw)[1]);
}

static __device__ __forceinline__ void store_pair(void *data, ndm_dtype dtype, int64_t at, float x,
                                                  float y)
{
    if (dtype == NDM_F32)
        *reinterpret_cast<float2 *>((float *)data + at) = make_float2(x, y);
    else
        *reinterpret_cast<unsigned *>((__nv_bfloat16 *)data + at) = pack_bf16(x, y);
}

/* Where a block's results go. */
typedef struct tile_place {
    void *data;
    ndm_dtype dtype;
    int64_t at, stride; /* of the warp's first row */
    int rows, head_dim;
    bool accumulate;
} tile_place;

/* Pairs lie on their own boundaries. */
static __device__ __forceinline__ bool tile_pairs(const tile_place &to)
{
    return to.dtype != NDM_F16 && to.stride % 2 == 0 && to.head_dim % 2 == 0 &&
           (uintptr_t)to.data % 8 == 0;
}

/* Rows of a result: factor[half] * sum, onto what is there if accumulate. */
template <int DIM>
static __device__ __forceinline__ void tile_store(const tile_place &to, const float factor[2],
                                                  const float sum[DIM / 8][4])
{
    bool pairs = tile_pairs(to);

#pragma unroll
    for (int n = 0; n < DIM / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = lane_row(half), column = lane_column(n, 0), count = to.head_dim - column;
            int64_t at = to.at + row * to.stride + column;
            float x[2] = {factor[half] * sum[n][2 * half], factor[half] * sum[n][2 * half + 1]};
            float old[2] = {};
            if (row >= to.rows || count <= 0)
                continue;
            if (to.accumulate && pairs)
                load_pair(to.data, to.dtype, at, old);
            for (int e = 0; e < 2 && e < count && !pairs; e++)
                store_any(to.data, to.dtype, at + e,
                          to.accumulate ? x[e] + load_any(to.data, to.dtype, at + e) : x[e]);
            if (pairs)
                store_pair(to.data, to.dtype, at, x[0] + old[0], x[1] + old[1]);
        }
}

#endif
