/* SPDX-License-Identifier: Apache-2.0 */
/* Launches, the host's half: code addresses become (module, offset), which hold in the device
 * process. */
#include "cuemu_host.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuemu_launch.h"

enum { FUNCTIONS = 1024, SHARED_BYTES = 48 << 10 };

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *function;
    int shared_bytes;
} allowed[FUNCTIONS]; /* dynamic shared memory beyond 48 KiB, by cudaFuncSetAttribute() */

static cudaError_t locate(const void *code, cuemu_code *out)
{
    static const void *base[CUEMU_MODULES];
    static int n;
    Dl_info info;
    int m = 0;
    if (!dladdr(code, &info))
        return cudaErrorInvalidDeviceFunction;
    pthread_mutex_lock(&lock);
    while (m < n && base[m] != info.dli_fbase)
        m++;
    if (m == n && n < CUEMU_MODULES) {
        char path[4096];
        if (realpath(info.dli_fname, path) && strlen(path) < sizeof CUEMU_CONTROL->module[n]) {
            memcpy(CUEMU_CONTROL->module[n], path, strlen(path) + 1);
            base[n++] = info.dli_fbase;
        }
    }
    bool known = m < n;
    pthread_mutex_unlock(&lock);
    *out = (cuemu_code){m, (uint64_t)((const char *)code - (const char *)info.dli_fbase)};
    return known ? cudaSuccess : cudaErrorInvalidDeviceFunction;
}

static size_t shared_limit(const void *function)
{
    size_t limit = SHARED_BYTES;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < FUNCTIONS && allowed[i].function; i++)
        if (allowed[i].function == function && allowed[i].shared_bytes > SHARED_BYTES)
            limit = (size_t)allowed[i].shared_bytes;
    pthread_mutex_unlock(&lock);
    return limit;
}

static cudaError_t check(const cudaLaunchConfig_t *c, const void *kernel, size_t args_bytes)
{
    size_t threads = (size_t)c->blockDim.x * c->blockDim.y * c->blockDim.z;
    if (!threads || threads > 1024 || c->blockDim.z > 64)
        return cudaErrorInvalidConfiguration;
    if (!c->gridDim.x || !c->gridDim.y || !c->gridDim.z || c->gridDim.x > 0x7fffffffu ||
        c->gridDim.y > 65535 || c->gridDim.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (args_bytes > CUEMU_ARGS) {
        fprintf(stderr, "cuemu: %zu bytes of kernel arguments; the emulator takes %d\n", args_bytes,
                CUEMU_ARGS);
        return cudaErrorInvalidValue;
    }
    if (c->dynamicSmemBytes > shared_limit(kernel)) {
        fprintf(stderr, "cuemu: %zu bytes of dynamic shared memory; allowed to this kernel: %zu\n",
                c->dynamicSmemBytes, shared_limit(kernel));
        return cudaErrorInvalidValue;
    }
    return cudaSuccess;
}

cudaError_t cuemu_launch(const cudaLaunchConfig_t *c, const void *kernel, const void *thunk,
                         const void *args, size_t args_bytes)
{
    cuemu_record r = {.kind = CUEMU_KERNEL};
    cuemu_own_stream();
    cudaError_t error = check(c, kernel, args_bytes);
    if (!error)
        error = locate(kernel, &r.u.launch.kernel);
    if (!error)
        error = locate(thunk, &r.u.launch.thunk);
    if (error)
        return cuemu_result(error);
    memcpy(r.u.launch.grid, &c->gridDim, sizeof r.u.launch.grid);
    memcpy(r.u.launch.block, &c->blockDim, sizeof r.u.launch.block);
    memcpy(r.u.launch.args, args, args_bytes);
    r.u.launch.args_bytes = (unsigned)args_bytes;
    r.u.launch.dynamic_bytes = (unsigned)c->dynamicSmemBytes;
    return cuemu_result(cuemu_push(c->stream, &r));
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
        value > cuemu_shared_optin())
        return cuemu_result(cudaErrorInvalidValue);
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i < FUNCTIONS && allowed[i].function && allowed[i].function != function)
        i++;
    if (i < FUNCTIONS) {
        allowed[i].function = function;
        allowed[i].shared_bytes = value;
    }
    pthread_mutex_unlock(&lock);
    return i < FUNCTIONS ? cudaSuccess : cuemu_result(cudaErrorMemoryAllocation);
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    memset(attributes, 0, sizeof *attributes);
    attributes->maxThreadsPerBlock = 1024;
    attributes->numRegs = 32;
    attributes->maxDynamicSharedSizeBytes = (int)shared_limit(function);
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                          int threads, size_t dynamic_bytes)
{
    if (threads < 1 || threads > 1024 || dynamic_bytes > shared_limit(function))
        return cuemu_result(cudaErrorInvalidValue);
    int by_threads = 2048 / threads, by_shared = (int)((228u << 10) / (dynamic_bytes + 1024));
    *blocks = by_threads < by_shared ? by_threads : by_shared;
    if (*blocks > 32)
        *blocks = 32;
    return cudaSuccess;
}
