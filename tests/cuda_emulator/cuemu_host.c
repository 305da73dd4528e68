/* SPDX-License-Identifier: Apache-2.0 */
/* The host process's end: starts the device process of this rank and watches it. */
#include "cuemu_host.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t device_process;
static int life =
    -1; /* pipe to the device process, which ends when this end closes, however we end */
static int device_memory = -1;
static _Thread_local cudaError_t last_error;

__attribute__((destructor)) static void stop(void)
{
    if (!device_process)
        return;
    close(life);
    waitpid(device_process, NULL, 0);
}

long cuemu_env(const char *name, long otherwise)
{
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 0) : otherwise;
}

int cuemu_shared_optin(void)
{
    return (int)cuemu_env("CUEMU_SHARED_KB", 227) << 10;
}

static void give_up(const char *what)
{
    fprintf(stderr, "cuemu: %s: %s\n", what, strerror(errno));
    abort();
}

static int memory_file(const char *name, size_t bytes)
{
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        give_up(name);
    return fd;
}

static void spawn(int shared_memory, int pipe_read)
{
    extern char **environ;
    Dl_info me;
    char path[1024];
    if (!dladdr((void *)(uintptr_t)spawn, &me))
        give_up("libcuemu's own path");
    const char *slash = strrchr(me.dli_fname, '/'); /* the program lies beside this library */
    snprintf(path, sizeof path, "%.*s/cuemu-device", (int)(slash ? slash - me.dli_fname : 1),
             slash ? me.dli_fname : ".");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, device_memory, CUEMU_DEVICE_FD);
    posix_spawn_file_actions_adddup2(&actions, shared_memory, CUEMU_SHARED_FD);
    posix_spawn_file_actions_adddup2(&actions, pipe_read, CUEMU_LIFE_FD);
    errno = posix_spawn(&device_process, path, &actions, NULL, (char *[]){path, NULL}, environ);
    if (errno)
        give_up(path);
    posix_spawn_file_actions_destroy(&actions);
    prctl(PR_SET_PTRACER, device_process, 0, 0,
          0); /* copies reach this process where Yama asks; else no effect */
}

static void start(void)
{
    size_t device = (size_t)cuemu_env("CUEMU_MEMORY_MB", 8192) << 20;
    size_t shared = CUEMU_CONTROL_BYTES + ((size_t)cuemu_env("CUEMU_PINNED_MB", 4096) << 20);
    int ends[2], shared_memory = memory_file("cuemu-shared", shared);
    device_memory = memory_file("cuemu-device", device);
    if (pipe2(ends, O_CLOEXEC))
        give_up("pipe");
    void *at = mmap((void *)CUEMU_DEVICE_BASE, device, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (at != (void *)CUEMU_DEVICE_BASE)
        give_up("address space of device memory");
    at = mmap((void *)CUEMU_SHARED_BASE, shared, PROT_READ | PROT_WRITE,
              MAP_SHARED | MAP_FIXED_NOREPLACE, shared_memory, 0);
    if (at != (void *)CUEMU_SHARED_BASE)
        give_up("address space of pinned memory");
    CUEMU_CONTROL->host = getpid();
    CUEMU_CONTROL->device_bytes = device;
    CUEMU_CONTROL->shared_bytes = shared;
    CUEMU_CONTROL->seed = (uint32_t)cuemu_env("CUEMU_SEED", 0);
    CUEMU_CONTROL->delay_us = (uint32_t)cuemu_env("CUEMU_DELAY", 0);
    CUEMU_CONTROL->nccl_timeout_ms = cuemu_env("CUEMU_NCCL_TIMEOUT", 10) * 1000;
    spawn(shared_memory, ends[0]);
    close(ends[0]);
    close(shared_memory);
    life = ends[1];
}

void cuemu_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, start);
}

pid_t cuemu_device_pid(void)
{
    return device_process;
}

int cuemu_device_fd(void)
{
    return device_memory;
}

void cuemu_new_ring(int slot)
{
    unsigned char byte = (unsigned char)slot;
    if (write(life, &byte, 1) != 1)
        CUEMU_CONTROL->error = cudaErrorLaunchFailure;
}

static uint32_t error_of(int status)
{
    if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGSEGV || WTERMSIG(status) == SIGBUS))
        return cudaErrorIllegalAddress;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGILL) /* a trap of ndm_ptx.cuh */
        return cudaErrorMisalignedAddress;
    return cudaErrorLaunchFailure;
}

cudaError_t cuemu_health(void)
{
    int status;
    if (!CUEMU_CONTROL->error && waitpid(device_process, &status, WNOHANG) == device_process)
        CUEMU_CONTROL->error = error_of(status);
    return (cudaError_t)CUEMU_CONTROL->error;
}

cudaError_t cuemu_result(cudaError_t error)
{
    if (error)
        last_error = error;
    return error;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError(void)
{
    return last_error;
}

/* Called by what nvcc compiles. Half real, half emulated code returns odd errors much later:
 * refuse. */
void **__cudaRegisterFatBinary(void *binary);
void **__cudaRegisterFatBinary(void *binary)
{
    fprintf(stderr,
            "cuemu: an object that nvcc compiled (%p) was loaded; the emulator needs its .cu "
            "compiled as C++\n",
            binary);
    abort();
}

void cuemu_reseed(uint32_t seed)
{
    cuemu_init();
    CUEMU_CONTROL->seed = seed;
}
