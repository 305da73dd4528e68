/* SPDX-License-Identifier: Apache-2.0 */
/* Every collective of the cuda world's backends gives the bytes that the mpi backend gives in host
 * memory: all kinds and types, in groups of several meshes, on both kinds of stream. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "tests/cuda/gpu.h"
#include "tests/mpi/harness.h"

enum { MESHES = 3, COUNTS = 3 };
static const int64_t counts[COUNTS] = {1, 7, 3001};

/* One world's side of a case. */
typedef struct side {
    fixture f;
    ndm_device *device;
    ndm_comm *comm;
    ndm_stream *stream;
} side;

typedef struct call {
    ndm_collective kind;
    ndm_dtype dtype, recv_dtype;
    ndm_reduce_op op;
    int64_t count, send_bytes, recv_bytes;
} call;

static ndm_device *gpu;

/* False where ranks share a device, which is not for NCCL; all ranks learn that alike. */
static bool side_open(side *s, const ndm_parallelism_config *config, ndm_device *on,
                      const char *backend)
{
    *s = (side){.device = on};
    must(ndm_mesh_create(config, ndm_world_size(world), &s->f.mesh));
    ndm_status status = ndm_comms_create(world, s->f.mesh, on, backend, &s->f.comms);
    if (status == NDM_ERR_UNSUPPORTED && strstr(ndm_error_message(), "share the device")) {
        ndm_mesh_destroy(s->f.mesh);
        return false;
    }
    ok_all(status);
    must(ndm_stream_create(on, NDM_STREAM_COMPUTE, "compute", &s->f.compute));
    must(ndm_stream_create(on, NDM_STREAM_COMM, "comm", &s->f.comm_stream));
    return true;
}

static ndm_status run(const side *s, const call *c, const void *send, void *recv)
{
    int64_t n = ndm_comm_size(s->comm), i = ndm_comm_index(s->comm);

    switch (c->kind) {
    case NDM_ALL_GATHER:
        return ndm_all_gather(s->comm, send, recv, c->count, c->dtype, s->stream);
    case NDM_REDUCE_SCATTER:
        return ndm_reduce_scatter(s->comm, send, recv, c->count, c->dtype, c->recv_dtype, c->op,
                                  s->stream);
    case NDM_ALL_REDUCE:
        return ndm_all_reduce(s->comm, recv, c->count, c->dtype, c->op, s->stream);
    case NDM_ALL_TO_ALL:
        return ndm_all_to_all(s->comm, send, recv, c->count, c->dtype, s->stream);
    case NDM_BROADCAST:
        return ndm_broadcast(s->comm, recv, c->count, c->dtype, n - 1, s->stream);
    case NDM_SEND_RECV:
        return ndm_send_recv(s->comm, send, (i + 1) % n, recv, (i + n - 1) % n, c->count, c->dtype,
                             s->stream);
    case NDM_BARRIER:
    case NDM_COLLECTIVE_COUNT:
        break;
    }
    return ndm_barrier(s->comm, s->stream);
}

/* Small integers: exact in every type, and so are their sums. */
static void fill(void *array, int64_t n, ndm_dtype dtype, int64_t salt)
{
    for (int64_t i = 0; i < n; i++)
        element_set(array, i, dtype,
                    (double)((ndm_world_rank(world) * 5 + salt + i * 3 + i / 7) % 13));
}

/* The call on the device with these contents, whatever the device; `recv` gets what comes out. */
static ndm_status run_on(const side *s, const call *c, const void *send, void *recv)
{
    void *there[2];

    NDM_TRY(ndm_device_alloc(s->device, c->send_bytes, NDM_MEMORY_COMM, &there[0]));
    NDM_TRY(ndm_device_alloc(s->device, c->recv_bytes, NDM_MEMORY_COMM, &there[1]));
    NDM_TRY(ndm_copy(s->stream, there[0], send, c->send_bytes, NDM_HOST_TO_DEVICE));
    NDM_TRY(ndm_copy(s->stream, there[1], recv, c->recv_bytes, NDM_HOST_TO_DEVICE));
    NDM_TRY(run(s, c, there[0], there[1]));
    NDM_TRY(ndm_copy(s->stream, recv, there[1], c->recv_bytes, NDM_DEVICE_TO_HOST));
    NDM_TRY(ndm_stream_synchronize(s->stream));
    ndm_device_free(s->device, there[0]);
    ndm_device_free(s->device, there[1]);
    return NDM_OK;
}

