/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that products take as 8-bit numbers, gathered as such: a byte an element on the wire.
 *
 * Each rank measures its stretches of every group; the largest magnitude is agreed over all ranks
 * that share the group, so its scale is that of the whole tensor. A rank's message is its stretches
 * one behind the other: bytes of a group's, others as they are. What arrives is widened into the
 * gathered array. Scales are powers of two, and so quantizing that again, as products do, finds the
 * same numbers as it would in weights that were gathered whole: the results are the same bits. */
#include <stdlib.h>

#include "core/dtype.h"
#include "strategies/internal.h"

/* Who has a part of the same tensors. */
#define SHARERS (NDM_AXES_DP_SHARD_CP | NDM_AXIS_TP)

/* Of one rank and one parameter. */
typedef struct stretch {
    int64_t rank, start, count; /* in the unit's flat array */
    int64_t group;              /* number in order of appearance, or -1 */
    int64_t at;                 /* bytes in the rank's message */
} stretch;

struct ndm_gather_eight {
    stretch *stretches; /* [n], by rank and place */
    int64_t n, n_groups, bytes;
    float *amax, *scale; /* device, [n_groups] */
    ndm_comm *sharers;
};

/* Groups are numbered by their first parameter. */
static int64_t group_of(const ndm_unit *u, int64_t param)
{
    int64_t n = 0, wanted = u->params[param].spec.fp8_group;

    if (wanted == 0)
        return -1;
    for (int64_t i = 0; i < u->n_params; i++) {
        bool first = u->params[i].spec.fp8_group != 0;
        if (u->params[i].spec.fp8_group == wanted)
            return n;
        for (int64_t j = 0; j < i; j++)
            first = first && u->params[j].spec.fp8_group != u->params[i].spec.fp8_group;
        n += first;
    }
    return -1;
}

static int64_t bytes_of(const ndm_unit *u, const stretch *s)
{
    int64_t element = s->group < 0 ? (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype) : 1;

    return (s->count * element + NDM_UNIT_ALIGN - 1) / NDM_UNIT_ALIGN * NDM_UNIT_ALIGN;
}

/* The part of a parameter in a rank's slice; false if there is none. */
static bool cut(const ndm_unit *u, int64_t rank, int64_t param, stretch *s)
{
    const ndm_param *p = &u->params[param];
    int64_t begin = rank * u->slice, end = begin + u->slice;
    int64_t from = p->start > begin ? p->start : begin;
    int64_t to = p->start + p->numel < end ? p->start + p->numel : end;

    *s = (stretch){.rank = rank, .start = from, .count = to - from};
    return from < to;
}

static void list_stretches(const ndm_unit *u, struct ndm_gather_eight *e)
{
    stretch s;

    for (int64_t rank = 0; rank < u->shards; rank++) {
        int64_t at = 0;
        for (int64_t i = 0; i < u->n_params; i++) {
            if (!cut(u, rank, i, &s))
                continue;
            s.group = group_of(u, i);
            s.at = at;
            at += bytes_of(u, &s);
            e->n_groups = s.group >= e->n_groups ? s.group + 1 : e->n_groups;
            e->stretches[e->n++] = s;
        }
        e->bytes = at > e->bytes ? at : e->bytes;
    }
}

static bool has_groups(const ndm_unit *u)
{
    for (int64_t i = 0; i < u->n_params; i++)
        if (u->params[i].spec.fp8_group != 0)
            return true;
    return false;
}

ndm_status ndm_gather_eight_create(ndm_unit *u)
{
    struct ndm_gather_eight *e;
    void *memory;

    if (!u->fsdp.fp8_gather || u->shards == 1 || !has_groups(u))
        return NDM_OK;
    u->eight = e = calloc(1, sizeof *e);
    if (!e || !(e->stretches = calloc((size_t)(u->n_params + u->shards), sizeof *e->stretches)))
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the 8-bit weights of unit %s", u->name);
    list_stretches(u, e);
    NDM_TRY(ndm_context_comm(u->context, SHARERS, &e->sharers));
    NDM_TRY(ndm_device_alloc(u->context->device, 2 * e->n_groups * (int64_t)sizeof(float),
                             NDM_MEMORY_WORKSPACE, &memory));
    e->amax = memory;
    e->scale = e->amax + e->n_groups;
    return NDM_OK;
}

void ndm_gather_eight_destroy(ndm_unit *u)
{
    if (!u->eight)
        return;
    ndm_device_free(u->context->device, u->eight->amax);
    free(u->eight->stretches);
    free(u->eight);
    u->eight = NULL;
}

int64_t ndm_gather_eight_bytes(const ndm_unit *unit)
{
    return unit->eight->bytes;
}

