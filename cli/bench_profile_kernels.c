/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of a core for a profile. Every core is busy with the same, since ranks of a host compute
 * at the same time: they share caches, memory bandwidth and clock. */
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <omp.h>

#include "cli/bench_cases.h"
#include "cli/bench_peak.h"
#include "cli/bench_profile.h"
#include "core/clock.h"
#include "core/dtype.h"
#include "device/device.h"
#include "kernels/cost.h"
#include "model/config.h"

enum {
    MAX_ROUNDS = 99,
    COPY_BYTES = 32 << 20,
    PEAK_NS = 50000000,
    TOKENS = 256,
    COPY_NS = 50000000,
    COPIES_MAX = 1024,
    TOKEN_COUNTS = 3,
    WIDTHS = 3,
    OUTS = 4,
    SHAPES = TOKEN_COUNTS * WIDTHS * OUTS
};

typedef struct probe {
    const ndm_profile_effort *effort;
    ndm_sim_machine *machine;
    ndm_device *device;
    ndm_stream *stream;
} probe;

/* Ops over activations, and those over parameters, which are passed once in a step. */
typedef enum operand { ACTIVATIONS, PARAMETERS, NEITHER } operand;

static operand operand_of(ndm_op op)
{
    switch (op) {
    case NDM_OP_gemm:
    case NDM_OP_attention:
    case NDM_OP_attention_backward:
        return NEITHER;
    case NDM_OP_adamw:
    case NDM_OP_sumsq:
    case NDM_OP_clip:
    case NDM_OP_cast:
    case NDM_OP_add:
        return PARAMETERS;
    default:
        return ACTIVATIONS;
    }
}

/* ---- time of a case ------------------------------------------------------------------------ */

/* A case in several places, in turn: between two uses of a weight lies all the rest of a step, and
 * caches that other ranks use too have lost it, where a call after the same call would find it. */
typedef struct copies {
    ndm_case *bound;         /* [n] */
    ndm_case_memory *memory; /* [n] */
    int n, next;
} copies;

static int64_t case_bytes(const ndm_case *c)
{
    int64_t bytes = 0;

    for (int i = 0; i < c->buffers; i++)
        bytes += c->buffer[i].rows * c->buffer[i].stride *
                 (int64_t)ndm_dtype_bytes(c->buffer[i].dtype);
    return bytes;
}

static void copies_finish(copies *c)
{
    for (int i = 0; i < c->n && c->memory; i++)
        if (c->memory[i].device)
            ndm_case_release(&c->memory[i]);
    free(c->memory);
    free(c->bound);
}

/* What has been made is to be finished whatever the status. */
static ndm_status copies_init(const probe *p, const ndm_case *from, copies *c)
{
    int64_t apart = NDM_PROFILE_APART_BYTES * (operand_of(from->op) == PARAMETERS ? 4 : 1);
    int64_t wanted = apart / (case_bytes(from) + 1) + 1;
    ndm_case_data data = {0};
    ndm_status status;

    if (p->effort->min_ms <= 0.0 && wanted > p->effort->rounds + 1)
        wanted = p->effort->rounds + 1; /* rounds are of one call */
    *c = (copies){.n = (int)(wanted < COPIES_MAX ? wanted : COPIES_MAX)};
    c->bound = calloc((size_t)c->n, sizeof *c->bound);
    c->memory = calloc((size_t)c->n, sizeof *c->memory);
    if (!c->bound || !c->memory)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d copies of a case", c->n);
    NDM_TRY(ndm_case_data_init(from, 1, 0, &data));
    status = NDM_OK;
    for (int i = 0; status == NDM_OK && i < c->n; i++) {
        c->bound[i] = *from;
        status = ndm_case_upload(&c->bound[i], &data, p->stream, &c->memory[i]);
    }
    ndm_case_data_finish(&data);
    return status;
}

/* Twice as many calls until they are enough: the clock is not asked for each. It is processor time,
 * so that a busy machine does not look slower: kernels run inline, on one thread. */
static ndm_status time_round(const probe *p, copies *c, double *ns)
{
    double least = p->effort->min_ms * 1e6, spent = 0.0;

    for (int64_t calls = 1; calls == 1 || spent < least; calls *= 2) {
        int64_t start = ndm_clock_thread_ns();
        for (int64_t i = 0; i < calls; i++, c->next = (c->next + 1) % c->n)
            NDM_TRY(ndm_case_launch(&c->bound[c->next], p->stream));
        NDM_TRY(ndm_stream_synchronize(p->stream));
        spent = (double)(ndm_clock_thread_ns() - start);
        *ns = spent / (double)calls;
    }
    return NDM_OK;
}

/* Median over rounds, after one that does not count. */
static ndm_status time_case(const probe *p, const ndm_case *from, double *ns)
{
    double rounds[MAX_ROUNDS];
    copies c;
    ndm_status status;

    NDM_TRY_OR(status, copies_init(p, from, &c), done);
    for (int i = -1; i < p->effort->rounds; i++)
        NDM_TRY_OR(status, time_round(p, &c, &rounds[i < 0 ? 0 : i]), done);
    *ns = ndm_peak_median(rounds, p->effort->rounds);
done:
    copies_finish(&c);
    return status;
}

