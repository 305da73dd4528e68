/* SPDX-License-Identifier: Apache-2.0 */
/* Tests that run on several ranks. Every check is agreed on by all ranks before any of them fails,
 * so that no rank waits for one that has given up. */
#ifndef NDM_TESTS_MPI_HARNESS_H
#define NDM_TESTS_MPI_HARNESS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "collectives/comms.h"
#include "collectives/world.h"

extern ndm_world *world; /* joined by harness_main */
extern ndm_device *device;

/* Joins, runs a cmocka group, leaves. Rank 0 alone reports; a failed check says which ranks. */
int harness_main(const char *name, const struct CMUnitTest *tests, size_t n_tests);

#define harness_run(name, tests) harness_main(name, tests, sizeof(tests) / sizeof((tests)[0]))

/* Fails on all ranks if the condition is false on any. Collective over: world. */
#define check_all(condition) check_all_at((condition), #condition, __FILE__, __LINE__)
void check_all_at(bool condition, const char *text, const char *file, int line);

/* Likewise for a call that must succeed; shows the message of the lowest rank that failed. */
#define ok_all(call) ok_all_at((call), #call, __FILE__, __LINE__)
void ok_all_at(ndm_status status, const char *text, const char *file, int line);

/* A rank-local setup that must not fail. */
#define must(call) must_at((call), #call, __FILE__, __LINE__)
void must_at(ndm_status status, const char *text, const char *file, int line);

/* Meshes to test on: all ways to factor the world into the four axes, at most `max` of them, the
 * same on all ranks. Free with free(). */
ndm_parallelism_config *harness_meshes(int64_t max, int64_t *n);

/* Names of all backends, NULL-terminated, and "auto" if the world spans nodes, where it is a mix.
 */
const char *const *harness_backends(void);

/* Makes a mesh and its communicators over a backend; false if its probe says no, or it does not
 * take all groups. */
typedef struct fixture {
    ndm_mesh *mesh;
    ndm_comms *comms;
    ndm_stream *compute, *comm_stream;
} fixture;
bool fixture_init(fixture *f, const ndm_parallelism_config *config, const char *backend);
void fixture_finish(fixture *f);

/* Elements as numbers. */
void element_set(void *array, int64_t i, ndm_dtype dtype, double value);
double element_get(const void *array, int64_t i, ndm_dtype dtype);

#endif
