/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks that keep to cores: each to its own, refused where there are too few, and left alone unless
 * asked. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ndmesh/context.h>

#include "mesh/machine.h"
#include "tests/mpi/harness.h"

static cpu_set_t allowed_now(void)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    must(sched_getaffinity(0, sizeof set, &set) == 0 ? NDM_OK : NDM_ERR_UNSUPPORTED);
    return set;
}

static int64_t cores(void)
{
    ndm_machine *machine;

    must(ndm_machine_open(NULL, &machine));
    int64_t n = ndm_machine_cores(machine);
    ndm_machine_close(machine);
    return n;
}

/* The processors of a context made with these options; the process is as before afterwards. */
static ndm_status allowed_in_context(ndm_bind bind, int threads, cpu_set_t *inside)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    cpu_set_t before = allowed_now();
    ndm_context *context = NULL;

    p.dp_shard = ndm_world_size(world);
    o.device = "cpu";
    o.threads = threads;
    o.timeout_s = 30;
    o.bind = bind;
    ndm_status status = ndm_context_create(&p, &o, &context);
    *inside = allowed_now();
    ndm_context_destroy(context);
    must(sched_setaffinity(0, sizeof before, &before) == 0 ? NDM_OK : NDM_ERR_UNSUPPORTED);
    return status;
}

static void ranks_keep_to_different_cores(void **state)
{
    int64_t n = ndm_world_size(world);
    cpu_set_t mine, *all = calloc((size_t)n, sizeof *all), common;

    (void)state;
    if (n > cores()) {
        free(all);
        skip();
    }
    ok_all(allowed_in_context(NDM_BIND_CORES, 1, &mine));
    check_all(CPU_COUNT(&mine) >= 1 &&
              (cores() == 1 || CPU_COUNT(&mine) < sysconf(_SC_NPROCESSORS_ONLN)));
    must(ndm_world_exchange(world, &mine, sizeof mine, all));
    for (int64_t r = 0; r < n; r++) {
        CPU_AND(&common, &mine, &all[r]);
        check_all(r == ndm_world_rank(world) || CPU_COUNT(&common) == 0);
    }
    free(all);
}

static void too_few_cores_are_refused(void **state)
{
    cpu_set_t inside;

    (void)state;
    check_all(allowed_in_context(NDM_BIND_CORES, (int)cores() + 1, &inside) == NDM_ERR_CONFIG);
    check_all(strstr(ndm_error_message(), "bind: ") != NULL &&
              strstr(ndm_error_message(), "cores") != NULL);
}

static void an_embedding_program_keeps_its_processors(void **state)
{
    cpu_set_t before = allowed_now(), inside;

    (void)state;
    ok_all(allowed_in_context(NDM_BIND_NONE, 1, &inside));
    check_all(CPU_EQUAL(&before, &inside));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_keep_to_different_cores),
        cmocka_unit_test(too_few_cores_are_refused),
        cmocka_unit_test(an_embedding_program_keeps_its_processors),
    };
    return harness_run("bind", tests);
}
