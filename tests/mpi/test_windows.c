/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the members of a group share. */
#include "harness.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT = 300007 }; /* several phases of shared memory, and an odd end */

static ndm_comm *get(fixture *f)
{
    ndm_comm *comm = NULL;

    must(ndm_comms_get(f->comms, NDM_AXES_ALL, &comm));
    return comm;
}

static float value(int64_t rank, int64_t i)
{
    return (float)((rank * 11 + i * 3) % 101);
}

/* Runs a body on each backend that has windows, with one of n blocks of COUNT floats. */
static void every_backend(void (*body)(fixture *f, ndm_comm *comm, float *all, int64_t block))
{
    const char *const *list = harness_backends();
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    int64_t n = ndm_world_size(world), block = n * COUNT;
    fixture f;
    void *all;

    for (; *list; list++) {
        if (!fixture_init(&f, &config, *list))
            continue;
        ndm_comm *comm = get(&f);
        if (comm->backend->window_alloc) {
            must(comm->backend->window_alloc(comm, block * 4, NDM_MEMORY_GRADIENTS, &all));
            body(&f, comm, all, block);
            must(ndm_barrier(comm, f.compute));
            comm->backend->window_free(comm, all);
        }
        fixture_finish(&f);
    }
}

/* Blocks of `count`, the members' side by side in `to`, where each has put his. */
static bool gathers(fixture *f, ndm_comm *comm, float *to, int64_t count)
{
    int64_t n = ndm_comm_size(comm), me = ndm_comm_index(comm);
    bool good = true;

    for (int64_t i = 0; i < count; i++)
        to[me * count + i] = value(me, i);
    must(ndm_all_gather(comm, to + me * count, to, count, NDM_F32, f->comm_stream));
    must(ndm_stream_synchronize(f->comm_stream));
    for (int64_t m = 0; m < n; m++)
        for (int64_t i = 0; i < count; i++)
            good &= to[m * count + i] == value(m, i);
    return good;
}

static void gather_in_place(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    check_all(gathers(f, comm, all, block));
}

/* The first member's own block begins where the window does: it is not what all share. */
static void gather_in_own_blocks(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    check_all(gathers(f, comm, all + ndm_comm_index(comm) * block, COUNT));
}

/* Less than one block, in the memory that all share. */
static void gather_little(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    (void)block;
    check_all(gathers(f, comm, all, COUNT / 2));
}

static void a_window_is_gathered_in_place(void **state)
{
    (void)state;
    every_backend(gather_in_place);
    every_backend(gather_in_own_blocks);
    every_backend(gather_little);
}

/* Every rank's block of the window holds n * COUNT floats to reduce. */
static void reduce_from_window(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    int64_t n = ndm_comm_size(comm), me = ndm_comm_index(comm);
    float *mine = all + me * block, *out = malloc(COUNT * sizeof *out);
    bool good = true;

    for (int round = 0; round < 3; round++) { /* a window is free again when the call is done */
        for (int64_t i = 0; i < block; i++)
            mine[i] = value(me, i + round);
        must(ndm_reduce_scatter(comm, mine, round % 2 ? mine + me * COUNT : out, COUNT, NDM_F32,
                                NDM_F32, NDM_SUM, f->compute));
        for (int64_t i = 0; i < COUNT; i++) {
            float sum = 0, got = round % 2 ? mine[me * COUNT + i] : out[i];
            for (int64_t m = 0; m < n; m++)
                sum += value(m, me * COUNT + i + round);
            good &= got == sum;
        }
    }
    check_all(good);
    free(out);
}

static void a_window_is_reduced_without_staging(void **state)
{
    (void)state;
    every_backend(reduce_from_window);
}

/* `mine` sums up like everybody's; several times, as the counters of one call are the next one's.
 */
