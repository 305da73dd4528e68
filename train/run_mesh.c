/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh of a run: as its options say, or as the planner chooses. */
#include <stdio.h>
#include <string.h>

#include "train/auto_mesh.h"
#include "train/run_setup.h"

/* Called on rank 0 when the context knows how many ranks there are. */
static ndm_status choose(void *user, int64_t ranks, int64_t hosts,
                         ndm_parallelism_config *parallelism)
{
    ndm_setup_mesh *mesh = user;
    const ndm_options *o = mesh->options;
    const char *cluster = ndm_option_string(o, "cluster");
    ndm_plan_request q = {.model = ndm_option_string(o, "model"),
                          .ranks = ranks,
                          .parallelism = *parallelism,
                          .fsdp = NDM_FSDP_CONFIG_INIT,
                          .options = NDM_MODEL_OPTIONS_INIT,
                          .grad_accum = ndm_option_int64(o, "grad-accum")};

    if (!cluster && strcmp(ndm_option_string(o, "backend"), "cuda") == 0)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: a choice for GPUs takes a profile of them: --cluster");
    q.parallelism.order = NULL;
    q.parallelism.n_order = 0;
    NDM_TRY(ndm_setup_fsdp(o, NULL, &q.fsdp));
    ndm_setup_model_options(o, &q.options);
    NDM_TRY(ndm_auto_mesh_choose(&q, cluster, hosts, mesh->sizes, mesh->why, sizeof mesh->why));
    parallelism->dp_replicate = q.parallelism.dp_replicate;
    parallelism->dp_shard = q.parallelism.dp_shard;
    parallelism->cp = q.parallelism.cp;
    parallelism->tp = q.parallelism.tp;
    return NDM_OK;
}

void ndm_setup_read_mesh(const ndm_options *o, ndm_setup_mesh *mesh, ndm_parallelism_config *p,
                         ndm_context_options *context)
{
    *mesh = (ndm_setup_mesh){.options = o};
    p->dp_replicate = ndm_option_int64(o, "dp-replicate");
    p->dp_shard = ndm_option_int64(o, "dp-shard");
    p->cp = ndm_option_int64(o, "cp");
    p->tp = ndm_option_int64(o, "tp");
    if (ndm_auto_mesh_sizes(o, false, mesh->sizes)) {
        context->choose_mesh = choose;
        context->choose_user = mesh;
    }
}

void ndm_setup_say_mesh(const ndm_setup_mesh *mesh, const ndm_context *context)
{
    if (mesh->why[0] && ndm_context_rank(context) == 0 && !ndm_option_bool(mesh->options, "quiet"))
        fprintf(stderr, "ndmesh: mesh: %s\n", mesh->why);
}
