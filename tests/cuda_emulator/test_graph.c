/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture and graphs: replay, forks and joins by events, updates, and captures that must
 * break. */
#include "test_common.h"

enum { N = 1024 };

typedef struct {
    cudaStream_t main, side;
    cudaEvent_t fork, join;
    float *x, *sum;
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    f->main = new_stream();
    f->side = new_stream();
    OK(cudaEventCreateWithFlags(&f->fork, cudaEventDisableTiming));
    OK(cudaEventCreateWithFlags(&f->join, cudaEventDisableTiming));
    f->x = on_device(NULL, N * sizeof *f->x);
    f->sum = on_device(NULL, sizeof *f->sum);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    OK(cudaStreamDestroy(f->main));
    OK(cudaStreamDestroy(f->side));
    OK(cudaEventDestroy(f->fork));
    OK(cudaEventDestroy(f->join));
    OK(cudaFree(f->x));
    OK(cudaFree(f->sum));
    free(f);
    cudaGetLastError();
    return 0;
}

static void upload(fixture *f, float value)
{
    float x[N];
    for (int i = 0; i < N; i++)
        x[i] = value;
    OK(cudaMemcpy(f->x, x, sizeof x, cudaMemcpyHostToDevice));
}

static cudaError_t begin(cudaStream_t stream)
{
    return cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
}

/* Scales on the main stream, sums on the side one, scales again on the main one behind the join. */
static cudaGraph_t capture(fixture *f, float factor, bool joined)
{
    cudaGraph_t graph;
    OK(begin(f->main));
    OK(test_scale(f->x, factor, N, f->main));
    OK(cudaEventRecord(f->fork, f->main));
    OK(cudaStreamWaitEvent(f->side, f->fork, 0));
    OK(test_sum(f->x, f->sum, N, 0, f->side));
    OK(cudaEventRecord(f->join, f->side));
    if (joined)
        OK(cudaStreamWaitEvent(f->main, f->join, 0));
    OK(test_scale(f->x, 1, N, f->main));
    cudaError_t error = cudaStreamEndCapture(f->main, &graph);
    assert_int_equal(error, joined ? cudaSuccess : cudaErrorStreamCaptureUnjoined);
    return graph;
}

