/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives in flight together: on several communicators and streams, held back at random, and
 * completing in any order. */
#include "harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/rng.h"

enum { STREAMS = 3, OPS = 40, MAX_COUNT = 20000 };

static uint64_t seed(void)
{
    const char *text = getenv("NDM_TEST_SEED");
    return text ? strtoull(text, NULL, 10) : 20240607;
}

/* A collective whose result is checked once its stream is done. */
typedef struct pending {
    ndm_comm *comm;
    int64_t count;
    bool gather;
    float *send, *recv;
} pending;

static float value(int64_t rank, int64_t i, int64_t op)
{
    return (float)((rank * 3 + i + op) % 17);
}

static pending issue(ndm_comm *comm, ndm_stream *stream, int64_t op, int64_t count, bool gather)
{
    int64_t n = ndm_comm_size(comm), wide = n * count;
    pending p = {comm, count, gather, malloc((size_t)(wide + 1) * sizeof(float)),
                 calloc((size_t)wide + 1, sizeof(float))};

    for (int64_t i = 0; i < (gather ? count : wide); i++)
        p.send[i] = value(ndm_world_rank(world), i, op);
    if (gather)
        must(ndm_all_gather(comm, p.send, p.recv, count, NDM_F32, stream));
    else
        must(ndm_reduce_scatter(comm, p.send, p.recv, count, NDM_F32, NDM_F32, NDM_SUM, stream));
    return p;
}

static bool check(pending *p, int64_t op)
{
    int64_t n = ndm_comm_size(p->comm), own = ndm_comm_index(p->comm) * p->count;
    bool good = true;

    for (int64_t i = 0; i < p->count; i++) {
        float sum = 0;
        for (int64_t m = 0; m < n; m++) {
            int64_t rank = ndm_comm_world_rank(p->comm, m);
            if (p->gather)
                good &= p->recv[m * p->count + i] == value(rank, i, op);
            sum += value(rank, own + i, op);
        }
        good &= p->gather || p->recv[i] == sum;
    }
    free(p->send);
    free(p->recv);
    return good;
}

static bool storm(fixture *f, uint64_t s)
{
    static const ndm_axis_set sets[] = {NDM_AXES_ALL,         NDM_AXIS_DP_SHARD, NDM_AXIS_TP,
                                        NDM_AXES_DP_SHARD_CP, NDM_AXES_DP_CP,    NDM_AXIS_CP};
    ndm_stream *streams[STREAMS];
    pending ops[OPS];
    bool good = true;
    ndm_comm *comm;

    for (int i = 0; i < STREAMS; i++)
        must(ndm_stream_create(device, NDM_STREAM_COMM, "storm", &streams[i]));
    for (int64_t op = 0; op < OPS; op++) {
        uint64_t r = ndm_rng_u64(s, 1, (uint64_t)op);
        must(ndm_comms_get(f->comms, sets[r % 6], &comm));
        ops[op] = issue(comm, streams[r / 8 % STREAMS], op, (int64_t)(r / 64 % MAX_COUNT),
                        r >> 40 & 1);
    }
    for (int i = 0; i < STREAMS; i++) /* each rank in an order of its own */
        must(ndm_stream_synchronize(streams[(i + ndm_world_rank(world)) % STREAMS]));
    for (int64_t op = 0; op < OPS; op++)
        good &= check(&ops[op], op);
    for (int i = 0; i < STREAMS; i++)
        ndm_stream_destroy(streams[i]);
    return good;
}

static void storms(int64_t delay)
{
    const char *const *list = harness_backends();
    int64_t n;
    ndm_parallelism_config *meshes = harness_meshes(100, &n);
    char text[96];
    fixture f;

    for (; *list; list++)
        for (int64_t m = 0; m < n; m += 1 + n / 3) {
            if (!fixture_init(&f, &meshes[m], *list))
                break;
            ndm_comms_delay(f.comms, delay, seed() + (uint64_t)m);
            snprintf(text, sizeof text, "%s, mesh %lld, seed %llu", *list, (long long)m,
                     (unsigned long long)seed());
            check_all_at(storm(&f, seed() + (uint64_t)m), text, __FILE__, __LINE__);
            fixture_finish(&f);
        }
    free(meshes);
}

