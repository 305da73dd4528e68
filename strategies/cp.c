/* SPDX-License-Identifier: Apache-2.0 */
/* Context parallelism: cp ranks share a sequence, and attention alone needs the others' tokens.
 *
 * Which tokens a rank holds: causal work grows with a token's place, so where a rank computes for
 * its own queries, it takes chunks c and 2cp-1-c of 2cp (zigzag); Ulysses' ranks see all tokens and
 * take them in order. A sequence that the chunks do not divide is padded at its end with tokens
 * that nobody sees and no loss counts. Places in the sequence travel with the tokens: masks are
 * right under any cut, also for two models with different methods in one context.
 *
 * Method `auto` takes the fewest bytes on the wire, forward and backward: Ulysses where its rule
 * holds and it moves less than all-gather; else all-gather, or, once the gathered keys and values
 * of a call exceed 64 MiB, the ring: it moves one pass of dk and dv more, but its transfers hide
 * behind kernels that are long by then, and it holds two blocks instead of cp. */
#include "strategies/cp.h"

static const int64_t GATHERED_BYTES_MAX = (int64_t)64 << 20;

static bool applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)fsdp;
    return ndm_context_axes_size(context, NDM_AXIS_CP) > 1;
}

/* ---- choice of a method ---------------------------------------------------------------------- */

static void add_bytes(void *user, const ndm_traffic *traffic)
{
    *(int64_t *)user += traffic->bytes;
}

static int64_t cost(const ndm_cp_method_ops *method, const ndm_cp_sizes *sizes)
{
    int64_t bytes = 0;

    method->describe(sizes, add_bytes, &bytes);
    return bytes;
}

static const ndm_cp_method_ops *choose(const ndm_cp_sizes *s)
{
    int64_t gathered = s->cp * ndm_cp_pairs_words(s) * NDM_CP_WORD;

    if (ndm_cp_ulysses.fits(s) && cost(&ndm_cp_ulysses, s) < cost(&ndm_cp_all_gather, s))
        return &ndm_cp_ulysses;
    return gathered > GATHERED_BYTES_MAX ? &ndm_cp_ring : &ndm_cp_all_gather;
}

/* The same on all ranks: sizes are. */
static const ndm_cp_method_ops *method_of(const ndm_context *context, const ndm_cp_sizes *sizes)
{
    switch (context->parallelism.cp_method) {
    case NDM_CP_METHOD_RING:
        return &ndm_cp_ring;
    case NDM_CP_METHOD_ALL_GATHER:
        return &ndm_cp_all_gather;
    case NDM_CP_METHOD_ULYSSES:
        return &ndm_cp_ulysses;
    default:
        return choose(sizes);
    }
}

/* ---- hooks ----------------------------------------------------------------------------------- */

/* Heads of a rank: tp cuts them, and repeats key-value heads that it cannot cut. */
static ndm_cp_sizes sizes_of_model(const ndm_context *context, const ndm_demands *d)
{
    int64_t tp = ndm_context_axes_size(context, NDM_AXIS_TP),
            cp = ndm_context_axes_size(context, NDM_AXIS_CP);

    return (ndm_cp_sizes){
        .cp = cp,
        .rows = d->micro_batch * ((d->seq_len + cp - 1) / cp),
        .heads = d->heads / tp,
        .kv_heads = d->kv_heads > tp ? d->kv_heads / tp : 1,
        .head_dim = d->head_dim,
        .dtype = d->dtype,
    };
}

static ndm_status refuse_unfit(const ndm_cp_method_ops *method, const ndm_cp_sizes *s)
{
    if (method->fits && !method->fits(s))
        NDM_FAIL(NDM_ERR_CONFIG,
                 "cp: %s needs that %s; here cp %lld, heads %lld, kv_heads %lld of a tp rank; "
                 "ring and all_gather take any",
                 method->name, method->rule, (long long)s->cp, (long long)s->heads,
                 (long long)s->kv_heads);
    if (ndm_dtype_bytes(s->dtype) < NDM_CP_WORD && s->head_dim % 2 != 0)
        NDM_FAIL(NDM_ERR_CONFIG, "cp: activations in %s need an even head_dim, here %lld",
                 ndm_dtype_name(s->dtype), (long long)s->head_dim);
    return NDM_OK;
}

static ndm_status check(ndm_context *context, const ndm_demands *demands)
{
    ndm_cp_sizes sizes = sizes_of_model(context, demands);
    struct ndm_cp *state;

    if (!demands->causal)
        NDM_FAIL(NDM_ERR_CONFIG, "cp: attention that is not causal cannot be split: padding and "
                                 "balance rely on the causal mask");
    if (demands->heads == 0 || demands->kv_heads == 0)
        return NDM_OK; /* unknown */
    const ndm_cp_method_ops *method = method_of(context, &sizes);
    NDM_TRY(refuse_unfit(method, &sizes));
    NDM_TRY(ndm_cp_state(context, &state));
    state->method = method;
    return NDM_OK;
}

static ndm_status batch(ndm_context *context, int32_t *picks, int64_t *n)
{
    int64_t cp = ndm_context_axes_size(context, NDM_AXIS_CP),
            c = ndm_context_coord(context, NDM_CP);
    ndm_cp_sizes unknown = {.cp = cp, .heads = 1, .kv_heads = 1};
    struct ndm_cp *state;

    NDM_TRY(ndm_cp_state(context, &state));
    bool zigzag = (state->method ? state->method : method_of(context, &unknown))->zigzag;
    int64_t chunks = zigzag ? 2 * cp : cp, chunk = (*n + chunks - 1) / chunks;
    for (int64_t i = 0; i < chunk; i++) {
        picks[i] = (int32_t)(c * chunk + i);
        if (zigzag)
            picks[chunk + i] = (int32_t)((2 * cp - 1 - c) * chunk + i);
    }
    *n = zigzag ? 2 * chunk : chunk;
    return NDM_OK;
}

static ndm_status attention(ndm_context *context, ndm_direction direction,
                            const ndm_attention_call *call, ndm_stream *stream)
{
    ndm_cp_job job = {
        .context = context,
        .call = call,
        .stream = stream,
        .sizes = {ndm_context_axes_size(context, NDM_AXIS_CP), call->batch * call->tokens,
                  call->heads, call->kv_heads, call->head_dim, call->dtype},
        .pair_width = 2 * call->kv_heads * call->head_dim,
        .dtype = call->dtype,
    };
    const ndm_cp_method_ops *method = method_of(context, &job.sizes);

    if (!call->index)
        NDM_FAIL(NDM_ERR_USAGE, "cp: an attention over a split sequence needs its tokens' index");
    NDM_TRY(refuse_unfit(method, &job.sizes));
    NDM_TRY(ndm_context_comm(context, NDM_AXIS_CP, &job.comm));
    return direction == NDM_FORWARD ? method->forward(&job) : method->backward(&job);
}

static void describe(const ndm_context *context, const ndm_describe_args *args, ndm_traffic_fn emit,
                     void *user)
{
    ndm_cp_sizes sizes = {ndm_context_axes_size(context, NDM_AXIS_CP),
                          args->rows,
                          args->heads,
                          args->kv_heads,
                          args->head_dim,
                          args->dtype};

    if (args->heads > 0)
        method_of(context, &sizes)->describe(&sizes, emit, user);
}

const ndm_strategy ndm_strategy_cp = {
    .name = "cp",
    .summary = "split sequences over cp; attention by ring, all-gather or all-to-all",
    .axes = NDM_AXIS_CP,
    .applies = applies,
    .check = check,
    .batch = batch,
    .attention = attention,
    .describe = describe,
};
