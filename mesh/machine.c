/* SPDX-License-Identifier: Apache-2.0 */
/* hwloc topologies, read into placement facts. */
#include "mesh/machine.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hwloc.h>

struct ndm_machine {
    hwloc_topology_t topology;
};

ndm_status ndm_machine_open(const char *synthetic, ndm_machine **machine)
{
    ndm_machine *m = calloc(1, sizeof *m);
    if (m == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory for a topology");
    if (hwloc_topology_init(&m->topology) != 0) {
        free(m);
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: hwloc has no memory for a topology");
    }
    if (synthetic != NULL && hwloc_topology_set_synthetic(m->topology, synthetic) != 0) {
        ndm_machine_close(m);
        NDM_FAIL(NDM_ERR_USAGE,
                 "mesh: '%.80s' describes no machine to hwloc; try 'pack:2 l3:2 core:4 pu:1'",
                 synthetic);
    }
    if (hwloc_topology_load(m->topology) != 0) {
        ndm_machine_close(m);
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "mesh: hwloc could not read the topology");
    }
    *machine = m;
    return NDM_OK;
}

void ndm_machine_close(ndm_machine *machine)
{
    if (machine == NULL)
        return;
    hwloc_topology_destroy(machine->topology);
    free(machine);
}

int64_t ndm_machine_cores(const ndm_machine *machine)
{
    int n = hwloc_get_nbobjs_by_type(machine->topology, HWLOC_OBJ_CORE);
    return n > 0 ? n : hwloc_get_nbobjs_by_type(machine->topology, HWLOC_OBJ_PU);
}

/* Index of the object of a type that holds the whole set. (hwloc's own "covering" iterator also
 * returns objects that only intersect it, and NUMA nodes hang beside the tree that its other
 * searches descend.) */
static int64_t holder(hwloc_topology_t topology, hwloc_const_cpuset_t set, hwloc_obj_type_t type)
{
    if (hwloc_get_nbobjs_by_type(topology, type) <= 0)
        return NDM_PLACE_NONE;
    hwloc_obj_t obj = NULL;
    while ((obj = hwloc_get_next_obj_by_type(topology, type, obj)) != NULL)
        if (hwloc_bitmap_isincluded(set, obj->cpuset))
            return (int64_t)obj->logical_index;
    return NDM_PLACE_UNKNOWN;
}

static void facts_of_set(hwloc_topology_t topology, int64_t host, hwloc_const_cpuset_t set,
                         ndm_place_facts *facts)
{
    facts->id[NDM_PLACE_HOST] = host;
    facts->id[NDM_PLACE_ISLAND] = NDM_PLACE_NONE;
    facts->id[NDM_PLACE_PACKAGE] = holder(topology, set, HWLOC_OBJ_PACKAGE);
    facts->id[NDM_PLACE_NUMA] = holder(topology, set, HWLOC_OBJ_NUMANODE);
    facts->id[NDM_PLACE_L3] = holder(topology, set, HWLOC_OBJ_L3CACHE);
    facts->id[NDM_PLACE_CORE] = holder(topology, set, HWLOC_OBJ_CORE);
    ndm_place_facts_settle(facts);
}

