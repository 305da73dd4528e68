/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of ops: contents, runs on a device, comparison with the reference. */
#include "kernels/cases.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"

enum { GUARD = 64, GUARD_BYTE = 0xff };

/* Largest |difference| / (|reference| + scale) of fp32 results. An fp32 sum of n random terms is
 * off by about sqrt(n) * 6e-8 of one term; `scale` of the buffers holds sqrt(n). 0: the bits are
 * defined, there is nothing to round. */
static const double tolerances[NDM_OP_COUNT] = {
    [NDM_OP_gemm] = 4e-6,               /* blocked fp32 sums over up to 1000 terms */
    [NDM_OP_embedding] = 2e-7,          /* a product and a sum, fused or not */
    [NDM_OP_embedding_backward] = 1e-6, /* same order, fused or not, over repeats of an id */
    [NDM_OP_norm] = 4e-6,               /* fp32 mean of squares, reciprocal root */
    [NDM_OP_norm_backward] = 1e-5,      /* two row sums, one over rows */
    [NDM_OP_rope] = 1e-6,               /* two products and a sum */
    [NDM_OP_attention] = 1e-5, /* polynomial exp at 2e-7, scores in fp32, exponents up to 10 */
    [NDM_OP_attention_backward] = 4e-5, /* the same, differences dp - delta */
    [NDM_OP_attention_merge] = 4e-6,    /* exp and log of lse near 10 */
    [NDM_OP_act] = 4e-6,                /* polynomial exp, tanh, erf */
    [NDM_OP_act_backward] = 8e-6,
    [NDM_OP_ce_stats] = 4e-6, /* fp32 sums over blocks */
    [NDM_OP_ce_merge] = 4e-6,
    [NDM_OP_ce_apply] = 8e-6, /* exp(x - max) with |x| near 10 */
    [NDM_OP_adamw] = 2e-6,    /* fp32 moments, root, quotient */
    [NDM_OP_sumsq] = 1e-12,   /* sums in double */
    [NDM_OP_add] = 2e-7,      /* fused or not */
    [NDM_OP_colsum] = 4e-6,   /* fp32 sums over rows */
};

double ndm_case_tolerance(ndm_op op)
{
    return tolerances[op];
}

/* One unit in the last place, twice the rounding error. */
static double unit_of(ndm_dtype dtype)
{
    return dtype == NDM_BF16 ? 0x1p-7 : 0x1p-10;
}

/* Of a chain of k terms the rounding errors grow with the square root of k, beside the sum itself:
 * of millions of elements, some of a long one are off by more than any of a short one. */
static double long_sum(const ndm_case *c)
{
    const double terms = 256; /* that the tolerance is for */
    double k = c->op == NDM_OP_gemm ? (double)c->args.gemm.k : 0.0;

    return k > terms ? sqrt(k / terms) : 1.0;
}

/* Half-width results may round to the neighbour. Attention may round its probabilities and their
 * gradients to the type of its inputs, which is what matrix units take. */
static double buffer_tolerance(const ndm_case *c, const ndm_case_buffer *b)
{
    bool matrices = c->op == NDM_OP_attention || c->op == NDM_OP_attention_backward;
    bool sum = b->dtype == NDM_F32 || b->dtype == NDM_F64;

    if (tolerances[c->op] == 0.0 || (sum && (b->exact || c->activations == NDM_F32 || !matrices)))
        return tolerances[c->op] * long_sum(c);
    return unit_of(sum ? c->activations : b->dtype);
}

ndm_case_buffer *ndm_case_add(ndm_case *c, const char *name, size_t slot, ndm_dtype dtype,
                              int64_t rows, int64_t width, int64_t stride)
{
    ndm_case_buffer *b = &c->buffer[c->buffers++];
    *b = (ndm_case_buffer){.name = name,
                           .dtype = dtype,
                           .rows = rows,
                           .width = width,
                           .stride = stride,
                           .high = 1.0,
                           .scale = 1.0,
                           .slot = {slot},
                           .slots = 1};
    return b;
}

void ndm_case_alias(ndm_case_buffer *buffer, size_t slot)
{
    buffer->slot[buffer->slots++] = slot;
}

/* ---- images ---------------------------------------------------------------------------------- */

static int64_t data_offset(const ndm_case_buffer *b, int64_t misalign)
{
    return GUARD + misalign * (int64_t)ndm_dtype_bytes(b->dtype);
}

