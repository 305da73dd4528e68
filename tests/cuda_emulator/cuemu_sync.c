/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting in shared memory: futex words, the clock, the barrier of a communicator. */
#include "cuemu_shared.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <nccl.h>
#include <sched.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { NAP_MS = 20, YIELDS = 64, LONG_YIELD_NS = 100000 };

int64_t cuemu_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* A wake-up through the kernel costs 40 us on a virtual machine, so a short wait yields first. But
 * where others want the processor a yield gives them a whole time slice, and a sleeper comes back
 * sooner: one long yield ends that. */
static bool comes_soon(const _Atomic uint32_t *word, uint32_t old)
{
    int64_t now = cuemu_now_ns(), before = now - LONG_YIELD_NS;
    for (int i = 0; i < YIELDS && now - before <= LONG_YIELD_NS; i++) {
        if (atomic_load(word) != old)
            return true;
        before = now;
        sched_yield();
        now = cuemu_now_ns();
    }
    return atomic_load(word) != old;
}

void cuemu_futex_wait(_Atomic uint32_t *word, uint32_t old, int timeout_ms)
{
    if (comes_soon(word, old))
        return;
    struct timespec t = {timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
    syscall(SYS_futex, word, FUTEX_WAIT, old, &t, NULL, 0);
}

void cuemu_futex_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, 1 << 30, NULL, NULL, 0);
}

cuemu_comm *cuemu_comm_map(pid_t pid, int fd)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)pid, fd);
    int opened = open(path, O_RDWR | O_CLOEXEC);
    if (opened < 0)
        return NULL;
    void *p = mmap(NULL, sizeof(cuemu_comm), PROT_READ | PROT_WRITE, MAP_SHARED, opened, 0);
    close(opened);
    return p == MAP_FAILED ? NULL : p;
}

/* The limit counts naps, not the clock: where other work leaves no processor it stretches. */
bool cuemu_comm_wait(cuemu_comm *comm, _Atomic uint32_t *word, uint32_t seen, int64_t timeout_ms)
{
    for (int64_t naps = 0; *word == seen && !comm->bad; naps++) {
        cuemu_futex_wait(word, seen, NAP_MS);
        if (naps * NAP_MS > timeout_ms && *word == seen)
            comm->bad = ncclRemoteError; /* NCCL would hang: say so instead */
    }
    return !comm->bad;
}

bool cuemu_comm_barrier(cuemu_comm *comm, int64_t timeout_ms)
{
    uint32_t generation = comm->generation;
    if (++comm->arrived == (uint32_t)comm->ranks) {
        comm->arrived = 0;
        comm->generation++;
        cuemu_futex_wake(&comm->generation);
    }
    return cuemu_comm_wait(comm, &comm->generation, generation, timeout_ms);
}
