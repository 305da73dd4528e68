/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel costs: a roofline with the measured share of the peak by shape for matrix products
 * and attention, bytes over bandwidth for all others (Williams et al., "Roofline", 2009). */
#include "kernels/cost.h"

#include <math.h>

#include "core/dtype.h"
#include "kernels/kernels.h"

/* A launch that is being priced. */
typedef struct pricing {
    const ndm_sim_machine *m;
    const ndm_sim_stack *k;
    ndm_sim_state *state;
    ndm_sim_charge *charge;
    bool again; /* the backward makes an activation again */
    double bw;  /* bytes/s of the op */
} pricing;

static void add_bytes(const pricing *p, double bytes)
{
    p->charge->ns += bytes / p->bw * 1e9;
}

static double either(double own, double of_stack)
{
    return of_stack > 0.0 ? of_stack : own;
}

/* Bytes of an element of activations. */
static double act(const pricing *p)
{
    return p->m->activation_bytes;
}

/* Stacks give bytes for elements of 2; wider ones move more. */
static double stacked(const pricing *p, double own_elements, double of_stack)
{
    return either(own_elements * act(p), of_stack * act(p) / 2.0);
}

/* ---- matrix products ---------------------------------------------------------------------- */

static bool is_weight_grad(const ndm_gemm_args *a)
{
    return a->trans_a;
}

static double gemm_ns(const pricing *p, const ndm_gemm_args *a, bool fp8)
{
    double m = (double)a->m, n = (double)a->n, k = (double)a->k;
    double share = ndm_cost_gemm_share(p->m, m, n, k, is_weight_grad(a));
    double speed = p->m->peak_flops * share * p->m->clock;
    double bytes = (m * k + k * n + m * n) * act(p) / p->m->memory_bw * 1e9;

    if (fp8 && p->m->fp8_speedup > 0.0)
        speed *= p->m->fp8_speedup;
    double flops = 2.0 * m * n * k / speed * 1e9;
    return flops > bytes ? flops : bytes;
}

/* Products over the vocabulary stay in 16 bit. That the first one is such is known only when the
 * statistics of its logits follow: what it was given is taken back there. */
static bool takes_fp8(const pricing *p)
{
    return p->k->fp8 && p->charge->phase != NDM_SIM_HEAD;
}

/* Operands that are cast to 8 bit: activations and weights in the forward, a gradient in the
 * backward, whose products share it. */
static double cast_elements(const pricing *p, const ndm_gemm_args *a)
{
    double mk = (double)a->m * (double)a->k, kn = (double)a->k * (double)a->n;

    if (is_weight_grad(a))
        return 0.0;
    return p->charge->phase == NDM_SIM_BACKWARD ? mk : mk + kn;
}

/* What the stack runs beside an input gradient: products made again, sums of input gradients. */
static void add_input_grad(const pricing *p, const ndm_gemm_args *a, double ns)
{
    p->charge->ns += p->k->again_gemms * ns;
    if (a->n < a->k)
        add_bytes(p, p->k->join_bytes * (double)a->m * (double)a->n);
}

static void price_gemm(const pricing *p, const ndm_gemm_args *a)
{
    bool fp8 = takes_fp8(p);
    double ns = gemm_ns(p, a, fp8);

    p->charge->category = NDM_SIM_GEMM;
    p->charge->flops = 2.0 * (double)a->m * (double)a->n * (double)a->k;
    p->charge->ns = ns;
    if (fp8)
        add_bytes(p, p->k->cast_bytes * cast_elements(p, a));
    p->state->fp8_saved_ns = fp8 ? gemm_ns(p, a, false) - p->charge->ns : 0.0;
    if (is_weight_grad(a)) {
        if (a->beta != 0.0f && !p->k->grads_apart)
            add_bytes(p, either(8.0, p->k->accum_bytes) * (double)a->m * (double)a->n);
    } else if (p->charge->phase == NDM_SIM_BACKWARD) {
        add_input_grad(p, a, ns);
    }
}

/* ---- attention ---------------------------------------------------------------------------- */

static double attention_flops(const ndm_attention_args *a)
{
    double pairs = (double)a->tq * (double)a->tk * (a->causal ? 0.5 : 1.0);

    return 4.0 * (double)(a->batch * a->heads * a->head_dim) * pairs;
}

