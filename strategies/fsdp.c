/* SPDX-License-Identifier: Apache-2.0 */
/* FSDP: every rank owns a slice of each unit. Weights are gathered for use, gradients are
 * reduce-scattered. Zhao et al., "PyTorch FSDP: Experiences on Scaling Fully Sharded Data
 * Parallel", 2023. */
#include "core/dtype.h"
#include "strategies/internal.h"

ndm_status ndm_fsdp_unit_enter(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    return ndm_unit_unshard(unit, stream);
}

ndm_status ndm_fsdp_unit_leave(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    return ndm_unit_reshard(unit, stream);
}

static bool applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)fsdp;
    return ndm_context_axes_size(context, NDM_AXES_DP_SHARD_CP) > 1 &&
           ndm_context_axes_size(context, NDM_AXIS_DP_REPLICATE) == 1;
}

static ndm_status reduce_grads(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    float *target;

    (void)context;
    if (ndm_unit_by_rows(unit))
        return ndm_unit_reduce_rows(unit, stream);
    NDM_TRY(ndm_unit_grad_target(unit, &target, stream));
    NDM_TRY(ndm_unit_reduce_scatter(unit, target, stream));
    return ndm_unit_grad_merge(unit, stream);
}

void ndm_fsdp_describe(const ndm_context *context, const ndm_describe_args *args,
                       ndm_traffic_fn emit, void *user)
{
    const ndm_unit *u = args->unit;

    (void)context;
    if (!u || u->shards == 1)
        return;
    int64_t received = u->numel / u->shards * (u->shards - 1);
    int64_t weights = u->eight ? ndm_gather_eight_bytes(u) * (u->shards - 1)
                               : received * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);
    int64_t grads = received * (int64_t)ndm_dtype_bytes(u->fsdp.reduce_dtype);
    bool again = !ndm_unit_keeps_weights(u);
    ndm_traffic t = {"fsdp", "unit", NDM_FORWARD, NDM_ALL_GATHER, NDM_AXES_DP_SHARD_CP, 1, weights};

    emit(user, &t);
    if (u->eight) {
        ndm_gather_eight_describe(u, NDM_FORWARD, emit, user);
        if (again)
            ndm_gather_eight_describe(u, NDM_BACKWARD, emit, user);
    }
    t.direction = NDM_BACKWARD;
    if (again && u->block) {
        int64_t k = ndm_comm_size(u->block);
        t.bytes = u->numel / k * (k - 1) * (int64_t)ndm_dtype_bytes(u->fsdp.param_dtype);
    }
    if (again)
        emit(user, &t);
    if (ndm_unit_by_rows(u))
        return;
    t.kind = NDM_REDUCE_SCATTER;
    t.calls = ndm_unit_pieces_of_step(u);
    t.bytes = grads;
    emit(user, &t);
}

static void describe(const ndm_context *context, const ndm_describe_args *args, ndm_traffic_fn emit,
                     void *user)
{
    ndm_fsdp_describe(context, args, emit, user);
    if (args->unit)
        ndm_unit_describe_rows(args->unit, "fsdp", NDM_AXES_DP_SHARD_CP, emit, user);
}

const ndm_strategy ndm_strategy_fsdp = {
    .name = "fsdp",
    .summary = "shard weights, gradients and optimizer state over dp_shard x cp",
    .axes = NDM_AXES_DP_SHARD_CP,
    .applies = applies,
    .unit_enter = ndm_fsdp_unit_enter,
    .unit_leave = ndm_fsdp_unit_leave,
    .grads = reduce_grads,
    .describe = describe,
};
