/* SPDX-License-Identifier: Apache-2.0 */
/* A small run, and the plan of it: the same engine allocates the same bytes and issues the same
 * collectives. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/comms.h"
#include "kernels/cost.h"
#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"
#include "train/plan.h"

typedef struct seen {
    ndm_memory_stats memory;
    ndm_plan_comm comms[NDM_PLAN_COMMS_MAX];
    int n_comms;
    int64_t step;
} seen;

/* Calls of the last step: what was called so far, less what had been before. */
static void look(void *user, ndm_model *model)
{
    seen *s = user;
    ndm_context *c = ndm_model_context(model);

    s->memory = ndm_device_memory(ndm_context_device(c));
    for (s->n_comms = 0; ndm_comms_at(c->comms, s->n_comms); s->n_comms++) {
        const ndm_comm *comm = ndm_comms_at(c->comms, s->n_comms);
        ndm_plan_comm *p = &s->comms[s->n_comms];
        memcpy(p->name, comm->name, sizeof p->name);
        for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++) {
            int64_t all = comm->stats.calls[k], before = s->step == 0 ? 0 : (int64_t)p->received[k];
            p->calls[k] = all - before;
            p->received[k] = (double)all;
        }
    }
    s->step++;
}

static ndm_plan_result plan_of(const problem *p, const variant *v, const ndm_sim_machine *m)
{
    ndm_parallelism_config mesh = NDM_PARALLELISM_CONFIG_INIT;
    ndm_fsdp_config f = NDM_FSDP_CONFIG_INIT;
    ndm_model_options o = NDM_MODEL_OPTIONS_INIT;
    ndm_plan_result result;
    char path[512];

    mesh.dp_replicate = v->mesh[NDM_DP_REPLICATE];
    mesh.dp_shard = v->mesh[NDM_DP_SHARD];
    mesh.cp = v->mesh[NDM_CP];
    mesh.tp = v->mesh[NDM_TP];
    mesh.cp_method = v->cp_method;
    mesh.no_sequence_parallel = !v->sequence_parallel;
    f.zero = v->zero;
    f.reshard_after_forward = v->reshard;
    f.defer_sync = v->defer_sync;
    f.defer_replicas = v->defer_replicas;
    f.param_dtype = f.reduce_dtype = v->bf16 ? NDM_BF16 : NDM_F32;
    o.seq_len = SEQ_LEN;
    o.micro_batch = GLOBAL_BATCH / variant_size(v, NDM_AXES_DP) / v->accum;
    o.recompute = v->recompute;
    o.head_chunk = 17;
    problem_write_config(p, path, sizeof path);
    ndm_plan_request q = {.model = path,
                          .machine = m,
                          .stack = ndm_cost_stack_at(0),
                          .ranks = ndm_world_size(world),
                          .rank = ndm_world_rank(world),
                          .parallelism = mesh,
                          .fsdp = f,
                          .options = o,
                          .grad_accum = v->accum};
    must(ndm_plan_run(&q, &result));
    unlink(path);
    return result;
}

static int64_t calls_of(const ndm_plan_comm *comms, int n, const char *name, int kind)
{
    for (int i = 0; i < n; i++)
        if (strcmp(comms[i].name, name) == 0)
            return comms[i].calls[kind];
    return -1;
}

/* Staging of messages is the transport's, which plans do not have. */
static void compare_memory(const ndm_memory_stats *ran, const ndm_memory_stats *planned)
{
    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++)
        if (k != NDM_MEMORY_COMM)
            check_all(ran->peak_bytes[k] == planned->peak_bytes[k]);
}

static void compare_calls(const seen *ran, const ndm_plan_result *planned)
{
    for (int i = 0; i < ran->n_comms; i++)
        for (int k = 0; k < NDM_COLLECTIVE_COUNT; k++)
            check_all(ran->comms[i].calls[k] ==
                      calls_of(planned->comms, planned->n_comms, ran->comms[i].name, k));
}

static void check_plan(const variant *v, bool windows)
{
    ndm_sim_machine m;
    variant actual = *v;
    seen s = {0};
    record r;

    must(ndm_plan_load_cluster(NDM_SHARE "/clusters/cpu-cluster.yaml", &m));
    m.ranks_per_host = m.ranks_per_domain = ndm_world_size(world);
    m.windows = windows;
    actual.collectives = ndm_world_size(world) == 1 ? "self" : windows ? "shm" : "mpi";
    ok_all(run_variant(&problems[0], &actual,
                       &(setup){.comm = MPI_COMM_WORLD, .stepped = look, .user = &s}, &r));
    record_finish(&r);
    ndm_plan_result planned = plan_of(&problems[0], &actual, &m);
    compare_memory(&s.memory, &planned.memory);
    compare_calls(&s, &planned);
}

static void compare_meshes(bool windows)
{
    variant_list meshes = {0};

    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        variant v = {.zero = 3,
                     .reshard = NDM_RESHARD_ALWAYS,
                     .accum = 3,
                     .defer_replicas = true,
                     .sequence_parallel = true,
                     .recompute = (ndm_recompute)(i % 3)};
        memcpy(v.mesh, meshes.items[i].mesh, sizeof v.mesh);
        if (!variant_refused(&problems[0], &v))
            check_plan(&v, windows);
    }
    free(meshes.items);
}

static void plans_take_the_bytes_and_calls_of_runs(void **state)
{
    (void)state;
    compare_meshes(false);
}

static void plans_know_memory_that_ranks_share(void **state)
{
    (void)state;
    if (ndm_world_size(world) > 1)
        compare_meshes(true);
}

static void plans_follow_the_sharding(void **state)
{
    int64_t n = ndm_world_size(world);

    (void)state;
    for (int zero = 1; n > 1 && zero <= 3; zero++) {
        variant v = {.mesh = {1, n, 1, 1},
                     .zero = zero,
                     .reshard = NDM_RESHARD_NEVER,
                     .accum = 2,
                     .defer_replicas = true,
                     .sequence_parallel = true};
        check_plan(&v, false);
        v.bf16 = true;
        check_plan(&v, false);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_take_the_bytes_and_calls_of_runs),
        cmocka_unit_test(plans_know_memory_that_ranks_share),
        cmocka_unit_test(plans_follow_the_sharding),
    };

    return harness_run("plan_engine", tests);
}
