/* SPDX-License-Identifier: Apache-2.0 */
/* The registry of kernel tables, and the choice of one body an op for a device. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/module.h"
#include "kernels/table.h"

static const ndm_kernel_table *const built_in[] = {
#define NDM_KERNEL_TABLE(identifier) &ndm_kernels_##identifier,
#include "kernels/kernels.def"
#undef NDM_KERNEL_TABLE
    NULL,
};

static const char *const op_names[NDM_OP_COUNT] = {
#define OP_NAME(name, doc) #name,
    NDM_KERNEL_LIST(OP_NAME)
#undef OP_NAME
};

enum { TABLES_MAX = 64 };
enum { BUILT_IN = sizeof built_in / sizeof built_in[0] - 1 };
_Static_assert(BUILT_IN + 2 <= TABLES_MAX, "an order of tables fits");

/* Tables in order of preference; the first that has an op gives its body. */
typedef struct table_order {
    const ndm_kernel_table *table[TABLES_MAX];
    int count;
} table_order;

const ndm_kernel_table *const *ndm_kernel_table_list(void)
{
    static const ndm_kernel_table *list[BUILT_IN + 2];

    memcpy(list, built_in, sizeof built_in);
    list[BUILT_IN] = ndm_module_offer("cuda", "ndm_cuda_kernels");
    return list;
}

const char *ndm_op_name(ndm_op op)
{
    return (unsigned)op < NDM_OP_COUNT ? op_names[op] : "unknown";
}

/* Devices whose memory the host can touch run the cpu's kernels, whatever they are called (tests
 * derive some from cpu). */
static bool table_fits(const ndm_kernel_table *table, const ndm_device *device)
{
    if (strcmp(table->device, device->ops->name) == 0)
        return true;
    return device->ops->host_accessible && strcmp(table->device, "cpu") == 0;
}

static bool table_probe(const ndm_kernel_table *table, char *why, size_t why_bytes)
{
    why[0] = '\0';
    return !table->probe || table->probe(why, why_bytes);
}

static void order_add(table_order *order, const ndm_kernel_table *table)
{
    for (int i = 0; i < order->count; i++)
        if (order->table[i] == table)
            return;
    order->table[order->count++] = table;
}

/* Appends what the machine can run, the highest priority first. */
static void order_add_auto(table_order *order, const ndm_device *device)
{
    const ndm_kernel_table *const *tables = ndm_kernel_table_list();
    const ndm_kernel_table *found[TABLES_MAX];
    char why[256];
    int count = 0;

    for (int i = 0; tables[i]; i++) {
        if (!table_fits(tables[i], device) || !table_probe(tables[i], why, sizeof why))
            continue;
        int at = count++;
        for (; at > 0 && found[at - 1]->priority < tables[i]->priority; at--)
            found[at] = found[at - 1];
        found[at] = tables[i];
    }
    for (int i = 0; i < count; i++)
        order_add(order, found[i]);
}

static void list_names(const ndm_device *device, char *text, size_t text_bytes)
{
    const ndm_kernel_table *const *tables = ndm_kernel_table_list();
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; tables[i] && used < text_bytes; i++)
        if (table_fits(tables[i], device))
            used += (size_t)snprintf(text + used, text_bytes - used, ", %s", tables[i]->name);
}

static ndm_status order_add_name(table_order *order, const ndm_device *device, const char *name)
{
    const ndm_kernel_table *const *tables = ndm_kernel_table_list();
    char why[256];

    if (strcmp(name, "auto") == 0) {
        order_add_auto(order, device);
        return NDM_OK;
    }
    for (int i = 0; tables[i]; i++) {
        if (!table_fits(tables[i], device) || strcmp(tables[i]->name, name) != 0)
            continue;
        if (!table_probe(tables[i], why, sizeof why))
            NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernels: %s does not run here: %s", name, why);
        order_add(order, tables[i]);
        return NDM_OK;
    }
    list_names(device, why, sizeof why);
    NDM_FAIL(NDM_ERR_USAGE, "kernels: there is no table '%s' for device %s; there are auto%s", name,
             device->ops->name, why);
}

/* The order that `choice` names, with the reference last. */
static ndm_status order_make(table_order *order, const ndm_device *device, const char *choice)
{
    const char *at = choice && choice[0] ? choice : "auto";
    char name[64];

    order->count = 0;
    while (at) {
        const char *comma = strchr(at, ',');
        size_t length = comma ? (size_t)(comma - at) : strlen(at);
        if (length >= sizeof name)
            NDM_FAIL(NDM_ERR_USAGE, "kernels: the name '%.*s' is longer than %d characters",
                     (int)length, at, (int)sizeof name - 1);
        memcpy(name, at, length);
        name[length] = '\0';
        NDM_TRY(order_add_name(order, device, name));
        at = comma ? comma + 1 : NULL;
    }
    if (table_fits(&ndm_kernels_ref, device))
        order_add(order, &ndm_kernels_ref);
    return NDM_OK;
}

static void binding_fill(ndm_kernel_binding *binding, const table_order *order)
{
    for (int op = 0; op < NDM_OP_COUNT; op++)
        for (int i = 0; i < order->count && !binding->table.body[op]; i++) {
            if (!order->table[i]->body[op])
                continue;
            binding->table.body[op] = order->table[i]->body[op];
            binding->chosen[op] = order->table[i]->name;
        }
}

/* Only --fp8 asks for these, and is refused where they are missing. */
static bool op_is_optional(int op)
{
    return op == NDM_OP_amax || op == NDM_OP_quantize || op == NDM_OP_dequantize;
}

/* A world without any table only prices ops; one that has some runs them all. */
static ndm_status binding_check(const ndm_kernel_binding *binding, const table_order *order)
{
    for (int op = 0; op < NDM_OP_COUNT && order->count > 0; op++)
        if (!binding->table.body[op] && !op_is_optional(op))
            NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernels: device %s has no kernel for %s",
                     binding->table.device, op_names[op]);
    return NDM_OK;
}

ndm_status ndm_kernels_bind(ndm_device *device, const char *choice)
{
    table_order order;

    NDM_TRY(order_make(&order, device, choice));
    ndm_kernel_binding *binding = calloc(1, sizeof *binding);
    if (!binding)
        NDM_FAIL(NDM_ERR_MEMORY, "kernels: no memory for a table of %d ops", (int)NDM_OP_COUNT);
    binding->table.name = "bound";
    binding->table.summary = "what the device runs";
    binding->table.device = device->ops->name;
    binding_fill(binding, &order);
    ndm_status status = binding_check(binding, &order);
    if (status != NDM_OK) {
        free(binding);
        return status;
    }
    ndm_kernels_unbind(device);
    device->kernels = &binding->table;
    return NDM_OK;
}

void ndm_kernels_unbind(ndm_device *device)
{
    free((void *)device->kernels);
    device->kernels = NULL;
}

const char *ndm_kernels_chosen(const ndm_device *device, ndm_op op)
{
    const ndm_kernel_binding *binding = (const ndm_kernel_binding *)(const void *)device->kernels;
    if (!binding || (unsigned)op >= NDM_OP_COUNT || !binding->chosen[op])
        return "none";
    return binding->chosen[op];
}
