/* SPDX-License-Identifier: Apache-2.0 */
/* Known contents: sums of up to hundreds of members are exact in fp32, and 16-bit sums are exact
 * before their one rounding. */
#include "cli/bench_pattern.h"

#include <string.h>

#include "core/dtype.h"

/* 0..7, without structure over members or places. */
static double value(const ndm_pattern *p, int64_t member, int64_t place)
{
    uint64_t x = (uint64_t)(place % NDM_PATTERN_PERIOD) + 1009u * (uint64_t)member + 31u * p->salt;

    x *= 0x9e3779b97f4a7c15u;
    return (double)(x >> 61);
}

static double reduced(const ndm_pattern *p, int64_t place)
{
    double result = value(p, 0, place);

    for (int64_t m = 1; m < p->size; m++) {
        double v = value(p, m, place);
        result = p->op == NDM_SUM ? result + v : v > result ? v : result;
    }
    return result;
}

static void store(ndm_dtype dtype, void *to, double v)
{
    float f = (float)v;
    int32_t i32 = (int32_t)v;
    int64_t i64 = (int64_t)v;

    if (dtype == NDM_F64)
        memcpy(to, &v, sizeof v);
    else if (dtype == NDM_I32)
        memcpy(to, &i32, sizeof i32);
    else if (dtype == NDM_I64)
        memcpy(to, &i64, sizeof i64);
    else
        ndm_convert(&f, NDM_F32, to, dtype, 1);
}

int64_t ndm_pattern_send_count(const ndm_pattern *p)
{
    bool blocks = p->kind == NDM_REDUCE_SCATTER || p->kind == NDM_ALL_TO_ALL;

    return blocks ? p->size * p->count : p->count;
}

int64_t ndm_pattern_recv_count(const ndm_pattern *p)
{
    bool blocks = p->kind == NDM_ALL_GATHER || p->kind == NDM_ALL_TO_ALL;

    return blocks ? p->size * p->count : p->count;
}

/* One period of contents as bytes. `member` -1: the reduction over all. */
typedef struct tile {
    _Alignas(8) char bytes[NDM_PATTERN_PERIOD * 8];
} tile;

static void make_tile(const ndm_pattern *p, int64_t member, tile *t)
{
    int64_t element = (int64_t)ndm_dtype_bytes(p->dtype);

    for (int64_t i = 0; i < NDM_PATTERN_PERIOD; i++)
        store(p->dtype, t->bytes + i * element, member < 0 ? reduced(p, i) : value(p, member, i));
}

void ndm_pattern_fill(const ndm_pattern *p, void *send)
{
    int64_t n = ndm_pattern_send_count(p), element = (int64_t)ndm_dtype_bytes(p->dtype);
    tile t;

    make_tile(p, p->index, &t);
    for (int64_t i = 0; i < n; i += NDM_PATTERN_PERIOD) {
        int64_t part = n - i < NDM_PATTERN_PERIOD ? n - i : NDM_PATTERN_PERIOD;
        memcpy((char *)send + i * element, t.bytes, (size_t)(part * element));
    }
}

/* Elements [0, count) of recv against places first, first + 1, ... of the tile's contents. */
static int64_t count_wrong(const ndm_pattern *p, const tile *t, const char *recv, int64_t first,
                           int64_t count)
{
    int64_t element = (int64_t)ndm_dtype_bytes(p->dtype), wrong = 0;

    for (int64_t i = 0; i < count; i++) {
        int64_t at = (first + i) % NDM_PATTERN_PERIOD;
        wrong += memcmp(recv + i * element, t->bytes + at * element, (size_t)element) != 0;
    }
    return wrong;
}

/* What member m's block of recv holds: whose contents, from which place on. */
static void block_source(const ndm_pattern *p, int64_t m, int64_t *member, int64_t *first)
{
    *first = 0;
    *member = m;
    if (p->kind == NDM_ALL_TO_ALL)
        *first = p->index * p->count;
    if (p->kind == NDM_REDUCE_SCATTER)
        *member = -1, *first = p->index * p->count;
    if (p->kind == NDM_ALL_REDUCE)
        *member = -1;
    if (p->kind == NDM_BROADCAST)
        *member = 0;
    if (p->kind == NDM_SEND_RECV)
        *member = (p->index + p->size - 1) % p->size;
}

int64_t ndm_pattern_count_wrong(const ndm_pattern *p, const void *recv)
{
    int64_t blocks = p->count > 0 ? ndm_pattern_recv_count(p) / p->count : 0, wrong = 0;
    int64_t bytes = p->count * (int64_t)ndm_dtype_bytes(p->dtype);
    tile t;

    for (int64_t m = 0; m < blocks; m++) {
        int64_t member, first;
        block_source(p, m, &member, &first);
        make_tile(p, member, &t);
        wrong += count_wrong(p, &t, (const char *)recv + m * bytes, first, p->count);
    }
    return wrong;
}
