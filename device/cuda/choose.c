/* SPDX-License-Identifier: Apache-2.0 */
/* Which device a rank takes, and the processors near it.
 *
 * Ranks of a host take its devices in turn, so no two meet while there are enough, whatever order
 * the launcher has. A launcher that shows each rank a device of its own (CUDA_VISIBLE_DEVICES) has
 * chosen already, and so has an embedding program that hands in its device. The rank then moves to
 * the processors near its device, unless it was bound to fewer than all, which is left as it is. */
#include <hwloc.h>
#include <stdlib.h>

#include "device/cuda/internal.h"

ndm_status ndm_cuda_choose(const ndm_device_options *options, int *ordinal)
{
    int n = 0;

    NDM_CUDA_TRY("number of devices", cudaGetDeviceCount(&n));
    if (n < 1)
        NDM_FAIL(NDM_ERR_DEVICE, "device: cuda: there is no device");
    *ordinal = options->given.device ? options->given.index : options->local_rank % n;
    if (*ordinal < 0 || *ordinal >= n)
        NDM_FAIL(NDM_ERR_USAGE, "device: cuda: device_index %d of %d device(s), which count from 0",
                 *ordinal, n);
    return NDM_OK;
}

/* Processors near the device, or NULL: the system may not know. */
static hwloc_const_cpuset_t near(hwloc_topology_t topology, const char *bus_id)
{
    hwloc_obj_t device = hwloc_get_pcidev_by_busidstring(topology, bus_id);
    hwloc_obj_t above = device ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL;

    return above ? above->cpuset : NULL;
}

static void move(hwloc_topology_t topology, hwloc_bitmap_t now, const char *bus_id)
{
    hwloc_const_cpuset_t all = hwloc_topology_get_allowed_cpuset(topology);
    hwloc_const_cpuset_t place = near(topology, bus_id);

    if (!place || hwloc_bitmap_iszero(place) || hwloc_get_cpubind(topology, now, 0) != 0)
        return;
    if (hwloc_bitmap_isincluded(all, now))
        (void)hwloc_set_cpubind(topology, place, HWLOC_CPUBIND_PROCESS);
}

void ndm_cuda_move_near(const char *bus_id)
{
    hwloc_topology_t topology;
    hwloc_bitmap_t now = hwloc_bitmap_alloc();

    if (!now || hwloc_topology_init(&topology) != 0) {
        hwloc_bitmap_free(now);
        return;
    }
    (void)hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (hwloc_topology_load(topology) == 0)
        move(topology, now, bus_id);
    hwloc_topology_destroy(topology);
    hwloc_bitmap_free(now);
}
