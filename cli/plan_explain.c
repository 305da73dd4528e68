/* SPDX-License-Identifier: Apache-2.0 */
/* What limits a step: the shares of its time, and the same plan on machines that are better in one
 * thing each. */
#include "cli/plan_view.h"

static double busy(const ndm_sim_totals *t, int category)
{
    double sum = 0.0;

    for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++)
        sum += t->busy[p][category];
    return sum;
}

static double waiting_for_host(const ndm_sim_totals *t)
{
    double sum = 0.0;

    for (int p = 0; p < NDM_SIM_PHASE_COUNT; p++)
        sum += t->host[p];
    return sum;
}

static void print_shares(const ndm_plan_result *p, FILE *out)
{
    double total = p->step_ns;
    const struct {
        const char *name;
        double ns;
    } parts[] = {
        {"matrix products", busy(&p->totals, NDM_SIM_GEMM)},
        {"attention", busy(&p->totals, NDM_SIM_ATTENTION)},
        {"kernels bound by memory", busy(&p->totals, NDM_SIM_MEMORY)},
        {"exposed communication", ndm_sim_exposed(&p->totals)},
        {"waiting for launches", waiting_for_host(&p->totals)},
    };
    int worst = 0;

    fprintf(out, "where the step goes\n");
    for (int i = 0; i < 5; i++) {
        fprintf(out, "  %-26s%5.1f %%\n", parts[i].name, parts[i].ns / total * 100.0);
        worst = parts[i].ns > parts[worst].ns ? i : worst;
    }
    fprintf(out, "bottleneck: %s\n", parts[worst].name);
}

/* The plan again with one number of the machine changed. */
static ndm_status try_change(const ndm_plan_view *v, void (*apply)(ndm_sim_machine *m),
                             const char *what, FILE *out)
{
    ndm_sim_machine machine = *v->request->machine;
    ndm_plan_request request = *v->request;
    ndm_plan_result result;

    apply(&machine);
    request.machine = &machine;
    request.trace = request.svg = NULL;
    NDM_TRY(ndm_plan_run(&request, &result));
    fprintf(out, "  %-44s %+6.1f %% tokens/s\n", what,
            (result.tokens_per_s / v->result->tokens_per_s - 1.0) * 100.0);
    return NDM_OK;
}

static void faster_products(ndm_sim_machine *m)
{
    m->peak_flops *= 1.1;
}

static void faster_memory(ndm_sim_machine *m)
{
    m->memory_bw *= 1.1;
}

static void faster_links(ndm_sim_machine *m)
{
    m->link_scale *= 2.0;
}

static void faster_network(ndm_sim_machine *m)
{
    m->network_bw *= 2.0;
}

static void shorter_latency(ndm_sim_machine *m)
{
    m->latency_scale *= 0.5;
}

static void faster_launches(ndm_sim_machine *m)
{
    m->launch_ns *= 0.5;
}

ndm_status ndm_plan_explain(const ndm_plan_view *view, FILE *out)
{
    print_shares(view->result, out);
    fprintf(out, "what would move it\n");
    NDM_TRY(try_change(view, faster_products, "10 % more FLOP/s", out));
    NDM_TRY(try_change(view, faster_memory, "10 % more memory bandwidth", out));
    NDM_TRY(try_change(view, faster_links, "links inside a domain twice as fast", out));
    NDM_TRY(try_change(view, faster_network, "a network twice as fast", out));
    NDM_TRY(try_change(view, shorter_latency, "half the latency of collectives", out));
    return try_change(view, faster_launches, "half the host time of a launch", out);
}
