/* SPDX-License-Identifier: Apache-2.0 */
/* Measured shapes and stacks: lookups. */
#include <math.h>
#include <string.h>

#include "core/text.h"
#include "kernels/cost.h"

enum { NEAREST = 6 };

/* The nearest so far, ascending in distance. */
typedef struct neighbours {
    double distance[NEAREST], share[NEAREST];
    int n;
} neighbours;

static void offer(neighbours *s, double distance, double share)
{
    int at = s->n < NEAREST ? s->n++ : NEAREST - 1;

    if (at == NEAREST - 1 && s->n == NEAREST && s->distance[at] > 0.0 &&
        distance >= s->distance[at])
        return;
    for (; at > 0 && s->distance[at - 1] > distance; at--) {
        s->distance[at] = s->distance[at - 1];
        s->share[at] = s->share[at - 1];
    }
    s->distance[at] = distance;
    s->share[at] = share;
}

/* Mean, weighted with the inverse of the distance. */
static double mean(const neighbours *s)
{
    double sum = 0.0, weights = 0.0;

    for (int i = 0; i < s->n; i++) {
        double w = 1.0 / (sqrt(s->distance[i]) + 1e-3);
        sum += w * s->share[i];
        weights += w;
    }
    return sum / weights;
}

static double square(double x)
{
    return x * x;
}

/* 0 where the machine has no line. */
static double line_share(const double *line, double m, double n, double k)
{
    double time = line[0] + line[1] / m + line[2] / n + line[3] / k;

    return time > 0.0 ? 1.0 / time : 0.0;
}

double ndm_cost_gemm_share(const ndm_sim_machine *machine, double m, double n, double k, bool grad)
{
    neighbours near = {.n = 0};
    double share = line_share(grad ? machine->gemm_grad_line : machine->gemm_line, m, n, k);

    if (share > 0.0)
        return share;
    if (machine->n_gemms == 0)
        return machine->gemm_share;
    for (int i = 0; i < machine->n_gemms; i++) {
        const ndm_sim_gemm *g = &machine->gemms[i];
        offer(&near, square(log2(m / g->m)) + square(log2(n / g->n)) + square(log2(k / g->k)),
              g->share);
    }
    return mean(&near);
}

double ndm_cost_attention_share(const ndm_sim_machine *machine, double batch_heads, double seq)
{
    neighbours near = {.n = 0};

    if (machine->n_attentions == 0)
        return machine->gemm_share;
    for (int i = 0; i < machine->n_attentions; i++) {
        const ndm_sim_attention *a = &machine->attentions[i];
        offer(&near, square(log2(batch_heads / a->batch_heads)) + square(2.0 * log2(seq / a->seq)),
              a->share);
    }
    return mean(&near);
}

/* ---- stacks ------------------------------------------------------------------------------- */

static const ndm_sim_stack stacks[] = {
#include "kernels/stacks.def"
};

enum { STACKS = sizeof stacks / sizeof *stacks };

const ndm_sim_stack *ndm_cost_stack_at(int i)
{
    return i >= 0 && i < STACKS ? &stacks[i] : NULL;
}

ndm_status ndm_cost_stack(const char *name, ndm_sim_stack *stack)
{
    const char *names[STACKS];

    for (int i = 0; i < STACKS; i++) {
        names[i] = stacks[i].name;
        if (!ndm_text_name_equal(stacks[i].name, name))
            continue;
        *stack = stacks[i];
        return NDM_OK;
    }
    const char *near = ndm_text_nearest(name, names, STACKS);
    NDM_FAIL(NDM_ERR_USAGE, "there is no stack '%s'%s%s%s", name, near ? "; did you mean '" : "",
             near ? near : "", near ? "'?" : " (such as ndmesh, compiled or eager)");
}