static int64_t image_bytes(const ndm_case_buffer *b, int64_t misalign)
{
    return data_offset(b, misalign) + b->rows * b->stride * (int64_t)ndm_dtype_bytes(b->dtype) +
           GUARD;
}

int64_t ndm_case_bytes(const ndm_case *c)
{
    int64_t bytes = 0;
    for (int i = 0; i < c->buffers; i++)
        bytes += c->buffer[i].rows * c->buffer[i].width *
                 (int64_t)ndm_dtype_bytes(c->buffer[i].dtype);
    return bytes;
}

static void bind(ndm_case *c, int buffer, unsigned char *data)
{
    const ndm_case_buffer *b = &c->buffer[buffer];
    for (int i = 0; i < b->slots; i++)
        memcpy((char *)&c->args + b->slot[i], &data, sizeof data);
}

static void set_element(const ndm_case_buffer *b, void *data, int64_t at, double value)
{
    float f = (float)value;
    if (b->dtype == NDM_I32)
        ((int32_t *)data)[at] = (int32_t)floor(value);
    else if (b->dtype == NDM_I64)
        ((int64_t *)data)[at] = (int64_t)floor(value);
    else if (b->dtype == NDM_U8)
        ((uint8_t *)data)[at] = (uint8_t)floor(value);
    else if (b->dtype == NDM_F64)
        ((double *)data)[at] = value;
    else
        ndm_convert(&f, NDM_F32, (char *)data + at * (int64_t)ndm_dtype_bytes(b->dtype), b->dtype,
                    1);
}

static double get_element(const ndm_case_buffer *b, const void *data, int64_t at)
{
    float f;
    if (b->dtype == NDM_I32)
        return ((const int32_t *)data)[at];
    if (b->dtype == NDM_I64)
        return (double)((const int64_t *)data)[at];
    if (b->dtype == NDM_U8)
        return ((const uint8_t *)data)[at];
    if (b->dtype == NDM_F64)
        return ((const double *)data)[at];
    ndm_convert((const char *)data + at * (int64_t)ndm_dtype_bytes(b->dtype), b->dtype, &f, NDM_F32,
                1);
    return f;
}

/* Sum of four uniform numbers, with the mean 0 and the variance 1: near enough to normal, and
 * cheap. */
static double bell(uint64_t seed, uint64_t stream, uint64_t index)
{
    uint64_t bits = ndm_rng_u64(seed, stream, index);
    double sum = 0.0;
    for (int i = 0; i < 4; i++)
        sum += (double)((bits >> (16 * i)) & 0xffff);
    return (sum / 65535.0 - 2.0) * 1.7320508;
}

static void fill(const ndm_case_buffer *b, void *data, uint64_t seed, uint64_t stream)
{
    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t col = 0; col < b->width; col++) {
            uint64_t index = (uint64_t)(row * b->width + col);
            double value = b->fill == NDM_FILL_NORMAL
                               ? b->high * bell(seed, stream, index)
                               : b->low + (b->high - b->low) * ndm_rng_uniform(seed, stream, index);
            set_element(b, data, row * b->stride + col, value);
        }
}

static ndm_status image_alloc(const ndm_case *c, int64_t misalign, ndm_case_data *data)
{
    *data = (ndm_case_data){.misalign = misalign};
    for (int i = 0; i < c->buffers; i++) {
        size_t bytes = (size_t)image_bytes(&c->buffer[i], misalign);
        data->image[i] = aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!data->image[i]) {
            ndm_case_data_finish(data);
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for %zu bytes of %s", c->label, bytes,
                     c->buffer[i].name);
        }
        memset(data->image[i], GUARD_BYTE, bytes);
    }
    return NDM_OK;
}

ndm_status ndm_case_data_init(const ndm_case *c, uint64_t seed, int64_t misalign,
                              ndm_case_data *data)
{
    ndm_case bound = *c;
    ndm_status status;

    NDM_TRY(image_alloc(c, misalign, data));
    for (int i = 0; i < c->buffers; i++) {
        unsigned char *start = data->image[i] + data_offset(&c->buffer[i], misalign);
        if (!c->buffer[i].scratch)
            fill(&c->buffer[i], start, seed, (uint64_t)i);
        bind(&bound, i, start);
    }
    if (!c->prepare)
        return NDM_OK;
    NDM_TRY_OR(status, c->prepare(&bound), undo);
    return NDM_OK;
undo:
    ndm_case_data_finish(data);
    return status;
}

