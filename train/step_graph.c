/* SPDX-License-Identifier: Apache-2.0 */
/* Steps as graphs. The first steps are launched piece by piece: they make the buffers, handles and
 * connections that a graph cannot. Then one is noted, and launched whole from there on. What
 * differs between steps lies in device memory, and is written before; whatever the host decides on
 * its way through a step must be the same in all. */
#include "train/step_graph.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/error.h"

enum { PIECEMEAL = 2 }; /* steps */

struct ndm_step_graph {
    ndm_context *context;
    bool wanted, must;
    int64_t grad_accum, steps;
    ndm_graph *graph;
};

/* Micro-batches are fed one after another, each from memory of the host. */
static bool possible(const ndm_step_graph *g, char *why, size_t why_bytes)
{
    const ndm_device *device = g->context->device;
    const ndm_comm *comm;

    if (!ndm_device_has_graphs(device)) {
        snprintf(why, why_bytes, "device %s has none", device->ops->name);
        return false;
    }
    if (g->grad_accum > 1) {
        snprintf(why, why_bytes, "grad_accum=%lld; a graph holds one micro-batch",
                 (long long)g->grad_accum);
        return false;
    }
    for (int64_t i = 0; (comm = ndm_comms_at(g->context->comms, i)); i++)
        if (comm->size > 1 && !comm->backend->launches) {
            snprintf(why, why_bytes, "the host takes part in the collectives of %s",
                     comm->backend->name);
            return false;
        }
    for (int64_t i = 0; i < g->context->n_strategies; i++)
        if (!ndm_strategy_is_built_in(g->context->strategies[i])) {
            snprintf(why, why_bytes, "strategy %s may decide otherwise in another step",
                     g->context->strategies[i]->name);
            return false;
        }
    return true;
}

static ndm_status check(ndm_step_graph *g)
{
    char why[128];

    if (!g->wanted || possible(g, why, sizeof why))
        return NDM_OK;
    if (g->must)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "graphs are on, but %s", why);
    g->wanted = false;
    return NDM_OK;
}

ndm_status ndm_step_graph_create(ndm_context *context, ndm_toggle wanted, int64_t grad_accum,
                                 ndm_step_graph **graph)
{
    ndm_step_graph *g = calloc(1, sizeof *g);

    if (!g)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a step's graph");
    *g = (ndm_step_graph){.context = context,
                          .wanted = wanted != NDM_TOGGLE_OFF,
                          .must = wanted == NDM_TOGGLE_ON,
                          .grad_accum = grad_accum};
    *graph = g;
    return check(g);
}

void ndm_step_graph_destroy(ndm_step_graph *graph)
{
    if (!graph)
        return;
    if (graph->graph)
        ndm_context_settle(graph->context);
    ndm_graph_destroy(graph->context->device, graph->graph);
    free(graph);
}

bool ndm_step_graph_wanted(const ndm_step_graph *graph)
{
    return graph->wanted;
}

/* Where it cannot be noted, steps go on piece by piece. */
static ndm_status note(ndm_step_graph *g, ndm_status (*launch)(void *user), void *user)
{
    ndm_stream *stream = g->context->compute;
    ndm_status launched, status = ndm_graph_begin(stream);
    ndm_error kept;

    if (status == NDM_OK) {
        launched = launch(user);
        if (launched != NDM_OK)
            ndm_error_keep(&kept);
        status = ndm_graph_end(stream, &g->graph);
        if (launched != NDM_OK) {
            ndm_error_restore(&kept);
            return launched;
        }
    }
    if (status == NDM_ERR_UNSUPPORTED && !g->must) {
        g->wanted = false;
        return launch(user);
    }
    return status;
}

ndm_status ndm_step_graph_run(ndm_step_graph *g, ndm_status (*launch)(void *user), void *user,
                              ndm_unit *const *units, int64_t n_units)
{
    bool noted = g->graph != NULL;

    if (!g->wanted || g->steps++ < PIECEMEAL)
        return launch(user);
    NDM_TRY(check(g)); /* there may be more communicators than at first */
    if (!g->wanted)
        return launch(user);
    if (!noted)
        NDM_TRY(note(g, launch, user));
    if (!g->graph)
        return NDM_OK;
    NDM_TRY(ndm_graph_launch(g->graph, g->context->compute));
    for (int64_t i = 0; i < n_units;
         i++) /* what was gathered before is old, and the host knows it */
        NDM_TRY(ndm_unit_changed(units[i]));
    return NDM_OK;
}
