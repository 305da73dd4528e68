/* SPDX-License-Identifier: Apache-2.0 */
/* A device bound to one table of kernels, for tests. */
#include "world.h"

#include <math.h>

#include "core/rng.h"
#include "device/device.h"

bool world_init(world *w, const ndm_kernel_table *table)
{
    ndm_device_options options = {0};

    *w = (world){.table = table};
    if (ndm_device_create(table->device, &options, &w->device) != NDM_OK)
        return false;
    if (ndm_kernels_bind(w->device, table->name) == NDM_OK &&
        ndm_stream_create(w->device, NDM_STREAM_COMPUTE, "test", &w->stream) == NDM_OK)
        return true;
    world_finish(w);
    return false;
}

void world_finish(world *w)
{
    ndm_stream_destroy(w->stream);
    ndm_device_destroy(w->device);
    *w = (world){0};
}

uint64_t test_seed(void)
{
    const char *text = getenv("NDM_TEST_SEED");
    return text ? strtoull(text, NULL, 0) : 20240611;
}

void test_fill(float *x, int64_t n, const char *name)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = ndm_rng_normal(test_seed(), ndm_rng_stream(name), (uint64_t)i);
}

void assert_near_at(double x, double expected, double tolerance, const char *what, const char *file,
                    int line)
{
    double size = fabs(expected) > 1.0 ? fabs(expected) : 1.0;
    if (x == expected || fabs(x - expected) <= tolerance * size)
        return;
    print_error("%s is %.9g, expected %.9g within %g (seed %llu)\n", what, x, expected,
                tolerance * size, (unsigned long long)test_seed());
    _fail(file, line);
}
