/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the matrix product and of attention on the cuda device, in bf16 with the shapes of large
 * models: one JSON object on stdout. `--small` takes shapes that an emulator can bear.
 *
 * Each row is the median of ROUNDS rounds; a round launches until MIN_NS have passed and waits
 * once. Attention counts 4 B H D T^2 / 2 operations forward (causal), 2.5 times that backward. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "kernels/kernels.h"

enum { ROUNDS = 5, OPERANDS = 9 };

static int64_t min_ns = 100000000;

typedef struct gpu {
    ndm_device *device;
    ndm_stream *stream;
    void *operands[OPERANDS]; /* taken since the last row */
    int taken;
    int rows; /* written to the list that is open */
} gpu;

typedef ndm_status (*launch_fn)(gpu *g, const void *args);

static ndm_status take(gpu *g, int64_t bytes, void **memory)
{
    if (g->taken == OPERANDS)
        NDM_FAIL(NDM_ERR_INTERNAL, "more than %d operands", OPERANDS);
    NDM_TRY(ndm_device_alloc(g->device, bytes, NDM_MEMORY_WORKSPACE, memory));
    g->operands[g->taken++] = *memory;
    return ndm_zero(g->stream, *memory, bytes);
}

/* n normal numbers in bf16: a chip draws more power, and is slower, on these than on zeros. */
static ndm_status numbers(gpu *g, int64_t n, void **memory)
{
    void *wide;

    NDM_TRY(take(g, n * 2, memory));
    NDM_TRY(ndm_device_alloc(g->device, n * 4, NDM_MEMORY_WORKSPACE, &wide));
    NDM_TRY(ndm_init(
        g->stream, &(ndm_init_args){
                       .out = wide, .n = n, .seed = 1, .stream = (uint64_t)g->taken, .std = 1.0f}));
    NDM_TRY(ndm_cast(
        g->stream,
        &(ndm_cast_args){
            .src = wide, .dst = *memory, .src_dtype = NDM_F32, .dst_dtype = NDM_BF16, .n = n}));
    NDM_TRY(ndm_stream_synchronize(g->stream));
    ndm_device_free(g->device, wide);
    return NDM_OK;
}

static void drop_operands(gpu *g)
{
    while (g->taken > 0)
        ndm_device_free(g->device, g->operands[--g->taken]);
}

