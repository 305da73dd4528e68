/* SPDX-License-Identifier: Apache-2.0 */
/* Embedding on CUDA. The backward sorts the rows by id, stably, so that one block adds all rows of
 * an id to its row of the table in their order: the same bits every time, without atomics. */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { EMBEDDING_BLOCK = 128 };

__global__ void __launch_bounds__(EMBEDDING_BLOCK) embed_rows(ndm_embedding_args a, bool vector)
{
    float value[WIDE] = {}, position[WIDE];
    int64_t i, j;

    if (!place_of_thread(a.n, a.width, &i, &j))
        return;
    int count = at_most(a.width - j, WIDE);
    int64_t row = a.ids[i] - a.first;
    if (row >= 0 && row < a.rows)
        load_wide_any(a.table, a.dtype, row * a.width + j, count, vector, value);
#pragma unroll
    for (int k = 0; k < WIDE; k++)
        value[k] *= a.scale;
    if (a.position_table) {
        load_wide_any(a.position_table, a.dtype, a.positions[i] * a.width + j, count, vector,
                      position);
#pragma unroll
        for (int k = 0; k < WIDE; k++)
            value[k] += position[k];
    }
    store_wide_any(a.out, a.out_dtype, i * a.width + j, count, vector, value);
}

ndm_status ndm_cuda_embedding(ndm_stream *stream, const void *args)
{
    const ndm_embedding_args *a = (const ndm_embedding_args *)args;
    bool vector = ndm_cuda_aligned(a->table, a->width) && ndm_cuda_aligned(a->out, 0) &&
                  ndm_cuda_aligned(a->position_table, 0);

    return ndm_cuda_launch(
        stream, "embedding", embed_rows,
        dim3(ndm_cuda_blocks(a->n * ((a->width + WIDE - 1) / WIDE), EMBEDDING_BLOCK)),
        EMBEDDING_BLOCK, 0, *a, vector);
}

/* ---- sort ------------------------------------------------------------------------------------ */

enum { SORT_THREADS = 512, DIGIT_BITS = 4, DIGITS = 1 << DIGIT_BITS };

/* Places 0 .. n - 1 in the order of their rows of the table; [2] because each pass reads one pair
 * and writes the other. */
typedef struct row_order {
    int *row[2], *place[2];
    int n, passes;
} row_order;

/* Makes count[digit][thread] the number of keys that come before the first of these: a scan over
 * all digits of all threads. sums is scratch of one number a thread. */
static __device__ void scan_counts(int *count, int *sums)
{
    int t = threadIdx.x, threads = blockDim.x, total = 0;

    for (int i = t * DIGITS; i < (t + 1) * DIGITS; i++)
        total += count[i];
    sums[t] = total;
    __syncthreads();
    for (int step = 1; step < threads; step *= 2) {
        int more = t >= step ? sums[t - step] : 0;
        __syncthreads();
        sums[t] += more;
        __syncthreads();
    }
    int before = sums[t] - total;
    for (int i = t * DIGITS; i < (t + 1) * DIGITS; i++) {
        int here = count[i];
        count[i] = before;
        before += here;
    }
    __syncthreads();
}

/* One stable pass over a digit; each thread has a run of keys, so that order within a digit is that
 * of threads. */
static __device__ void sort_pass(const row_order &o, int pass, int *count, int *sums)
{
    int t = threadIdx.x, threads = blockDim.x, each = (o.n + threads - 1) / threads;
    int begin = at_most((int64_t)t * each, o.n), end = at_most((int64_t)begin + each, o.n);
    bool odd = pass % 2; /* chosen so: an index would put the struct into local memory */
    const int *row = odd ? o.row[1] : o.row[0], *place = odd ? o.place[1] : o.place[0];
    int *to_row = odd ? o.row[0] : o.row[1], *to_place = odd ? o.place[0] : o.place[1];

    for (int digit = 0; digit < DIGITS; digit++)
        count[digit * threads + t] = 0;
    for (int i = begin; i < end; i++)
        count[(row[i] >> (pass * DIGIT_BITS)) % DIGITS * threads + t]++;
    __syncthreads();
    scan_counts(count, sums);
    for (int i = begin; i < end; i++) {
        int to = count[(row[i] >> (pass * DIGIT_BITS)) % DIGITS * threads + t]++;
        to_row[to] = row[i];
        to_place[to] = place[i];
    }
    __syncthreads();
}

/* One block. Ids that are not in the table get the row after its last. */
__global__ void __launch_bounds__(SORT_THREADS)
    sort_rows(row_order o, const int32_t *ids, int64_t first, int64_t rows)
{
    __shared__ int count[DIGITS * SORT_THREADS];
    __shared__ int sums[SORT_THREADS];

    for (int i = threadIdx.x; i < o.n; i += blockDim.x) {
        int64_t row = ids[i] - first;
        o.row[0][i] = (int)(row >= 0 && row < rows ? row : rows);
        o.place[0][i] = i;
    }
    __syncthreads();
    for (int pass = 0; pass < o.passes; pass++)
        sort_pass(o, pass, count, sums);
}

/* ---- backward -------------------------------------------------------------------------------- */

enum {
    ADDED_AT_ONCE = 4, /* rows whose loads are under way together */
    COLUMN_BLOCKS = 64 /* at most; the rest of a wider row comes in turns */
};