/* ---- matrix products and attention ---------------------------------------------------------- */

typedef struct products {
    ndm_sim_gemm plain[2 * SHAPES], grad[SHAPES];
    int n_plain, n_grad;
} products;

static ndm_status time_gemm(const probe *p, const ndm_gemm_args *shape, ndm_sim_gemm *found)
{
    ndm_case c = {.op = NDM_OP_gemm};
    double ns, flops = 2.0 * (double)shape->m * (double)shape->n * (double)shape->k;

    ndm_case_gemm(&c, shape, false, 0);
    NDM_TRY(time_case(p, &c, &ns));
    *found = (ndm_sim_gemm){(double)shape->m, (double)shape->n, (double)shape->k,
                            flops / ns * 1e9 / p->machine->peak_flops};
    return NDM_OK;
}

/* Forward, and both products of the backward, each in the layout that the engine gives it. */
static ndm_status add_products(const probe *p, int64_t tokens, int64_t in, int64_t out,
                               products *all)
{
    const ndm_gemm_args forward = {.alpha = 1.0f, .m = tokens, .n = out, .k = in, .trans_b = true},
                        input = {.alpha = 1.0f, .m = tokens, .n = in, .k = out},
                        weight = {.alpha = 1.0f, .m = out, .n = in, .k = tokens, .trans_a = true};

    NDM_TRY(time_gemm(p, &forward, &all->plain[all->n_plain++]));
    NDM_TRY(time_gemm(p, &input, &all->plain[all->n_plain++]));
    return time_gemm(p, &weight, &all->grad[all->n_grad++]);
}

static ndm_status measure_gemms(const probe *p)
{
    static const int64_t tokens[TOKEN_COUNTS] = {32, 128, 512}, widths[WIDTHS] = {64, 256, 1024},
                         outs[OUTS] = {64, 256, 1024, 4096},
                         most = 1ll << 27; /* larger ones are much the same */
    products all = {.n_plain = 0};

    for (int i = 0; i < SHAPES; i++) {
        int64_t t = tokens[i / (WIDTHS * OUTS)], w = widths[i / OUTS % WIDTHS], o = outs[i % OUTS];
        if (t * w * o <= most)
            NDM_TRY(add_products(p, t, w, o, &all));
    }
    ndm_profile_fit(all.plain, all.n_plain, p->machine->gemm_line);
    ndm_profile_fit(all.grad, all.n_grad, p->machine->gemm_grad_line);
    return NDM_OK;
}

static ndm_attention_args attention_shape(int64_t seq, int64_t heads)
{
    return (ndm_attention_args){.batch = 1,
                                .tq = seq,
                                .tk = seq,
                                .heads = heads,
                                .kv_heads = heads / 2,
                                .head_dim = 64,
                                .scale = 0.125f,
                                .causal = true};
}

static ndm_status add_attention(probe *p, int64_t seq, int64_t heads, double *ratio)
{
    ndm_sim_machine *m = p->machine;
    ndm_attention_args shape = attention_shape(seq, heads);
    ndm_case forward = {.op = NDM_OP_attention}, backward = {.op = NDM_OP_attention_backward};
    double ns, back, flops = 2.0 * (double)(heads * 64) * (double)seq * (double)seq;

    ndm_case_attention(&forward, &shape, 0, 0);
    ndm_case_attention_backward(&backward, &shape, 0, 0, 0, NDM_F32);
    NDM_TRY(time_case(p, &forward, &ns));
    NDM_TRY(time_case(p, &backward, &back));
    m->attentions[m->n_attentions++] = (ndm_sim_attention){(double)heads, (double)seq,
                                                           flops / ns * 1e9 / m->peak_flops};
    *ratio += log(2.5 * ns / back);
    return NDM_OK;
}

static ndm_status measure_attentions(probe *p)
{
    static const int64_t seqs[] = {32, 64, 128, 256, 512}, heads[] = {2, 8};
    double ratio = 0.0;

    for (int s = 0; s < 5; s++)
        for (int h = 0; h < 2; h++)
            NDM_TRY(add_attention(p, seqs[s], heads[h], &ratio));
    p->machine->attention_share = 1.0;
    p->machine->attention_backward = exp(ratio / 10.0);
    return NDM_OK;
}

/* ---- kernels that are counted in bytes ------------------------------------------------------- */

