/* SPDX-License-Identifier: Apache-2.0 */
/* Faults that the emulator exists to catch, each planted in a process of its own. */
#include "cuemu_asan.h"
#include "test_common.h"

enum { N = 4096, ROUNDS = 20 };

/* There if built with that sanitizer. */
void __ubsan_handle_type_mismatch_v1(void *data, void *pointer) __attribute__((weak));

#define NEED(call)     \
    do {               \
        if (call)      \
            return 99; \
    } while (0)

/* A producer and a consumer on two streams, with an event between, or without: wrong rounds. */
static int produce_consume(bool waits)
{
    cudaStream_t producer, consumer;
    cudaEvent_t ready, taken;
    float *d, *sum, *x, *out;
    int wrong = 0;
    NEED(cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking));
    NEED(cudaEventCreateWithFlags(&ready, cudaEventDisableTiming));
    NEED(cudaEventCreateWithFlags(&taken, cudaEventDisableTiming));
    NEED(cudaMalloc((void **)&d, N * sizeof *d) || cudaMalloc((void **)&sum, sizeof *sum));
    NEED(cudaMallocHost((void **)&x, N * sizeof *x) || cudaMallocHost((void **)&out, sizeof *out));
    for (int i = 1; i <= ROUNDS; i++) {
        for (int j = 0; j < N; j++)
            x[j] = (float)i;
        NEED(cudaMemcpyAsync(d, x, N * sizeof *x, cudaMemcpyHostToDevice, producer));
        NEED(test_scale(d, 2, N, producer));
        NEED(cudaEventRecord(ready, producer));
        if (waits)
            NEED(cudaStreamWaitEvent(consumer, ready, 0));
        NEED(test_sum(d, sum, N, 0, consumer));
        NEED(cudaMemcpyAsync(out, sum, sizeof *out, cudaMemcpyDeviceToHost, consumer));
        NEED(cudaEventRecord(taken, consumer));
        NEED(cudaStreamWaitEvent(producer, taken, 0));
        NEED(cudaStreamSynchronize(consumer) || cudaStreamSynchronize(producer));
        wrong += *out != (float)(2 * i) * N;
    }
    return wrong;
}

static int with_wait(void)
{
    return produce_consume(true);
}

static int without_wait(void)
{
    return produce_consume(false);
}

/* A buffer used again before the work that reads it is over. */
static int buffer_reused_early(void)
{
    cudaStream_t s;
    int *d, *x, wrong = 0;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, ROUNDS * sizeof *d) || cudaMallocHost((void **)&x, sizeof *x));
    for (int i = 0; i < ROUNDS; i++) {
        *x = i; /* pinned: the copy before may not have read it yet */
        NEED(cudaMemcpyAsync(d + i, x, sizeof *x, cudaMemcpyHostToDevice, s));
    }
    int got[ROUNDS];
    NEED(cudaStreamSynchronize(s) || cudaMemcpy(got, d, sizeof got, cudaMemcpyDeviceToHost));
    for (int i = 0; i < ROUNDS; i++)
        wrong += got[i] != i;
    return wrong;
}

static void missing_waits_show_under_delays(void **state)
{
    (void)state;
    setenv("CUEMU_DELAY", "2000", 1);
    for (int seed = 1; seed <= 3; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("CUEMU_SEED", text, 1);
        assert_int_equal(apart(with_wait), 0);
        assert_in_range(apart(without_wait), 1, ROUNDS);
        assert_in_range(apart(buffer_reused_early), 1, ROUNDS);
    }
    unsetenv("CUEMU_DELAY");
    unsetenv("CUEMU_SEED");
}

static int host_reads(void)
{
    float *d;
    NEED(cudaMalloc((void **)&d, 64));
    volatile float x = *d;
    return x > 0;
}

static int host_writes(void)
{
    float *d;
    NEED(cudaMalloc((void **)&d, 64));
    *(volatile float *)d = 1;
    return 0;
}

static void the_host_cannot_touch_device_memory(void **state)
{
    (void)state;
    assert_int_equal(apart(host_reads), 128 + SIGSEGV);
    assert_int_equal(apart(host_writes), 128 + SIGSEGV);
}

/* What a launch with a host pointer leaves: the error, which stays, whatever is called. */
static int kernel_with_host_pointer(void)
{
    static float x[64];
    cudaStream_t s;
    void *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(test_scale(x, 2, 64, s));
    if (cudaStreamSynchronize(s) != cudaErrorIllegalAddress)
        return 1;
    if (cudaStreamSynchronize(s) != cudaErrorIllegalAddress ||
        cudaMalloc(&d, 64) != cudaErrorIllegalAddress)
        return 2;
    return cudaGetLastError() == cudaErrorIllegalAddress ? 0 : 3;
}

static int divergent_barrier(void)
{
    cudaStream_t s;
    float *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, 4096));
    NEED(test_diverge(d, s));
    return cudaStreamSynchronize(s) == cudaErrorLaunchFailure ? 0 : 1;
}

/* Eight bytes off what cp.async takes. */
static int misaligned_copy(void)
{
    cudaStream_t s;
    float *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, 4096));
    NEED(test_half_waited(d, d + 512, true, s) || cudaStreamSynchronize(s));
    NEED(test_half_waited(d + 2, d + 512, true, s));
    return cudaStreamSynchronize(s) == cudaErrorMisalignedAddress ? 0 : 1;
}

/* A thread ends while a copy of it is under way. */
static int unwaited_copy(void)
{
    cudaStream_t s;
    float *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, 4096));
    NEED(test_half_waited(d, d + 512, false, s));
    return cudaStreamSynchronize(s) == cudaErrorLaunchFailure ? 0 : 1;
}

