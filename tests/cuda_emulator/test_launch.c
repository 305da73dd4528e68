/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels on the emulator: barriers, warps, tensor-core tiles, asynchronous copies, launch limits.
 */
#include "test_common.h"

static void elementwise_and_tree(void **state)
{
    (void)state;
    enum { N = 10007 };
    static float x[N], y[N];
    float total, want = 0, *out = on_device(NULL, sizeof *out);
    uint32_t seed = 1;
    cudaStream_t s = new_stream();
    for (int i = 0; i < N; i++)
        x[i] = rintf(64 * random_float(&seed)), want += 3 * x[i]; /* exact in any order */
    float *d = on_device(x, sizeof x);
    OK(test_scale(d, 3, N, s));
    OK(test_sum(d, out, N, 0, s));
    fetch(y, d, sizeof y, s);
    fetch(&total, out, sizeof total, s);
    for (int i = 0; i < N; i++)
        assert_true(y[i] == 3 * x[i]);
    assert_true(total == want);
    OK(cudaFree(d));
    OK(cudaFree(out));
    OK(cudaStreamDestroy(s));
}

static void warps_exchange(void **state)
{
    (void)state;
    enum { THREADS = 128 };
    static int r[THREADS][WARP_RESULTS];
    cudaStream_t s = new_stream();
    int *d = on_device(NULL, sizeof r);
    OK(test_warps(d, THREADS, s));
    fetch(r, d, sizeof r, s);
    for (int t = 0; t < THREADS; t++) {
        int lane = t % 32, warp = t - lane;
        assert_int_equal(r[t][0], warp + (lane ^ 5));
        assert_int_equal(r[t][1], lane < 29 ? t + 3 : t);
        assert_int_equal(r[t][2], lane % 8 >= 3 ? t - 3 : t);
        assert_int_equal(r[t][3], warp + lane / 16 * 16 + 7);
        assert_int_equal((unsigned)r[t][4], 0x49249249u);
        assert_int_equal(r[t][5], 31 * 16);
        assert_int_equal(r[t][6], 1);
        assert_int_equal(r[t][7], lane % 2 ? warp + 31 : warp);
        assert_int_equal(r[t][8], 26 + 1000);
    }
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
}

static void tiles_multiply(void **state)
{
    (void)state;
    uint16_t a[16][16], b[8][16], turned[16][8];
    float c[2][16][8];
    uint32_t seed = 2;
    cudaStream_t s = new_stream();
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++)
            a[i][k] = ndm_f32_to_bf16(random_float(&seed));
    for (int j = 0; j < 8; j++)
        for (int k = 0; k < 16; k++)
            b[j][k] = turned[k][j] = ndm_f32_to_bf16(random_float(&seed));
    void *da = on_device(a, sizeof a), *db = on_device(b, sizeof b),
         *dt = on_device(turned, sizeof turned);
    float *dc = on_device(NULL, sizeof c);
    OK(test_tile_product(da, db, dc, 0, s));
    OK(test_tile_product(da, dt, dc + 16 * 8, 1, s));
    fetch(c, dc, sizeof c, s);
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            double want = 0;
            for (int k = 0; k < 16; k++)
                want += (double)ndm_bf16_to_f32(a[i][k]) * (double)ndm_bf16_to_f32(b[j][k]);
            assert_true(fabs((double)c[0][i][j] - want) < 1e-5);
            assert_true(c[0][i][j] == c[1][i][j]);
        }
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dt));
    OK(cudaFree(dc));
    OK(cudaStreamDestroy(s));
}

static void copies_arrive_at_their_wait(void **state)
{
    (void)state;
    float x[128], out[64];
    cudaStream_t s = new_stream();
    for (int i = 0; i < 128; i++)
        x[i] = (float)i;
    float *dx = on_device(x, sizeof x), *d = on_device(NULL, sizeof out);
    OK(test_half_waited(dx, d, true, s));
    fetch(out, d, sizeof out, s);
    for (int t = 0; t < 32; t++) {
        assert_true(out[t] == x[4 * t]);
        assert_true(out[32 + t] == -1); /* not waited for: not there */
    }
    OK(cudaFree(dx));
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
}

static void shared_memory_starts_as_nan_and_is_limited(void **state)
{
    (void)state;
    float out[32], *d = on_device(NULL, sizeof out);
    int blocks;
    cudaStream_t s = new_stream();
    OK(test_shared_as_found(d, 4096, 0, s));
    fetch(out, d, sizeof out, s);
    for (int i = 0; i < 32; i++)
        assert_true(isnan(out[i]));
    assert_int_equal(test_shared_as_found(d, 64 << 10, 0, s), cudaErrorInvalidValue);
    OK(test_shared_as_found(d, 64 << 10, 1, s));
    assert_int_equal(test_shared_as_found(d, 228 << 10, 1, s), cudaErrorInvalidValue);
    assert_int_equal(test_warps(NULL, 1056, s), cudaErrorInvalidConfiguration);
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, (const void *)"", 256, 40 << 10));
    assert_int_equal(blocks, 5);
    OK(cudaStreamSynchronize(s));
    OK(cudaFree(d));
    OK(cudaStreamDestroy(s));
    cudaGetLastError();
}

enum { ARRIVALS = 4 * 96 };

static int print_order(void)
{
    static int order[ARRIVALS];
    cudaStream_t s;
    int *d, *counter, first = -1;
    if (cudaMalloc((void **)&d, sizeof order) || cudaMalloc((void **)&counter, 4) ||
        cudaMemset(counter, 0, 4) || cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking) ||
        test_arrivals(counter, d, s) || cudaStreamSynchronize(s) ||
        cudaMemcpy(order, d, sizeof order, cudaMemcpyDeviceToHost))
        return 100;
    bool seen[ARRIVALS] = {false};
    for (int i = 0; i < ARRIVALS; i++) {
        if (order[i] < 0 || order[i] >= ARRIVALS || seen[order[i]])
            return 101;
        seen[order[i]] = true;
        first = order[i] ? first : i;
    }
    return first % 96 == 0 ? first / 96 : 50; /* the thread that came first */
}

static void seeds_change_the_order_of_threads(void **state)
{
    (void)state;
    int other = 0;
    unsetenv("CUEMU_SEED");
    assert_int_equal(apart(print_order), 0);
    for (int seed = 1; seed <= 6; seed++) {
        char text[16];
        snprintf(text, sizeof text, "%d", seed);
        setenv("CUEMU_SEED", text, 1);
        int first = apart(print_order);
        assert_true(first <= 50);
        other += first != 0;
    }
    unsetenv("CUEMU_SEED");
    assert_true(other > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(seeds_change_the_order_of_threads), /* first: in processes of their own */
        cmocka_unit_test(elementwise_and_tree),
        cmocka_unit_test(warps_exchange),
        cmocka_unit_test(tiles_multiply),
        cmocka_unit_test(copies_arrive_at_their_wait),
        cmocka_unit_test(shared_memory_starts_as_nan_and_is_limited),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