static ndm_status set_of_cores(hwloc_topology_t t, int64_t first, int64_t n, hwloc_bitmap_t *set)
{
    hwloc_obj_type_t type = hwloc_get_nbobjs_by_type(t, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE
                                                                            : HWLOC_OBJ_PU;
    *set = hwloc_bitmap_alloc();
    if (*set == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory for a set of cpus");
    for (int64_t c = first; c < first + n; c++) {
        hwloc_obj_t obj = hwloc_get_obj_by_type(t, type, (unsigned)c);
        if (obj != NULL)
            hwloc_bitmap_or(*set, *set, obj->cpuset);
    }
    return NDM_OK;
}

ndm_status ndm_machine_facts_of_cores(const ndm_machine *machine, int64_t host, int64_t first,
                                      int64_t n, ndm_place_facts *facts)
{
    hwloc_bitmap_t set;

    NDM_TRY(set_of_cores(machine->topology, first, n, &set));
    facts_of_set(machine->topology, host, set, facts);
    hwloc_bitmap_free(set);
    return NDM_OK;
}

ndm_status ndm_machine_bind_self(const ndm_machine *machine, int64_t first, int64_t n)
{
    hwloc_bitmap_t set;

    NDM_TRY(set_of_cores(machine->topology, first, n, &set));
    int failed = hwloc_set_cpubind(machine->topology, set, HWLOC_CPUBIND_PROCESS);
    hwloc_bitmap_free(set);
    if (failed != 0)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "bind: the system does not bind to cores %lld to %lld: %s",
                 (long long)first, (long long)(first + n - 1), strerror(errno));
    return NDM_OK;
}

void ndm_machine_facts_of_self(const ndm_machine *machine, int64_t host, ndm_place_facts *facts)
{
    hwloc_topology_t t = machine->topology;
    hwloc_const_cpuset_t all = hwloc_topology_get_topology_cpuset(t);
    hwloc_bitmap_t set = hwloc_bitmap_alloc();
    if (set == NULL || hwloc_get_cpubind(t, set, HWLOC_CPUBIND_PROCESS) != 0) {
        facts_of_set(t, host, all, facts);
    } else {
        hwloc_bitmap_and(set, set, all);
        facts_of_set(t, host, hwloc_bitmap_iszero(set) ? all : set, facts);
    }
    hwloc_bitmap_free(set);
}

static size_t append_count(hwloc_topology_t t, hwloc_obj_type_t type, const char *word, char *text,
                           size_t bytes, size_t used)
{
    int n = hwloc_get_nbobjs_by_type(t, type);
    if (n <= 0 || used >= bytes)
        return used;
    return used + (size_t)snprintf(text + used, bytes - used, "%s%d %s%s", used ? ", " : "", n,
                                   word, n > 1 ? "s" : "");
}

const char *ndm_machine_summary(const ndm_machine *machine, char *text, size_t text_bytes)
{
    hwloc_topology_t t = machine->topology;
    size_t used = 0;
    text[0] = '\0';
    used = append_count(t, HWLOC_OBJ_PACKAGE, "package", text, text_bytes, used);
    used = append_count(t, HWLOC_OBJ_NUMANODE, "NUMA node", text, text_bytes, used);
    used = append_count(t, HWLOC_OBJ_L3CACHE, "L3 cache", text, text_bytes, used);
    hwloc_obj_t l3 = hwloc_get_obj_by_type(t, HWLOC_OBJ_L3CACHE, 0);
    if (l3 != NULL && used < text_bytes)
        used += (size_t)snprintf(text + used, text_bytes - used, " of %" PRIu64 " MiB",
                                 (uint64_t)l3->attr->cache.size >> 20);
    used = append_count(t, HWLOC_OBJ_CORE, "core", text, text_bytes, used);
    used = append_count(t, HWLOC_OBJ_PU, "hardware thread", text, text_bytes, used);
    hwloc_obj_t root = hwloc_get_root_obj(t);
    if (root != NULL && used < text_bytes)
        snprintf(text + used, text_bytes - used, ", %.1f GiB",
                 (double)root->total_memory / (double)(1 << 30));
    return text;
}

const char *ndm_machine_processor(const ndm_machine *machine)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(machine->topology, HWLOC_OBJ_PACKAGE, 0);
    hwloc_obj_t obj = package != NULL ? package : hwloc_get_root_obj(machine->topology);
    const char *name = hwloc_obj_get_info_by_name(obj, "CPUModel");
    return name != NULL ? name : "unknown";
}

const char *ndm_machine_library_version(char *text, size_t text_bytes)
{
    unsigned version = hwloc_get_api_version();

    snprintf(text, text_bytes, "%u.%u.%u", version >> 16, (version >> 8) & 0xff, version & 0xff);
    return text;
}
