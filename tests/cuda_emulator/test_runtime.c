/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated runtime: memory, copies, streams, events, errors, properties. */
#include "test_common.h"

#include <pthread.h>

static void devices_are_described(void **state)
{
    (void)state;
    int count = 0, sms = 0, optin = 0;
    char bus[32], text[64];
    struct cudaDeviceProp p;
    OK(cudaGetDeviceCount(&count));
    assert_int_equal(count, 16);
    OK(cudaGetDeviceProperties(&p, 3));
    OK(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 3));
    OK(cudaDeviceGetAttribute(&optin, cudaDevAttrMaxSharedMemoryPerBlockOptin, 3));
    assert_int_equal(sms, p.multiProcessorCount);
    assert_int_equal(optin, p.sharedMemPerBlockOptin);
    OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 3));
    snprintf(text, sizeof text, "%04x:%02X:%02x.0", p.pciDomainID, p.pciBusID, p.pciDeviceID);
    assert_string_equal(bus, text);
    assert_int_equal(cudaSetDevice(16), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidDevice);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
    assert_string_equal(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
}

/* The heap gives back what is freed, merges neighbours and says when it is full. */
static void memory_is_used_again(void **state)
{
    (void)state;
    enum { N = 8 };
    size_t before, after, total;
    void *block[N], *big;
    OK(cudaMemGetInfo(&before, &total));
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            OK(cudaMalloc(&block[i], total / N - 4096));
        assert_int_equal(cudaMalloc(&big, total / N), cudaErrorMemoryAllocation);
        for (int i = 0; i < N; i++)
            OK(cudaFree(block[(3 * i + round) % N]));
    }
    OK(cudaMalloc(&big, total / 2));
    OK(cudaFree(big));
    assert_int_equal(cudaFree(big), cudaErrorInvalidValue);
    OK(cudaMemGetInfo(&after, &total));
    assert_int_equal(before, after);
    cudaGetLastError();
}

static void new_memory_is_not_zero(void **state)
{
    (void)state;
    float x[4];
    float *d = on_device(NULL, sizeof x);
    OK(cudaMemcpy(x, d, sizeof x, cudaMemcpyDeviceToHost));
    for (int i = 0; i < 4; i++)
        assert_true(isnan(x[i]));
    OK(cudaFree(d));
}

static void pool_memory_returns_in_stream_order(void **state)
{
    (void)state;
    cudaStream_t s = new_stream();
    cudaMemPool_t pool;
    size_t total, before, free_bytes;
    uint64_t keep = UINT64_MAX, high = 0;
    OK(cudaMemGetInfo(&before, &total));
    OK(cudaDeviceGetDefaultMemPool(&pool, 0));
    OK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep));
    for (int i = 0; i < 8; i++) { /* only fits if each is reused */
        void *at;
        OK(cudaMallocAsync(&at, total / 2, s));
        OK(cudaMemsetAsync(at, i, 64, s));
        OK(cudaFreeAsync(at, s));
    }
    OK(cudaStreamSynchronize(s));
    OK(cudaMemGetInfo(&free_bytes, &total));
    assert_int_equal(free_bytes, before);
    OK(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &high));
    assert_true(high >= total / 2);
    OK(cudaStreamDestroy(s));
}

/* Pageable, pinned and registered memory, plain and by rows. */
static void copies_arrive(void **state)
{
    (void)state;
    enum { N = 1000, W = 10, PITCH = 16, ROWS = 7 };
    cudaStream_t s = new_stream();
    static int pageable[N], back[N], registered[N];
    int *pinned, *d = on_device(NULL, sizeof pageable), *e = on_device(NULL, sizeof pageable);
    OK(cudaMallocHost((void **)&pinned, sizeof pageable));
    OK(cudaHostRegister(registered, sizeof registered, cudaHostRegisterDefault));
    for (int i = 0; i < N; i++)
        pinned[i] = 3 * i;
    OK(cudaMemcpyAsync(d, pinned, sizeof pageable, cudaMemcpyHostToDevice, s));
    OK(cudaMemcpyAsync(e, d, sizeof pageable, cudaMemcpyDeviceToDevice, s));
    OK(cudaMemcpyAsync(registered, e, sizeof registered, cudaMemcpyDefault, s));
    fetch(pageable, e, sizeof pageable, s);
    assert_memory_equal(pageable, pinned, sizeof pageable);
    assert_memory_equal(registered, pinned, sizeof pageable);
    OK(cudaMemset(e, 0, sizeof back));
    OK(cudaMemcpy2DAsync(e, W * 4, d + 3, PITCH * 4, W * 4, ROWS, cudaMemcpyDeviceToDevice, s));
    fetch(back, e, sizeof back, s);
    for (int i = 0; i < N; i++)
        assert_int_equal(back[i], i < W * ROWS ? 3 * (3 + i / W * PITCH + i % W) : 0);
    assert_int_equal(cudaMemcpy(d, pinned, 4, cudaMemcpyDeviceToHost),
                     cudaErrorInvalidMemcpyDirection);
    OK(cudaHostUnregister(registered));
    OK(cudaFreeHost(pinned));
    OK(cudaFree(d));
    OK(cudaFree(e));
    OK(cudaStreamDestroy(s));
    cudaGetLastError();
}

static void pointers_are_told_apart(void **state)
{
    (void)state;
    int local;
    void *pinned, *d = on_device(NULL, 64);
    struct cudaPointerAttributes a;
    OK(cudaHostAlloc(&pinned, 64, cudaHostAllocDefault));
    OK(cudaPointerGetAttributes(&a, &local));
    assert_int_equal(a.type, cudaMemoryTypeUnregistered);
    OK(cudaPointerGetAttributes(&a, pinned));
    assert_int_equal(a.type, cudaMemoryTypeHost);
    OK(cudaPointerGetAttributes(&a, d));
    assert_int_equal(a.type, cudaMemoryTypeDevice);
    OK(cudaFreeHost(pinned));
    OK(cudaFree(d));
}

