/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel tests share: a device bound to one table, the seed, and assertions that print the
 * library's message. */
#ifndef NDM_TESTS_KERNELS_WORLD_H
#define NDM_TESTS_KERNELS_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/kernels.h"

/* A device that runs one table (and the reference where that has no body), with a compute stream.
 */
typedef struct world {
    const ndm_kernel_table *table;
    ndm_device *device;
    ndm_stream *stream;
} world;

/* False, with the message set, when the machine has not what the table needs. */
bool world_init(world *w, const ndm_kernel_table *table);
void world_finish(world *w);

/* NDM_TEST_SEED of the environment, or a fixed one. */
uint64_t test_seed(void);

/* n standard normal numbers by the seed, another stream of them for each name. */
void test_fill(float *x, int64_t n, const char *name);

#define assert_ok(call)                                                \
    do {                                                               \
        if ((call) != NDM_OK)                                          \
            fail_msg("%s: %s (seed %llu)", #call, ndm_error_message(), \
                     (unsigned long long)test_seed());                 \
    } while (0)

/* |x - expected| <= tolerance * max(1, |expected|) */
#define assert_near(x, expected, tolerance) \
    assert_near_at(x, expected, tolerance, #x, __FILE__, __LINE__)
void assert_near_at(double x, double expected, double tolerance, const char *what, const char *file,
                    int line);

#endif