/* Bytes as the cost model counts them: its price on a machine of 1 byte/s. */
static double counted_bytes(const ndm_case *c)
{
    static ndm_sim_machine unit = {.memory_bw = 1.0,
                                   .memory_share = 1.0,
                                   .peak_flops = 1e30,
                                   .gemm_share = 1.0,
                                   .clock = 1.0,
                                   .attention_share = 1.0,
                                   .activation_bytes = 4};
    ndm_sim_stack stack;
    ndm_sim_state state = {0};
    ndm_sim_charge charge = {0};
    ndm_launch launch = {ndm_op_name(c->op), NULL, &c->args, sizeof c->args, c->op};

    if (ndm_cost_stack("ndmesh", &stack) != NDM_OK)
        return 0.0;
    ndm_sim_options options = {.machine = &unit, .stack = &stack};
    ndm_cost_price(&options, &state, &launch, &charge);
    return charge.ns * 1e-9;
}

static ndm_status add_model(const probe *p, const char *model, operand which, double *bytes,
                            double *ns)
{
    ndm_model_config m = {0};
    ndm_case c;
    double one;

    NDM_TRY(ndm_model_config_resolve(model, &m));
    ndm_bench_shape shape = {TOKENS, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab};
    ndm_model_config_finish(&m);
    for (int64_t i = 0; ndm_bench_case_get(&shape, i, &c); i++) {
        if (operand_of(c.op) != which)
            continue;
        NDM_TRY(time_case(p, &c, &one));
        bytes[c.op] += counted_bytes(&c);
        ns[c.op] += one;
    }
    return NDM_OK;
}

static ndm_status measure_bytes(probe *p)
{
    double bytes[NDM_OP_COUNT] = {0}, ns[NDM_OP_COUNT] = {0};

    NDM_TRY(add_model(p, "llama-s", ACTIVATIONS, bytes, ns));
    NDM_TRY(add_model(p, "llama-tiny", ACTIVATIONS, bytes, ns));
    NDM_TRY(add_model(p, "llama-m", PARAMETERS, bytes, ns));
    for (int op = 0; op < NDM_OP_COUNT; op++)
        p->machine->op_bw[op] = ns[op] > 0.0 ? bytes[op] / ns[op] * 1e9 : 0.0;
    return NDM_OK;
}

/* ---- all of it ------------------------------------------------------------------------------ */

/* The least that any kernel takes: a cast of one element. */
static ndm_status measure_least(probe *p)
{
    static float from, to;
    ndm_cast_args one = {&from, &to, NDM_F32, NDM_F32, 1};
    enum { CALLS = 2000 };
    int64_t start = ndm_clock_thread_ns();

    for (int i = 0; i < CALLS; i++)
        NDM_TRY(ndm_cast(p->stream, &one));
    p->machine->kernel_ns = (double)(ndm_clock_thread_ns() - start) / CALLS;
    p->machine->launch_ns = 0.0; /* kernels run inline: their launch is in their time */
    return NDM_OK;
}

static ndm_status measure_memory(probe *p)
{
    ndm_peak_copy copy;

    NDM_TRY(ndm_peak_copy_init(&copy, 1, COPY_BYTES));
    p->machine->memory_bw = ndm_peak_copy_gbs(&copy, COPY_NS) * 1e9;
    p->machine->memory_share = 1.0;
    p->machine->host_bw = p->machine->memory_bw / 2.0;
    ndm_peak_copy_finish(&copy);
    return NDM_OK;
}

static ndm_status measure(probe *p)
{
    ndm_device_options options = {.threads = 1};
    ndm_status status;

    NDM_TRY(ndm_device_create("cpu", &options, &p->device));
    NDM_TRY_OR(status, ndm_kernels_bind(p->device, "auto"), done);
    NDM_TRY_OR(status, ndm_stream_create(p->device, NDM_STREAM_COMPUTE, "bench", &p->stream), done);
    p->machine->peak_flops = ndm_peak_fma_gflops(1, PEAK_NS) * 1e9;
    NDM_TRY_OR(status, measure_memory(p), done);
    NDM_TRY_OR(status, measure_least(p), done);
    NDM_TRY_OR(status, measure_gemms(p), done);
    NDM_TRY_OR(status, measure_attentions(p), done);
    status = measure_bytes(p);
done:
    ndm_stream_destroy(p->stream);
    ndm_device_destroy(p->device);
    return status;
}

/* Does the same on another core until it is done; what it finds is not used. */
static pid_t start_neighbour(probe p)
{
    pid_t child = fork();

    if (child == 0) {
        omp_set_num_threads(1);
        (void)!measure(&p);
        _exit(0);
    }
    return child;
}

ndm_status ndm_profile_kernels(const ndm_profile_effort *effort, int cores,
                               ndm_sim_machine *machine)
{
    probe p = {.effort = effort, .machine = machine};
    pid_t *neighbours = calloc((size_t)cores, sizeof *neighbours);

    if (!neighbours)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d processes", cores);
    for (int i = 1; i < cores; i++)
        neighbours[i] = start_neighbour(p);
    omp_set_num_threads(1);
    ndm_status status = measure(&p);
    for (int i = 1; i < cores; i++)
        if (neighbours[i] > 0)
            waitpid(neighbours[i], NULL, 0);
    free(neighbours);
    return status;
}
