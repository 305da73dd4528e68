/* SPDX-License-Identifier: Apache-2.0 */
/* Whole training steps on the guard device: host code that reads or writes device memory, now or
 * too late, ends the test with a fault. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "guard.h"
#include "tests/equiv/equiv.h"
#include "tests/mpi/harness.h"

/* ---- the guard sees a slip: in child processes, before MPI starts --------------------------- */

enum { ELEMENTS = 100 };

static void open_array(ndm_device **d, ndm_stream **stream, float **array)
{
    ndm_device_options options = {.threads = 1};
    void *memory;

    must(ndm_device_create("guard", &options, d));
    must(ndm_stream_create(*d, NDM_STREAM_COMPUTE, "compute", stream));
    must(ndm_device_alloc(*d, ELEMENTS * (int64_t)sizeof(float), NDM_MEMORY_WORKSPACE, &memory));
    must(ndm_zero(*stream, memory, ELEMENTS * (int64_t)sizeof(float)));
    *array = memory;
}

static void behave(void)
{
    float host[ELEMENTS] = {1, 2, 3};
    ndm_device *d;
    ndm_stream *stream;
    float *array;

    open_array(&d, &stream, &array);
    must(ndm_copy(stream, array, host, sizeof host, NDM_HOST_TO_DEVICE));
    host[2] = 0;
    must(ndm_copy(stream, host, array, sizeof host, NDM_DEVICE_TO_HOST));
    _exit(host[2] == 3 ? 0 : 1);
}

static void dereference(void)
{
    ndm_device *d;
    ndm_stream *stream;
    float *array;

    open_array(&d, &stream, &array);
    _exit((int)*(volatile float *)array);
}

static void use_after_free(void)
{
    ndm_device *d;
    ndm_stream *stream;
    float *array;

    open_array(&d, &stream, &array);
    ndm_device_free(d, array);
    must(ndm_zero(stream, array, sizeof *array));
    _exit(0);
}

static void overrun(void)
{
    ndm_device *d;
    ndm_stream *stream;
    float *array;

    open_array(&d, &stream, &array);
    must(ndm_zero(stream, array, 512 + (int64_t)sizeof *array)); /* 400 rounded to 256 are 512 */
    _exit(0);
}

/* Signal that ends a child that does `what`; 0 = it exits with 0; -1 = with something else. */
static int ends_by(void (*what)(void))
{
    int status = 0;
    pid_t child = fork();

    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        what();
    }
    waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status) == 0 ? 0 : -1;
}

static bool guard_sees_slips(void)
{
    bool good = ends_by(behave) == 0 && ends_by(dereference) == SIGSEGV &&
                ends_by(use_after_free) == SIGSEGV && ends_by(overrun) == SIGSEGV;

    if (!good)
        fprintf(stderr,
                "the guard does not see slips: dereference %d, use after free %d, overrun "
                "%d; well behaved %d\n",
                ends_by(dereference), ends_by(use_after_free), ends_by(overrun), ends_by(behave));
    return good;
}

/* ---- training -------------------------------------------------------------------------------- */

static void check_variant(const problem *p, const variant *v)
{
    record cpu, guard;
    char text[256];
    int64_t before = guard_openings();
    int rank;

    if (variant_refused(p, v))
        return;
    print_message("  %s %s\n", p->name, variant_text(v, text, sizeof text));
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    ok_all(run_variant(p, v, &(setup){.comm = MPI_COMM_WORLD, .device = "cpu"}, &cpu));
    ok_all(run_variant(p, v, &(setup){.comm = MPI_COMM_WORLD, .device = "guard"}, &guard));
    check_all(guard_openings() > before + STEPS);
    check_all(guard_live() == 0);
    check_all(rank != 0 || same_bits(&cpu, &guard));
    record_finish(&cpu);
    record_finish(&guard);
}

/* Every mesh of this world, each with another problem and two ways to run it. */
static void trains_with_unreachable_memory(void **state)
{
    variant_list meshes;

    (void)state;
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        variant_list list;
        list_variants(meshes.items[i].mesh, &list);
        list_draw(&list, 2, 77 + (uint64_t)i);
        list.items[0].bf16 = i % 2;
        list.items[0].collectives = "mpi"; /* windows of shm are not the device's allocations */
        for (int64_t j = 0; j < list.n; j++)
            check_variant(&problems[i % problem_count], &list.items[j]);
        free(list.items);
    }
    free(meshes.items);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(trains_with_unreachable_memory)};

    guard_register();
    if (!guard_sees_slips())
        return 1;
    return harness_run("guard", tests);
}
