/* SPDX-License-Identifier: Apache-2.0 */
/* Versions of what this program is made of: asked of the libraries, not of their headers, where
 * these say it at run time. */
#include "train/versions.h"

#include <stdio.h>
#include <string.h>

#include "collectives/comm.h"
#include "device/device.h"
#include "kernels/kernels.h"
#include "mesh/machine.h"

typedef struct list {
    ndm_version *items; /* [NDM_VERSIONS_MAX] */
    int64_t n;
} list;

static ndm_version *add(list *l, const char *name, const char *summary, bool there)
{
    ndm_version *v = &l->items[l->n < NDM_VERSIONS_MAX - 1 ? l->n++ : NDM_VERSIONS_MAX - 1];

    *v = (ndm_version){.name = name, .summary = summary, .there = there};
    return v;
}

static void add_build(list *l)
{
    ndm_version *v = add(l, "ndmesh", "this program", true);

    snprintf(v->text, sizeof v->text, "%s", NDM_VERSION);
    v = add(l, "compiler", "what made it", true);
    snprintf(v->text, sizeof v->text, "%s", NDM_COMPILER);
    v = add(l, "openmp", "threads of kernels", true);
    snprintf(v->text, sizeof v->text, "%d", _OPENMP);
    v = add(l, "mpi", "ranks and their messages", true);
    ndm_world_mpi_version(v->text, sizeof v->text);
    v = add(l, "hwloc", "where ranks are", true);
    ndm_machine_library_version(v->text, sizeof v->text);
}

/* Libraries of GEMMs that may be missing; with `only`, of that table: others stay unloaded. */
static void add_kernels(list *l, const char *only)
{
    for (const ndm_kernel_table *const *k = ndm_kernel_table_list(); *k != NULL; k++) {
        char why[NDM_VERSION_BYTES] = "";
        if (!(*k)->version || (only && strcmp((*k)->name, only) != 0))
            continue;
        bool there = !(*k)->probe || (*k)->probe(why, sizeof why);
        ndm_version *v = add(l, (*k)->name, (*k)->summary, there);
        if (there)
            (*k)->version(v->text, sizeof v->text);
        else
            memcpy(v->text, why, sizeof why);
    }
}

/* The cuda world is always among the devices; nccl among the backends where it was built. */
static void add_modules(list *l)
{
    for (const ndm_device_ops *const *d = ndm_device_list(); *d != NULL; d++) {
        char why[NDM_VERSION_BYTES] = "";
        if (strcmp((*d)->name, "cuda") != 0)
            continue;
        bool there = (*d)->version != NULL;
        ndm_version *v = add(l, (*d)->name, (*d)->summary, there);
        if (there)
            (*d)->version(v->text, sizeof v->text);
        else if ((*d)->probe && !(*d)->probe(why, sizeof why))
            memcpy(v->text, why, sizeof why);
    }
    for (const ndm_comm_backend *const *b = ndm_comm_backend_list(); *b != NULL; b++)
        if ((*b)->version)
            (*b)->version(add(l, (*b)->name, (*b)->summary, true)->text, NDM_VERSION_BYTES);
}

int64_t ndm_versions_read(ndm_version versions[NDM_VERSIONS_MAX])
{
    list l = {.items = versions};

    add_build(&l);
    add_kernels(&l, NULL);
    add_modules(&l);
    return l.n;
}

static bool is_used(const ndm_version *v, const ndm_device *device)
{
    for (const ndm_device_ops *const *d = ndm_device_list(); *d != NULL; d++)
        if (strcmp((*d)->name, v->name) == 0)
            return strcmp(ndm_device_name(device), v->name) == 0;
    return true;
}

void ndm_versions_write_json(ndm_json *json, const ndm_device *device)
{
    ndm_version versions[NDM_VERSIONS_MAX];
    list l = {.items = versions};

    add_build(&l);
    add_kernels(&l, ndm_kernels_chosen(device, NDM_OP_gemm));
    add_modules(&l);
    ndm_json_begin_object(json);
    for (int64_t i = 0; i < l.n; i++)
        if (versions[i].there && is_used(&versions[i], device))
            ndm_json_key_string(json, versions[i].name, versions[i].text);
    ndm_json_end_object(json);
}
