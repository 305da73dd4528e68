/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that are put in on purpose, each in a device or a call that is wrong in one place, and are
 * seen: an event that is not waited for, memory that is reused too early, a collective in another
 * order on one rank, a rank that does not come, a host that reads device memory. The same without
 * the fault goes well. */
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "core/module.h"
#include "tests/cuda/gpu.h"
#include "tests/mpi/harness.h"

enum { ROUNDS = 40, N = 1 << 14 };

static ndm_device *gpu;
static ndm_stream *compute, *other;

static int open_gpu(void **state)
{
    (void)state;
    if (gpu_open(ndm_world_local_rank(world), &gpu) != 0)
        return -1;
    must(ndm_stream_create(gpu, NDM_STREAM_COMPUTE, "compute", &compute));
    must(ndm_stream_create(gpu, NDM_STREAM_COMM, "other", &other));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    ndm_stream_destroy(other);
    ndm_stream_destroy(compute);
    ndm_device_destroy(gpu);
    return 0;
}

static int32_t *take(void)
{
    void *memory;

    must(ndm_device_alloc(gpu, N * (int64_t)sizeof(int32_t), NDM_MEMORY_WORKSPACE, &memory));
    return memory;
}

static void put(ndm_stream *stream, int32_t *there, int32_t value)
{
    static int32_t host[N];

    for (int i = 0; i < N; i++)
        host[i] = value;
    must(ndm_copy(stream, there, host, sizeof host, NDM_HOST_TO_DEVICE));
}

/* Whether all of it is `value`, once `stream` has come to its end. */
static bool holds(ndm_stream *stream, const int32_t *there, int32_t value)
{
    static int32_t host[N];

    must(ndm_copy(stream, host, there, sizeof host, NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(stream));
    for (int i = 0; i < N; i++)
        if (host[i] != value)
            return false;
    return true;
}

/* ---- an event that is not waited for -------------------------------------------------------- */

static ndm_status no_wait(ndm_stream *stream, ndm_event *event)
{
    (void)stream, (void)event;
    return NDM_OK;
}

/* Rounds in which the reader did not see what the writer had written before the event. */
static int rounds_without_the_event(bool fault)
{
    ndm_device_ops ops = *gpu->ops;
    const ndm_device_ops *good = gpu->ops;
    int32_t *a = take(), *b = take();
    ndm_event *written;
    int wrong = 0;

    must(ndm_event_create(gpu, &written));
    if (fault)
        ops.stream_wait = no_wait;
    gpu->ops = &ops;
    for (int i = 0; i < ROUNDS; i++) {
        put(other, a, i);
        must(ndm_event_record(written, other));
        must(ndm_stream_wait(compute, written));
        must(ndm_copy(compute, b, a, N * (int64_t)sizeof *a, NDM_DEVICE_TO_DEVICE));
        wrong += !holds(compute, b, i);
        must(ndm_stream_synchronize(other));
    }
    gpu->ops = good;
    ndm_event_destroy(written);
    ndm_device_free(gpu, a);
    ndm_device_free(gpu, b);
    return wrong;
}

static void an_omitted_wait_is_seen(void **state)
{
    (void)state;
    check_all(rounds_without_the_event(false) == 0);
    check_all(rounds_without_the_event(true) > 0);
}

/* ---- memory that is reused too early --------------------------------------------------------- */

static void *given_back;

static void hasty_free(ndm_device *on, void *memory, int64_t bytes)
{
    (void)on, (void)bytes;
    given_back = memory;
}

/* Gives out what was given back, whoever still reads it. */
static ndm_status hasty_alloc(ndm_device *on, int64_t bytes, void **memory)
{
    (void)on, (void)bytes;
    *memory = given_back;
    return NDM_OK;
}

/* Rounds in which a reader on one stream saw what the next owner wrote on another. */
static int rounds_of_reuse(bool fault)
{
    ndm_device_ops ops = *gpu->ops;
    const ndm_device_ops *good = gpu->ops;
    int32_t *kept = take(), *block = take();
    int wrong = 0;

    for (int i = 0; i < ROUNDS; i++) {
        put(compute, block, i);
        must(ndm_stream_synchronize(compute));
        must(ndm_copy(compute, kept, block, N * (int64_t)sizeof *block, NDM_DEVICE_TO_DEVICE));
        if (fault) {
            ops.free = hasty_free;
            ops.alloc = hasty_alloc;
            gpu->ops = &ops;
        }
        ndm_device_free(gpu, block);
        block = take();
        gpu->ops = good;
        put(other, block, -1);
        must(ndm_stream_synchronize(other));
        wrong += !holds(compute, kept, i);
    }
    ndm_device_free(gpu, block);
    ndm_device_free(gpu, kept);
    return wrong;
}

static void reuse_too_early_is_seen(void **state)
{
    (void)state;
    check_all(rounds_of_reuse(false) == 0);
    check_all(rounds_of_reuse(true) > 0);
}

/* ---- a collective in another order on one rank ----------------------------------------------- */

static ndm_status two_collectives(ndm_comm *comm, int32_t *a, int32_t *b, bool gather_first)
{
    int64_t n = N / 16;

    if (gather_first)
        NDM_TRY(ndm_all_gather(comm, a, b, n, NDM_I32, other));
    NDM_TRY(ndm_all_reduce(comm, a, n, NDM_I32, NDM_SUM, other));
    if (!gather_first)
        NDM_TRY(ndm_all_gather(comm, a, b, n, NDM_I32, other));
    return ndm_stream_synchronize(other);
}

static ndm_mesh *mesh;
static ndm_comms *comms;

static void open_comms(void)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;

    config.dp_shard = ndm_world_size(world);
    must(ndm_mesh_create(&config, ndm_world_size(world), &mesh));
    must(ndm_comms_create(world, mesh, gpu, "nccl", &comms));
}

