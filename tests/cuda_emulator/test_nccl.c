/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated NCCL on several ranks: collectives of every type, splits, messages, and what must be
 * refused. Ranks gather their findings before they assert, so that a fault on one does not hang the
 * others. */
#include "test_nccl.h"

static void gathers_and_reduces_in_place(void **state)
{
    (void)state;
    enum { N = 1000 };
    size_t bytes = (size_t)ranks * N * sizeof(float);
    float *x = malloc(bytes), *d = on_device(NULL, bytes);
    for (int i = 0; i < N; i++)
        x[i] = (float)(rank * N + i);
    OK(cudaMemcpy(d + rank * N, x, N * sizeof *x, cudaMemcpyHostToDevice));
    OK(ncclAllGather(d + rank * N, d, N, ncclFloat32, comm, stream));
    fetch(x, d, bytes, stream);
    int wrong = 0;
    for (int i = 0; i < ranks * N; i++)
        wrong += x[i] != (float)i;
    OK(ncclReduceScatter(d, d + rank * N, N, ncclFloat32, ncclSum, comm, stream));
    fetch(x, d + rank * N, N * sizeof *x, stream);
    for (int i = 0; i < N; i++)
        wrong += x[i] != (float)(ranks * (rank * N + i));
    AGREE(!wrong);
    OK(cudaFree(d));
    free(x);
}

/* In rank order and in fp32, whatever the type: the result is one number, the same on all ranks. */
static void sums_are_in_rank_order(void **state)
{
    (void)state;
    enum { N = 777 };
    float x[N], want = 1e8f;
    uint16_t h[N], got_h[N];
    for (int i = 0; i < N; i++) {
        x[i] = rank ? 3 : 1e8f;
        h[i] = ndm_f32_to_bf16(rank ? 0.5f : 128);
    }
    for (int r = 1; r < ranks; r++)
        want += 3; /* 1e8 + 3 + 3 ... differs from 1e8 + (3 + 3 ...) */
    float *d = on_device(x, sizeof x);
    uint16_t *dh = on_device(h, sizeof h);
    OK(ncclAllReduce(d, d, N, ncclFloat32, ncclSum, comm, stream));
    OK(ncclAllReduce(dh, dh, N, ncclBfloat16, ncclSum, comm, stream));
    fetch(x, d, sizeof x, stream);
    fetch(got_h, dh, sizeof got_h, stream);
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        wrong += x[i] != want;
        wrong += got_h[i] != ndm_f32_to_bf16(128 + 0.5f * (float)(ranks - 1)); /* rounded once */
    }
    AGREE(!wrong);
    OK(cudaFree(d));
    OK(cudaFree(dh));
}

static void every_type_and_reduction(void **state)
{
    (void)state;
    double v[4] = {rank, -rank, 7, rank % 2}, *dv = on_device(v, sizeof v);
    int32_t k[4] = {rank, -rank, 1 << 20, 5}, *dk = on_device(k, sizeof k);
    uint8_t b[4] = {(uint8_t)rank, 200, 3, 1}, *db = on_device(b, sizeof b);
    int64_t q[2] = {1LL << 60, -rank}, *dq = on_device(q, sizeof q);
    OK(ncclAllReduce(dv, dv, 4, ncclFloat64, ncclAvg, comm, stream));
    OK(ncclAllReduce(dk, dk, 4, ncclInt32, ncclMax, comm, stream));
    OK(ncclAllReduce(db, db, 4, ncclUint8, ncclMin, comm, stream));
    OK(ncclAllReduce(dq, dq, 2, ncclInt64, ncclMin, comm, stream));
    fetch(v, dv, sizeof v, stream);
    fetch(k, dk, sizeof k, stream);
    fetch(b, db, sizeof b, stream);
    fetch(q, dq, sizeof q, stream);
    double mean = (ranks - 1) / 2.0;
    AGREE(v[0] == mean && v[1] == -mean && v[2] == 7 && v[3] == (ranks / 2) / (double)ranks);
    AGREE(k[0] == ranks - 1 && k[1] == 0 && k[2] == 1 << 20 && k[3] == 5);
    AGREE(b[0] == 0 && b[1] == 200 && q[0] == 1LL << 60 && q[1] == 1 - ranks);
    OK(cudaFree(dv));
    OK(cudaFree(dk));
    OK(cudaFree(db));
    OK(cudaFree(dq));
}