/* Scores in memory: products over the whole square, and passes over the scores. */
static double unfused_ns(const pricing *p, const ndm_attention_args *a, bool backward)
{
    double square = (double)(a->batch * a->heads) * (double)a->tq * (double)a->tk;
    double flops = 4.0 * square * (double)a->head_dim * (backward ? 2.0 : 1.0);
    double share = ndm_cost_gemm_share(p->m, (double)a->tq, (double)a->tk, (double)a->head_dim,
                                       false);
    double bytes = p->k->score_bytes[p->again && p->k->score_bytes[2] > 0 ? 2 : backward];

    return flops / (p->m->peak_flops * share * p->m->clock) * 1e9 +
           bytes * square / (p->m->memory_bw * p->m->memory_share) * 1e9;
}

/* Speed is looked up by length. A block of a split sequence has as much work off the diagonal,
 * where no tile is half empty, as a sequence that is longer by the root of two. */
static double fused_ns(const pricing *p, const ndm_attention_args *a, bool backward)
{
    /* five products instead of two, at four fifths of the forward's speed */
    const double BACKWARD = 2.5 / either(0.8, p->m->attention_backward);
    double peak = p->m->attention_peak > 0.0 ? p->m->attention_peak : p->m->peak_flops;
    double seq = sqrt((double)a->tq * (double)a->tk) *
                 (a->q_index && a->tq == a->tk ? sqrt(2.0) : 1.0);
    double share = ndm_cost_attention_share(p->m, (double)(a->batch * a->heads), seq);
    double speed = peak * share * p->m->clock *
                   either(p->m->attention_share, p->k->attention_share);

    return attention_flops(a) / speed * 1e9 * (backward ? BACKWARD : 1.0);
}

static void price_attention(const pricing *p, const ndm_attention_args *a, bool backward)
{
    double rows = (double)(a->batch * (a->tq + a->tk));

    p->charge->category = NDM_SIM_ATTENTION;
    if (a->tk == 0 || a->tq == 0) {
        add_bytes(p, 2.0 * act(p) * rows * (double)(a->heads * a->head_dim));
        return;
    }
    p->charge->flops = attention_flops(a) * (backward ? 2.5 : 1.0);
    p->charge->ns = p->k->unfused_attention ? unfused_ns(p, a, backward) : fused_ns(p, a, backward);
    if (p->k->expand_bytes > 0.0 && a->kv_heads < a->heads)
        add_bytes(p, p->k->expand_bytes * (double)(a->batch * a->tk) *
                         (double)(a->heads * a->head_dim));
}

/* ---- kernels that memory bounds ----------------------------------------------------------- */

/* A residual or a gradient that is accumulated costs a stack bytes of its own. */
static void price_norm(const pricing *p, int64_t rows, int64_t width, double own, bool residual,
                       bool backward)
{
    double bytes = stacked(p, own, p->k->norm_bytes[backward]);

    if (p->k->norm_bytes[0] > 0.0 && (residual || backward))
        bytes += p->k->residual_bytes[backward] * act(p) / 2.0;
    add_bytes(p, bytes * (double)rows * (double)width);
}

static void price_norms(const pricing *p, int op, const void *args)
{
    const ndm_norm_args *n = args;
    const ndm_norm_backward_args *b = args;

    if (op == NDM_OP_norm)
        price_norm(p, n->n, n->width, n->residual ? 4.0 : 2.0, n->residual != NULL, false);
    else
        price_norm(p, b->n, b->width, b->y ? 5.0 : 4.0, b->accumulate, true);
}

static void price_act(const pricing *p, const ndm_act_args *a)
{
    double bytes = a->gated ? stacked(p, 3.0, p->k->act_bytes[0])
                            : stacked(p, 2.0, p->k->gelu_bytes[0]);

    add_bytes(p, bytes * (double)a->n * (double)a->width);
}

static void price_act_backward(const pricing *p, const ndm_act_backward_args *a)
{
    double own = (a->gated ? 5.0 : 3.0) + (a->y ? 1.0 : 0.0);

    add_bytes(p, stacked(p, own, a->gated ? p->k->act_bytes[1] : p->k->gelu_bytes[1]) *
                     (double)a->n * (double)a->width);
}

static void price_rope(const pricing *p, const ndm_rope_args *a)
{
    double own = a->sign < 0.0f ? p->k->rope_bytes[1] : p->k->rope_bytes[0];

    add_bytes(p, stacked(p, 2.0, own) * (double)(a->n * a->heads * a->head_dim));
}

static void price_adamw(const pricing *p, const ndm_adamw_args *a)
{
    add_bytes(p, either(28.0, p->k->update_bytes - 4.0) * (double)a->n);
}