static void only_explicit_streams_are_taken(void **state)
{
    (void)state;
    cudaStream_t s;
    cudaEvent_t e;
    void *d = on_device(NULL, 64);
    OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamDefault), cudaErrorNotSupported);
    assert_int_equal(cudaMemsetAsync(d, 0, 64, NULL), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaEventRecord(e, NULL), cudaErrorInvalidResourceHandle);
    assert_int_equal(cudaStreamSynchronize(NULL), cudaErrorInvalidResourceHandle);
    OK(cudaEventDestroy(e));
    assert_int_equal(cudaEventQuery(e), cudaErrorInvalidResourceHandle);
    OK(cudaFree(d));
    cudaGetLastError();
}

/* More records than a ring holds, more streams than slots over time. */
static void rings_and_slots_wrap(void **state)
{
    (void)state;
    int x = -1, *d = on_device(NULL, sizeof x);
    for (int i = 0; i < 200; i++) {
        cudaStream_t s = new_stream();
        for (int j = 0; j < (i ? 3 : 5000); j++)
            OK(cudaMemsetAsync(d, j & 1, sizeof x, s));
        fetch(&x, d, sizeof x, s);
        assert_int_equal(x, i ? 0 : 0x01010101);
        OK(cudaStreamDestroy(s));
    }
    OK(cudaFree(d));
}

enum { THREADS = 4, PASSES = 300 };

static void *allocate_and_launch(void *arg)
{
    cudaStream_t s;
    intptr_t value = (intptr_t)arg, wrong = 0;
    if (cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking))
        return (void *)PASSES;
    for (int i = 0; i < PASSES; i++) {
        unsigned char *d, got[64];
        bool fine = !cudaMalloc((void **)&d, sizeof got) &&
                    !cudaMemsetAsync(d, (int)value, sizeof got, s) &&
                    !cudaMemcpyAsync(got, d, sizeof got, cudaMemcpyDeviceToHost, s) && !cudaFree(d);
        wrong += !fine || got[0] != value || got[63] != value;
    }
    cudaStreamDestroy(s);
    return (void *)wrong;
}

static void threads_do_not_disturb_each_other(void **state)
{
    (void)state;
    pthread_t thread[THREADS];
    for (intptr_t i = 0; i < THREADS; i++)
        OK(pthread_create(&thread[i], NULL, allocate_and_launch, (void *)(i + 1)));
    for (int i = 0; i < THREADS; i++) {
        void *wrong;
        OK(pthread_join(thread[i], &wrong));
        assert_null(wrong);
    }
}

static void events_tell_progress(void **state)
{
    (void)state;
    cudaStream_t s = new_stream();
    cudaEvent_t start, end, untimed;
    float ms = -1, *d = on_device(NULL, 4096);
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
    OK(cudaEventQuery(start)); /* never recorded: done */
    OK(cudaEventRecord(start, s));
    OK(test_spin(d, 512, 2000, s));
    OK(cudaEventRecord(end, s));
    OK(cudaEventRecord(untimed, s));
    assert_int_equal(cudaEventQuery(end), cudaErrorNotReady);
    assert_int_equal(cudaStreamQuery(s), cudaErrorNotReady);
    assert_int_equal(cudaEventElapsedTime(&ms, start, end), cudaErrorNotReady);
    OK(cudaEventSynchronize(end));
    OK(cudaEventQuery(end));
    OK(cudaEventElapsedTime(&ms, start, end));
    assert_true(ms > 0);
    assert_int_equal(cudaEventElapsedTime(&ms, start, untimed), cudaErrorInvalidResourceHandle);
    OK(cudaStreamSynchronize(s));
    OK(cudaStreamQuery(s));
    OK(cudaStreamDestroy(s));
    OK(cudaFree(d));
    cudaGetLastError();
}

/* An event that takes the place of a destroyed one is not done by what that one saw. */
static void events_are_new_each_time(void **state)
{
    (void)state;
    cudaStream_t s = new_stream();
    float *d = on_device(NULL, 4096), *seen;
    OK(cudaMallocHost((void **)&seen, sizeof *seen));
    for (int i = 0; i < 5; i++) {
        cudaEvent_t e;
        *seen = -1;
        OK(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
        OK(cudaMemsetAsync(d, 0, 4096, s));
        OK(test_spin(d, 512, 1000, s));
        OK(cudaMemcpyAsync(seen, d, sizeof *seen, cudaMemcpyDeviceToHost, s));
        OK(cudaEventRecord(e, s));
        OK(cudaEventSynchronize(e));
        assert_true(*seen == 1);
        OK(cudaEventDestroy(e));
    }
    OK(cudaFreeHost(seen));
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
}

int main(void)
{
    setenv("CUEMU_MEMORY_MB", "256", 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_described),
        cmocka_unit_test(memory_is_used_again),
        cmocka_unit_test(new_memory_is_not_zero),
        cmocka_unit_test(pool_memory_returns_in_stream_order),
        cmocka_unit_test(copies_arrive),
        cmocka_unit_test(pointers_are_told_apart),
        cmocka_unit_test(only_explicit_streams_are_taken),
        cmocka_unit_test(rings_and_slots_wrap),
        cmocka_unit_test(threads_do_not_disturb_each_other),
        cmocka_unit_test(events_tell_progress),
        cmocka_unit_test(events_are_new_each_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
