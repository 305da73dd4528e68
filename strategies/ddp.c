/* SPDX-License-Identifier: Apache-2.0 */
/* DDP: whole weights on every rank, gradients all-reduced once a step. And `local`: one rank,
 * nothing to exchange. Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
 * Training", 2020. */
#include "core/dtype.h"
#include "strategies/internal.h"

static bool ddp_applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)fsdp;
    return ndm_context_axes_size(context, NDM_AXES_DP_SHARD_CP) == 1 &&
           ndm_context_axes_size(context, NDM_AXIS_DP_REPLICATE) > 1;
}

static ndm_status reduce_grads(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    (void)context;
    if (ndm_unit_by_rows(unit))
        return ndm_unit_reduce_rows(unit, stream);
    return ndm_unit_reduce_replicas(unit, unit->grad_slice, stream);
}

static void describe(const ndm_context *context, const ndm_describe_args *args, ndm_traffic_fn emit,
                     void *user)
{
    const ndm_unit *u = args->unit;

    (void)context;
    if (!u)
        return;
    ndm_unit_describe_rows(u, "ddp", NDM_AXIS_DP_REPLICATE, emit, user);
    if (ndm_unit_by_rows(u))
        return;
    int64_t n = ndm_comm_size(u->replicas),
            bytes = u->slice * (int64_t)ndm_dtype_bytes(u->fsdp.reduce_dtype);
    emit(user, &(ndm_traffic){"ddp", "unit", NDM_BACKWARD, NDM_ALL_REDUCE, NDM_AXIS_DP_REPLICATE, 1,
                              2 * (n - 1) * bytes / n});
}

const ndm_strategy ndm_strategy_ddp = {
    .name = "ddp",
    .summary = "replicate weights over dp_replicate, all-reduce gradients",
    .axes = NDM_AXIS_DP_REPLICATE,
    .applies = ddp_applies,
    .unit_enter = ndm_fsdp_unit_enter,
    .unit_leave = ndm_fsdp_unit_leave,
    .grads = reduce_grads,
    .describe = describe,
};

static bool local_applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)fsdp;
    return ndm_context_axes_size(context, NDM_AXES_DP_CP) == 1;
}

const ndm_strategy ndm_strategy_local = {
    .name = "local",
    .summary = "no data parallelism",
    .applies = local_applies,
    .unit_enter = ndm_fsdp_unit_enter,
    .unit_leave = ndm_fsdp_unit_leave,
};
