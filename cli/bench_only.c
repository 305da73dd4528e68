/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of a device and of backends with one entry that does nothing. */
#include "cli/bench_only.h"

#include "collectives/comms.h"
#include "strategies/internal.h"

enum { BACKENDS_MAX = 16 };

static ndm_status launch_nothing(ndm_stream *stream, const ndm_launch *launch)
{
    (void)stream, (void)launch;
    return NDM_OK;
}

static ndm_status move_nothing(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream)
{
    (void)args, (void)stream;
    comm->started++;
    return NDM_OK;
}

static void without_kernels(ndm_device *device)
{
    static ndm_device_ops ops;

    ops = *device->ops;
    ops.launch = launch_nothing;
    device->ops = &ops;
}

static void without_messages(ndm_comms *comms)
{
    static ndm_comm_backend silent[BACKENDS_MAX];
    const ndm_comm_backend *const *list = ndm_comm_backend_list();
    ndm_comm *comm;

    for (int64_t i = 0; (comm = ndm_comms_at(comms, i)) != NULL; i++)
        for (int64_t b = 0; b < BACKENDS_MAX && list[b] != NULL; b++)
            if (comm->backend == list[b]) {
                silent[b] = *list[b];
                silent[b].run = move_nothing;
                comm->backend = &silent[b];
                break;
            }
}

void ndm_bench_leave_out(ndm_context *context, ndm_bench_only only)
{
    if (only == NDM_ONLY_COMMUNICATION)
        without_kernels(context->device);
    else if (only == NDM_ONLY_COMPUTE)
        without_messages(context->comms);
}