static ndm_comm *open_comm(void)
{
    ndm_comm *comm;

    open_comms();
    must(ndm_comms_get(comms, NDM_AXES_ALL, &comm));
    return comm;
}

static void close_comm(void)
{
    ndm_comms_destroy(comms);
    ndm_mesh_destroy(mesh);
}

static void another_order_on_one_rank_is_an_error_on_all(void **state)
{
    int32_t *a = take(), *b = take();

    (void)state;
    if (ndm_world_size(world) < 2)
        skip();
    ndm_comm *comm = open_comm();
    ok_all(two_collectives(comm, a, b, true));
    ndm_status status = two_collectives(comm, a, b, ndm_world_rank(world) == 1);
    check_all(status == NDM_ERR_MISMATCH || status == NDM_ERR_COMM || status == NDM_ERR_TIMEOUT);
    check_all(strstr(ndm_error_message(), "comm: nccl: ") != NULL);
    check_all(strstr(ndm_error_message(), "dp_shard") != NULL);
    check_all(ndm_barrier(comm, other) == NDM_ERR_COMM); /* nothing more on this communicator */
    close_comm();
}

/* ---- a rank that does not come -------------------------------------------------------------- */

static const int64_t SOON_NS = 1000000000;

static void a_rank_that_does_not_come_is_an_error_in_time(void **state)
{
    int32_t *a = take(), *b = take();
    bool away = ndm_world_rank(world) == 1;

    (void)state;
    if (ndm_world_size(world) < 2)
        skip();
    ndm_comm *comm = open_comm();
    ok_all(two_collectives(comm, a, b, true));
    gpu->options.timeout_ns = SOON_NS;
    ndm_status status = away ? NDM_ERR_TIMEOUT : two_collectives(comm, a, b, true);
    check_all(status == NDM_ERR_TIMEOUT || status == NDM_ERR_COMM);
    check_all(away || strstr(ndm_error_message(), "dp_shard") != NULL);
    check_all(away || ndm_barrier(comm, other) == NDM_ERR_COMM);
    close_comm();
}

/* NCCL comes back from an abort when no graph holds its kernels any more. */
static void a_rank_that_does_not_come_to_a_graph_is_an_error_in_time(void **state)
{
    int32_t *a = take();
    bool away = ndm_world_rank(world) == 1;
    ndm_graph *graph;

    (void)state;
    ndm_comm *comm = open_comm();
    ok_all(ndm_graph_begin(other));
    ok_all(ndm_all_reduce(comm, a, N, NDM_I32, NDM_SUM, other));
    ok_all(ndm_graph_end(other, &graph));
    ok_all(ndm_graph_launch(graph, other));
    ok_all(ndm_stream_synchronize(other));
    gpu->options.timeout_ns = SOON_NS;
    if (!away)
        must(ndm_graph_launch(graph, other));
    ndm_status status = away ? NDM_ERR_TIMEOUT : ndm_stream_synchronize(other);
    check_all(status == NDM_ERR_TIMEOUT || status == NDM_ERR_COMM);
    check_all(away || ndm_graph_launch(graph, other) == status);
    close_comm();
    ndm_graph_destroy(gpu, graph);
}