static bool all_reduces(ndm_comm *comm, float *mine, int64_t count, ndm_stream *stream)
{
    int64_t n = ndm_comm_size(comm), me = ndm_comm_index(comm);
    bool good = true;

    for (int round = 0; round < 3; round++) {
        for (int64_t i = 0; i < count; i++)
            mine[i] = value(me, i + round);
        must(ndm_all_reduce(comm, mine, count, NDM_F32, NDM_SUM, stream));
        for (int64_t i = 0; i < count; i++) {
            float sum = 0;
            for (int64_t m = 0; m < n; m++)
                sum += value(m, i + round);
            good &= mine[i] == sum;
        }
    }
    return good;
}

static void all_reduce_in_window(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    float *mine = all + ndm_comm_index(comm) * block;

    check_all(all_reduces(comm, mine, 100, f->compute));
    check_all(all_reduces(comm, mine, COUNT, f->compute));
}

/* Not all members need to have their buffers in the window. */
static void all_reduce_of_some_windows(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    int64_t me = ndm_comm_index(comm);
    float *own = malloc(COUNT * sizeof *own), *mine = me % 2 ? all + me * block : own;

    check_all(all_reduces(comm, mine, COUNT, f->compute));
    check_all(all_reduces(comm, all + me * block, COUNT, f->compute));
    free(own);
}

static void a_window_is_all_reduced(void **state)
{
    (void)state;
    every_backend(all_reduce_in_window);
    every_backend(all_reduce_of_some_windows);
}

static void other_moves(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    int64_t n = ndm_comm_size(comm), me = ndm_comm_index(comm), left = (me - 1 + n) % n;
    float *mine = all + me * block, *out = malloc((size_t)block * sizeof *out);
    bool good = true;

    for (int64_t i = 0; i < block; i++)
        mine[i] = value(me, i);
    must(ndm_all_to_all(comm, mine, out, COUNT, NDM_F32, f->compute));
    for (int64_t m = 0; m < n; m++)
        for (int64_t i = 0; i < COUNT; i++)
            good &= out[m * COUNT + i] == value(m, me * COUNT + i);
    must(ndm_all_gather(comm, mine + 5, out, COUNT - 5, NDM_F32, f->compute));
    for (int64_t m = 0; m < n; m++)
        for (int64_t i = 0; i < COUNT - 5; i++)
            good &= out[m * (COUNT - 5) + i] == value(m, i + 5);
    must(ndm_send_recv(comm, mine, (me + 1) % n, out, left, COUNT, NDM_F32, f->compute));
    for (int64_t i = 0; i < COUNT; i++)
        good &= out[i] == value(left, i);
    must(ndm_broadcast(comm, mine, COUNT, NDM_F32, n - 1, f->compute));
    for (int64_t i = 0; i < COUNT; i++)
        good &= mine[i] == value(n - 1, i);
    check_all(good);
    free(out);
}

static void windows_are_sent_from_like_any_memory(void **state)
{
    (void)state;
    every_backend(other_moves);
}

static void memory_is_accounted(fixture *f, ndm_comm *comm, float *all, int64_t block)
{
    ndm_memory_stats m = ndm_device_memory(device);
    void *second;

    (void)f, (void)all;
    check_all(m.live_bytes[NDM_MEMORY_GRADIENTS] == block * 4);
    must(comm->backend->window_alloc(comm, 1000, NDM_MEMORY_WEIGHTS, &second));
    m = ndm_device_memory(device);
    check_all(m.live_bytes[NDM_MEMORY_WEIGHTS] == 1000);
    must(ndm_barrier(comm, f->compute));
    comm->backend->window_free(comm, second);
    check_all(ndm_device_memory(device).live_bytes[NDM_MEMORY_WEIGHTS] == 0);
}

static void windows_count_as_memory(void **state)
{
    (void)state;
    every_backend(memory_is_accounted);
    check_all(ndm_device_memory(device).live_total_bytes == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_window_is_gathered_in_place),
        cmocka_unit_test(a_window_is_reduced_without_staging),
        cmocka_unit_test(a_window_is_all_reduced),
        cmocka_unit_test(windows_are_sent_from_like_any_memory),
        cmocka_unit_test(windows_count_as_memory),
    };

    return harness_run("windows", tests);
}