static void a_capture_runs_when_launched(void **state)
{
    fixture *f = *state;
    float sum = -1;
    size_t nodes;
    cudaGraphExec_t exec;
    enum cudaStreamCaptureStatus status;
    upload(f, 1);
    OK(cudaMemcpy(f->sum, &sum, sizeof sum, cudaMemcpyHostToDevice));
    cudaGraph_t graph = capture(f, 2, true);
    OK(cudaStreamIsCapturing(f->side, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
    OK(cudaGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 3);
    fetch(&sum, f->sum, sizeof sum, f->main);
    assert_true(sum == -1); /* nothing ran yet */
    OK(cudaGraphInstantiate(&exec, graph, 0));
    OK(cudaGraphDestroy(graph));
    for (int i = 1; i <= 5; i++) {
        OK(cudaGraphLaunch(exec, f->side));
        fetch(&sum, f->sum, sizeof sum, f->side);
        assert_true(sum == (float)(N << i));
    }
    OK(cudaGraphExecDestroy(exec));
}

static void an_update_changes_arguments_only(void **state)
{
    fixture *f = *state;
    float sum;
    cudaGraphExec_t exec;
    cudaGraphExecUpdateResultInfo info;
    upload(f, 1);
    cudaGraph_t twice = capture(f, 2, true), thrice = capture(f, 3, true), other;
    OK(begin(f->main));
    OK(test_scale(f->x, 2, N, f->main));
    OK(cudaStreamEndCapture(f->main, &other));
    OK(cudaGraphInstantiate(&exec, twice, 0));
    OK(cudaGraphExecUpdate(exec, thrice, &info));
    OK(cudaGraphLaunch(exec, f->main));
    fetch(&sum, f->sum, sizeof sum, f->main);
    assert_true(sum == 3 * N);
    assert_int_equal(cudaGraphExecUpdate(exec, other, &info), cudaErrorGraphExecUpdateFailure);
    assert_int_equal(info.result, cudaGraphExecUpdateErrorTopologyChanged);
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(twice));
    OK(cudaGraphDestroy(thrice));
    OK(cudaGraphDestroy(other));
}

static void work_that_is_not_joined_is_refused(void **state)
{
    assert_null(capture(*state, 2, false));
}

static void waits_break_a_capture(void **state)
{
    fixture *f = *state;
    cudaGraph_t graph;
    OK(begin(f->main));
    assert_int_equal(cudaStreamSynchronize(f->main), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(test_scale(f->x, 1, N, f->main), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(f->main, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    OK(begin(f->main)); /* and the stream is whole again */
    OK(cudaStreamEndCapture(f->main, &graph));
    OK(cudaGraphDestroy(graph));
}

static void other_dependencies_are_refused(void **state)
{
    fixture *f = *state;
    cudaGraph_t graph;
    void *at;
    OK(cudaEventRecord(f->fork, f->side)); /* outside */
    OK(begin(f->main));
    assert_int_equal(cudaStreamWaitEvent(f->main, f->fork, 0), cudaErrorStreamCaptureIsolation);
    assert_int_equal(cudaStreamEndCapture(f->main, &graph), cudaErrorStreamCaptureInvalidated);
    OK(begin(f->main));
    OK(cudaEventRecord(f->join, f->main));
    assert_int_equal(cudaEventQuery(f->join), cudaErrorCapturedEvent);
    assert_int_equal(cudaMalloc(&at, 64), cudaErrorStreamCaptureUnsupported);
    OK(begin(f->side));
    assert_int_equal(cudaStreamWaitEvent(f->side, f->join, 0), cudaErrorStreamCaptureMerge);
    assert_int_equal(cudaStreamEndCapture(f->side, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(f->main, &graph), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamWaitEvent(f->side, f->join, 0),
                     cudaErrorCapturedEvent); /* of no work */
    OK(cudaMalloc(&at, 64));
    OK(cudaFree(at));
}

/* x = 1, then 0 again on another stream of the graph, with or without a wait between: wrong
 * results. */
static int overtakes(bool waits)
{
    fixture *f;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    int wrong = 0;
    setup((void **)&f);
    OK(begin(f->main));
    OK(cudaEventRecord(f->fork, f->main));
    OK(cudaStreamWaitEvent(f->side, f->fork, 0));
    OK(cudaMemsetAsync(f->x, 0x3f, 4, f->main));
    OK(cudaEventRecord(f->join, f->main));
    if (waits)
        OK(cudaStreamWaitEvent(f->side, f->join, 0));
    OK(cudaMemsetAsync(f->x, 0, 4, f->side));
    OK(cudaEventRecord(f->fork, f->side));
    OK(cudaStreamWaitEvent(f->main, f->fork, 0));
    OK(cudaStreamEndCapture(f->main, &graph));
    OK(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 20; i++) {
        float x;
        OK(cudaGraphLaunch(exec, f->main));
        fetch(&x, f->x, sizeof x, f->main);
        wrong += x != 0;
    }
    OK(cudaGraphExecDestroy(exec));
    OK(cudaGraphDestroy(graph));
    teardown((void **)&f);
    return wrong;
}

static int overtakes_with_wait(void)
{
    return overtakes(true);
}

static int overtakes_without_wait(void)
{
    return overtakes(false);
}

static void a_missing_wait_in_a_graph_shows(void **state)
{
    (void)state;
    setenv("CUEMU_SEED", "3", 1);
    int wrong = apart(overtakes_without_wait), right = apart(overtakes_with_wait);
    unsetenv("CUEMU_SEED");
    assert_in_range(wrong, 1, 20);
    assert_int_equal(right, 0);
}

#define GRAPH_TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_missing_wait_in_a_graph_shows), /* first: in processes of their own */
        GRAPH_TEST(a_capture_runs_when_launched),
        GRAPH_TEST(an_update_changes_arguments_only),
        GRAPH_TEST(work_that_is_not_joined_is_refused),
        GRAPH_TEST(waits_break_a_capture),
        GRAPH_TEST(other_dependencies_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