static void size_call(call *c, int64_t n)
{
    bool sent = c->kind == NDM_REDUCE_SCATTER || c->kind == NDM_ALL_TO_ALL;
    bool received = c->kind == NDM_ALL_GATHER || c->kind == NDM_ALL_TO_ALL;

    c->send_bytes = (sent ? n : 1) * c->count * (int64_t)ndm_dtype_bytes(c->dtype);
    c->recv_bytes = (received ? n : 1) * c->count * (int64_t)ndm_dtype_bytes(c->recv_dtype);
}

static void compare(const side *mine, const side *truth, call c)
{
    size_call(&c, ndm_comm_size(mine->comm));
    void *send = malloc((size_t)c.send_bytes), *got = malloc((size_t)c.recv_bytes),
         *expected = malloc((size_t)c.recv_bytes);

    fill(send, c.send_bytes / (int64_t)ndm_dtype_bytes(c.dtype), c.dtype, 1);
    fill(got, c.recv_bytes / (int64_t)ndm_dtype_bytes(c.recv_dtype), c.recv_dtype, 2);
    memcpy(expected, got, (size_t)c.recv_bytes);
    ok_all(run_on(truth, &c, send, expected));
    ok_all(run_on(mine, &c, send, got));
    bool same = memcmp(got, expected, (size_t)c.recv_bytes) == 0;
    if (!same)
        fprintf(stderr, "%s of %lld %s into %s on %s (%s) differs on rank %lld\n",
                ndm_collective_name(c.kind), (long long)c.count, ndm_dtype_name(c.dtype),
                ndm_dtype_name(c.recv_dtype), ndm_comm_name(mine->comm), mine->comm->backend->name,
                (long long)ndm_world_rank(world));
    check_all(same);
    free(send);
    free(got);
    free(expected);
}

static void compare_kinds(const side *mine, const side *truth, ndm_dtype dtype, int64_t count)
{
    bool sums = dtype != NDM_U8 && dtype != NDM_U16;
    bool half = dtype == NDM_BF16 || dtype == NDM_F16;

    for (int kind = 0; kind < NDM_COLLECTIVE_COUNT; kind++) {
        call c = {
            .kind = (ndm_collective)kind, .dtype = dtype, .recv_dtype = dtype, .count = count};
        bool reduces = kind == NDM_REDUCE_SCATTER || kind == NDM_ALL_REDUCE;
        if (reduces && !sums)
            continue;
        compare(mine, truth, c);
        if (reduces) {
            c.op = NDM_MAX;
            compare(mine, truth, c);
        }
        if (kind == NDM_REDUCE_SCATTER && half) {
            c.recv_dtype = NDM_F32;
            c.op = NDM_SUM;
            compare(mine, truth, c);
        }
    }
}

static bool compare_groups(const ndm_parallelism_config *config, const char *backend)
{
    static const ndm_axis_set sets[] = {NDM_AXES_ALL, NDM_AXES_DP, NDM_AXIS_TP};
    side mine, truth;

    if (!side_open(&mine, config, gpu, backend))
        return false;
    check_all(side_open(&truth, config, device, "mpi"));
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        ok_all(ndm_comms_get(mine.f.comms, sets[i], &mine.comm));
        ok_all(ndm_comms_get(truth.f.comms, sets[i], &truth.comm));
        if (strcmp(backend, "nccl") == 0 && ndm_world_size(world) == 1)
            assert_string_equal(mine.comm->backend->name, backend); /* on a machine of one GPU */
        for (int dtype = 0; dtype <= NDM_U16; dtype++) {
            mine.stream = dtype % 2 ? mine.f.compute : mine.f.comm_stream;
            truth.stream = truth.f.compute;
            compare_kinds(&mine, &truth, (ndm_dtype)dtype, counts[dtype % COUNTS]);
        }
    }
    fixture_finish(&mine.f);
    fixture_finish(&truth.f);
    return true;
}

