/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of 8-bit numbers: e4m3 for activations and weights, e5m2 for gradients, one scale
 * a tensor, from its present values (Micikevicius et al., "FP8 Formats for Deep Learning", 2022).
 * Nothing is remembered between steps, so a resumed run goes on with the same bits. */
#include "strategies/fp8.h"

#include <stdlib.h>

#include "core/dtype.h"

/* Device memory that a context keeps between calls. */
struct ndm_fp8 {
    float *amax, *scale; /* [NDM_FP8_TENSORS] */
    uint8_t *bytes;
    int64_t n_bytes;
};

static ndm_status open_state(ndm_context *context, struct ndm_fp8 *state)
{
    void *memory;

    NDM_TRY(ndm_device_alloc(context->device, 2 * NDM_FP8_TENSORS * (int64_t)sizeof(float),
                             NDM_MEMORY_WORKSPACE, &memory));
    state->amax = memory;
    state->scale = state->amax + NDM_FP8_TENSORS;
    return NDM_OK;
}

static ndm_status state_of(ndm_context *context, struct ndm_fp8 **state)
{
    if (!context->fp8) {
        context->fp8 = calloc(1, sizeof *context->fp8);
        if (!context->fp8)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for products of 8-bit numbers");
        ndm_status status = open_state(context, context->fp8);
        if (status != NDM_OK) {
            ndm_fp8_finish(context);
            return status;
        }
    }
    *state = context->fp8;
    return NDM_OK;
}

void ndm_fp8_finish(ndm_context *context)
{
    struct ndm_fp8 *state = context->fp8;

    if (!state)
        return;
    ndm_device_free(context->device, state->amax);
    ndm_device_free(context->device, state->bytes);
    free(state);
    context->fp8 = NULL;
}

/* Tensors start on whole cache lines. */
static int64_t room_of(const ndm_fp8_tensor *t)
{
    return (t->rows * t->width + NDM_UNIT_ALIGN - 1) / NDM_UNIT_ALIGN * NDM_UNIT_ALIGN;
}

/* The workspace grows to the largest call and then stays. */
static ndm_status lay_out(ndm_context *context, struct ndm_fp8 *state, ndm_fp8_tensor *t, int n)
{
    int64_t bytes = 0;
    void *memory;

    for (int i = 0; i < n; i++)
        bytes += room_of(&t[i]);
    if (bytes > state->n_bytes) {
        NDM_TRY(ndm_stream_synchronize(context->compute));
        ndm_device_free(context->device, state->bytes);
        state->bytes = NULL;
        state->n_bytes = 0;
        NDM_TRY(ndm_device_alloc(context->device, bytes, NDM_MEMORY_WORKSPACE, &memory));
        state->bytes = memory;
        state->n_bytes = bytes;
    }
    bytes = 0;
    for (int i = 0; i < n; i++) {
        t[i].bytes = state->bytes + bytes;
        t[i].scale = state->scale + i;
        bytes += room_of(&t[i]);
    }
    return NDM_OK;
}

static ndm_status measure(ndm_context *context, const struct ndm_fp8 *state,
                          const ndm_fp8_tensor *tensors, int n)
{
    ndm_stream *stream = context->compute;
    ndm_comm *world;

    NDM_TRY(ndm_zero(stream, state->amax, n * (int64_t)sizeof(float)));
    for (int i = 0; i < n; i++) {
        const ndm_fp8_tensor *t = &tensors[i];
        NDM_TRY(ndm_amax(stream, &(ndm_amax_args){.src = t->src,
                                                  .src_dtype = t->src_dtype,
                                                  .m = t->rows,
                                                  .width = t->width,
                                                  .stride = t->stride,
                                                  .out = state->amax + t->tensor}));
    }
    NDM_TRY(ndm_context_comm(context, NDM_AXES_ALL, &world));
    return ndm_all_reduce(world, state->amax, tensors[n - 1].tensor + 1, NDM_F32, NDM_MAX, stream);
}

ndm_status ndm_fp8_quantize(ndm_context *context, ndm_fp8_tensor *tensors, int n)
{
    struct ndm_fp8 *state;

    NDM_TRY(state_of(context, &state));
    NDM_TRY(lay_out(context, state, tensors, n));
    NDM_TRY(measure(context, state, tensors, n));
    for (int i = 0; i < n; i++) {
        const ndm_fp8_tensor *t = &tensors[i];
        NDM_TRY(ndm_quantize(context->compute, &(ndm_quantize_args){.src = t->src,
                                                                    .src_dtype = t->src_dtype,
                                                                    .dst = t->bytes,
                                                                    .dst_dtype = t->dtype,
                                                                    .m = t->rows,
                                                                    .width = t->width,
                                                                    .stride = t->stride,
                                                                    .amax = state->amax + t->tensor,
                                                                    .scale = t->scale}));
    }
    return NDM_OK;
}

void ndm_fp8_describe(const ndm_context *context, ndm_direction direction, int64_t linears,
                      ndm_traffic_fn emit, void *user)
{
    int64_t n = ndm_context_size(context), calls = direction == NDM_FORWARD ? linears : 2 * linears;

    if (n > 1 && calls > 0)
        emit(user, &(ndm_traffic){"fp8", "scales", direction, NDM_ALL_REDUCE, NDM_AXES_ALL, calls,
                                  calls * (2 * (n - 1) * 2 * (int64_t)sizeof(float) / n)});
}