/* What was made for the communicator stays while NCCL may write into it. */
static void a_rank_that_does_not_come_to_a_split_is_an_error_in_time(void **state)
{
    int64_t patience_ns = world->timeout_ns;
    bool away = ndm_world_rank(world) == 1;
    ndm_comm *comm;

    (void)state;
    open_comms();
    world->timeout_ns = SOON_NS;
    ndm_status status = away ? NDM_ERR_TIMEOUT : ndm_comms_get(comms, NDM_AXES_ALL, &comm);
    world->timeout_ns = patience_ns;
    check_all(status == NDM_ERR_TIMEOUT);
    check_all(away || strstr(ndm_error_message(), "splitting the world on dp_shard") != NULL);
    check_all(away || ndm_comms_get(comms, NDM_AXES_ALL, &comm) == NDM_ERR_COMM);
    close_comm();
}

/* ---- a host that reads device memory --------------------------------------------------------- */

static sigjmp_buf back;

static void on_fault(int signal_number)
{
    (void)signal_number;
    siglongjmp(back, 1);
}

static void a_host_that_reads_device_memory_faults(void **state)
{
    struct sigaction action = {.sa_handler = on_fault}, before;
    int32_t *there = take();
    volatile bool faulted = false;

    (void)state;
    put(compute, there, 1);
    sigaction(SIGSEGV, &action, &before);
    if (sigsetjmp(back, 1) == 0)
        (void)*(volatile int32_t *)there;
    else
        faulted = true;
    sigaction(SIGSEGV, &before, NULL);
    check_all(faulted);
    check_all(holds(compute, there, 1));
    ndm_device_free(gpu, there);
}

/* ---- collectives of a graph go first -------------------------------------------------------- */

/* A function of the emulator's by its name; skips the case where it is not there. */
typedef union emulator_symbol {
    const void *address;
    void (*reseed)(unsigned seed);
    pid_t (*device_pid)(void);
} emulator_symbol;

static emulator_symbol find_symbol(const char *name)
{
    emulator_symbol found = {ndm_module_symbol("cuda", name, (char[256]){""}, 256)};

    if (!found.address)
        skip();
    return found;
}

/* Two streams write the same, without an order: what the stream of collectives was given last comes
 * first, and is written over. */
static void the_priority_of_streams_holds_in_graphs(void **state)
{
    int32_t *a = take(), *b = take();
    const char *seed = getenv("CUEMU_SEED");
    ndm_graph *graph;

    (void)state;
    find_symbol("cuemu_reseed").reseed(0);
    put(compute, b, 7);
    must(ndm_stream_synchronize(compute));
    must(ndm_graph_begin(compute));
    must(ndm_zero(compute, a, N * (int64_t)sizeof *a));
    must(ndm_copy(other, a, b, N * (int64_t)sizeof *a, NDM_DEVICE_TO_DEVICE));
    must(ndm_graph_end(compute, &graph));
    must(ndm_graph_launch(graph, compute));
    check_all(holds(compute, a, 0));
    ndm_graph_destroy(gpu, graph);
    find_symbol("cuemu_reseed").reseed(seed ? (unsigned)strtoul(seed, NULL, 10) : 0);
    ndm_device_free(gpu, a);
    ndm_device_free(gpu, b);
}

/* ---- a fault of the device, found by who asks for memory ------------------------------------- */

/* The last one: no device comes back from it. */
static void a_fault_is_not_taken_for_a_lack_of_memory(void **state)
{
    pid_t device_pid = find_symbol("cuemu_device_pid").device_pid();
    char byte = 0;
    void *memory = &byte; /* nothing is allocated */

    (void)state;
    must(ndm_stream_synchronize(compute));
    check_all(device_pid > 0 && kill(device_pid, SIGSEGV) == 0);
    while (ndm_stream_synchronize(compute) == NDM_OK)
        continue;
    check_all(ndm_device_alloc(gpu, 1ll << 30, NDM_MEMORY_WORKSPACE, &memory) == NDM_ERR_DEVICE);
    check_all(strstr(ndm_error_message(), "cudaErrorIllegalAddress") != NULL);
    check_all(ndm_copy(compute, memory, &byte, 1, NDM_HOST_TO_DEVICE) == NDM_ERR_DEVICE);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_gpu, close_gpu)
    const struct CMUnitTest tests[] = {
        CASE(an_omitted_wait_is_seen),
        CASE(reuse_too_early_is_seen),
        CASE(a_host_that_reads_device_memory_faults),
        CASE(another_order_on_one_rank_is_an_error_on_all),
        CASE(a_rank_that_does_not_come_is_an_error_in_time),
        CASE(a_rank_that_does_not_come_to_a_graph_is_an_error_in_time),
        CASE(a_rank_that_does_not_come_to_a_split_is_an_error_in_time),
        CASE(the_priority_of_streams_holds_in_graphs),
        CASE(a_fault_is_not_taken_for_a_lack_of_memory),
    };

    return harness_run("cuda faults", tests);
}