static void broadcasts_and_splits(void **state)
{
    (void)state;
    ncclComm_t half = NULL, none = NULL;
    int x = 100 + rank, *d = on_device(&x, sizeof x), n = 0, me = -1;
    OK(ncclBroadcast(d, d, 1, ncclInt32, ranks - 1, comm, stream));
    fetch(&x, d, sizeof x, stream);
    AGREE(x == 100 + ranks - 1);
    AGREE(ncclCommSplit(comm, rank % 2, -rank, &half, NULL) == ncclSuccess); /* backwards */
    OK(ncclCommCount(half, &n));
    OK(ncclCommUserRank(half, &me));
    AGREE(n == (ranks + 1 - rank % 2) / 2 && me == n - 1 - rank / 2);
    x = rank;
    OK(cudaMemcpy(d, &x, sizeof x, cudaMemcpyHostToDevice));
    OK(ncclAllReduce(d, d, 1, ncclInt32, ncclMax, half, stream));
    fetch(&x, d, sizeof x, stream);
    AGREE(x == (ranks - 1 - rank) / 2 * 2 + rank);
    AGREE(ncclCommSplit(comm, rank ? NCCL_SPLIT_NOCOLOR : 0, 0, &none, NULL) == ncclSuccess);
    AGREE((none == NULL) == (rank != 0));
    OK(ncclCommDestroy(half));
    OK(ncclCommDestroy(none));
    OK(cudaFree(d));
}

/* A ring and an all-to-all by messages: all sends of a group are posted before a receive waits. */
static void groups_of_messages(void **state)
{
    (void)state;
    enum { N = 300 };
    static int x[16 * N], y[16 * N];
    int right = (rank + 1) % ranks, left = (rank + ranks - 1) % ranks, wrong = 0;
    for (int i = 0; i < 16 * N; i++)
        x[i] = rank * 100000 + i;
    int *dx = on_device(x, sizeof x), *dy = on_device(x, sizeof y);
    OK(ncclGroupStart());
    OK(ncclRecv(dy, N, ncclInt32, left, comm, stream));
    OK(ncclSend(dx, N, ncclInt32, right, comm, stream));
    OK(ncclGroupEnd());
    fetch(y, dy, sizeof y, stream);
    for (int i = 0; i < N; i++)
        wrong += y[i] != left * 100000 + i;
    for (int round = 0; round < 5; round++) {
        OK(ncclGroupStart());
        for (int r = 0; r < ranks; r++) {
            OK(ncclSend(dx + r * N, N, ncclInt32, r, comm, stream));
            OK(ncclRecv(dy + r * N, N, ncclInt32, r, comm, stream));
        }
        OK(ncclGroupEnd());
    }
    fetch(y, dy, sizeof y, stream);
    for (int i = 0; i < ranks * N; i++)
        wrong += y[i] != i / N * 100000 + rank * N + i % N;
    OK(ncclAlltoAll(dx, dy, N, ncclInt32, comm, stream));
    fetch(x, dy, sizeof x, stream);
    wrong += memcmp(x, y, (size_t)ranks * N * sizeof *x) != 0;
    AGREE(!wrong);
    OK(cudaFree(dx));
    OK(cudaFree(dy));
}

/* A send is over when it has been taken: what follows on the stream may write its buffer. */
static void sent_buffers_may_be_written(void **state)
{
    (void)state;
    enum { N = 4096 };
    static int x[N];
    int *d = on_device(NULL, sizeof x), wrong = 0;
    OK(cudaMemsetAsync(d, rank ? 0 : 1, sizeof x, stream));
    if (rank == 0)
        OK(ncclSend(d, N, ncclInt32, 1, comm, stream));
    if (rank == 1) {
        OK(test_spin((float *)d, 256, 2000, stream)); /* late */
        OK(ncclRecv(d, N, ncclInt32, 0, comm, stream));
    }
    if (rank == 0)
        OK(cudaMemsetAsync(d, 9, sizeof x, stream));
    fetch(x, d, sizeof x, stream);
    for (int i = 0; rank == 1 && i < N; i++)
        wrong += x[i] != 0x01010101;
    AGREE(!wrong);
    OK(cudaFree(d));
}

