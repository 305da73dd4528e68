/* SPDX-License-Identifier: Apache-2.0 */
/* Sums and maxima in slice order, a block at a time: the block stays in the nearest cache, so every
 * slice is read once and the result is written once. */
#include "collectives/reduce.h"

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core/dtype.h"

enum { BLOCK = 2048 }; /* elements; 8 or 16 KiB of accumulator */

bool ndm_reduce_supports(ndm_dtype dtype)
{
    return dtype == NDM_F32 || dtype == NDM_F64 || dtype == NDM_BF16 || dtype == NDM_F16 ||
           dtype == NDM_I32 || dtype == NDM_I64;
}

/* Integers wrap around; a floating a that is NaN stays, and so does b. */
#define INT_SUM(T, a, b) ((T)((a) + (b)))
#define INT_MAX_OF(T, a, b) ((a) > (b) ? (a) : (b))
#define REAL_SUM(T, a, b) ((a) + (b))
#define REAL_MAX(T, a, b) ((a) > (b) || (a) != (a) ? (a) : (b))

/* acc[i] = acc[i] op x[i] */
#define DEFINE_FOLD(name, T, OP)                                      \
    static void name(T *restrict acc, const T *restrict x, int64_t n) \
    {                                                                 \
        for (int64_t i = 0; i < n; i++)                               \
            acc[i] = OP(T, acc[i], x[i]);                             \
    }

DEFINE_FOLD(sum_f32, float, REAL_SUM)
DEFINE_FOLD(max_f32, float, REAL_MAX)
DEFINE_FOLD(sum_f64, double, REAL_SUM)
DEFINE_FOLD(max_f64, double, REAL_MAX)
DEFINE_FOLD(sum_u32, uint32_t, INT_SUM)
DEFINE_FOLD(max_i32, int32_t, INT_MAX_OF)
DEFINE_FOLD(sum_u64, uint64_t, INT_SUM)
DEFINE_FOLD(max_i64, int64_t, INT_MAX_OF)

static void fold(void *acc, const void *x, int64_t n, ndm_dtype dtype, ndm_reduce_op op)
{
    bool max = op == NDM_MAX;

    if (dtype == NDM_F32)
        (max ? max_f32 : sum_f32)(acc, x, n);
    else if (dtype == NDM_F64)
        (max ? max_f64 : sum_f64)(acc, x, n);
    else if (dtype == NDM_I32 && max)
        max_i32(acc, x, n);
    else if (dtype == NDM_I32)
        sum_u32(acc, x, n);
    else if (max)
        max_i64(acc, x, n);
    else
        sum_u64(acc, x, n);
}

/* ---- sums of fp32 in one pass -----------------------------------------------------------------
 */

enum {
    LANES = 16,
    MOST_STREAMS = 8,
    AHEAD = 256,                 /* elements fetched ahead in each stream */
    PAST_BYTES = 2 * 1024 * 1024 /* a result of so many leaves no near cache of use: it goes past */
};

typedef float lanes __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));

#define SUM_INLINE static inline __attribute__((always_inline))

/* By pointer: a vector is not returned alike by all clones. */
SUM_INLINE void sum_lanes(const float *const *x, int64_t k, int64_t i, lanes *sum)
{
    *sum = *(const lanes *)(x[0] + i);

    __builtin_prefetch(x[0] + i + AHEAD);
    for (int64_t j = 1; j < k; j++) {
        __builtin_prefetch(x[j] + i + AHEAD);
        *sum += *(const lanes *)(x[j] + i);
    }
}

/* Elements i to end, one by one. Returns end. */
SUM_INLINE int64_t sum_each(float *const *outs, int64_t n_outs, const float *const *x, int64_t k,
                            int64_t i, int64_t end)
{
    for (; i < end; i++) {
        float sum = x[0][i];
        for (int64_t j = 1; j < k; j++)
            sum += x[j][i];
        for (int64_t o = 0; o < n_outs; o++)
            outs[o][i] = sum;
    }
    return end;
}

#if defined(__SSE2__)
enum { CAN_GO_PAST = 1 };

/* What is written whole need not be read first, and pushes nothing out of the caches. */
SUM_INLINE void store_past(float *to, const lanes *sum)
{
    for (int i = 0; i < LANES; i += 4)
        _mm_stream_ps(to + i, _mm_loadu_ps((const float *)sum + i));
}

static void past_is_written(void)
{
    _mm_sfence();
}
#else
enum { CAN_GO_PAST = 0 };

SUM_INLINE void store_past(float *to, const lanes *sum)
{
    *(lanes *)to = *sum;
}

static void past_is_written(void)
{
}
#endif

/* Elements before the first that begins a vector in memory. */
static int64_t before_line(const float *at, int64_t n)
{
    int64_t before = (int64_t)(-(uintptr_t)at % sizeof(lanes) / sizeof *at);

    return before < n ? before : n;
}

/* out[o][i] = x[0][i] + x[1][i] + ... of k streams, to one place or to all k. An out may be one of
 * the streams: an element is read before it is written. past: to one place, past the caches. */
SUM_INLINE void sum_k(float *const *outs, int64_t n_outs, bool past, const float *const *x,
                      int64_t k, int64_t n)
{
    int64_t i = past ? sum_each(outs, 1, x, k, 0, before_line(outs[0], n)) : 0;

    for (; i + LANES <= n; i += LANES) {
        lanes sum;
        sum_lanes(x, k, i, &sum);
        if (past) {
            store_past(outs[0] + i, &sum);
            continue;
        }
        if (n_outs == 1) /* else they are the streams */
            __builtin_prefetch(outs[0] + i + AHEAD, 1);
        for (int64_t o = 0; o < n_outs; o++)
            *(lanes *)(outs[o] + i) = sum;
    }
    sum_each(outs, n_outs, x, k, i, n);
    if (past)
        past_is_written();
}