static double dtype_bytes(const pricing *p, const void *address, ndm_dtype dtype)
{
    ndm_memory_kind kind = ndm_sim_kind_of(address);
    bool narrow = kind == NDM_MEMORY_ACTIVATIONS || kind == NDM_MEMORY_WORKSPACE;

    return dtype == NDM_F32 && narrow ? act(p) : (double)ndm_dtype_bytes(dtype);
}

static void price_loss(const pricing *p, int op, const void *args)
{
    if (op == NDM_OP_ce_stats) {
        const ndm_ce_stats_args *a = args;
        add_bytes(p, stacked(p, 1.0, p->k->loss_bytes[0]) * (double)a->n * (double)a->width);
    } else if (op == NDM_OP_ce_apply) {
        const ndm_ce_apply_args *a = args;
        add_bytes(p, stacked(p, a->grad ? 2.0 : 0.0, p->k->loss_bytes[1]) * (double)a->n *
                         (double)a->width);
    }
}

/* Ops over plain vectors and rows. */
static void price_vector(const pricing *p, int op, const void *args)
{
    const ndm_cast_args *cast = args;
    const ndm_add_args *add = args;
    const ndm_scale_args *scale = args;
    const ndm_colsum_args *sum = args;
    const ndm_copy2d_args *copy = args;
    const ndm_amax_args *amax = args;
    const ndm_quantize_args *quantize = args;
    const ndm_dequantize_args *back = args;

    switch (op) {
    case NDM_OP_cast:
        add_bytes(p, (double)cast->n * (dtype_bytes(p, cast->src, cast->src_dtype) +
                                        dtype_bytes(p, cast->dst, cast->dst_dtype)));
        break;
    case NDM_OP_add:
        add_bytes(p, 3.0 * (double)add->n * dtype_bytes(p, add->y, add->y_dtype));
        break;
    case NDM_OP_scale:
        add_bytes(p, 2.0 * (double)scale->n * dtype_bytes(p, scale->x, scale->x_dtype));
        break;
    case NDM_OP_sumsq:
        add_bytes(p, 4.0 * (double)((const ndm_sumsq_args *)args)->n);
        break;
    case NDM_OP_colsum:
        add_bytes(p, (double)(sum->m * sum->n) * act(p));
        break;
    case NDM_OP_copy2d:
        add_bytes(p, 2.0 * (double)(copy->m * copy->row_bytes) *
                         dtype_bytes(p, copy->dst, NDM_F32) / 4.0);
        break;
    case NDM_OP_amax:
        add_bytes(p, (double)(amax->m * amax->width) * act(p));
        break;
    case NDM_OP_quantize:
        add_bytes(p, (double)(quantize->m * quantize->width) * (act(p) + 1.0));
        break;
    case NDM_OP_dequantize:
        add_bytes(p, (double)back->n * (1.0 + dtype_bytes(p, back->dst, back->dst_dtype)));
        break;
    case NDM_OP_init:
        add_bytes(p, 4.0 * (double)((const ndm_init_args *)args)->n);
        break;
    default:
        break;
    }
}

static void price_copy(const pricing *p, int op, const ndm_sim_copy *c)
{
    double bytes = (double)c->bytes * dtype_bytes(p, c->dst, NDM_F32) / 4.0;

    if (op == NDM_SIM_OP_ZERO) {
        if (!(p->k->grads_apart && ndm_sim_kind_of(c->dst) == NDM_MEMORY_GRADIENTS))
            add_bytes(p, bytes);
    } else if (c->kind == NDM_DEVICE_TO_DEVICE) {
        add_bytes(p, 2.0 * bytes);
    } else {
        p->charge->ns += (double)c->bytes / p->m->host_bw * 1e9;
    }
}

/* Of its rows, as many as of the table. */
static double part_of_table(const ndm_embedding_backward_args *e)
{
    return e->part_count > 0 ? (double)e->part_count / (double)(e->rows * e->width) : 1.0;
}