/* Calls of one communicator from two streams keep the order of issue. */
static void two_streams_keep_the_order(void **state)
{
    (void)state;
    cudaStream_t other = new_stream();
    float *d = on_device(NULL, 4096), x[2];
    for (int i = 0; i < 20; i++) {
        OK(test_spin(d + 512, 256, 20 * (rank + 1), rank % 2 ? stream : other));
        OK(cudaMemsetAsync(d, 0, 8, stream));
        OK(ncclAllReduce(d, d, 1, ncclFloat32, ncclSum, comm, stream));
        OK(cudaMemsetAsync(d + 1, 0, 4, other));
        OK(ncclAllReduce(d + 1, d + 1, 1, ncclFloat32, ncclMax, comm, other));
    }
    OK(cudaStreamSynchronize(other));
    fetch(x, d, sizeof x, stream);
    ncclResult_t error;
    OK(ncclCommGetAsyncError(comm, &error));
    AGREE(error == ncclSuccess && x[0] == 0 && x[1] == 0);
    OK(cudaStreamDestroy(other));
    OK(cudaFree(d));
}

/* A step of two streams that gathers on one and reduces on the other, captured once and launched
 * often. */
static void graphs_hold_collectives(void **state)
{
    (void)state;
    enum { N = 64, LAUNCHES = 6 };
    float x[N], *all = on_device(NULL, (size_t)ranks * N * sizeof *all),
                *sum = on_device(NULL, sizeof x);
    cudaStream_t side = new_stream();
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    for (int i = 0; i < N; i++)
        x[i] = (float)(rank + 1);
    OK(cudaMemcpy(all + rank * N, x, sizeof x, cudaMemcpyHostToDevice));
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(ncclAllGather(all + rank * N, all, N, ncclFloat32, comm, stream));
    OK(cudaEventRecord(fork, stream));
    OK(cudaStreamWaitEvent(side, fork, 0));
    OK(ncclAllReduce(all, sum, N, ncclFloat32, ncclSum, comm,
                     side)); /* rank 0's part, from each rank */
    OK(cudaEventRecord(join, side));
    OK(cudaStreamWaitEvent(stream, join, 0));
    OK(test_scale(all + rank * N, 2, N, stream));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < LAUNCHES; i++)
        OK(cudaGraphLaunch(exec, stream));
    fetch(x, sum, sizeof x, stream);
    int wrong = 0;
    for (int i = 0; i < N; i++) /* doubled after each launch but the last */
        wrong += x[i] != (float)(ranks << (LAUNCHES - 1));
    AGREE(!wrong);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(side));
    OK(cudaFree(all));
    OK(cudaFree(sum));
}

/* Lanes without an order between them, and another number of nodes on each rank: the calls of two
 * communicators keep theirs, or ranks would wait for each other. */
static void graphs_of_ranks_may_differ(void **state)
{
    (void)state;
    float *d = on_device(NULL, 4096);
    cudaStream_t side = new_stream();
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    ncclComm_t second = NULL;
    ncclResult_t error, second_error;
    OK(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    AGREE(ncclCommSplit(comm, 0, rank, &second, NULL) == ncclSuccess);
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    OK(cudaEventRecord(fork, stream));
    OK(cudaStreamWaitEvent(side, fork, 0));
    for (int i = 0; i < 4; i++) {
        for (int extra = 0; extra < rank; extra++)
            OK(cudaMemsetAsync(d + 64, 0, 4, i % 2 ? stream : side));
        OK(ncclAllReduce(d, d, 1, ncclFloat32, ncclMax, comm, stream));
        OK(ncclAllReduce(d + 1, d + 1, 1, ncclFloat32, ncclMax, second, side));
    }
    OK(cudaEventRecord(join, side));
    OK(cudaStreamWaitEvent(stream, join, 0));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 5; i++)
        OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommGetAsyncError(comm, &error));
    OK(ncclCommGetAsyncError(second, &second_error));
    AGREE(error == ncclSuccess && second_error == ncclSuccess);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    OK(ncclCommDestroy(second));
    OK(cudaEventDestroy(fork));
    OK(cudaEventDestroy(join));
    OK(cudaStreamDestroy(side));
    OK(cudaFree(d));
}

