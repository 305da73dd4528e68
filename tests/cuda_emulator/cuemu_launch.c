/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel launches in the device process: finds the code, runs the blocks, names what crashed. */
#include "cuemu_device.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

extern __thread cuemu_dim gridDim __attribute__((tls_model("initial-exec")));
extern __thread unsigned char ndm_smem[];
static __thread void *running; /* the kernel, for the crash report */

/* Modules are opened when first used: also those that the host loaded long after this process
 * began. */
static void *address(cuemu_code code)
{
    static char *base[CUEMU_MODULES];
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    if (!base[code.module]) {
        struct link_map *map;
        void *handle = dlopen(CUEMU_CONTROL->module[code.module], RTLD_LAZY | RTLD_LOCAL);
        if (!handle || dlinfo(handle, RTLD_DI_LINKMAP, &map)) {
            fprintf(stderr, "cuemu: %s\n", dlerror());
            abort();
        }
        base[code.module] = (char *)map->l_addr;
    }
    pthread_mutex_unlock(&lock);
    return base[code.module] + code.offset;
}

/* By name where it is exported, or as addr2line -fe MODULE takes it. */
static void name_kernel(char *text, size_t bytes, void *kernel)
{
    Dl_info info;
    if (!kernel || !dladdr(kernel, &info))
        snprintf(text, bytes, "a copy or library call");
    else if (info.dli_sname && info.dli_saddr == kernel)
        snprintf(text, bytes, "%s", info.dli_sname);
    else
        snprintf(text, bytes, "%s 0x%lx", info.dli_fname,
                 (unsigned long)((char *)kernel - (char *)info.dli_fbase));
}

static void on_crash(int signal_number)
{
    extern __thread cuemu_dim threadIdx, blockIdx;
    char name[300], text[512];
    name_kernel(name, sizeof name, running);
    int n = snprintf(text, sizeof text,
                     "cuemu: signal %d in %s, block (%u,%u,%u) thread (%u,%u,%u)\n", signal_number,
                     name, blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y,
                     threadIdx.z);
    if (write(2, text, (size_t)n) < 0)
        _exit(1);
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

void cuemu_launch_init_thread(void)
{
    stack_t stack = {.ss_size = 64 << 10,
                     .ss_sp = malloc(64 << 10)}; /* a fibre's own may be full */
    struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK | SA_NODEFER};
    if (!stack.ss_sp || sigaltstack(&stack, NULL))
        abort();
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++)
        sigaction(signals[i], &action, NULL);
}

void cuemu_launch_execute(const cuemu_record *record, uint32_t seed)
{
    extern __thread cuemu_dim blockIdx;
    _Alignas(16) char args[CUEMU_ARGS];
    const unsigned *g = record->u.launch.grid;
    void *kernel = address(record->u.launch.kernel);
    void (*thunk)(void *,
                  void *) = (void (*)(void *, void *))(uintptr_t)address(record->u.launch.thunk);
    gridDim = (cuemu_dim){g[0], g[1], g[2]};
    running = kernel;
    size_t blocks = (size_t)g[0] * g[1] * g[2];
    for (size_t i = 0; i < blocks; i++) {
        size_t b = seed & 2 ? blocks - 1 - i : i; /* blocks may run in any order */
        blockIdx = (cuemu_dim){(unsigned)(b % g[0]), (unsigned)(b / g[0] % g[1]),
                               (unsigned)(b / g[0] / g[1])};
        memset(ndm_smem, 0xff,
               record->u.launch.dynamic_bytes); /* NaN: nothing may count on zeros */
        memcpy(args, record->u.launch.args, record->u.launch.args_bytes);
        const char *fault = cuemu_block_run(thunk, kernel, args, record->u.launch.block, seed);
        if (fault) {
            char name[300];
            name_kernel(name, sizeof name, kernel);
            fprintf(stderr, "cuemu: %s: block %zu: %s\n", name, b, fault);
            cuemu_device_fail(cudaErrorLaunchFailure);
            break;
        }
    }
    running = NULL;
}