static void broken_kernels_are_sticky_errors(void **state)
{
    (void)state;
    assert_int_equal(apart(kernel_with_host_pointer), 0);
    assert_int_equal(apart(divergent_barrier), 0);
    assert_int_equal(apart(misaligned_copy), 0);
    assert_int_equal(apart(unwaited_copy), 0);
}

/* A kernel that lacks a barrier: 256 distinct addends, so that a lost one shows. */
static int sum_is_wrong(int race)
{
    float x[256], out = 0, want = 0, *d, *sum;
    cudaStream_t s;
    for (int i = 0; i < 256; i++)
        want += x[i] = (float)(1 + i);
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, sizeof x) || cudaMalloc((void **)&sum, sizeof out));
    NEED(cudaMemcpy(d, x, sizeof x, cudaMemcpyHostToDevice));
    NEED(test_sum(d, sum, 256, race, s));
    NEED(cudaStreamSynchronize(s) || cudaMemcpy(&out, sum, sizeof out, cudaMemcpyDeviceToHost));
    return out != want;
}

static int racing_sum(void)
{
    return sum_is_wrong(1);
}

static int proper_sum(void)
{
    return sum_is_wrong(0);
}

static void a_missing_barrier_shows(void **state)
{
    (void)state;
    assert_int_equal(apart(racing_sum), 1);
    assert_int_equal(apart(proper_sum), 0);
}

/* One float too many. The sanitizer of the device process sees it, and the host its end. */
static int overrun(void)
{
    cudaStream_t s;
    float *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, 1000 * sizeof *d));
    NEED(test_scale(d, 2, 1000, s) || cudaStreamSynchronize(s));
    NEED(test_scale(d, 2, 1001, s));
    return cudaStreamSynchronize(s) == cudaErrorLaunchFailure ? 0 : 1;
}

static int use_after_free(void)
{
    cudaStream_t s;
    float *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, 1000 * sizeof *d) || cudaFree(d));
    NEED(test_scale(d, 2, 1000, s));
    return cudaStreamSynchronize(s) == cudaErrorLaunchFailure ? 0 : 1;
}

/* A float4 that is not on 16 bytes: hardware refuses, x86 does not; the sanitizer of behaviour
 * does. */
static int misaligned_vector(void)
{
    cudaStream_t s;
    float *d;
    NEED(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&d, 4096));
    NEED(test_scale(d + 1, 2, 64, s));
    return cudaStreamSynchronize(s) == cudaErrorLaunchFailure ? 0 : 1;
}

static void the_sanitizer_sees_device_memory(void **state)
{
    (void)state;
    if (!cuemu_asan())
        skip(); /* built without it */
    assert_int_equal(apart(overrun), 0);
    assert_int_equal(apart(use_after_free), 0);
}

static void the_sanitizer_sees_misaligned_vectors(void **state)
{
    (void)state;
    if (!__ubsan_handle_type_mismatch_v1)
        skip(); /* built without it */
    assert_int_equal(apart(misaligned_vector), 0);
}

static int memory_limit(void)
{
    void *d;
    size_t free_bytes, total;
    NEED(cudaMemGetInfo(&free_bytes, &total));
    if (total != 8 << 20 || cudaMalloc(&d, 9 << 20) != cudaErrorMemoryAllocation)
        return 1;
    return cudaMalloc(&d, 4 << 20) == cudaSuccess ? 0 : 2; /* not sticky */
}

static int device_count(void)
{
    int n;
    return cudaGetDeviceCount(&n) == cudaErrorNoDevice ? 0 : n;
}

static void machines_can_be_small(void **state)
{
    (void)state;
    setenv("CUEMU_MEMORY_MB", "8", 1);
    assert_int_equal(apart(memory_limit), 0);
    unsetenv("CUEMU_MEMORY_MB");
    setenv("CUEMU_DEVICES", "2", 1);
    assert_int_equal(apart(device_count), 2);
    setenv("CUEMU_DEVICES", "0", 1);
    assert_int_equal(apart(device_count), 0);
    unsetenv("CUEMU_DEVICES");
}

/* Waits until the descriptor's last writer is gone: that is the device process, which inherits it.
 */
static bool all_ended(int fd)
{
    char byte;
    return read(fd, &byte, 1) == 0;
}

static void a_killed_rank_leaves_nothing(void **state)
{
    (void)state;
    int alive[2], ready[2];
    assert_int_equal(pipe(alive) | pipe(ready), 0);
    pid_t pid = fork();
    if (!pid) {
        cudaStream_t s;
        float *d;
        bool fine = !cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) &&
                    !cudaMalloc((void **)&d, 4096) && !test_spin(d, 1024, 100000, s); /* busy */
        fine = fine && write(ready[1], "", 1) == 1;
        pause();
        _exit(fine ? 0 : 1);
    }
    char byte;
    close(alive[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    alarm(20); /* ends the test if the device process lives on */
    assert_true(all_ended(alive[0]));
    alarm(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_waits_show_under_delays),
        cmocka_unit_test(the_host_cannot_touch_device_memory),
        cmocka_unit_test(broken_kernels_are_sticky_errors),
        cmocka_unit_test(a_missing_barrier_shows),
        cmocka_unit_test(the_sanitizer_sees_device_memory),
        cmocka_unit_test(the_sanitizer_sees_misaligned_vectors),
        cmocka_unit_test(machines_can_be_small),
        cmocka_unit_test(a_killed_rank_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
