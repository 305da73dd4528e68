/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over a split sequence against the kernel on the whole: outputs and gradients of every
 * method on every mesh, and what it says about its traffic. All ranks draw the same whole arrays,
 * and each compares its own rows. */
#include "harness.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/rng.h"
#include "strategies/internal.h"

enum { MAX_MESHES = 64, DELAY_POLLS = 20 };

static const ndm_cp_method methods[] = {NDM_CP_METHOD_AUTO, NDM_CP_METHOD_RING,
                                        NDM_CP_METHOD_ALL_GATHER, NDM_CP_METHOD_ULYSSES};
enum { METHODS = sizeof methods / sizeof methods[0] };

static uint64_t seed(void)
{
    const char *text = getenv("NDM_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20240731;
}

/* One attention: sizes, and what a token may not see. */
typedef struct shape {
    const char *name;
    int64_t b, t, heads, kv_heads, d;
    int64_t documents, window; /* documents of a sequence; 0 = no window */
    float scale, tolerance;
} shape;

static const shape shapes[] = {
    {"plain", 1, 48, 4, 2, 16, 1, 0, 0.25f, 1e-5f},
    {"more heads than tokens, batch", 3, 7, 12, 12, 8, 1, 0, 0.35f, 1e-5f},
    {"odd length, one key head", 2, 37, 12, 1, 8, 1, 0, 0.35f, 1e-5f},
    {"documents, odd length", 2, 61, 4, 2, 16, 5, 0, 0.25f, 1e-5f},
    {"window shorter than a chunk", 1, 65, 4, 4, 8, 1, 5, 0.35f, 1e-5f},
    {"window and documents, three key heads", 2, 50, 12, 3, 8, 3, 11, 0.35f, 1e-5f},
    {"several tiles", 1, 300, 4, 2, 32, 2, 0, 0.18f, 1e-5f},
    {"one token", 2, 1, 4, 2, 8, 1, 0, 0.35f, 1e-5f},
    {"scores beyond exp", 1, 40, 4, 2, 8, 2, 0, 50.0f, 2e-3f},
};
/* Each rounding is 2^-9; partial gradients and the output that delta is made of have one each. */
static const double BF16_TOLERANCE = 0.02;
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Arrays of one attention over n rows; padding rows of a split one included. */
typedef struct arrays {
    int64_t n;
    ndm_dtype dtype; /* of qkv, dqkv, out and dout, which have room for fp32 */
    float *qkv, *dqkv, *out, *dout, *lse, *delta;
    int32_t *index, *first;
} arrays;

static int64_t qkv_width(const shape *s)
{
    return (s->heads + 2 * s->kv_heads) * s->d;
}

static float *zeros(int64_t n)
{
    return calloc((size_t)n, sizeof(float));
}

static arrays arrays_make(const shape *s, int64_t n)
{
    int64_t width = s->heads * s->d;
    arrays a = {n,
                NDM_F32,
                zeros(n * qkv_width(s)),
                zeros(n * qkv_width(s)),
                zeros(n * width),
                zeros(n * width),
                zeros(n * s->heads),
                zeros(n * s->heads),
                calloc((size_t)n, sizeof(int32_t)),
                calloc((size_t)n, sizeof(int32_t))};

    for (int64_t i = 0; i < n * qkv_width(s); i++)
        a.dqkv[i] = NAN; /* outputs are written, not added to */
    return a;
}

static void arrays_free(arrays *a)
{
    void *const all[] = {a->qkv, a->dqkv, a->out, a->dout, a->lse, a->delta, a->index, a->first};

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        free(all[i]);
}

/* Documents of a sequence start at multiples of about t / documents, moved at random. */
static void fill_whole(const shape *s, arrays *a)
{
    ndm_rng_normal_fill(seed(), 1, 0, a->n * qkv_width(s), a->qkv);
    ndm_rng_normal_fill(seed(), 2, 0, a->n * s->heads * s->d, a->dout);
    for (int64_t row = 0, start = 0; row < a->n; row++) {
        int64_t place = row % s->t, length = s->t / s->documents;
        if (place == 0)
            start = 0;
        else if (s->documents > 1 && ndm_rng_u64(seed(), 3, (uint64_t)row) % (uint64_t)length == 0)
            start = place;
        int64_t window = s->window > 0 ? place - s->window + 1 : 0;
        a->index[row] = (int32_t)place;
        a->first[row] = (int32_t)(start > window ? start : window);
    }
}

/* Rows of picks; padding gets numbers of its own, which nobody may see. As in a model, no loss
 * counts padding: its dout is 0. */
static void fill_own(const shape *s, const arrays *whole, const int32_t *picks, arrays *own)
{
    int64_t tokens = own->n / s->b, width = qkv_width(s), out = s->heads * s->d;

    for (int64_t row = 0; row < own->n; row++) {
        int32_t place = picks[row % tokens];
        int64_t from = row / tokens * s->t + place;
        own->index[row] = place;
        own->first[row] = place;
        if (place < s->t) {
            own->first[row] = whole->first[from];
            memcpy(own->qkv + row * width, whole->qkv + from * width, (size_t)width * 4);
            memcpy(own->dout + row * out, whole->dout + from * out, (size_t)out * 4);
            continue;
        }
        ndm_rng_normal_fill(seed(), 4, (uint64_t)(row * width) * 4, width, own->qkv + row * width);
    }
}

static ndm_attention_call call_of(const shape *s, const arrays *a)
{
    int64_t q = s->heads * s->d, kv = s->kv_heads * s->d;

    return (ndm_attention_call){
        .dtype = a->dtype,
        .q = a->qkv,
        .k = ndm_dtype_at(a->qkv, a->dtype, q),
        .v = ndm_dtype_at(a->qkv, a->dtype, q + kv),
        .dq = a->dqkv,
        .dk = ndm_dtype_at(a->dqkv, a->dtype, q),
        .dv = ndm_dtype_at(a->dqkv, a->dtype, q + kv),
        .out = a->out,
        .lse = a->lse,
        .dout = a->dout,
        .delta = a->delta,
        .qkv_stride = qkv_width(s),
        .dqkv_stride = qkv_width(s),
        .out_stride = q,
        .dout_stride = q,
        .batch = s->b,
        .tokens = a->n / s->b,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->d,
        .scale = s->scale,
        .index = a->index,
        .first = s->documents > 1 || s->window > 0 ? a->first : NULL,
    };
}

/* Changes the type of n elements in place. */
static void convert(float *x, int64_t n, ndm_dtype from, ndm_dtype to)
{
    size_t bytes = (size_t)n * ndm_dtype_bytes(from);
    void *copy = malloc(bytes + 1);

    memcpy(copy, x, bytes);
    ndm_convert(copy, from, x, to, n);
    free(copy);
}

static void convert_inputs(const shape *s, arrays *a, ndm_dtype to)
{
    convert(a->qkv, a->n * qkv_width(s), a->dtype, to);
    convert(a->dout, a->n * s->heads * s->d, a->dtype, to);
    convert(a->dqkv, a->n * qkv_width(s), a->dtype, to);
    a->dtype = to;
}

static void widen_results(const shape *s, arrays *a)
{
    convert(a->out, a->n * s->heads * s->d, a->dtype, NDM_F32);
    convert(a->dqkv, a->n * qkv_width(s), a->dtype, NDM_F32);
}

/* The kernels on the whole sequence. */
static void run_whole(const shape *s, ndm_stream *stream, const arrays *a)
{
    ndm_attention_call c = call_of(s, a);
    ndm_attention_backward_args args = {
        .forward = {.q = c.q,
                    .k = c.k,
                    .v = c.v,
                    .q_stride = c.qkv_stride,
                    .k_stride = c.qkv_stride,
                    .v_stride = c.qkv_stride,
                    .batch = s->b,
                    .tq = s->t,
                    .tk = s->t,
                    .heads = s->heads,
                    .kv_heads = s->kv_heads,
                    .head_dim = s->d,
                    .scale = s->scale,
                    .causal = true,
                    .q_first = c.first,
                    .out = c.out,
                    .out_stride = c.out_stride,
                    .lse = c.lse},
        .dout = c.dout,
        .dout_stride = c.dout_stride,
        .make_delta = true,
        .delta = c.delta,
        .dq = c.dq,
        .dk = c.dk,
        .dv = c.dv,
        .dq_stride = c.dqkv_stride,
        .dk_stride = c.dqkv_stride,
        .dv_stride = c.dqkv_stride,
    };

    must(ndm_attention(stream, &args.forward));
    must(ndm_attention_backward(stream, &args));
}

/* Largest difference of own rows, relative to the largest value; a NaN is no match. */
static bool same_rows(const shape *s, const float *own, const float *whole, int64_t width,
                      const arrays *a)
{
    double tolerance = a->dtype == NDM_F32 ? s->tolerance : BF16_TOLERANCE;
    int64_t tokens = a->n / s->b;
    double most = 1.0, worst = 0.0;

    for (int64_t i = 0; i < s->b * s->t * width; i++)
        most = fmax(most, fabs(whole[i]));
    for (int64_t row = 0; row < a->n; row++)
        for (int64_t i = 0; i < width && a->index[row] < s->t; i++) {
            int64_t from = row / tokens * s->t + a->index[row];
            double difference = fabs(own[row * width + i] - whole[from * width + i]);
            worst = difference <= worst ? worst : isnan(difference) ? INFINITY : difference;
        }
    return worst <= tolerance * most;
}

static bool fits(const shape *s, int64_t cp, ndm_cp_method method)
{
    return method != NDM_CP_METHOD_ULYSSES ||
           (s->heads % cp == 0 && (s->kv_heads % cp == 0 || cp % s->kv_heads == 0));
}

/* ---- traffic: what describe() says against what the communicator counted -----------------------
 */

static void subtract(void *user, const ndm_traffic *t)
{
    ndm_comm_stats *stats = user;

    stats->calls[t->kind] -= t->calls;
    stats->received_bytes[t->kind] -= t->bytes;
}

static bool as_described(const shape *s, ndm_context *context, const arrays *own,
                         ndm_comm_stats before)
{
    ndm_describe_args args = {.rows = own->n,
                              .heads = s->heads,
                              .kv_heads = s->kv_heads,
                              .head_dim = s->d,
                              .dtype = own->dtype};
    ndm_comm *comm;

    must(ndm_context_comm(context, NDM_AXIS_CP, &comm));
    ndm_comm_stats rest = ndm_comm_statistics(comm);
    ndm_engine_describe(context, &args, subtract, &rest);
    return memcmp(&rest, &before, sizeof rest) == 0;
}

/* ---- the cases ---------------------------------------------------------------------------------
 */

static ndm_context *open_context(const ndm_parallelism_config *mesh, ndm_cp_method method)
{
    ndm_context_options options = NDM_CONTEXT_OPTIONS_INIT;
    ndm_parallelism_config config = *mesh;
    ndm_context *context;

    options.device = "cpu";
    options.threads = 1;
    options.timeout_s = 60;
    config.cp_method = method;
    must(ndm_context_create(&config, &options, &context));
    ndm_comms_delay(context->comms, DELAY_POLLS, seed());
    return context;
}

static void check_demands(const shape *s, ndm_context *context)
{
    int64_t tp = ndm_context_axes_size(context, NDM_AXIS_TP);
    ndm_demands demands = {.heads = s->heads * tp,
                           .kv_heads = s->kv_heads * tp,
                           .head_dim = s->d,
                           .seq_len = s->t,
                           .micro_batch = s->b,
                           .causal = true,
                           .sliding_window = s->window};

    must(ndm_engine_check(context, &demands));
}

/* Twice: the second time allocates nothing, and finds a workspace that is not clean. */
static void run_own(const shape *s, ndm_context *context, const arrays *own, const char *text)
{
    ndm_attention_call call = call_of(s, own);
    ndm_comm *comm;
    int64_t live = 0;

    must(ndm_context_comm(context, NDM_AXIS_CP, &comm));
    for (int i = 0; i < 2; i++) {
        ndm_comm_stats before = ndm_comm_statistics(comm);
        must(ndm_engine_attention(context, NDM_FORWARD, &call));
        must(ndm_engine_attention(context, NDM_BACKWARD, &call));
        must(ndm_stream_synchronize(context->compute));
        check_all_at(as_described(s, context, own, before), text, __FILE__, __LINE__);
        int64_t now = ndm_device_memory(context->device).live_total_bytes;
        check_all_at(i == 0 || now == live, text, __FILE__, __LINE__);
        live = now;
    }
}

static void compare(const shape *s, ndm_context *context, ndm_dtype dtype, const char *text)
{
    int32_t *picks = calloc((size_t)s->t + 2, sizeof *picks);
    int64_t tokens = s->t, width = qkv_width(s), q = s->heads * s->d;
    arrays whole = arrays_make(s, s->b * s->t), own;

    check_demands(s, context);
    must(ndm_engine_batch(context, picks, &tokens));
    own = arrays_make(s, s->b * tokens);
    fill_whole(s, &whole);
    convert_inputs(s, &whole, dtype); /* loses what dtype cannot hold */
    convert_inputs(s, &whole, NDM_F32);
    fill_own(s, &whole, picks, &own);
    convert_inputs(s, &own, dtype);
    run_whole(s, context->compute, &whole);
    run_own(s, context, &own, text);
    widen_results(s, &own);
    check_all_at(same_rows(s, own.out, whole.out, q, &own), text, __FILE__, __LINE__);
    check_all_at(same_rows(s, own.dqkv, whole.dqkv, width, &own), text, __FILE__, __LINE__);
    arrays_free(&own);
    arrays_free(&whole);
    free(picks);
}

static void case_22_every_method_equals_the_whole(void **state)
{
    int64_t n;
    ndm_parallelism_config *meshes = harness_meshes(MAX_MESHES, &n);
    char text[160];

    (void)state;
    for (int64_t m = 0; m < n; m++)
        for (int64_t i = 0; i < METHODS; i++) {
            ndm_context *context = open_context(&meshes[m], methods[i]);
            for (int64_t s = 0; s < SHAPES; s++) {
                if (meshes[m].cp == 1 || !fits(&shapes[s], meshes[m].cp, methods[i]))
                    continue;
                snprintf(text, sizeof text, "%s: method %d, cp %lld, seed %llu", shapes[s].name,
                         (int)methods[i], (long long)meshes[m].cp, (unsigned long long)seed());
                compare(&shapes[s], context, NDM_F32, text);
                if (shapes[s].tolerance <= 1e-5f) /* 16 bits say nothing of scores of 1000 */
                    compare(&shapes[s], context, NDM_BF16, text);
            }
            ndm_context_destroy(context);
        }
    free(meshes);
}

static ndm_parallelism_config cp_mesh(void)
{
    ndm_parallelism_config mesh = NDM_PARALLELISM_CONFIG_INIT;

    mesh.dp_shard = 1;
    mesh.cp = ndm_world_size(world);
    return mesh;
}

/* Picks of all ranks, [size, n]: each token once, in padded order; the sum of places seen. */
static bool cover(const int32_t *all, int64_t n, int64_t *least, int64_t *most)
{
    int64_t size = ndm_world_size(world);
    int *seen = calloc((size_t)(size * n), sizeof *seen);
    bool good = true;

    *least = INT64_MAX;
    *most = 0;
    for (int64_t r = 0; r < size; r++) {
        int64_t work = 0;
        for (int64_t i = 0; i < n; i++) {
            int32_t pick = all[r * n + i];
            good &= pick >= 0 && pick < size * n && !seen[pick]++ &&
                    (i == 0 || pick > all[r * n + i - 1]);
            work += pick + 1;
        }
        *least = work < *least ? work : *least;
        *most = work > *most ? work : *most;
    }
    free(seen);
    return good;
}

static void case_25_batches_are_cut_once_and_evenly(void **state)
{
    ndm_parallelism_config mesh = cp_mesh();
    int64_t size = ndm_world_size(world), least = 0, most = 0;

    (void)state;
    for (int64_t i = 0; i < METHODS; i++) {
        ndm_context *context = open_context(&mesh, methods[i]);
        for (int64_t t = 1; t < 50; t++) {
            int32_t *picks = calloc((size_t)t + 2, sizeof *picks), *all;
            int64_t n = t;
            must(ndm_engine_batch(context, picks, &n));
            all = calloc((size_t)(size * n), sizeof *all);
            must(ndm_world_exchange(world, picks, n * (int64_t)sizeof *picks, all));
            check_all(size * n >= t && size * n < t + 2 * size && cover(all, n, &least, &most));
            check_all(methods[i] == NDM_CP_METHOD_ULYSSES || least == most);
            free(all);
            free(picks);
        }
        ndm_context_destroy(context);
    }
}

static void case_24_impossible_demands_are_refused(void **state)
{
    ndm_parallelism_config mesh = cp_mesh();
    int64_t cp = mesh.cp;
    ndm_context *context = open_context(&mesh, NDM_CP_METHOD_ULYSSES);
    ndm_demands demands = {.heads = cp + 1, .kv_heads = 1, .head_dim = 8, .causal = true};
    ndm_attention_call no_index = {.batch = 1, .tokens = 1, .heads = cp, .kv_heads = cp};

    (void)state;
    check_all(ndm_engine_check(context, &demands) == NDM_ERR_CONFIG &&
              strstr(ndm_error_message(), "ulysses needs that cp divides the heads"));
    demands.heads = 6 * cp; /* key heads that neither divide cp nor are divided by it */
    demands.kv_heads = cp % 2 ? 2 : 3;
    check_all(ndm_engine_check(context, &demands) == NDM_ERR_CONFIG);
    demands.kv_heads = 1;
    check_all(ndm_engine_check(context, &demands) == NDM_OK);
    demands.causal = false;
    check_all(ndm_engine_check(context, &demands) == NDM_ERR_CONFIG &&
              strstr(ndm_error_message(), "not causal"));
    check_all(ndm_engine_attention(context, NDM_FORWARD, &no_index) == NDM_ERR_USAGE);
    ndm_context_destroy(context);
}

/* Bytes decide: many key heads go to Ulysses, few to all-gather, long sequences around the ring. */
static void auto_takes_the_fewest_bytes(void **state)
{
    ndm_parallelism_config mesh = cp_mesh();
    ndm_context *context = open_context(&mesh, NDM_CP_METHOD_AUTO);
    int64_t cp = mesh.cp;
    const struct {
        ndm_describe_args args;
        ndm_collective kind;
    } cases[] = {
        {{.rows = 64, .heads = 8 * cp, .kv_heads = 8 * cp, .head_dim = 16}, NDM_ALL_TO_ALL},
        {{.rows = 64, .heads = 8 * cp, .kv_heads = 1, .head_dim = 16}, NDM_ALL_GATHER},
        {{.rows = 64, .heads = 8 * cp + 1, .kv_heads = 8 * cp + 1, .head_dim = 16}, NDM_ALL_GATHER},
        {{.rows = 1 << 20, .heads = 8 * cp + 1, .kv_heads = 1, .head_dim = 16}, NDM_SEND_RECV},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        ndm_comm_stats described = {0};
        ndm_engine_describe(context, &cases[i].args, subtract, &described);
        check_all(described.calls[cases[i].kind] < 0);
    }
    ndm_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_22_every_method_equals_the_whole),
        cmocka_unit_test(case_25_batches_are_cut_once_and_evenly),
        cmocka_unit_test(case_24_impossible_demands_are_refused),
        cmocka_unit_test(auto_takes_the_fewest_bytes),
    };

    return harness_run("cp_attention", tests);
}