static void price_layer(const pricing *p, int op, const void *args)
{
    const ndm_embedding_args *e = args;
    const ndm_embedding_backward_args *eb = args;
    const ndm_attention_merge_args *m = args;

    switch (op) {
    case NDM_OP_gemm:
        price_gemm(p, args);
        break;
    case NDM_OP_attention:
        price_attention(p, args, false);
        break;
    case NDM_OP_attention_backward:
        price_attention(p, &((const ndm_attention_backward_args *)args)->forward, true);
        break;
    case NDM_OP_embedding:
        add_bytes(p, 3.0 * act(p) * (double)(e->n * e->width));
        break;
    case NDM_OP_embedding_backward:
        add_bytes(p, (act(p) + 8.0) * (double)(eb->n * eb->width) * part_of_table(eb));
        break;
    case NDM_OP_norm:
    case NDM_OP_norm_backward:
        price_norms(p, op, args);
        break;
    case NDM_OP_rope:
        price_rope(p, args);
        break;
    case NDM_OP_attention_merge:
        add_bytes(p, 3.0 * act(p) * (double)(m->batch * m->t) * (double)(m->heads * m->head_dim));
        break;
    case NDM_OP_act:
        price_act(p, args);
        break;
    case NDM_OP_act_backward:
        price_act_backward(p, args);
        break;
    default:
        break;
    }
}

static double bandwidth_of(const ndm_sim_machine *m, int op)
{
    _Static_assert((int)NDM_OP_COUNT <= (int)NDM_SIM_OPS_MAX, "a bandwidth for each op");

    return either(m->memory_bw * m->memory_share, op >= 0 ? m->op_bw[op] : 0.0);
}

/* ---- which part of the step ---------------------------------------------------------------- */

static ndm_sim_phase enter_phase(ndm_sim_phase now, int op)
{
    switch (op) {
    case NDM_OP_embedding:
        return NDM_SIM_FORWARD;
    case NDM_OP_ce_stats:
        return NDM_SIM_HEAD;
    case NDM_OP_norm_backward:
        return NDM_SIM_BACKWARD;
    case NDM_OP_sumsq:
    case NDM_OP_clip:
    case NDM_OP_adamw:
        return NDM_SIM_OPTIMIZER;
    default:
        return now;
    }
}

/* Forward ops within the backward make activations again. */
static bool makes_again(const ndm_sim_state *state, int op, const void *args)
{
    if (state->phase != NDM_SIM_BACKWARD)
        return false;
    switch (op) {
    case NDM_OP_norm:
    case NDM_OP_attention:
    case NDM_OP_attention_merge:
    case NDM_OP_act:
        return true;
    case NDM_OP_rope:
        return ((const ndm_rope_args *)args)->sign > 0.0f;
    case NDM_OP_gemm: {
        const ndm_gemm_args *a = args;
        return !a->trans_a && a->trans_b == state->forward_trans_b;
    }
    default:
        return false;
    }
}

/* Copies of the logits that a loss of several kernels keeps until its gradient is made. */
static void hold_loss(const pricing *p, int op, const void *args)
{
    const ndm_ce_stats_args *a = args;

    if (op == NDM_OP_ce_stats)
        p->state->held = p->k->loss_held_bytes * (double)a->n * (double)a->width;
    else if (p->state->phase != NDM_SIM_HEAD)
        p->state->held = 0.0;
    p->charge->held = p->state->held;
}

void ndm_cost_price(const ndm_sim_options *options, ndm_sim_state *state, const ndm_launch *launch,
                    ndm_sim_charge *charge)
{
    int op = launch->op;
    bool enters_head = op == NDM_OP_ce_stats && state->phase != NDM_SIM_HEAD;

    state->phase = enter_phase(state->phase, op);
    if (op == NDM_OP_gemm && !state->forward_known) {
        state->forward_known = true;
        state->forward_trans_b = ((const ndm_gemm_args *)launch->args)->trans_b;
    }
    pricing p = {options->machine,
                 options->stack,
                 state,
                 charge,
                 makes_again(state, op, launch->args),
                 bandwidth_of(options->machine, op)};
    *charge = (ndm_sim_charge){.category = NDM_SIM_MEMORY,
                               .phase = p.again ? NDM_SIM_RECOMPUTE : state->phase};
    if (op < 0)
        price_copy(&p, op, launch->args);
    else if (op == NDM_OP_ce_stats || op == NDM_OP_ce_apply)
        price_loss(&p, op, launch->args);
    else if (op == NDM_OP_adamw)
        price_adamw(&p, launch->args);
    else if (op <= NDM_OP_act_backward)
        price_layer(&p, op, launch->args);
    else
        price_vector(&p, op, launch->args);
    if (enters_head)
        charge->ns += state->fp8_saved_ns;
    hold_loss(&p, op, launch->args);
    if (charge->ns < p.m->kernel_ns)
        charge->ns = p.m->kernel_ns;
    charge->host_ns = p.m->launch_ns * p.k->launches * p.k->launch_share;
}
