/* SPDX-License-Identifier: Apache-2.0 */
/* What a backward makes again is what the forward wrote, to the bit: a model keeps the one and
 * reads the other. */
#include "again.h"

#include <string.h>

#include "core/dtype.h"
#include "device/device.h"

enum { ROWS = 5, WIDEST = 1030, ARRAYS_MAX = 12 };

static const int64_t widths[] = {WIDEST, 128, 33}; /* blocks and warps of rows, with remainders */
enum { WIDTHS = sizeof widths / sizeof widths[0] };

/* Arrays in the memory of a world. */
typedef struct arrays {
    const world *w;
    void *base[ARRAYS_MAX];
    int n;
} arrays;

static void *zeros(arrays *a, int64_t bytes)
{
    void **base = &a->base[a->n++];

    assert_ok(ndm_device_alloc(a->w->device, bytes, NDM_MEMORY_WORKSPACE, base));
    assert_ok(ndm_zero(a->w->stream, *base, bytes));
    return *base;
}

static void *numbers(arrays *a, int64_t n, ndm_dtype dtype, const char *name)
{
    static float wide[ROWS * 2 * WIDEST];
    static uint16_t narrow[ROWS * 2 * WIDEST];
    int64_t bytes = n * (int64_t)ndm_dtype_bytes(dtype);
    void *to = zeros(a, bytes);

    test_fill(wide, n, name);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = ndm_f32_to_bf16(wide[i]);
    const void *from = dtype == NDM_F32 ? (const void *)wide : narrow;
    assert_ok(ndm_copy(a->w->stream, to, from, bytes, NDM_HOST_TO_DEVICE));
    assert_ok(ndm_stream_synchronize(a->w->stream)); /* the next call fills these again */
    return to;
}

static void finish(arrays *a)
{
    for (int i = 0; i < a->n; i++)
        ndm_device_free(a->w->device, a->base[i]);
}

static void assert_same_bits(const world *w, const void *y, const void *again, int64_t bytes)
{
    static unsigned char a[ROWS * WIDEST * sizeof(float)], b[sizeof a];

    assert_ok(ndm_copy(w->stream, a, y, bytes, NDM_DEVICE_TO_HOST));
    assert_ok(ndm_copy(w->stream, b, again, bytes, NDM_DEVICE_TO_HOST));
    assert_ok(ndm_stream_synchronize(w->stream));
    assert_memory_equal(a, b, (size_t)bytes);
}

static void norm_again(const world *w, bool layer, ndm_dtype dtype, ndm_dtype weights,
                       int64_t width)
{
    arrays a = {.w = w};
    int64_t n = ROWS * width, bytes = n * (int64_t)ndm_dtype_bytes(dtype),
            row_bytes = width * (int64_t)sizeof(float);
    ndm_norm_args forward = {.layer_norm = layer,
                             .x_dtype = dtype,
                             .x = numbers(&a, n, dtype, "x"),
                             .weight = numbers(&a, width, weights, "weight"),
                             .bias = layer ? numbers(&a, width, weights, "bias") : NULL,
                             .dtype = weights,
                             .eps = 1e-5f,
                             .weight_offset = layer ? 0.0f : 1.0f,
                             .n = ROWS,
                             .width = width,
                             .y = zeros(&a, bytes),
                             .mean = zeros(&a, ROWS * (int64_t)sizeof(float)),
                             .rstd = zeros(&a, ROWS * (int64_t)sizeof(float))};
    void *dy = numbers(&a, n, dtype, "dy");
    ndm_norm_backward_args backward = {.layer_norm = layer,
                                       .accumulate = true,
                                       .x_dtype = dtype,
                                       .x = forward.x,
                                       .dy = dy,
                                       .mean = forward.mean,
                                       .rstd = forward.rstd,
                                       .weight = forward.weight,
                                       .bias = forward.bias,
                                       .dtype = weights,
                                       .weight_offset = forward.weight_offset,
                                       .n = ROWS,
                                       .width = width,
                                       .dx = zeros(&a, bytes),
                                       .y = dy,
                                       .dweight = zeros(&a, row_bytes),
                                       .dbias = zeros(&a, row_bytes),
                                       .workspace = zeros(&a, ndm_norm_workspace_bytes(width))};

    assert_ok(ndm_norm(w->stream, &forward));
    assert_ok(ndm_norm_backward(w->stream, &backward));
    assert_same_bits(w, forward.y, dy, bytes);
    finish(&a);
}

void check_norm_again(const world *w)
{
    for (int i = 0; i < 8 * WIDTHS; i++)
        norm_again(w, i & 1, i & 2 ? NDM_BF16 : NDM_F32, i & 4 ? NDM_BF16 : NDM_F32, widths[i / 8]);
}

static void act_again(const world *w, ndm_activation activation, bool gated, ndm_dtype dtype,
                      int64_t width)
{
    arrays a = {.w = w};
    int64_t n = ROWS * width, bytes = n * (int64_t)ndm_dtype_bytes(dtype);
    void *x = numbers(&a, gated ? 2 * n : n, dtype, "x"), *dy = numbers(&a, n, dtype, "dy");
    ndm_act_args forward = {.activation = activation,
                            .gated = gated,
                            .x_dtype = dtype,
                            .x = x,
                            .y = zeros(&a, bytes),
                            .n = ROWS,
                            .width = width};
    ndm_act_backward_args backward = {.activation = activation,
                                      .gated = gated,
                                      .x_dtype = dtype,
                                      .x = x,
                                      .dy = dy,
                                      .dx = x,
                                      .y = dy,
                                      .n = ROWS,
                                      .width = width};

    assert_ok(ndm_act(w->stream, &forward));
    assert_ok(ndm_act_backward(w->stream, &backward));
    assert_same_bits(w, forward.y, dy, bytes);
    finish(&a);
}

void check_act_again(const world *w)
{
    for (int i = 0; i < 4 * WIDTHS; i++)
        for (int activation = NDM_SILU; activation <= NDM_GELU_ERF; activation++)
            act_again(w, (ndm_activation)activation, i & 1, i & 2 ? NDM_BF16 : NDM_F32,
                      widths[i / 4]);
}