ndm_status ndm_case_data_copy(const ndm_case *c, const ndm_case_data *from, ndm_case_data *data)
{
    NDM_TRY(image_alloc(c, from->misalign, data));
    for (int i = 0; i < c->buffers; i++)
        memcpy(data->image[i], from->image[i], (size_t)image_bytes(&c->buffer[i], from->misalign));
    return NDM_OK;
}

double ndm_case_value(const ndm_case *c, const ndm_case_data *data, int buffer, int64_t row,
                      int64_t col)
{
    const ndm_case_buffer *b = &c->buffer[buffer];
    return get_element(b, data->image[buffer] + data_offset(b, data->misalign),
                       row * b->stride + col);
}

void ndm_case_set_value(const ndm_case *c, ndm_case_data *data, int buffer, int64_t row,
                        int64_t col, double value)
{
    const ndm_case_buffer *b = &c->buffer[buffer];
    set_element(b, data->image[buffer] + data_offset(b, data->misalign), row * b->stride + col,
                value);
}

void ndm_case_data_finish(ndm_case_data *data)
{
    for (int i = 0; i < NDM_CASE_BUFFERS; i++)
        free(data->image[i]);
    *data = (ndm_case_data){0};
}

/* ---- runs ------------------------------------------------------------------------------------ */

ndm_status ndm_case_upload(ndm_case *c, const ndm_case_data *data, ndm_stream *stream,
                           ndm_case_memory *memory)
{
    ndm_status status;

    *memory = (ndm_case_memory){.device = ndm_stream_device(stream)};
    for (int i = 0; i < c->buffers; i++) {
        int64_t bytes = image_bytes(&c->buffer[i], data->misalign);
        NDM_TRY_OR(status,
                   ndm_device_alloc(memory->device, bytes, NDM_MEMORY_WORKSPACE, &memory->image[i]),
                   undo);
        NDM_TRY_OR(status,
                   ndm_copy(stream, memory->image[i], data->image[i], bytes, NDM_HOST_TO_DEVICE),
                   undo);
        bind(c, i, (unsigned char *)memory->image[i] + data_offset(&c->buffer[i], data->misalign));
    }
    return NDM_OK;
undo:
    ndm_case_release(memory);
    return status;
}

ndm_status ndm_case_launch(const ndm_case *c, ndm_stream *stream)
{
    switch (c->op) {
#define LAUNCH_CASE(name, doc) \
    case NDM_OP_##name:        \
        return ndm_##name(stream, &c->args.name);
        NDM_KERNEL_LIST(LAUNCH_CASE)
#undef LAUNCH_CASE
    case NDM_OP_COUNT:
        break;
    }
    NDM_FAIL(NDM_ERR_USAGE, "case of the unknown op %d", (int)c->op);
}

ndm_status ndm_case_download(const ndm_case *c, const ndm_case_memory *memory, ndm_stream *stream,
                             ndm_case_data *data)
{
    for (int i = 0; i < c->buffers; i++)
        NDM_TRY(ndm_copy(stream, data->image[i], memory->image[i],
                         image_bytes(&c->buffer[i], data->misalign), NDM_DEVICE_TO_HOST));
    return ndm_stream_synchronize(stream);
}

void ndm_case_release(ndm_case_memory *memory)
{
    for (int i = 0; i < NDM_CASE_BUFFERS; i++)
        ndm_device_free(memory->device, memory->image[i]);
    *memory = (ndm_case_memory){0};
}

static ndm_status run_bound(const ndm_case *c, const ndm_case_memory *memory, ndm_stream *stream,
                            ndm_case_data *after)
{
    NDM_TRY(ndm_case_launch(c, stream));
    return ndm_case_download(c, memory, stream, after);
}

ndm_status ndm_case_run(const ndm_case *c, const ndm_case_data *before, ndm_stream *stream,
                        ndm_case_data *after)
{
    ndm_case bound = *c;
    ndm_case_memory memory;

    NDM_TRY(image_alloc(c, before->misalign, after));
    ndm_status status = ndm_case_upload(&bound, before, stream, &memory);
    if (status == NDM_OK) {
        status = run_bound(&bound, &memory, stream, after);
        ndm_case_release(&memory);
    }
    if (status != NDM_OK)
        ndm_case_data_finish(after);
    return status;
}

/* ---- comparison ------------------------------------------------------------------------------ */