static void many_collectives_in_flight_keep_apart(void **state)
{
    (void)state;
    storms(0);
}

static void completion_in_any_order_is_right(void **state)
{
    (void)state;
    storms(300);
}

/* Held back, a collective is not done when the call returns, and is when its event is. */
static void an_event_marks_completion(void **state)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    int64_t n = ndm_world_size(world);
    float *all = calloc((size_t)n, sizeof *all), mine = (float)ndm_world_rank(world) + 1;
    bool done = true, good = true;
    ndm_event *event;
    ndm_comm *comm;
    fixture f;

    (void)state;
    check_all(fixture_init(&f, &config, "auto"));
    ndm_comms_delay(f.comms, 1000000, 3);
    must(ndm_event_create(device, &event));
    must(ndm_comms_get(f.comms, NDM_AXES_ALL, &comm));
    must(ndm_all_gather(comm, &mine, all, 1, NDM_F32, f.comm_stream));
    must(ndm_event_record(event, f.comm_stream));
    must(ndm_event_query(event, &done));
    check_all(!done || n == 1); /* a group of one has nothing to hold back */
    must(ndm_stream_wait(f.compute, event));
    for (int64_t r = 0; r < n; r++)
        good &= all[r] == (float)r + 1;
    must(ndm_event_query(event, &done));
    check_all(good && done);
    ndm_event_destroy(event);
    fixture_finish(&f);
    free(all);
}

/* The host meets others while a queue still has work: the work goes on. */
static void queues_advance_while_the_host_waits(void **state)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    int64_t n = ndm_world_size(world), count = 300000;
    float *x = malloc((size_t)count * sizeof *x);
    ndm_comm *comm;
    fixture f;

    (void)state;
    check_all(fixture_init(&f, &config, "auto"));
    for (int64_t i = 0; i < count; i++)
        x[i] = 1;
    must(ndm_comms_get(f.comms, NDM_AXES_ALL, &comm));
    must(ndm_all_reduce(comm, x, count, NDM_F32, NDM_SUM, f.comm_stream));
    if (ndm_world_rank(world) == 0) /* all others meet in check_all, where rank 0 comes later */
        must(ndm_stream_synchronize(f.comm_stream));
    check_all(true);
    must(ndm_stream_synchronize(f.comm_stream));
    check_all(x[0] == (float)n && x[count - 1] == (float)n);
    fixture_finish(&f);
    free(x);
}

/* One communicator, two streams: the later call on the idle stream waits for the earlier one's
 * start. */
static void one_communicator_on_two_streams_keeps_order(void **state)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    int64_t n = ndm_world_size(world);
    float a = 1, b = 10;
    ndm_stream *other;
    ndm_comm *comm;
    fixture f;

    (void)state;
    check_all(fixture_init(&f, &config, "auto"));
    ndm_comms_delay(f.comms, 2000, 11);
    must(ndm_stream_create(device, NDM_STREAM_COMM, "other", &other));
    must(ndm_comms_get(f.comms, NDM_AXES_ALL, &comm));
    for (int i = 0; i < 20; i++) {
        must(ndm_all_reduce(comm, &a, 1, NDM_F32, NDM_SUM, f.comm_stream));
        must(ndm_all_reduce(comm, &b, 1, NDM_F32, NDM_MAX, other));
        must(ndm_stream_synchronize(i % 2 ? other : f.comm_stream));
        must(ndm_stream_synchronize(i % 2 ? f.comm_stream : other));
        check_all(a == (float)n && b == 10);
        a = 1;
    }
    ndm_stream_destroy(other);
    fixture_finish(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(many_collectives_in_flight_keep_apart),
        cmocka_unit_test(completion_in_any_order_is_right),
        cmocka_unit_test(an_event_marks_completion),
        cmocka_unit_test(queues_advance_while_the_host_waits),
        cmocka_unit_test(one_communicator_on_two_streams_keeps_order),
    };

    return harness_run("streams", tests);
}
