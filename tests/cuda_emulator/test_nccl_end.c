/* SPDX-License-Identifier: Apache-2.0 */
/* How communicators of the emulated NCCL begin and end: calls that do not block, aborts, ranks that
 * are missing, graphs that hold calls. */
#include "test_nccl.h"

#include <errno.h>
#include <pthread.h>

static ncclResult_t settled(ncclComm_t asked)
{
    ncclResult_t error = ncclInProgress;
    while (error == ncclInProgress)
        OK(ncclCommGetAsyncError(asked, &error));
    return error;
}

static ncclComm_t new_patient_comm(void)
{
    ncclUniqueId id;
    ncclComm_t made = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (!rank)
        ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    AGREE(ncclCommInitRankConfig(&made, ranks, id, rank, &config) == ncclInProgress && made);
    AGREE(settled(made) == ncclSuccess);
    return made;
}

/* A split returns before its child is there; until then the parent takes no other call. */
static void a_split_that_does_not_block_is_over_later(void **state)
{
    (void)state;
    ncclComm_t parent = new_patient_comm(), child = NULL, none = NULL;
    float *d = on_device(NULL, 64);
    ncclResult_t first = ncclCommSplit(parent, 0, rank, &child, NULL);
    bool late = !__atomic_load_n(&child, __ATOMIC_ACQUIRE);
    ncclResult_t second = ncclCommSplit(parent, 0, rank, &none, NULL);
    AGREE(first == ncclSuccess && late && second == ncclInvalidArgument);
    AGREE(settled(parent) == ncclSuccess && child);
    AGREE(settled(child) == ncclSuccess);
    for (int i = 0; i < 3; i++) {
        ncclResult_t result = ncclAllReduce(d, d, 1, ncclFloat32, ncclMax, child, stream);
        AGREE(result == ncclSuccess || result == ncclInProgress);
        AGREE(settled(child) == ncclSuccess);
    }
    OK(cudaStreamSynchronize(stream));
    for (int i = 0; i < 2; i++) {
        ncclComm_t one = i ? parent : child;
        AGREE(ncclCommFinalize(one) == ncclInProgress && settled(one) == ncclSuccess);
        OK(ncclCommDestroy(one));
    }
    OK(cudaFree(d));
}

/* With splitShare the calls of both go one after another, also on different streams. */
static void shared_communicators_take_turns(void **state)
{
    (void)state;
    float *d = on_device(NULL, 64);
    cudaStream_t other = new_stream();
    if (ranks > 2)
        skip();
    for (int share = 0; share < 2; share++) {
        ncclComm_t parent = new_comm(), child = NULL;
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.splitShare = share;
        AGREE(ncclCommSplit(parent, 0, rank, &child, &config) == ncclSuccess);
        for (int i = 0; i < 2; i++) { /* in another order on rank 0 */
            bool first = i == (rank == 0);
            OK(ncclAllReduce(d + first, d + first, 1, ncclFloat32, ncclMax, first ? parent : child,
                             first ? stream : other));
        }
        OK(cudaStreamSynchronize(other));
        OK(cudaStreamSynchronize(stream));
        AGREE((settled(parent) || settled(child)) == share);
        OK(ncclCommAbort(child));
        OK(ncclCommAbort(parent));
        AGREE(true);
    }
    OK(cudaStreamDestroy(other));
    OK(cudaFree(d));
}

static void *destroy_in_thread(void *user)
{
    OK(ncclCommDestroy(user));
    return NULL;
}

/* The end of a communicator waits for graphs with its calls, as NCCL's does. */
static void an_end_waits_for_graphs(void **state)
{
    (void)state;
    float *d = on_device(NULL, 64);
    ncclComm_t held = new_patient_comm();
    ncclResult_t ending;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    pthread_t thread;
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    (void)ncclAllReduce(d, d, 1, ncclFloat32, ncclMax, held, stream);
    OK(settled(held));
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    OK(cudaGraphLaunch(exec, stream));
    OK(cudaStreamSynchronize(stream));
    AGREE(ncclCommFinalize(held) == ncclInProgress);
    OK(ncclCommGetAsyncError(held, &ending));
    AGREE(ending == ncclInProgress);
    OK(pthread_create(&thread, NULL, destroy_in_thread, held));
    usleep(20000);
    AGREE(pthread_tryjoin_np(thread, NULL) == EBUSY);
    OK(cudaGraphExecDestroy(exec));
    OK(pthread_join(thread, NULL));
    OK(cudaFree(d));
}

static void a_missing_rank_is_an_error(void **state)
{
    (void)state;
    float *d = on_device(NULL, 4096);
    ncclComm_t faulty = new_comm();
    if (rank)
        OK(ncclAllReduce(d, d, 8, ncclFloat32, ncclSum, faulty, stream));
    ncclResult_t error = rank ? async_error(faulty) : ncclRemoteError;
    AGREE(error == ncclRemoteError);
    OK(ncclCommAbort(faulty));
    OK(cudaFree(d));
}

/* An abort on one rank frees the others at once, long before their limit. */
static void an_abort_frees_the_others(void **state)
{
    (void)state;
    float *d = on_device(NULL, 4096);
    ncclComm_t faulty = new_comm();
    if (rank)
        OK(ncclAllReduce(d, d, 8, ncclFloat32, ncclSum, faulty, stream));
    else
        OK(ncclCommAbort(faulty));
    ncclResult_t error = rank ? async_error(faulty) : ncclRemoteError;
    AGREE(error == ncclRemoteError);
    if (rank)
        OK(ncclCommAbort(faulty));
    OK(cudaFree(d));
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_split_that_does_not_block_is_over_later),
        cmocka_unit_test(an_end_waits_for_graphs),
        cmocka_unit_test(shared_communicators_take_turns),
        cmocka_unit_test(a_missing_rank_is_an_error),
        cmocka_unit_test(an_abort_frees_the_others),
    };
    begin(&argc, &argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    end();
    return failed;
}
