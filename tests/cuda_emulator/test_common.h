/* SPDX-License-Identifier: Apache-2.0 */
/* What the emulator's tests share: cmocka, checked calls, buffers, cases in a process of their own.
 */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <cuda_runtime_api.h>

#include "core/dtype.h"
#include "test_kernels.h"

#define OK(call) assert_int_equal((int)(call), 0)

static inline float random_float(uint32_t *state) /* in [-1, 1) */
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) / 8388608.0f - 1;
}

static inline cudaStream_t new_stream(void)
{
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

static inline void *on_device(const void *from, size_t bytes)
{
    void *at = NULL;
    OK(cudaMalloc(&at, bytes));
    if (from)
        OK(cudaMemcpy(at, from, bytes, cudaMemcpyHostToDevice));
    return at;
}

static inline void fetch(void *to, const void *from, size_t bytes, cudaStream_t stream)
{
    OK(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, stream));
    OK(cudaStreamSynchronize(stream));
}

/* Runs body in a new process, before any CUDA call in this one: its return value, or 128 + its
 * signal. */
static inline int apart(int (*body)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (!pid) {
        static const int caught[] = {SIGSEGV, SIGBUS, SIGILL,
                                     SIGFPE}; /* by cmocka, which would go on here */
        for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
            signal(caught[i], SIG_DFL);
        exit(body());
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
