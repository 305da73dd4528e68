/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies from outside the tree whose hooks reduce gradients, or change them. */
#include "session.h"

/* Which of them takes part, and how often it was asked. */
static const ndm_strategy *active;
static int64_t asked;

static ndm_status enter(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    return ndm_unit_unshard(unit, stream);
}

static ndm_status leave(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    return ndm_unit_reshard(unit, stream);
}

/* ---- in the place of ddp ----------------------------------------------------------------------
 */

static ndm_status sum_over_replicas(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    ndm_comm *replicas;

    asked++;
    NDM_TRY(ndm_context_comm(context, NDM_AXIS_DP_REPLICATE, &replicas));
    return ndm_all_reduce(replicas, ndm_unit_grad_slice(unit), ndm_unit_slice_numel(unit), NDM_F32,
                          NDM_SUM, stream);
}

static bool own_ddp_applies(const ndm_context *context, const ndm_fsdp_config *fsdp);

static const ndm_strategy own_ddp = {.name = "own_ddp",
                                     .summary = "sums gradients over replicas",
                                     .axes = NDM_AXIS_DP_REPLICATE,
                                     .replaces = "ddp",
                                     .applies = own_ddp_applies,
                                     .unit_enter = enter,
                                     .unit_leave = leave,
                                     .grads = sum_over_replicas};

static bool own_ddp_applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    const ndm_parallelism_config *mesh = ndm_context_parallelism(context);

    (void)fsdp;
    return active == &own_ddp && mesh->dp_replicate > 1 && mesh->dp_shard * mesh->cp == 1;
}

static void gradients_may_be_reduced_elsewhere(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_default();

    (void)state;
    t.batch = 24, t.accum = 2, t.steps = 2;
    t = task_on(t, n, 1, 1, 1);
    active = &own_ddp, asked = 0;
    check_like_one_rank(&t);
    active = NULL;
    check_all(asked > 0 && asked % t.steps == 0); /* once a unit and step */
}

/* ---- behind all others ------------------------------------------------------------------------
 */

/* Not linear: on the sum of a step alone is it the same on every mesh. */
static ndm_status bound_elements(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    float *grad = ndm_unit_grad_slice(unit);

    if (!ndm_context_last_micro_batch(context))
        return NDM_OK;
    asked++;
    NDM_TRY(ndm_stream_synchronize(stream));
    for (int64_t i = 0; i < ndm_unit_slice_numel(unit); i++)
        grad[i] = grad[i] > 1e-3f ? 1e-3f : grad[i] < -1e-3f ? -1e-3f : grad[i];
    return NDM_OK;
}

static bool bound_applies(const ndm_context *context, const ndm_fsdp_config *fsdp);

static const ndm_strategy bound = {.name = "bound",
                                   .summary = "bounds each element of a gradient",
                                   .applies = bound_applies,
                                   .grads = bound_elements};

static bool bound_applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)context;
    (void)fsdp;
    return active == &bound;
}

static void gradients_may_be_changed_when_they_are_whole(void **state)
{
    task t = task_default();

    (void)state;
    t.batch = 24, t.accum = 2, t.steps = 2;
    active = &bound, asked = 0;
    check_every_mesh(t);
    active = NULL;
    check_all(asked > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gradients_may_be_reduced_elsewhere),
        cmocka_unit_test(gradients_may_be_changed_when_they_are_whole),
    };

    if (ndm_strategy_register(&own_ddp) != NDM_OK || ndm_strategy_register(&bound) != NDM_OK)
        return 1;
    return harness_run("plugin", tests);
}
