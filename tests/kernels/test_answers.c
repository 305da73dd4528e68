/* SPDX-License-Identifier: Apache-2.0 */
/* Known answers, on every table of kernels that this machine can run. */
#include "answers.h"

#include <string.h>

world answer_world;

static int run(const char *table, const char *part, const struct CMUnitTest *tests, size_t count)
{
    char name[128];
    (void)snprintf(name, sizeof name, "%s of %s", part, table);
    return _cmocka_run_group_tests(name, tests, count, NULL, NULL);
}

static int run_table(const ndm_kernel_table *table)
{
    int failures = 0;

    if (!world_init(&answer_world, table)) {
        print_message("[   NOTE   ] %s is not tested: %s\n", table->name, ndm_error_message());
        return 0;
    }
    failures += run(table->name, "layers", answers_layers, answers_layers_count);
    failures += run(table->name, "attention", answers_attention, answers_attention_count);
    failures += run(table->name, "loss", answers_loss, answers_loss_count);
    world_finish(&answer_world);
    return failures;
}

int main(void)
{
    int failures = 0;

    for (const ndm_kernel_table *const *table = ndm_kernel_table_list(); *table; table++)
        if (strcmp((*table)->device, "cpu") == 0) /* host arrays serve as device memory */
            failures += run_table(*table);
    return failures != 0;
}