void ndm_gather_eight_describe(const ndm_unit *unit, ndm_direction direction, ndm_traffic_fn emit,
                               void *user)
{
    const struct ndm_gather_eight *e = unit->eight;
    int64_t n = ndm_comm_size(e->sharers);

    emit(user, &(ndm_traffic){"fp8", "scales", direction, NDM_ALL_REDUCE, SHARERS, 1,
                              2 * (n - 1) * e->n_groups * (int64_t)sizeof(float) / n});
}

/* A stretch of this rank in its slice. */
static const void *source_of(const ndm_unit *u, const stretch *s, const void *slice)
{
    return (const char *)slice +
           (s->start - u->index * u->slice) * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);
}

static ndm_status measure(const ndm_unit *u, const void *slice, ndm_stream *stream)
{
    const struct ndm_gather_eight *e = u->eight;

    NDM_TRY(ndm_zero(stream, e->amax, e->n_groups * (int64_t)sizeof(float)));
    for (int64_t i = 0; i < e->n; i++) {
        const stretch *s = &e->stretches[i];
        if (s->rank == u->index && s->group >= 0)
            NDM_TRY(ndm_amax(stream, &(ndm_amax_args){.src = source_of(u, s, slice),
                                                      .src_dtype = u->fsdp.param_dtype,
                                                      .m = 1,
                                                      .width = s->count,
                                                      .stride = s->count,
                                                      .out = e->amax + s->group}));
    }
    return ndm_all_reduce(e->sharers, e->amax, e->n_groups, NDM_F32, NDM_MAX, stream);
}

static ndm_status quantize(const ndm_unit *u, const stretch *s, const void *src, uint8_t *dst,
                           ndm_stream *stream)
{
    int64_t count = s->rank == u->index ? s->count : 0;

    return ndm_quantize(stream, &(ndm_quantize_args){.src = src,
                                                     .src_dtype = u->fsdp.param_dtype,
                                                     .dst = dst,
                                                     .dst_dtype = NDM_F8E4M3,
                                                     .m = count > 0 ? 1 : 0,
                                                     .width = count,
                                                     .stride = count,
                                                     .amax = u->eight->amax + s->group,
                                                     .scale = u->eight->scale + s->group});
}

/* This rank's message; of groups that lie elsewhere the scale alone. */
static ndm_status pack(const ndm_unit *u, const void *slice, char *message, ndm_stream *stream)
{
    const struct ndm_gather_eight *e = u->eight;

    for (int64_t i = 0; i < e->n; i++) {
        const stretch *s = &e->stretches[i];
        const void *src = s->rank == u->index ? source_of(u, s, slice) : NULL;
        if (s->group >= 0)
            NDM_TRY(quantize(u, s, src, (uint8_t *)message + s->at, stream));
        else if (src)
            NDM_TRY(ndm_copy(stream, message + s->at, src,
                             s->count * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype),
                             NDM_DEVICE_TO_DEVICE));
    }
    return NDM_OK;
}

static ndm_status unpack(const ndm_unit *u, const char *messages, ndm_stream *stream)
{
    const struct ndm_gather_eight *e = u->eight;
    int64_t element = (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);

    for (int64_t i = 0; i < e->n; i++) {
        const stretch *s = &e->stretches[i];
        const char *from = messages + s->rank * e->bytes + s->at;
        char *to = (char *)ndm_unit_whole(u) + s->start * element;
        if (s->group < 0)
            NDM_TRY(ndm_copy(stream, to, from, s->count * element, NDM_DEVICE_TO_DEVICE));
        else
            NDM_TRY(ndm_dequantize(stream, &(ndm_dequantize_args){.src = (const uint8_t *)from,
                                                                  .src_dtype = NDM_F8E4M3,
                                                                  .scale = e->scale + s->group,
                                                                  .dst = to,
                                                                  .dst_dtype = u->fsdp.param_dtype,
                                                                  .n = s->count}));
    }
    return NDM_OK;
}

ndm_status ndm_gather_eight_run(ndm_unit *unit, const void *slice, ndm_stream *stream)
{
    struct ndm_gather_eight *e = unit->eight;
    ndm_pool_buffer *staging;

    NDM_TRY(measure(unit, slice, stream));
    NDM_TRY(
        ndm_pool_take(unit->context, unit->shards * e->bytes, NDM_MEMORY_COMM, stream, &staging));
    char *messages = staging->memory, *own = messages + unit->index * e->bytes;
    NDM_TRY(pack(unit, slice, own, stream));
    NDM_TRY(ndm_all_gather(unit->shard, own, messages, e->bytes, NDM_U8, stream));
    NDM_TRY(unpack(unit, messages, stream));
    return ndm_pool_give(staging, stream);
}
