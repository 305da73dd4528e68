/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the strategies of a context, in their order. What no strategy does is the identity. */
#include "strategies/internal.h"

/* Runs a hook of every strategy that has it. */
#define WALK(context, hook, ...)                                         \
    for (int64_t walk_i = 0; walk_i < (context)->n_strategies; walk_i++) \
        if ((context)->strategies[walk_i]->hook)                         \
    NDM_TRY((context)->strategies[walk_i]->hook(__VA_ARGS__))

ndm_status ndm_engine_unit_enter(ndm_unit *unit, ndm_unit *next)
{
    ndm_context *c = unit->context;

    WALK(c, unit_enter, c, unit, c->compute);
    return next ? ndm_unit_prefetch(next, c->compute) : NDM_OK;
}

ndm_status ndm_engine_unit_leave(ndm_unit *unit)
{
    ndm_context *c = unit->context;

    WALK(c, unit_leave, c, unit, c->compute);
    return NDM_OK;
}

ndm_status ndm_engine_check(ndm_context *context, const ndm_demands *demands)
{
    WALK(context, check, context, demands);
    return NDM_OK;
}

ndm_status ndm_engine_batch(ndm_context *context, int32_t *picks, int64_t *n)
{
    for (int64_t i = 0; i < *n; i++)
        picks[i] = (int32_t)i;
    WALK(context, batch, context, picks, n);
    return NDM_OK;
}

ndm_status ndm_engine_region(ndm_context *context, bool in, ndm_direction direction, void *x,
                             void *full, int64_t rows, int64_t width, ndm_dtype dtype,
                             ndm_stream *stream)
{
    if (in) {
        WALK(context, linear_in, context, direction, x, full, rows, width, dtype, stream);
    } else {
        WALK(context, linear_out, context, direction, x, full, rows, width, dtype, stream);
    }
    return NDM_OK;
}

ndm_status ndm_engine_linear_in(ndm_context *context, ndm_direction direction, void *x, void *full,
                                int64_t rows, int64_t width, ndm_dtype dtype)
{
    return ndm_engine_region(context, true, direction, x, full, rows, width, dtype,
                             context->compute);
}

ndm_status ndm_engine_linear_out(ndm_context *context, ndm_direction direction, void *x, void *full,
                                 int64_t rows, int64_t width, ndm_dtype dtype)
{
    return ndm_engine_region(context, false, direction, x, full, rows, width, dtype,
                             context->compute);
}

ndm_status ndm_engine_loss_stats(ndm_context *context, float *stats, float *all, int64_t rows)
{
    WALK(context, loss_stats, context, stats, all, rows, context->compute);
    return NDM_OK;
}

/* Attention of a whole sequence: one kernel. */
static ndm_status attention_whole(ndm_context *context, ndm_direction direction,
                                  const ndm_attention_call *call)
{
    ndm_attention_args forward = {
        .x_dtype = call->dtype,
        .out_dtype = call->dtype,
        .q = call->q,
        .k = call->k,
        .v = call->v,
        .q_stride = call->qkv_stride,
        .k_stride = call->qkv_stride,
        .v_stride = call->qkv_stride,
        .batch = call->batch,
        .tq = call->tokens,
        .tk = call->tokens,
        .heads = call->heads,
        .kv_heads = call->kv_heads,
        .head_dim = call->head_dim,
        .scale = call->scale,
        .causal = true,
        .q_first = call->first,
        .out = call->out,
        .out_stride = call->out_stride,
        .lse = call->lse,
    };
    if (direction == NDM_FORWARD)
        return ndm_attention(context->compute, &forward);
    return ndm_attention_backward(context->compute, &(ndm_attention_backward_args){
                                                        .forward = forward,
                                                        .dout = call->dout,
                                                        .dout_stride = call->dout_stride,
                                                        .make_delta = true,
                                                        .delta = call->delta,
                                                        .d_dtype = call->dtype,
                                                        .dq = call->dq,
                                                        .dk = call->dk,
                                                        .dv = call->dv,
                                                        .dq_stride = call->dqkv_stride,
                                                        .dk_stride = call->dqkv_stride,
                                                        .dv_stride = call->dqkv_stride,
                                                    });
}

ndm_status ndm_engine_attention(ndm_context *context, ndm_direction direction,
                                const ndm_attention_call *call)
{
    for (int64_t i = 0; i < context->n_strategies; i++)
        if (context->strategies[i]->attention)
            return context->strategies[i]->attention(context, direction, call, context->compute);
    return attention_whole(context, direction, call);
}

ndm_status ndm_engine_step_end(ndm_context *context, ndm_unit *const *units, int64_t n_units,
                               int64_t step)
{
    for (int64_t i = 0; i < context->n_strategies; i++) {
        if (!context->strategies[i]->step_end)
            continue;
        NDM_TRY(context->strategies[i]->step_end(context, units, n_units, step));
        for (int64_t u = 0; u < n_units; u++)
            NDM_TRY(ndm_unit_changed(units[u])); /* the hook may have written masters */
    }
    return NDM_OK;
}

void ndm_engine_describe(const ndm_context *context, const ndm_describe_args *args,
                         ndm_traffic_fn emit, void *user)
{
    for (int64_t i = 0; i < context->n_strategies; i++)
        if (context->strategies[i]->describe)
            context->strategies[i]->describe(context, args, emit, user);
}