bool ndm_case_same_bits(const ndm_case *c, const ndm_case_data *a, const ndm_case_data *b)
{
    for (int i = 0; i < c->buffers; i++)
        if (!c->buffer[i].scratch &&
            memcmp(a->image[i], b->image[i], (size_t)image_bytes(&c->buffer[i], a->misalign)) != 0)
            return false;
    return true;
}

/* Bytes [from, to) of buffer i must be as before. */
static ndm_status compare_untouched(const ndm_case *c, int i, const ndm_case_data *before,
                                    const ndm_case_data *after, int64_t from, int64_t to)
{
    const unsigned char *x = before->image[i], *y = after->image[i];
    const ndm_case_buffer *b = &c->buffer[i];

    if (from >= to || memcmp(x + from, y + from, (size_t)(to - from)) == 0)
        return NDM_OK;
    while (x[from] == y[from])
        from++;
    NDM_FAIL(NDM_ERR_CHECK,
             "%s: byte %lld of %s was written (rows %lld, width %lld, stride %lld)%s", c->label,
             (long long)(from - data_offset(b, before->misalign)), b->name, (long long)b->rows,
             (long long)b->width, (long long)b->stride, b->output ? "" : "; it is an input");
}

/* Everything around the rows of an output, or all of an input, must be as before. */
static ndm_status compare_guards(const ndm_case *c, int i, const ndm_case_data *before,
                                 const ndm_case_data *after)
{
    const ndm_case_buffer *b = &c->buffer[i];
    int64_t element = (int64_t)ndm_dtype_bytes(b->dtype), at = 0;

    for (int64_t row = 0; row < b->rows && b->output; row++) {
        int64_t start = data_offset(b, before->misalign) + row * b->stride * element;
        NDM_TRY(compare_untouched(c, i, before, after, at, start));
        at = start + b->width * element;
    }
    return compare_untouched(c, i, before, after, at, image_bytes(b, before->misalign));
}

/* Root mean square of what is finite. */
static double buffer_rms(const ndm_case_buffer *b, const void *data)
{
    double sum = 0.0;
    int64_t count = 0;

    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t col = 0; col < b->width; col++) {
            double x = get_element(b, data, row * b->stride + col);
            sum += isfinite(x) ? x * x : 0.0;
            count += isfinite(x);
        }
    return count ? sqrt(sum / (double)count) : 0.0;
}

/* NaN equals NaN, an infinity itself. */
static double difference(double x, double reference, double scale)
{
    if (x == reference || (isnan(x) && isnan(reference)))
        return 0.0;
    double d = fabs(x - reference) / (fabs(reference) + scale);
    return isnan(d) ? INFINITY : d;
}

static ndm_status compare_output(const ndm_case *c, int i, const ndm_case_data *reference,
                                 const ndm_case_data *after, double *error)
{
    const ndm_case_buffer *b = &c->buffer[i];
    int64_t offset = data_offset(b, after->misalign);
    const void *expected = reference->image[i] + offset, *got = after->image[i] + offset;
    double tolerance = buffer_tolerance(c, b), rms = buffer_rms(b, expected);
    double scale = rms > b->scale ? rms : b->scale;

    for (int64_t row = 0; row < b->rows; row++)
        for (int64_t col = 0; col < b->width; col++) {
            double x = get_element(b, got, row * b->stride + col);
            double y = get_element(b, expected, row * b->stride + col);
            double d = difference(x, y, scale);
            *error = d > *error ? d : *error;
            if (d > tolerance)
                NDM_FAIL(NDM_ERR_CHECK,
                         "%s: %s[%lld][%lld] is %.9g, the reference %.9g: off by %.2g of %.2g, "
                         "tolerance %.2g",
                         c->label, b->name, (long long)row, (long long)col, x, y, d, scale,
                         tolerance);
        }
    return NDM_OK;
}

ndm_status ndm_case_compare(const ndm_case *c, const ndm_case_data *before,
                            const ndm_case_data *reference, const ndm_case_data *after,
                            double *error)
{
    double worst = 0.0;

    for (int i = 0; i < c->buffers; i++) {
        NDM_TRY(compare_guards(c, i, before, after));
        if (c->buffer[i].output && !c->buffer[i].scratch)
            NDM_TRY(compare_output(c, i, reference, after, &worst));
    }
    if (error)
        *error = worst;
    return NDM_OK;
}