/* Adds the gradients of places [begin, end) of the order to eight sums, one after another. */
template <class T>
static __device__ __forceinline__ void add_places(const int *place, int begin, int end,
                                                  const T *dout, int64_t width, int count,
                                                  bool vector, float scale, float sum[WIDE])
{
    for (int k = begin; k < end; k += ADDED_AT_ONCE) {
        float g[ADDED_AT_ONCE][WIDE];
#pragma unroll
        for (int r = 0; r < ADDED_AT_ONCE; r++)
            if (k + r < end)
                load_wide(dout + place[k + r] * width, count, vector, g[r]);
#pragma unroll
        for (int r = 0; r < ADDED_AT_ONCE; r++)
#pragma unroll
            for (int i = 0; i < WIDE; i++)
                if (k + r < end)
                    sum[i] += scale * g[r][i];
    }
}

/* Elements [from, to) of a table, which lie at `at`. */
typedef struct table_part {
    float *at;
    int64_t from, to;
} table_part;

/* The first place after `begin` that is another row's, in order. A run of one, the most frequent,
 * takes one step, and a run of n some 2 log n. */
static __device__ int end_of_run(const int *row, int begin, int n)
{
    int length = 1, same = row[begin];

    while (length < n - begin && row[begin + length] == same)
        length *= 2;
    int end = begin + length / 2 + 1, far = at_most((int64_t)begin + length, n);
    while (end < far) { /* those before end are of the row, the one at far is not or is the end */
        int middle = end + (far - end) / 2;
        if (row[middle] == same)
            end = middle + 1;
        else
            far = middle;
    }
    return far;
}

/* Block k works if the k-th place in order is the first of its row; blocks with the same k share
 * the columns. */
template <class T>
__global__ void __launch_bounds__(EMBEDDING_BLOCK)
    add_sorted_rows(row_order o, const T *dout, float scale, table_part part, int64_t rows,
                    int64_t width, bool vector)
{
    const int *row = o.passes % 2 ? o.row[1] : o.row[0];
    const int *place = o.passes % 2 ? o.place[1] : o.place[0];
    int begin = blockIdx.x;

    if (row[begin] >= rows || (begin > 0 && row[begin - 1] == row[begin]))
        return;
    int end = end_of_run(row, begin, o.n);
    int64_t base = row[begin] * width; /* columns [left, right) of the row lie in the part */
    int64_t left = base < part.from ? part.from - base : 0;
    int64_t right = base + width > part.to ? part.to - base : width;
    int64_t first = ((int64_t)blockIdx.y * EMBEDDING_BLOCK + threadIdx.x) * WIDE;
    for (int64_t j = left + first; j < right; j += (int64_t)gridDim.y * EMBEDDING_BLOCK * WIDE) {
        float *to = part.at + (base - part.from + j), sum[WIDE];
        int count = at_most(right - j, WIDE);
        load_wide(to, count, vector, sum);
        add_places(place, begin, end, dout + j, width, count, vector, scale, sum);
        store_wide(to, count, vector, sum);
    }
}

static int sort_passes(int64_t rows)
{
    int passes = 0;
    while (rows >> (passes * DIGIT_BITS) != 0)
        passes++;
    return passes;
}

static row_order order_in(int *memory, int64_t n, int64_t rows)
{
    row_order o = {};
    o.row[0] = memory;
    o.row[1] = memory + n;
    o.place[0] = memory + 2 * n;
    o.place[1] = memory + 3 * n;
    o.n = (int)n;
    o.passes = sort_passes(rows);
    return o;
}

/* One table: the tokens', or that of positions. */
static ndm_status add_to_table(ndm_stream *stream, const ndm_embedding_backward_args *a,
                               const int32_t *ids, int64_t first, int64_t rows, float scale,
                               table_part part, int *memory)
{
    row_order o = order_in(memory, a->n, rows);
    bool vector = ndm_cuda_aligned(a->dout, a->width) && ndm_cuda_aligned(part.at, part.from);
    int threads = a->n > 4096 ? SORT_THREADS : SORT_THREADS / 4;
    unsigned columns = ndm_cuda_blocks(a->width, EMBEDDING_BLOCK * WIDE);

    columns = columns < COLUMN_BLOCKS ? columns : (unsigned)COLUMN_BLOCKS;

    NDM_TRY(ndm_cuda_launch(stream, "embedding_backward", sort_rows, dim3(1), threads, 0, o, ids,
                            first, rows));
    return ndm_cuda_typed("embedding_backward", "dout_dtype", a->dout_dtype, [&](auto type) {
        using T = decltype(type);
        return ndm_cuda_launch(stream, "embedding_backward", add_sorted_rows<T>,
                               dim3((unsigned)a->n, columns), EMBEDDING_BLOCK, 0, o,
                               (const T *)a->dout, scale, part, rows, a->width, vector);
    });
}

ndm_status ndm_cuda_embedding_backward(ndm_stream *stream, const void *args)
{
    const ndm_embedding_backward_args *a = (const ndm_embedding_backward_args *)args;
    table_part whole = {a->dtable, 0, a->rows * a->width};
    table_part part = {a->dtable, a->part_first, a->part_first + a->part_count};
    table_part positions = {a->dposition_table, 0, a->position_rows * a->width};
    void *memory;

    if (a->n > INT32_MAX / 4 || a->rows >= INT32_MAX)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "kernel embedding_backward: n %lld or rows %lld is beyond int32", (long long)a->n,
                 (long long)a->rows);
    NDM_TRY(ndm_cuda_scratch(stream, 4 * a->n * (int64_t)sizeof(int), &memory));
    if (a->rows > 0)
        NDM_TRY(add_to_table(stream, a, a->ids, a->first, a->rows, a->scale,
                             a->part_count > 0 ? part : whole, (int *)memory));
    if (!a->dposition_table)
        return NDM_OK;
    return add_to_table(stream, a, a->positions, 0, a->position_rows, 1.0f, positions,
                        (int *)memory);
}
