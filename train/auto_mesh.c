/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses a mesh by planning every one. */
#include "train/auto_mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cost.h"

static const char *const axis_options[NDM_AXIS_COUNT] = {"dp-replicate", "dp-shard", "cp", "tp"};

/* 0 is no size: left to whoever checks the mesh. */
static bool has_zero(const ndm_options *options)
{
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (ndm_option_int64(options, axis_options[a]) == 0)
            return true;
    return false;
}

bool ndm_auto_mesh_sizes(const ndm_options *options, bool search, int64_t *sizes)
{
    const char *mesh = ndm_option_string(options, "mesh");
    bool all = search || (mesh && strcmp(mesh, "auto") == 0);
    int open = 0;

    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        bool given = ndm_option_is_set(options, axis_options[a]) || !all;
        int64_t size = ndm_option_int64(options, axis_options[a]);
        sizes[a] = given && size != NDM_AUTO ? size : 0;
        open += sizes[a] == 0;
    }
    return !has_zero(options) && (open > 1 || (all && open > 0));
}

ndm_status ndm_auto_mesh_refuse_idle(const ndm_options *options, const char *name)
{
    int64_t sizes[NDM_AXIS_COUNT];

    return has_zero(options) || ndm_auto_mesh_sizes(options, false, sizes)
               ? NDM_OK
               : ndm_options_refuse_idle(
                     options, name, "sizes that are open: --mesh auto, or several that are -1");
}

static ndm_status load_machine(const char *cluster, int64_t ranks, int64_t hosts,
                               ndm_sim_machine *m)
{
    NDM_TRY(ndm_plan_load_cluster(cluster ? cluster : "cpu-cluster", m));
    if (!cluster) {
        m->cores_per_host = (double)sysconf(_SC_NPROCESSORS_ONLN);
        m->memory_bytes = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    }
    ndm_plan_share_host(m, ranks, hosts);
    return NDM_OK;
}

static void write_row(const ndm_plan_row *row, char *text, size_t bytes)
{
    snprintf(text, bytes, "%lld.%lld.%lld.%lld (%.4g tokens/s)", (long long)row->mesh[0],
             (long long)row->mesh[1], (long long)row->mesh[2], (long long)row->mesh[3],
             row->tokens_per_s);
}

static void explain(const ndm_plan_request *q, const ndm_plan_rows *rows, char *why, size_t bytes)
{
    const ndm_plan_row *best = &rows->items[0];
    char chosen[96], next[96] = "none";

    write_row(best, chosen, sizeof chosen);
    if (rows->fit > 1)
        write_row(&rows->items[1], next, sizeof next);
    snprintf(why, bytes,
             "dp_replicate.dp_shard.cp.tp %s is the fastest plan on %s; next %s; %lld of %lld "
             "meshes fit",
             chosen, q->machine->name, next, (long long)rows->fit, (long long)rows->n);
}

static ndm_status take_best(ndm_plan_request *q, const ndm_plan_rows *rows, char *why, size_t bytes)
{
    if (rows->n == 0)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: no sizes of the open axes have a product of %lld ranks",
                 (long long)q->ranks);
    if (rows->fit == 0)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: none of %lld meshes of %lld ranks runs on %s; one: %s",
                 (long long)rows->n, (long long)q->ranks, q->machine->name, rows->items[0].why);
    ndm_plan_row_mesh(&rows->items[0], &q->parallelism);
    explain(q, rows, why, bytes);
    return NDM_OK;
}

ndm_status ndm_auto_mesh_choose(ndm_plan_request *request, const char *cluster, int64_t hosts,
                                const int64_t *sizes, char *why, size_t why_bytes)
{
    ndm_sim_machine *machine = malloc(sizeof *machine); /* tables and all: too large for a stack */
    ndm_plan_open open = {.mesh = true};
    ndm_plan_rows rows = {0};
    ndm_sim_stack stack;
    ndm_status status;

    if (!machine)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a profile");
    memcpy(open.fixed, sizes, sizeof open.fixed);
    NDM_TRY_OR(status, load_machine(cluster, request->ranks, hosts, machine), done);
    NDM_TRY_OR(status, ndm_cost_stack("ndmesh", &stack), done);
    request->machine = machine;
    request->stack = &stack;
    NDM_TRY_OR(status, ndm_plan_search(request, &open, &rows), done);
    status = take_best(request, &rows, why, why_bytes);
done:
    request->machine = NULL;
    request->stack = NULL;
    free(rows.items);
    free(machine);
    return status;
}
