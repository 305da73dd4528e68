/* SPDX-License-Identifier: Apache-2.0 */
/* What the attention kernels share: rows of one head, who sees whom, and which tiles of keys and
 * queries have anything to see.
 *
 * Attention goes by tiles (Dao, "FlashAttention-2", 2023): a block keeps rows of its own and walks
 * over tiles of the other side. Where rows come with indices or first keys, a small kernel finds
 * the extents of every 16 rows first; by them a tile is skipped, or needs no mask. */
#ifndef NDM_KERNELS_CUDA_ATTENTION_CUH
#define NDM_KERNELS_CUDA_ATTENTION_CUH

#include <limits.h>

#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { EXTENT_ROWS = 16, ATTENTION_BLOCK = 128, HEAD_DIM_MAX = 256 };

#define LOG2_E 1.44269504088896340736f
#define LN_2 0.69314718055994530942f

/* Of some queries: lowest and highest index and first key. Of keys: index alone. */
typedef struct extent {
    int low, high, first_low, first_high;
} extent;

/* [B][groups of 16 rows]; NULL: index and row number are the same and first keys are 0. */
typedef struct attention_extents {
    const extent *queries, *keys;
} attention_extents;

static __host__ __device__ __forceinline__ int64_t extent_groups(int64_t rows)
{
    return (rows + EXTENT_ROWS - 1) / EXTENT_ROWS;
}

static __device__ __forceinline__ int query_index(const ndm_attention_args &a, int64_t b, int64_t i)
{
    return a.q_index ? a.q_index[b * a.tq + i] : (int)i;
}

static __device__ __forceinline__ int key_index(const ndm_attention_args &a, int64_t b, int64_t j)
{
    return a.k_index ? a.k_index[b * a.tk + j] : (int)j;
}

static __device__ __forceinline__ int query_first(const ndm_attention_args &a, int64_t b, int64_t i)
{
    return a.q_first ? a.q_first[b * a.tq + i] : 0;
}

/* A key beyond the last has the index NO_KEY, which nobody sees. */
enum { NO_KEY = INT_MIN };

static __device__ __forceinline__ bool sees(bool causal, int query, int first, int key)
{
    return key != NO_KEY && key >= first && (!causal || key <= query);
}

static __device__ __forceinline__ extent extent_join(extent a, extent b)
{
    a.low = a.low < b.low ? a.low : b.low;
    a.high = a.high > b.high ? a.high : b.high;
    a.first_low = a.first_low < b.first_low ? a.first_low : b.first_low;
    a.first_high = a.first_high > b.first_high ? a.first_high : b.first_high;
    return a;
}

/* Of rows [row, row + count) of a sequence of `rows`; row is a multiple of 16. */
static __device__ __forceinline__ extent extent_of(const extent *groups, int b, int row, int count,
                                                   int rows)
{
    int end = row + count < rows ? row + count : rows;
    extent e = {row, end - 1, 0, 0};

    if (!groups)
        return e;
    const extent *of = groups + b * extent_groups(rows);
    e = of[row / EXTENT_ROWS];
    for (int group = row / EXTENT_ROWS + 1; group * EXTENT_ROWS < end; group++)
        e = extent_join(e, of[group]);
    return e;
}

/* Some query may see some key. */
static __device__ __forceinline__ bool extents_meet(bool causal, extent query, extent key)
{
    return key.high >= query.first_low && (!causal || key.low <= query.high);
}

/* Every query sees every key. */
static __device__ __forceinline__ bool extents_open(bool causal, extent query, extent key)
{
    return key.low >= query.first_high && (!causal || key.high <= query.low);
}

/* Rows of one head of one sequence. */
typedef struct head_rows {
    const void *data; /* array that row 0 is in */
    int64_t at;       /* element that row 0 starts at */
    int64_t stride, rows;
    ndm_dtype dtype;
} head_rows;

static __device__ __forceinline__ head_rows rows_of(const void *data, ndm_dtype dtype,
                                                    int64_t stride, int64_t rows, int64_t b,
                                                    int64_t head, int64_t head_dim)
{
    head_rows r = {data, b * rows * stride + head * head_dim, stride, rows, dtype};
    return r;
}

static __device__ __forceinline__ head_rows query_rows(const ndm_attention_args &a, int64_t b,
                                                       int64_t head)
{
    return rows_of(a.q, a.x_dtype, a.q_stride, a.tq, b, head, a.head_dim);
}

static __device__ __forceinline__ head_rows key_rows(const ndm_attention_args &a, int64_t b,
                                                     int64_t kv_head)
{
    return rows_of(a.k, a.x_dtype, a.k_stride, a.tk, b, kv_head, a.head_dim);
}

static __device__ __forceinline__ head_rows value_rows(const ndm_attention_args &a, int64_t b,
                                                       int64_t kv_head)
{
    return rows_of(a.v, a.x_dtype, a.v_stride, a.tk, b, kv_head, a.head_dim);
}

static __device__ __forceinline__ head_rows gradient_rows(const ndm_attention_backward_args &a,
                                                          int64_t b, int64_t head)
{
    const ndm_attention_args &f = a.forward;
    return rows_of(a.dout, f.out_dtype, a.dout_stride, f.tq, b, head, f.head_dim);
}

/* Rows of q, k and v, and of dout, that 16-byte loads may use. */
static inline bool attention_aligned(const ndm_attention_args *a)
{
    return a->head_dim % WIDE == 0 && ndm_cuda_aligned(a->q, a->q_stride) &&
           ndm_cuda_aligned(a->k, a->k_stride) && ndm_cuda_aligned(a->v, a->v_stride);
}

static inline bool attention_backward_aligned(const ndm_attention_backward_args *a)
{
    return attention_aligned(&a->forward) && ndm_cuda_aligned(a->dout, a->dout_stride);
}

/* In attention.cu: fills `extents` (NULLs where rows have neither index nor first) in
 * memory that the caller has taken, attention_extents_bytes() long. */
int64_t attention_extents_bytes(const ndm_attention_args *a);
ndm_status attention_extents_find(ndm_stream *stream, const char *op, const ndm_attention_args *a,
                                  void *memory, attention_extents *extents);

/* Tensor cores take bf16; the others compute in fp32, for every type (attention_simt.cu). */
ndm_status attention_simt(ndm_stream *stream, const ndm_attention_args *a,
                          attention_extents extents);
ndm_status attention_backward_simt(ndm_stream *stream, const ndm_attention_backward_args *a,
                                   attention_extents extents);
ndm_status attention_mma(ndm_stream *stream, const ndm_attention_args *a,
                         attention_extents extents);
ndm_status attention_backward_mma(ndm_stream *stream, const ndm_attention_backward_args *a,
                                  attention_extents extents);

#endif
