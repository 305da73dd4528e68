/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and sums that bound collectives from below. */
#include "cli/bench_limit.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGNMENT = 4096, STREAMS = 4 };

ndm_status ndm_limit_init(ndm_limit *limit, int64_t bytes)
{
    size_t size = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;

    *limit = (ndm_limit){aligned_alloc(ALIGNMENT, size), aligned_alloc(ALIGNMENT, size), bytes};
    if (limit->from == NULL || limit->to == NULL) {
        ndm_limit_finish(limit);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for two buffers of %zu bytes", size);
    }
    memset(limit->from, 0, size);
    memset(limit->to, 0, size);
    return NDM_OK;
}

void ndm_limit_finish(ndm_limit *limit)
{
    free(limit->from);
    free(limit->to);
    *limit = (ndm_limit){0};
}

bool ndm_limit_exists(ndm_collective kind)
{
    return kind != NDM_BARRIER;
}

/* to[i] = (add ? to[i] : 0) + the sum of k <= STREAMS streams that lie `stride` apart. */
#if defined(__x86_64__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
static void
sum_streams(float *restrict to, const float *restrict from, int64_t stride, int64_t k, int64_t n,
            bool add)
{
    const float *a = from, *b = from + stride, *c = from + 2 * stride, *d = from + 3 * stride;

    if (k == 1)
        for (int64_t i = 0; i < n; i++)
            to[i] = (add ? to[i] : 0.0f) + a[i];
    else if (k == 2)
        for (int64_t i = 0; i < n; i++)
            to[i] = (add ? to[i] : 0.0f) + a[i] + b[i];
    else if (k == 3)
        for (int64_t i = 0; i < n; i++)
            to[i] = (add ? to[i] : 0.0f) + a[i] + b[i] + c[i];
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = (add ? to[i] : 0.0f) + a[i] + b[i] + c[i] + d[i];
}

/* Blocks that stay in the first cache while the streams beyond the fourth are added. */
static void reduce(const ndm_limit *l, int64_t n, int64_t bytes)
{
    enum { BLOCK = 2048 };
    int64_t count = bytes / n / (int64_t)sizeof(float);
    const float *from = (const float *)(const void *)l->from;
    float *to = (float *)(void *)l->to;

    for (int64_t i = 0; i < count; i += BLOCK)
        for (int64_t s = 0; s < n; s += STREAMS) {
            int64_t part = count - i < BLOCK ? count - i : BLOCK;
            int64_t k = n - s < STREAMS ? n - s : STREAMS;
            sum_streams(to + i, from + s * count + i, count, k, part, s > 0);
        }
}

void ndm_limit_work(const ndm_limit *limit, ndm_collective kind, int64_t n, int64_t bytes)
{
    int64_t own = bytes / n;

    if (bytes > limit->bytes)
        bytes = limit->bytes;
    if (kind == NDM_REDUCE_SCATTER || kind == NDM_ALL_REDUCE)
        reduce(limit, n, bytes);
    else if (kind == NDM_ALL_GATHER || kind == NDM_ALL_TO_ALL)
        memcpy(limit->to, limit->from, (size_t)(bytes - own));
    else if (kind != NDM_BARRIER)
        memcpy(limit->to, limit->from, (size_t)bytes);
}
