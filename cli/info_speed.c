/* SPDX-License-Identifier: Apache-2.0 */
/* Speed of the cpu world's matrix product: a short benchmark for `ndmesh info`, so that a library
 * that fell back to slow kernels does not go unnoticed. */
#include "cli/info_speed.h"

#include "cli/bench.h"
#include "cli/bench_peak.h"
#include "core/clock.h"
#include "device/device.h"
#include "kernels/kernels.h"

enum { SIZE = 768, ROUNDS = 25 };
static const int64_t burst_ns = 40000000;

/* Three matrices in device memory, and what multiplies them. */
typedef struct bench {
    ndm_device *device;
    ndm_stream *stream;
    void *memory;
} bench;

static void finish(bench *b)
{
    if (b->device == NULL)
        return;
    ndm_stream_destroy(b->stream);
    ndm_device_free(b->device, b->memory);
    ndm_device_destroy(b->device);
}

static ndm_status prepare(bench *b, int threads)
{
    int64_t bytes = 3 * (int64_t)SIZE * SIZE * (int64_t)sizeof(float);

    NDM_TRY(ndm_device_create("cpu", &(ndm_device_options){.threads = threads}, &b->device));
    NDM_TRY(ndm_kernels_bind(b->device, NULL));
    NDM_TRY(ndm_stream_create(b->device, NDM_STREAM_COMPUTE, "info", &b->stream));
    NDM_TRY(ndm_device_alloc(b->device, bytes, NDM_MEMORY_WORKSPACE, &b->memory));
    return ndm_zero(b->stream, b->memory, bytes);
}

/* The best of the rounds: others may use the machine. */
static ndm_status multiply(const bench *b, double *gflops)
{
    float *a = b->memory;
    ndm_gemm_args args = {.m = SIZE,
                          .n = SIZE,
                          .k = SIZE,
                          .alpha = 1.0f,
                          .trans_b = true,
                          .a = a,
                          .b = a + SIZE * SIZE,
                          .c = a + 2 * SIZE * SIZE};
    double flop = 2.0 * SIZE * SIZE * SIZE;

    for (int i = 0; i < ROUNDS; i++) {
        double start = ndm_clock_s();
        NDM_TRY(ndm_gemm(b->stream, &args));
        NDM_TRY(ndm_stream_synchronize(b->stream));
        double now = flop / (ndm_clock_s() - start) * 1e-9;
        if (now > *gflops)
            *gflops = now;
    }
    return NDM_OK;
}

ndm_status ndm_speed_measure(ndm_speed *speed)
{
    bench b = {0};
    int threads = (int)ndm_bench_cores();
    ndm_status status = prepare(&b, threads);

    *speed = (ndm_speed){.threads = threads, .size = SIZE};
    if (status == NDM_OK)
        status = multiply(&b, &speed->gflops);
    if (status == NDM_OK) {
        speed->table = ndm_kernels_chosen(b.device, NDM_OP_gemm);
        speed->peak = ndm_peak_fma_gflops(threads, burst_ns);
    }
    finish(&b);
    return status;
}