static ndm_status time_round(gpu *g, launch_fn launch, const void *args, int64_t calls, double *ms)
{
    int64_t start = ndm_clock_ns();

    for (int64_t i = 0; i < calls; i++)
        NDM_TRY(launch(g, args));
    NDM_TRY(ndm_stream_synchronize(g->stream));
    *ms = (double)(ndm_clock_ns() - start) * 1e-6 / (double)calls;
    return NDM_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static ndm_status measure(gpu *g, launch_fn launch, const void *args, double *ms)
{
    double round[ROUNDS], once;

    NDM_TRY(time_round(g, launch, args, 1, &once)); /* the first call makes what it needs */
    NDM_TRY(time_round(g, launch, args, 1, &once));
    int64_t calls = (int64_t)((double)min_ns * 1e-6 / once) + 1;
    for (int i = 0; i < ROUNDS; i++)
        NDM_TRY(time_round(g, launch, args, calls, &round[i]));
    qsort(round, ROUNDS, sizeof *round, ascending);
    *ms = round[ROUNDS / 2];
    return NDM_OK;
}

static void row(gpu *g, const char *name, const char *shape, double flops, double ms)
{
    printf("%s\n    {\"name\": \"%s\", \"shape\": \"%s\", \"ms\": %.4f, \"tflops\": %.3f}",
           g->rows++ > 0 ? "," : "", name, shape, ms, flops / ms * 1e-9);
}

/* ---- matrix products ------------------------------------------------------------------------- */

static ndm_status launch_gemm(gpu *g, const void *args)
{
    return ndm_gemm(g->stream, args);
}

/* Y = X W^T, as a linear layer's forward. */
static ndm_status gemm(gpu *g, int64_t m, int64_t n, int64_t k)
{
    ndm_gemm_args args = {.trans_b = true,
                          .m = m,
                          .n = n,
                          .k = k,
                          .alpha = 1.0f,
                          .lda = k,
                          .ldb = k,
                          .ldc = n,
                          .a_dtype = NDM_BF16,
                          .b_dtype = NDM_BF16,
                          .c_dtype = NDM_BF16};
    void *a, *b;
    double ms;
    char shape[64];

    NDM_TRY(numbers(g, m * k, &a));
    NDM_TRY(numbers(g, n * k, &b));
    NDM_TRY(take(g, m * n * 2, &args.c));
    args.a = a;
    args.b = b;
    NDM_TRY(measure(g, launch_gemm, &args, &ms));
    snprintf(shape, sizeof shape, "%lldx%lldx%lld", (long long)m, (long long)n, (long long)k);
    row(g, "gemm", shape, 2.0 * (double)m * (double)n * (double)k, ms);
    drop_operands(g);
    return NDM_OK;
}

/* ---- attention ------------------------------------------------------------------------------- */

static ndm_status launch_attention(gpu *g, const void *args)
{
    return ndm_attention(g->stream, args);
}

static ndm_status launch_backward(gpu *g, const void *args)
{
    return ndm_attention_backward(g->stream, args);
}

static ndm_status operands(gpu *g, ndm_attention_backward_args *b)
{
    ndm_attention_args *a = &b->forward;
    int64_t rows = a->batch * a->tq, statistics = a->batch * a->heads * a->tq * 4;
    void *q, *k, *v, *dout, *lse, *delta;

    a->q_stride = a->out_stride = b->dout_stride = b->dq_stride = a->heads * a->head_dim;
    a->k_stride = a->v_stride = b->dk_stride = b->dv_stride = a->kv_heads * a->head_dim;
    NDM_TRY(numbers(g, rows * a->q_stride, &q));
    NDM_TRY(numbers(g, rows * a->k_stride, &k));
    NDM_TRY(numbers(g, rows * a->k_stride, &v));
    NDM_TRY(numbers(g, rows * a->q_stride, &dout));
    NDM_TRY(take(g, rows * a->q_stride * 2, &a->out));
    NDM_TRY(take(g, statistics, &lse));
    NDM_TRY(take(g, statistics, &delta));
    NDM_TRY(take(g, rows * a->q_stride * 2, &b->dq));
    NDM_TRY(take(g, 2 * rows * a->k_stride * 2, &b->dk));
    a->q = q, a->k = k, a->v = v, a->lse = lse;
    b->dout = dout, b->delta = delta;
    b->dv = (char *)b->dk + rows * a->k_stride * 2;
    return NDM_OK;
}

static ndm_status attention(gpu *g, int64_t batch, int64_t tokens, int64_t heads, int64_t kv_heads,
                            int64_t head_dim)
{
    ndm_attention_backward_args b = {.forward = {.x_dtype = NDM_BF16,
                                                 .out_dtype = NDM_BF16,
                                                 .batch = batch,
                                                 .tq = tokens,
                                                 .tk = tokens,
                                                 .heads = heads,
                                                 .kv_heads = kv_heads,
                                                 .head_dim = head_dim,
                                                 .scale = 0.088f,
                                                 .causal = true},
                                     .make_delta = true,
                                     .d_dtype = NDM_BF16};
    double flops = 2.0 * (double)(batch * heads * head_dim) * (double)tokens * (double)tokens, ms;
    char shape[96];

    NDM_TRY(operands(g, &b));
    snprintf(shape, sizeof shape, "B%lld T%lld H%lld K%lld D%lld causal", (long long)batch,
             (long long)tokens, (long long)heads, (long long)kv_heads, (long long)head_dim);
    NDM_TRY(measure(g, launch_attention, &b.forward, &ms));
    row(g, "attention forward", shape, flops, ms);
    NDM_TRY(measure(g, launch_backward, &b, &ms));
    row(g, "attention backward", shape, 2.5 * flops, ms);
    drop_operands(g);
    return NDM_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static ndm_status open_gpu(gpu *g)
{
    ndm_device_options options = {.timeout_ns = 120ll * 1000000000};

    NDM_TRY(ndm_device_create("cuda", &options, &g->device));
    NDM_TRY(ndm_kernels_bind(g->device, "auto"));
    return ndm_stream_create(g->device, NDM_STREAM_COMPUTE, "measure", &g->stream);
}

static ndm_status run(gpu *g, bool small)
{
    char why[256] = "";

    NDM_TRY(open_gpu(g));
    (void)g->device->ops->probe(why, sizeof why);
    printf("{\n  \"device\": \"%s\",\n  \"rows\": [", why);
    if (small) {
        NDM_TRY(gemm(g, 64, 48, 32));
        NDM_TRY(attention(g, 1, 64, 2, 1, 32));
    } else {
        NDM_TRY(gemm(g, 8192, 8192, 8192)); /* what cuBLAS does at its best */
        NDM_TRY(gemm(g, 8192, 768, 3072));
        NDM_TRY(gemm(g, 8192, 4096, 4096));
        NDM_TRY(gemm(g, 8192, 14336, 4096));
        NDM_TRY(attention(g, 8, 1024, 12, 12, 64));
        NDM_TRY(attention(g, 4, 4096, 32, 8, 64));
        NDM_TRY(attention(g, 2, 8192, 32, 8, 128));
    }
    printf("\n  ]\n}\n");
    return NDM_OK;
}

int main(int argc, char **argv)
{
    bool small = argc == 2 && strcmp(argv[1], "--small") == 0;
    gpu g = {0};

    if (argc > 1 && !small) {
        fprintf(stderr, "usage: gpu_measure [--small]\n");
        return 2;
    }
    if (small)
        min_ns = 1;
    ndm_status status = run(&g, small);
    if (status != NDM_OK)
        fprintf(stderr, "gpu_measure: %s\n", ndm_error_message());
    ndm_stream_destroy(g.stream);
    ndm_device_destroy(g.device);
    return ndm_status_exit_code(status);
}
