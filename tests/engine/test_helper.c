/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that moves messages on while the host computes: they arrive without a call of the
 * host, a step with it gives the bits of one without, and a failure in it reaches the host with its
 * message. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <ndmesh/context.h>

#include "collectives/comm.h"
#include "core/clock.h"
#include "tests/mpi/harness.h"

enum { COUNT = 1 << 20, ROUNDS = 20, FEW = 1000 };

static ndm_context *open_context(ndm_toggle progress_thread, double timeout_s)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    ndm_context *context;

    p.dp_shard = ndm_world_size(world);
    o.device = "cpu";
    o.collectives = "mpi";
    o.threads = 1;
    o.timeout_s = timeout_s;
    o.progress_thread = progress_thread;
    must(ndm_context_create(&p, &o, &context));
    return context;
}

typedef struct gather {
    ndm_comm *comm;
    ndm_stream *stream;
    float *send, *recv; /* [count], [n, count] */
    int64_t count;
} gather;

static gather open_gather(ndm_context *context, int64_t count)
{
    gather g = {.count = count};
    int64_t n = ndm_world_size(world);

    must(ndm_context_comm(context, NDM_AXIS_DP_SHARD, &g.comm));
    must(ndm_stream_create(ndm_context_device(context), NDM_STREAM_COMM, "test", &g.stream));
    g.send = malloc((size_t)count * sizeof(float));
    g.recv = calloc((size_t)(n * count), sizeof(float));
    for (int64_t i = 0; i < count; i++)
        g.send[i] = (float)(ndm_world_rank(world) + 1);
    return g;
}

static void close_gather(gather *g)
{
    ndm_stream_destroy(g->stream);
    free(g->send);
    free(g->recv);
}

static bool arrived(const gather *g)
{
    for (int64_t r = 0; r < ndm_world_size(world); r++)
        for (int64_t i = 0; i < g->count; i++)
            if (((const volatile float *)g->recv)[r * g->count + i] != (float)(r + 1))
                return false;
    return true;
}

static void messages_arrive_while_the_host_makes_no_call(void **state)
{
    ndm_context *context = open_context(NDM_TOGGLE_ON, 30);
    gather g = open_gather(context, COUNT);
    int64_t start = ndm_clock_ns();
    bool there = false;

    (void)state;
    must(ndm_all_gather(g.comm, g.send, g.recv, g.count, NDM_F32, g.stream));
    while (!there && ndm_clock_ns() - start < (int64_t)20e9) {
        usleep(1000);
        there = arrived(&g);
    }
    check_all(there);
    ok_all(ndm_stream_synchronize(g.stream));
    close_gather(&g);
    ndm_context_destroy(context);
}

/* Host and helper take turns at queues, memory and communicators thousands of times. */
static void host_and_helper_share_the_queues(void **state)
{
    ndm_context *context = open_context(NDM_TOGGLE_ON, 30);
    ndm_device *own = ndm_context_device(context);
    gather g = open_gather(context, FEW);
    ndm_event *done;

    (void)state;
    must(ndm_event_create(own, &done));
    for (int round = 0; round < ROUNDS; round++) {
        void *memory;
        memset(g.recv, 0, (size_t)(ndm_world_size(world) * g.count) * sizeof(float));
        must(ndm_all_gather(g.comm, g.send, g.recv, g.count, NDM_F32, g.stream));
        must(ndm_event_record(done, g.stream));
        for (int i = 0; i < 50; i++) {
            must(ndm_device_alloc(own, 4096, NDM_MEMORY_WORKSPACE, &memory));
            must(ndm_zero(ndm_context_stream(context), memory, 4096));
            ndm_device_free(own, memory);
        }
        must(ndm_stream_wait(ndm_context_stream(context), done));
        check_all(arrived(&g));
    }
    check_all(ndm_device_memory(own).live_bytes[NDM_MEMORY_WORKSPACE] == 0);
    ndm_event_destroy(done);
    close_gather(&g);
    ndm_context_destroy(context);
}

/* Rank 0 never calls: the others' helpers see the deadline pass, their hosts tell. */
static void a_failure_of_the_helper_has_its_message(void **state)
{
    ndm_context *context = open_context(NDM_TOGGLE_ON, 1);
    gather g = open_gather(context, COUNT);
    bool told = true;

    (void)state;
    if (ndm_world_rank(world) != 0) {
        must(ndm_all_gather(g.comm, g.send, g.recv, g.count, NDM_F32, g.stream));
        usleep(2500000); /* well past it */
        ndm_status status = ndm_stream_synchronize(g.stream);
        told = status != NDM_OK && strstr(ndm_error_message(), "all_gather") != NULL;
    } else {
        usleep(3500000);
    }
    check_all(told);
    ndm_context_abandon(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_while_the_host_makes_no_call),
        cmocka_unit_test(host_and_helper_share_the_queues),
        cmocka_unit_test(a_failure_of_the_helper_has_its_message),
    };
    return harness_run("helper", tests);
}