/* As NVLS does, unless the environment forbids it. */
static void all_reduces_of_nvls_differ(void **state)
{
    (void)state;
    float x[4], *d = on_device(NULL, sizeof x);
    int different = 0;
    if (ranks < 3)
        skip(); /* two numbers have one sum */
    for (int on = 0; on < 2; on++) {
        setenv("NCCL_NVLS_ENABLE", on ? "1" : "0", 1);
        ncclComm_t made = new_comm();
        for (int i = 0; i < 4; i++) {
            float mine = rank == 0 ? 1e8f : rank == 1 ? 3.0f : rank == 2 ? -1e8f : 0.0f;
            OK(cudaMemcpy(d + i, &mine, sizeof mine, cudaMemcpyHostToDevice));
            OK(ncclAllReduce(d + i, d + i, 1, ncclFloat32, ncclSum, made, stream));
        }
        fetch(x, d, sizeof x, stream);
        different = memcmp(x, x + 1, 3 * sizeof *x) != 0;
        AGREE(different == on);
        OK(ncclCommDestroy(made));
    }
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    OK(cudaFree(d));
}

static void buffers_register(void **state)
{
    (void)state;
    void *at, *handle;
    OK(ncclMemAlloc(&at, 4096));
    OK(ncclCommRegister(comm, at, 4096, &handle));
    AGREE(ncclCommRegister(comm, &at, 8, &handle) == ncclInvalidArgument); /* host memory */
    AGREE(ncclAllReduce(&at, &at, 1, ncclFloat32, ncclSum, comm, stream) == ncclInvalidArgument);
    OK(ncclCommDeregister(comm, at));
    OK(ncclMemFree(at));
}

/* ---- faults: each in a communicator of its own, which is bad afterwards ---- */

static void differing_calls_are_errors(void **state)
{
    (void)state;
    float *d = on_device(NULL, 4096);
    for (int what = 0; what < 4; what++) {
        ncclComm_t faulty = new_comm();
        size_t count = what == 0 && rank == ranks - 1 ? 9 : 8;
        ncclDataType_t type = what == 1 && rank == ranks - 1 ? ncclBfloat16 : ncclFloat32;
        ncclRedOp_t op = what == 2 && rank == ranks - 1 ? ncclMax : ncclSum;
        if (what == 3 && rank == ranks - 1) /* the order of two calls */
            OK(ncclAllGather(d, d + 64, count, type, faulty, stream));
        OK(ncclAllReduce(d, d, count, type, op, faulty, stream));
        if (what == 3 && rank != ranks - 1)
            OK(ncclAllGather(d, d + 64, count, type, faulty, stream));
        ncclResult_t error = async_error(faulty);
        AGREE(error == ncclInvalidUsage);
        OK(ncclCommDestroy(faulty));
    }
    OK(cudaFree(d));
}

static void a_shared_device_is_refused(void **state)
{
    (void)state;
    ncclUniqueId id;
    ncclComm_t made = NULL;
    OK(cudaSetDevice(rank / 2));
    if (!rank)
        ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    ncclResult_t result = ncclCommInitRank(&made, ranks, id, rank);
    OK(cudaSetDevice(rank));
    AGREE(result == ncclInvalidUsage);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gathers_and_reduces_in_place),
        cmocka_unit_test(sums_are_in_rank_order),
        cmocka_unit_test(every_type_and_reduction),
        cmocka_unit_test(broadcasts_and_splits),
        cmocka_unit_test(groups_of_messages),
        cmocka_unit_test(two_streams_keep_the_order),
        cmocka_unit_test(buffers_register),
        cmocka_unit_test(graphs_hold_collectives),
        cmocka_unit_test(sent_buffers_may_be_written),
        cmocka_unit_test(graphs_of_ranks_may_differ),
        cmocka_unit_test(all_reduces_of_nvls_differ),
        cmocka_unit_test(differing_calls_are_errors),
        cmocka_unit_test(a_shared_device_is_refused),
    };
    begin(&argc, &argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    end();
    return failed;
}
