/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda device by itself: memory, copies, streams and events, and that it ends what does not
 * end.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <mpi.h>
#include <ndmesh/interop_cuda.h>

#include "core/dtype.h"
#include "tests/cuda/gpu.h"

static const int64_t MIB = 1 << 20;

static ndm_device *gpu;
static ndm_stream *compute, *other;

#define ok(call)                                                 \
    do {                                                         \
        ndm_status ok_status_ = (call);                          \
        if (ok_status_ != NDM_OK)                                \
            print_error("%s: %s\n", #call, ndm_error_message()); \
        assert_int_equal(ok_status_, NDM_OK);                    \
    } while (0)

static int open_device(void **state)
{
    (void)state;
    if (gpu_open(0, &gpu) != 0)
        return -1;
    ok(ndm_stream_create(gpu, NDM_STREAM_COMPUTE, "compute", &compute));
    ok(ndm_stream_create(gpu, NDM_STREAM_COMM, "other", &other));
    return 0;
}

static int close_device(void **state)
{
    (void)state;
    ndm_stream_destroy(other);
    ndm_stream_destroy(compute);
    ndm_device_destroy(gpu);
    return 0;
}

static void *take(int64_t bytes)
{
    void *memory;

    ok(ndm_device_alloc(gpu, bytes, NDM_MEMORY_WORKSPACE, &memory));
    assert_int_equal((uintptr_t)memory % 256, 0);
    return memory;
}

static ndm_memory_pool pool(void)
{
    ndm_memory_pool p;

    assert_true(ndm_device_pool(gpu, &p));
    return p;
}

/* ---- memory --------------------------------------------------------------------------------- */

static void memory_given_back_is_given_out_again(void **state)
{
    void *first = take(3 * MIB), *second = take(5 * MIB);
    ndm_memory_pool before = pool();

    (void)state;
    ndm_device_free(gpu, first);
    assert_ptr_equal(take(3 * MIB), first);
    assert_int_equal(pool().reserved_bytes, before.reserved_bytes);
    ndm_device_free(gpu, first);
    ndm_device_free(gpu, second); /* neighbours, now one block */
    assert_ptr_equal(take(8 * MIB), first);
    assert_int_equal(pool().used_bytes, 8 * MIB);
    assert_int_equal(pool().peak_used_bytes, 8 * MIB);
    assert_int_equal(pool().reserved_bytes, before.reserved_bytes);
    ndm_device_free(gpu, first);
    assert_int_equal(pool().used_bytes, 0);
}

static void small_requests_do_not_cut_large_blocks(void **state)
{
    void *large = take(20 * MIB);
    void *small[100];

    (void)state;
    ndm_device_free(gpu, large);
    for (int i = 0; i < 100; i++)
        small[i] = take(1000 + i);
    assert_ptr_equal(take(20 * MIB), large);
    for (int i = 0; i < 100; i++)
        ndm_device_free(gpu, small[i]);
    ndm_device_free(gpu, large);
}

static void what_cannot_be_had_is_said_and_does_no_harm(void **state)
{
    void *some = take(MIB), *memory = NULL;

    (void)state;
    assert_int_equal(ndm_device_alloc(gpu, (int64_t)1 << 50, NDM_MEMORY_WEIGHTS, &memory),
                     NDM_ERR_MEMORY);
    assert_non_null(strstr(ndm_error_message(), "cuda: no 1125899906842624 bytes for weights"));
    ndm_device_free(gpu, some);
    ndm_device_free(gpu, take(2 * MIB));
    ok(ndm_stream_synchronize(compute));
}

/* Idle segments go back to the device before it is said to have no memory. */
static void idle_memory_is_given_up_for_a_request_of_another_size(void **state)
{
    enum { MANY = 64 };
    void *blocks[MANY];
    int n = 0;

    (void)state;
    while (n < MANY && ndm_device_alloc(gpu, 1024 * MIB, NDM_MEMORY_WEIGHTS, &blocks[n]) == NDM_OK)
        n++;
    if (n == MANY || n < 3)
        skip();
    for (int i = 0; i < n; i++)
        ndm_device_free(gpu, blocks[i]);
    assert_true(pool().reserved_bytes >= n * 1024 * MIB);
    void *whole = take((n - 1) * 1024 * MIB);
    ndm_device_free(gpu, whole);
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Larger than the ring of pinned memory, through it and back. */
static void copies_of_any_size_arrive(void **state)
{
    static const int64_t sizes[] = {1, 255, 4097, 4 << 20, (4 << 20) + 1, 41 << 20};

    (void)state;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t bytes = (size_t)sizes[i];
        unsigned char *in = malloc(bytes), *out = malloc(bytes);
        void *there = take(sizes[i]);
        for (size_t j = 0; j < bytes; j++)
            in[j] = (unsigned char)(j * 7 + j / 251 + i);
        ok(ndm_copy(compute, there, in, sizes[i], NDM_HOST_TO_DEVICE));
        ok(ndm_copy(compute, out, there, sizes[i], NDM_DEVICE_TO_HOST));
        ok(ndm_stream_synchronize(compute));
        assert_memory_equal(in, out, bytes);
        ndm_device_free(gpu, there);
        free(in);
        free(out);
    }
}

/* Hundreds of small ones without a wait between, each from the same host memory. */
static void a_source_may_be_changed_at_once(void **state)
{
    enum { MANY = 700 };
    int32_t value, got[MANY];
    int32_t *there = take(MANY * (int64_t)sizeof *there);

    (void)state;
    for (int i = 0; i < MANY; i++) {
        value = i * 3;
        ok(ndm_copy(compute, there + i, &value, sizeof value, NDM_HOST_TO_DEVICE));
        value = -1;
    }
    for (int i = 0; i < MANY; i++)
        ok(ndm_copy(compute, &got[i], there + i, sizeof got[i], NDM_DEVICE_TO_HOST));
    ok(ndm_stream_synchronize(compute));
    for (int i = 0; i < MANY; i++)
        assert_int_equal(got[i], i * 3);
    ndm_device_free(gpu, there);
}

static void sixteen_bit_arrays_become_fp32(void **state)
{
    enum { N = 1000 };
    uint16_t in[N];
    float out[N], *there_out = take(N * (int64_t)sizeof *there_out);
    uint16_t *there_in = take(N * (int64_t)sizeof *there_in);

    (void)state;
    for (int half = 0; half < 2; half++) {
        for (int i = 0; i < N; i++)
            in[i] = half ? ndm_f32_to_f16((float)i * 0.37f) : ndm_f32_to_bf16((float)i * 0.37f);
        ok(ndm_copy(compute, there_in, in, sizeof in, NDM_HOST_TO_DEVICE));
        ok(gpu->ops->widen(compute, there_out, there_in, half ? NDM_F16 : NDM_BF16, N));
        ok(ndm_copy(compute, out, there_out, sizeof out, NDM_DEVICE_TO_HOST));
        ok(ndm_stream_synchronize(compute));
        for (int i = 0; i < N; i++)
            assert_true(out[i] == (half ? ndm_f16_to_f32(in[i]) : ndm_bf16_to_f32(in[i])));
    }
    ndm_device_free(gpu, there_in);
    ndm_device_free(gpu, there_out);
}

/* ---- streams and events ---------------------------------------------------------------------- */

static void a_stream_waits_for_the_last_record_of_an_event(void **state)
{
    enum { ROUNDS = 30, N = 4096 };
    static int32_t in[N], out[N];
    void *a = take(sizeof in), *b = take(sizeof in);
    ndm_event *written, *read;
    bool done = false;

    (void)state;
    ok(ndm_event_create(gpu, &written));
    ok(ndm_event_create(gpu, &read));
    ok(ndm_event_query(read, &done));
    assert_true(done); /* never recorded */
    for (int i = 0; i < ROUNDS; i++) {
        for (int j = 0; j < N; j++)
            in[j] = i + j;
        ok(ndm_stream_wait(other, read));
        ok(ndm_copy(other, a, in, sizeof in, NDM_HOST_TO_DEVICE));
        ok(ndm_event_record(written, other));
        ok(ndm_stream_wait(compute, written));
        ok(ndm_copy(compute, b, a, sizeof in, NDM_DEVICE_TO_DEVICE));
        ok(ndm_event_record(read, compute));
        ok(ndm_copy(compute, out, b, sizeof in, NDM_DEVICE_TO_HOST));
        ok(ndm_stream_synchronize(compute));
        assert_memory_equal(in, out, sizeof in);
    }
    ndm_event_destroy(written);
    ndm_event_destroy(read);
    ndm_device_free(gpu, a);
    ndm_device_free(gpu, b);
}

/* A download is there when any stream that comes after it has been waited for. */
static void downloads_arrive_over_events(void **state)
{
    int32_t in = 77, out = 0;
    void *there = take(sizeof in);
    ndm_event *copied;

    (void)state;
    ok(ndm_event_create(gpu, &copied));
    ok(ndm_copy(other, there, &in, sizeof in, NDM_HOST_TO_DEVICE));
    ok(ndm_copy(other, &out, there, sizeof in, NDM_DEVICE_TO_HOST));
    ok(ndm_event_record(copied, other));
    ok(ndm_stream_wait(compute, copied));
    ok(ndm_stream_synchronize(compute));
    assert_int_equal(out, 77);
    ndm_event_destroy(copied);
    ndm_device_free(gpu, there);
}

/* Waits for what has not happened are timed; of a stream that waits for nothing, none is. */
static void waits_of_the_compute_stream_are_timed(void **state)
{
    enum { ROUNDS = 20 };
    static char host[8 << 20];
    void *there = take(sizeof host);
    ndm_event *copied;

    (void)state;
    ok(ndm_event_create(gpu, &copied));
    ok(ndm_stream_wait(compute, copied));
    ok(ndm_stream_synchronize(compute));
    assert_int_equal(ndm_stream_waited_ns(compute), 0);
    for (int i = 0; i < ROUNDS; i++) {
        ok(ndm_copy(other, there, host, sizeof host, NDM_HOST_TO_DEVICE));
        ok(ndm_event_record(copied, other));
        ok(ndm_stream_wait(compute, copied));
    }
    ok(ndm_stream_synchronize(compute));
    assert_true(ndm_stream_waited_ns(compute) > 0);
    assert_int_equal(ndm_stream_waited_ns(other), 0);
    ndm_event_destroy(copied);
    ndm_device_free(gpu, there);
}

/* ---- an embedding program's device and stream ----------------------------------------------- */

static void embed(ndm_context_options *options, int index, cudaStream_t stream)
{
    *options = (ndm_context_options)NDM_CONTEXT_OPTIONS_INIT;
    ndm_context_options_take_cuda(options, index, stream);
}

/* What the program has on its stream comes before what the context computes there. */
static void a_context_works_on_a_given_stream(void **state)
{
    enum { N = 1 << 18 };
    static float in[N], out[N];
    const ndm_parallelism_config alone = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options options;
    ndm_context *context;
    float *x = take(sizeof in);

    (void)state;
    for (int i = 0; i < N; i++)
        in[i] = (float)i;
    embed(&options, 0, ndm_stream_cuda(compute));
    ok(ndm_context_create(&alone, &options, &context));
    assert_string_equal(ndm_device_name(ndm_context_device(context)), "cuda");
    assert_ptr_equal(ndm_stream_cuda(ndm_context_stream(context)), ndm_stream_cuda(compute));
    for (int round = 0; round < 8; round++) {
        ok(ndm_zero(compute, x, sizeof in)); /* by the program */
        ok(ndm_copy(ndm_context_stream(context), x, in, sizeof in, NDM_HOST_TO_DEVICE));
        ok(ndm_copy(compute, out, x, sizeof in, NDM_DEVICE_TO_HOST));
        ok(ndm_stream_synchronize(compute));
        assert_memory_equal(in, out, sizeof in);
    }
    ndm_context_destroy(context);
    ok(ndm_zero(compute, x, sizeof in)); /* the stream is still the program's */
    ok(ndm_copy(compute, out, x, sizeof in, NDM_DEVICE_TO_HOST));
    ok(ndm_stream_synchronize(compute));
    assert_true(out[N - 1] == 0.0f);
    ndm_device_free(gpu, x);
}

static void a_second_compute_stream_is_its_own(void **state)
{
    ndm_device_options options = {.timeout_ns = 60ll * 1000000000,
                                  .given = {true, 0, ndm_stream_native(compute)}};
    ndm_stream *reduce, *first, *second;
    ndm_device *device;

    (void)state;
    ok(ndm_device_create("cuda", &options, &device));
    ok(ndm_stream_create(device, NDM_STREAM_COMM, "reduce", &reduce));
    ok(ndm_stream_create(device, NDM_STREAM_COMPUTE, "first", &first));
    ok(ndm_stream_create(device, NDM_STREAM_COMPUTE, "second", &second));
    assert_ptr_equal(ndm_stream_native(first), ndm_stream_native(compute));
    assert_ptr_not_equal(ndm_stream_native(reduce), ndm_stream_native(compute));
    assert_ptr_not_equal(ndm_stream_native(second), ndm_stream_native(compute));
    ndm_device_destroy(device);
    ok(ndm_stream_synchronize(compute));
}

static void what_cannot_be_taken_is_refused(void **state)
{
    const ndm_parallelism_config alone = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options options;
    ndm_context *context;

    (void)state;
    embed(&options, 1000, NULL);
    assert_int_equal(ndm_context_create(&alone, &options, &context), NDM_ERR_USAGE);
    assert_non_null(strstr(ndm_error_message(), "device_index 1000"));
    embed(&options, 0, NULL);
    options.device = "cpu";
    assert_int_equal(ndm_context_create(&alone, &options, &context), NDM_ERR_CONFIG);
    assert_non_null(strstr(ndm_error_message(), "device_index"));
    embed(&options, -1, ndm_stream_cuda(compute));
    options.device = "cpu";
    assert_int_equal(ndm_context_create(&alone, &options, &context), NDM_ERR_CONFIG);
    assert_non_null(strstr(ndm_error_message(), "compute_stream"));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, open_device, close_device)
    const struct CMUnitTest tests[] = {
        CASE(memory_given_back_is_given_out_again),
        CASE(small_requests_do_not_cut_large_blocks),
        CASE(what_cannot_be_had_is_said_and_does_no_harm),
        CASE(idle_memory_is_given_up_for_a_request_of_another_size),
        CASE(copies_of_any_size_arrive),
        CASE(a_source_may_be_changed_at_once),
        CASE(sixteen_bit_arrays_become_fp32),
        CASE(a_stream_waits_for_the_last_record_of_an_event),
        CASE(downloads_arrive_over_events),
        CASE(waits_of_the_compute_stream_are_timed),
        CASE(a_context_works_on_a_given_stream),
        CASE(a_second_compute_stream_is_its_own),
        CASE(what_cannot_be_taken_is_refused),
    };

    MPI_Init(NULL, NULL); /* a context that initialises it finalises it, and it begins once */
    int failed = cmocka_run_group_tests_name("cuda device", tests, NULL, NULL);
    MPI_Finalize();
    return failed;
}