static void every_mesh(const char *backend)
{
    int64_t n;
    ndm_parallelism_config *meshes = harness_meshes(MESHES, &n);

    bool taken = true;
    for (int64_t i = 0; i < n && taken; i++)
        taken = compare_groups(&meshes[i], backend);
    free(meshes);
    if (!taken)
        skip();
}

static void nccl_gives_the_bytes_of_mpi(void **state)
{
    (void)state;
    every_mesh("nccl");
}

static void staged_gives_the_bytes_of_mpi(void **state)
{
    (void)state;
    every_mesh("staged");
}

/* The same numbers, summed again and again, have one sum: the order of ranks does not change. */
static void an_all_reduce_gives_the_same_bits_again(void **state)
{
    enum { AGAIN = 4 };
    static const float values[4] = {1e8f, 3.0f, -1e8f, 7.0f};
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    call c = {.kind = NDM_ALL_REDUCE, .dtype = NDM_F32, .recv_dtype = NDM_F32, .count = 1};
    float mine = values[ndm_world_rank(world) % 4], sums[AGAIN];
    side s;

    (void)state;
    config.dp_shard = ndm_world_size(world);
    if (!side_open(&s, &config, gpu, "nccl"))
        skip();
    ok_all(ndm_comms_get(s.f.comms, NDM_AXES_ALL, &s.comm));
    s.stream = s.f.comm_stream;
    size_call(&c, ndm_comm_size(s.comm));
    for (int i = 0; i < AGAIN; i++) {
        sums[i] = mine;
        ok_all(run_on(&s, &c, &mine, &sums[i]));
    }
    check_all(memcmp(sums, sums + 1, (AGAIN - 1) * sizeof *sums) == 0);
    fixture_finish(&s.f);
}

/* Groups that cross, issued in an order that closes a circle: none may wait for the other. */
static void groups_do_not_wait_for_each_other(void **state)
{
    static const bool tp_first[4] = {false, true, true, false};
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    ndm_comm *groups[2];
    void *there[2];
    side s;

    (void)state;
    if (ndm_world_size(world) != 4)
        skip();
    config.dp_shard = config.tp = 2;
    if (!side_open(&s, &config, gpu, "nccl"))
        skip();
    ndm_stream *streams[2] = {s.f.compute, s.f.comm_stream};
    ok_all(ndm_comms_get(s.f.comms, NDM_AXIS_DP_SHARD, &groups[0]));
    ok_all(ndm_comms_get(s.f.comms, NDM_AXIS_TP, &groups[1]));
    for (int i = 0; i < 2; i++)
        ok_all(ndm_device_alloc(gpu, sizeof(float), NDM_MEMORY_COMM, &there[i]));
    for (int i = 0; i < 2; i++) {
        int g = tp_first[ndm_world_rank(world)] ? 1 - i : i;
        ok_all(ndm_zero(streams[g], there[g], sizeof(float)));
        ok_all(ndm_all_reduce(groups[g], there[g], 1, NDM_F32, NDM_SUM, streams[g]));
    }
    for (int i = 0; i < 2; i++)
        ok_all(ndm_stream_synchronize(streams[i]));
    for (int i = 0; i < 2; i++)
        ndm_device_free(gpu, there[i]);
    fixture_finish(&s.f);
}

static int open_gpu(void **state)
{
    (void)state;
    return gpu_open(ndm_world_local_rank(world), &gpu);
}

static int close_gpu(void **state)
{
    (void)state;
    ndm_device_destroy(gpu);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(nccl_gives_the_bytes_of_mpi, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(staged_gives_the_bytes_of_mpi, open_gpu, close_gpu),
        cmocka_unit_test_setup_teardown(an_all_reduce_gives_the_same_bits_again, open_gpu,
                                        close_gpu),
        cmocka_unit_test_setup_teardown(groups_do_not_wait_for_each_other, open_gpu, close_gpu),
    };

    return harness_run("cuda collectives", tests);
}
