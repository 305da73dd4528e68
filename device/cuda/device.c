/* SPDX-License-Identifier: Apache-2.0 */
/* The cuda world: its table, and the device behind it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device/cuda/ops.h"

ndm_status ndm_cuda_check(cudaError_t error, const char *what, const char *file, int line)
{
    if (error == cudaSuccess)
        return NDM_OK;
    ndm_status status = error == cudaErrorMemoryAllocation ? NDM_ERR_MEMORY : NDM_ERR_DEVICE;
    return ndm_error_set(status, file, line, "device: cuda: %s: %s (%s)", what,
                         cudaGetErrorString(error), cudaGetErrorName(error));
}

ndm_status ndm_cuda_check_blas(cublasStatus_t error, const char *what, const char *file, int line)
{
    if (error == CUBLAS_STATUS_SUCCESS)
        return NDM_OK;
    return ndm_error_set(error == CUBLAS_STATUS_ALLOC_FAILED ? NDM_ERR_MEMORY : NDM_ERR_DEVICE,
                         file, line, "device: cuda: %s: cuBLAS status %d", what, (int)error);
}

const char ndm_module_version[] = NDM_VERSION;

/* Without a driver the count is an error, and stays unset. Nothing else is asked before it. */
static bool probe(char *why, size_t why_bytes)
{
    struct cudaDeviceProp facts;
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);

    if (error == cudaSuccess && n > 0)
        error = cudaGetDeviceProperties(&facts, 0);
    if (error != cudaSuccess) {
        snprintf(why, why_bytes, "%s", cudaGetErrorString(error));
        return false;
    }
    if (n < 1) {
        snprintf(why, why_bytes, "there is no device");
        return false;
    }
    snprintf(why, why_bytes, "%d device(s), the first is %s, sm_%d%d, %.0f GB", n, facts.name,
             facts.major, facts.minor, (double)facts.totalGlobalMem * 1e-9);
    return true;
}

static ndm_status attribute(int ordinal, enum cudaDeviceAttr name, int *value)
{
    NDM_CUDA_TRY("facts of the device", cudaDeviceGetAttribute(value, name, ordinal));
    return NDM_OK;
}

static ndm_status read_facts(ndm_cuda_dev *d)
{
    int major = 0, minor = 0, shared = 0;

    NDM_TRY(attribute(d->ordinal, cudaDevAttrMultiProcessorCount, &d->sm_count));
    NDM_TRY(attribute(d->ordinal, cudaDevAttrComputeCapabilityMajor, &major));
    NDM_TRY(attribute(d->ordinal, cudaDevAttrComputeCapabilityMinor, &minor));
    NDM_TRY(attribute(d->ordinal, cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared));
    NDM_CUDA_TRY("bus address", cudaDeviceGetPCIBusId(d->bus_id, sizeof d->bus_id, d->ordinal));
    d->capability = 10 * major + minor;
    d->shared_bytes = shared;
    if (d->capability < 80)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "device: cuda: device %d is sm_%d; sm_80 or later is needed",
                 d->ordinal, d->capability);
    return NDM_OK;
}

static ndm_status open_device(ndm_cuda_dev *d, const ndm_device_options *options)
{
    const char *blocking = getenv("NDM_CUDA_BLOCKING");

    NDM_TRY(ndm_cuda_choose(options, &d->ordinal));
    NDM_CUDA_TRY("take the device", cudaSetDevice(d->ordinal));
    NDM_TRY(read_facts(d));
    ndm_cuda_move_near(d->bus_id);
    d->blocking = blocking && strcmp(blocking, "0") != 0;
    return NDM_OK;
}

static ndm_status create(const ndm_device_options *options, ndm_device **device)
{
    ndm_cuda_dev *d = calloc(1, sizeof *d);

    if (!d)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the cuda device");
    ndm_status status = open_device(d, options);
    if (status != NDM_OK) {
        free(d);
        return status;
    }
    *device = &d->base;
    return NDM_OK;
}

static void destroy(ndm_device *device)
{
    ndm_cuda_dev *d = ndm_cuda_of(device);

    while (d->streams)
        ndm_cuda_stream_destroy(&d->streams->base);
    ndm_cuda_ring_finish(d);
    ndm_cuda_graph_finish(d);
    ndm_cuda_pool_finish(d);
    free(d);
}

const char *ndm_cuda_bus_id(const ndm_device *device)
{
    return ndm_cuda_of(device)->bus_id;
}

static void version(char *text, size_t bytes)
{
    int runtime = 0, driver = 0;

    (void)cudaRuntimeGetVersion(&runtime);
    (void)cudaDriverGetVersion(&driver);
    (void)snprintf(text, bytes, "%d.%d (driver %d.%d)", runtime / 1000, runtime % 1000 / 10,
                   driver / 1000, driver % 1000 / 10);
}

const ndm_device_ops ndm_cuda_device = {
    .name = "cuda",
    .summary = "GPUs of NVIDIA",
    .priority = 20,
    .computes_bf16 = true,
    .probe = probe,
    .version = version,
    .create = create,
    .destroy = destroy,
    .alloc = ndm_cuda_alloc,
    .free = ndm_cuda_free,
    .copy = ndm_cuda_copy,
    .zero = ndm_cuda_zero,
    .stream_create = ndm_cuda_stream_create,
    .stream_native = ndm_cuda_stream_native,
    .stream_destroy = ndm_cuda_stream_destroy,
    .stream_wait = ndm_cuda_stream_wait,
    .stream_synchronize = ndm_cuda_stream_synchronize,
    .event_create = ndm_cuda_event_create,
    .event_destroy = ndm_cuda_event_destroy,
    .event_record = ndm_cuda_event_record,
    .event_query = ndm_cuda_event_query,
    .launch = ndm_cuda_stream_launch,
    .widen = ndm_cuda_widen,
    .pool = ndm_cuda_pool_stats,
    .graph_begin = ndm_cuda_graph_begin,
    .graph_end = ndm_cuda_graph_end,
    .graph_launch = ndm_cuda_graph_launch,
    .graph_destroy = ndm_cuda_graph_destroy,
};
