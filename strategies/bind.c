/* SPDX-License-Identifier: Apache-2.0 */
/* Which cores a rank keeps to: the ranks of a host take neighbouring cores in turn, so that a
 * rank's threads and first touches stay on one memory node, and the placement of axes knows where
 * it is. */
#include <sched.h>
#include <unistd.h>

#include "mesh/machine.h"
#include "strategies/internal.h"

/* The launcher, or a container, has chosen already. */
bool ndm_bind_is_set(void)
{
    cpu_set_t allowed;

    CPU_ZERO(&allowed);
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 &&
           CPU_COUNT(&allowed) < sysconf(_SC_NPROCESSORS_ONLN);
}

/* On one memory node it gains nothing, and costs when several jobs share the machine. The kernel
 * says so faster than a topology does. */
static bool pays(void)
{
    return access("/sys/devices/system/node/node1", F_OK) == 0;
}

static ndm_status bind_to_cores(const ndm_context *c, const ndm_machine *machine, int threads,
                                bool forced)
{
    int64_t cores = ndm_machine_cores(machine), ranks = ndm_world_local_size(c->world);

    if (ranks * threads > cores && !forced)
        return NDM_OK;
    if (ranks * threads > cores)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "bind: %lld ranks of %d threads on host %s need %lld cores, it has %lld",
                 (long long)ranks, threads, ndm_world_host(c->world, ndm_world_rank(c->world)),
                 (long long)(ranks * threads), (long long)cores);
    return ndm_machine_bind_self(machine, ndm_world_local_rank(c->world) * threads, threads);
}

ndm_status ndm_bind_self(const ndm_context *c, ndm_bind bind, int threads)
{
    ndm_machine *machine;

    if (bind == NDM_BIND_NONE || (bind == NDM_BIND_AUTO && (ndm_bind_is_set() || !pays())))
        return NDM_OK;
    NDM_TRY(ndm_machine_open(NULL, &machine));
    ndm_status status = bind_to_cores(c, machine, threads, bind == NDM_BIND_CORES);
    ndm_machine_close(machine);
    return status;
}
