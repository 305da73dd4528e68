/* SPDX-License-Identifier: Apache-2.0 */
/* HSDP: shard inside, replicate outside. A gradient slice is reduced over the ranks that shard the
 * unit, then summed over the replicas, so only 1/n of it crosses the outer, slower network. (n, 1)
 * is DDP, (1, n) is FSDP. */
#include "core/dtype.h"
#include "strategies/internal.h"

static bool applies(const ndm_context *context, const ndm_fsdp_config *fsdp)
{
    (void)fsdp;
    return ndm_context_axes_size(context, NDM_AXES_DP_SHARD_CP) > 1 &&
           ndm_context_axes_size(context, NDM_AXIS_DP_REPLICATE) > 1;
}

static ndm_status reduce_grads(ndm_context *context, ndm_unit *unit, ndm_stream *stream)
{
    float *target;

    if (ndm_unit_by_rows(unit))
        return ndm_unit_reduce_rows(unit, stream);
    NDM_TRY(ndm_unit_grad_target(unit, &target, stream));
    NDM_TRY(ndm_unit_reduce_scatter(unit, target, stream));
    if (!unit->fsdp.defer_replicas)
        NDM_TRY(ndm_unit_reduce_replicas(unit, target, stream));
    NDM_TRY(ndm_unit_grad_merge(unit, stream));
    if (!unit->fsdp.defer_replicas || !ndm_context_last_micro_batch(context))
        return NDM_OK;
    return ndm_unit_reduce_replicas(unit, unit->grad_slice,
                                    stream); /* the replicas meet once a step */
}

static void describe(const ndm_context *context, const ndm_describe_args *args, ndm_traffic_fn emit,
                     void *user)
{
    const ndm_unit *u = args->unit;

    ndm_fsdp_describe(context, args, emit, user);
    if (!u)
        return;
    ndm_unit_describe_rows(u, "hsdp", NDM_AXES_DP_CP, emit, user);
    if (ndm_unit_by_rows(u))
        return;
    int64_t n = ndm_comm_size(u->replicas),
            bytes = u->slice * (int64_t)ndm_dtype_bytes(u->fsdp.reduce_dtype);
    emit(user, &(ndm_traffic){"hsdp", "unit", NDM_BACKWARD, NDM_ALL_REDUCE, NDM_AXIS_DP_REPLICATE,
                              1, 2 * (n - 1) * bytes / n});
}

const ndm_strategy ndm_strategy_hsdp = {
    .name = "hsdp",
    .summary = "shard over dp_shard x cp, replicate over dp_replicate",
    .axes = NDM_AXES_DP_CP,
    .applies = applies,
    .unit_enter = ndm_fsdp_unit_enter,
    .unit_leave = ndm_fsdp_unit_leave,
    .grads = reduce_grads,
    .describe = describe,
};