/* To all or to one; with k constant for the usual groups, the streams' loop is unrolled. */
SUM_INLINE void sum_streams(float *const *outs, bool all, bool past, const float *const *x,
                            int64_t k, int64_t n)
{
    switch (k) {
    case 2:
        sum_k(outs, all ? 2 : 1, past, x, 2, n);
        break;
    case 3:
        sum_k(outs, all ? 3 : 1, past, x, 3, n);
        break;
    case 4:
        sum_k(outs, all ? 4 : 1, past, x, 4, n);
        break;
    case 8:
        sum_k(outs, all ? 8 : 1, past, x, 8, n);
        break;
    default:
        sum_k(outs, all ? k : 1, past, x, k, n);
        break;
    }
}

#if defined(__x86_64__) && defined(__gnu_linux__)
#define WIDEST __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define WIDEST
#endif

WIDEST static void sum_to_one(float *const *out, const float *const *x, int64_t k, int64_t n)
{
    sum_streams(out, false, false, x, k, n);
}

WIDEST static void sum_past(float *const *out, const float *const *x, int64_t k, int64_t n)
{
    sum_streams(out, false, true, x, k, n);
}

WIDEST static void sum_to_all(float *const *outs, const float *const *x, int64_t k, int64_t n)
{
    sum_streams(outs, true, false, x, k, n);
}

/* ---- any type ---------------------------------------------------------------------------------
 */

/* What is summed, and where the sums go. */
typedef struct job {
    void *const *outs;
    int64_t n_outs;
    const void *const *slices;
    int64_t n_slices;
    ndm_dtype dtype, out_dtype;
    ndm_reduce_op op;
    bool past; /* the result is large: nobody finds it in a near cache */
} job;

/* One block of a type that is summed in itself. All of it is read before any is written. */
static void reduce_block(const job *j, int64_t at, int64_t n)
{
    _Alignas(64) char acc[BLOCK * sizeof(double)];
    size_t size = ndm_dtype_bytes(j->dtype), from = (size_t)at * size;

    memcpy(acc, (const char *)j->slices[0] + from, (size_t)n * size);
    for (int64_t k = 1; k < j->n_slices; k++)
        fold(acc, (const char *)j->slices[k] + from, n, j->dtype, j->op);
    for (int64_t k = 0; k < j->n_outs; k++)
        memcpy((char *)j->outs[k] + from, acc, (size_t)n * size);
}

/* One block of a 16-bit type. */
static void reduce_block_16(const job *j, int64_t at, int64_t n)
{
    _Alignas(64) float acc[BLOCK], x[BLOCK];
    size_t to = (size_t)at * ndm_dtype_bytes(j->out_dtype);

    ndm_convert((const uint16_t *)j->slices[0] + at, j->dtype, acc, NDM_F32, n);
    for (int64_t k = 1; k < j->n_slices; k++) {
        ndm_convert((const uint16_t *)j->slices[k] + at, j->dtype, x, NDM_F32, n);
        fold(acc, x, n, NDM_F32, j->op);
    }
    for (int64_t k = 0; k < j->n_outs; k++)
        ndm_convert(acc, NDM_F32, (char *)j->outs[k] + to, j->out_dtype, n);
}

/* One result, which is none of the slices: those have just come into a cache. */
static bool is_apart(const job *j)
{
    bool apart = CAN_GO_PAST && j->n_outs == 1;

    for (int64_t k = 0; k < j->n_slices; k++)
        apart = apart && j->outs[0] != j->slices[k];
    return apart;
}

static void reduce(const job *j, int64_t count)
{
    bool half = j->dtype == NDM_BF16 || j->dtype == NDM_F16;
    bool plain = j->dtype == NDM_F32 && j->op == NDM_SUM && j->n_slices <= MOST_STREAMS;

    if (plain && j->past && is_apart(j)) {
        sum_past((float *const *)j->outs, (const float *const *)j->slices, j->n_slices, count);
        return;
    }
    if (plain && (j->n_outs == 1 || j->n_outs == j->n_slices)) {
        (j->n_outs == 1 ? sum_to_one : sum_to_all)(
            (float *const *)j->outs, (const float *const *)j->slices, j->n_slices, count);
        return;
    }
    for (int64_t at = 0; at < count; at += BLOCK) {
        int64_t n = count - at < BLOCK ? count - at : BLOCK;
        if (half)
            reduce_block_16(j, at, n);
        else
            reduce_block(j, at, n);
    }
}

void ndm_reduce_slices(void *out, ndm_dtype out_dtype, const void *const *slices, int64_t n_slices,
                       int64_t count, ndm_dtype dtype, ndm_reduce_op op, int64_t result_bytes)
{
    job j = {&out, 1, slices, n_slices, dtype, out_dtype, op, result_bytes >= PAST_BYTES};

    reduce(&j, count);
}

void ndm_reduce_slices_to_all(void *const *slices, int64_t n_slices, int64_t count, ndm_dtype dtype,
                              ndm_reduce_op op)
{
    job j = {slices, n_slices, (const void *const *)slices, n_slices, dtype, dtype, op, false};

    reduce(&j, count);
}
