/* SPDX-License-Identifier: Apache-2.0 */
/* The device process: one thread a stream takes records from its ring and executes them. */
#include "cuemu_device.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include "cuemu_asan.h"

void cuemu_device_fail(uint32_t cuda_error)
{
    uint32_t none = 0;
    atomic_compare_exchange_strong(&CUEMU_CONTROL->error, &none, cuda_error);
}

static bool is_shared(uintptr_t p)
{
    return (p >= CUEMU_DEVICE_BASE && p < CUEMU_DEVICE_BASE + CUEMU_CONTROL->device_bytes) ||
           (p >= CUEMU_SHARED_BASE && p < CUEMU_SHARED_BASE + CUEMU_CONTROL->shared_bytes);
}

/* A row; one end may be the host process's own memory, which this process reaches through the
 * kernel. */
static bool copy_row(uintptr_t dst, uintptr_t src, size_t bytes)
{
    struct iovec mine = {.iov_len = bytes}, host = {.iov_len = bytes};
    pid_t pid = CUEMU_CONTROL->host;
    if (is_shared(dst) && is_shared(src)) {
        memmove((void *)dst, (const void *)src, bytes);
        return true;
    }
    if (is_shared(dst)) {
        mine.iov_base = (void *)dst;
        host.iov_base = (void *)src;
        return process_vm_readv(pid, &mine, 1, &host, 1, 0) == (ssize_t)bytes;
    }
    mine.iov_base = (void *)src;
    host.iov_base = (void *)dst;
    return is_shared(src) && process_vm_writev(pid, &mine, 1, &host, 1, 0) == (ssize_t)bytes;
}

static void copy(const cuemu_record *r)
{
    for (size_t row = 0; row < r->u.copy.height; row++) {
        if (copy_row(r->u.copy.dst + row * r->u.copy.dst_pitch,
                     r->u.copy.src + row * r->u.copy.src_pitch, r->u.copy.width))
            continue;
        perror("cuemu: copy from or to host memory");
        cuemu_device_fail(cudaErrorIllegalAddress);
        return;
    }
}

static void poison(const cuemu_record *r)
{
    if (!cuemu_asan())
        return;
    if (r->u.fill.value)
        __asan_poison_memory_region((void *)r->u.fill.dst, r->u.fill.bytes);
    else
        __asan_unpoison_memory_region((void *)r->u.fill.dst, r->u.fill.bytes);
}

static void event_record(const cuemu_record *r)
{
    cuemu_event *e = &CUEMU_CONTROL->event[r->u.event.id];
    e->time_ns = cuemu_now_ns();
    e->done = r->u.event.sequence;
    cuemu_futex_wake(&e->done);
}

static void event_wait(const cuemu_record *r)
{
    cuemu_event *e = &CUEMU_CONTROL->event[r->u.event.id];
    for (uint32_t done; (int32_t)((done = e->done) - r->u.event.sequence) < 0;)
        cuemu_futex_wait(&e->done, done, 1000);
}

static void execute(const cuemu_record *r, uint32_t seed)
{
    switch (r->kind) {
    case CUEMU_KERNEL:
        cuemu_launch_execute(r, seed);
        break;
    case CUEMU_COPY:
        copy(r);
        break;
    case CUEMU_FILL:
        memset((void *)r->u.fill.dst, r->u.fill.value, r->u.fill.bytes);
        break;
    case CUEMU_POISON:
        poison(r);
        break;
    case CUEMU_RECORD:
        event_record(r);
        break;
    case CUEMU_WAIT:
        event_wait(r);
        break;
    case CUEMU_GEMM:
        cuemu_gemm_execute(&r->u.gemm);
        break;
    case CUEMU_MARK:
    case CUEMU_KINDS:
        break;
    default:
        cuemu_comm_execute(r);
    }
}

static void *stream_main(void *arg)
{
    uint32_t index = (uint32_t)(uintptr_t)arg;
    cuemu_ring *ring = &CUEMU_CONTROL->ring[index];
    uint32_t seed = CUEMU_CONTROL->seed, random = seed * 2654435761u + index * 40503u;
    cuemu_launch_init_thread();
    for (;;) {
        uint32_t head;
        while ((head = ring->head) == ring->tail)
            cuemu_futex_wait(&ring->head, head, 1000);
        const cuemu_record *r = &ring->slot[ring->tail % CUEMU_SLOTS];
        if (CUEMU_CONTROL->seed != seed) {
            seed = CUEMU_CONTROL->seed;
            random = seed * 2654435761u + index * 40503u;
        }
        random = random * 1664525u + 1013904223u;
        if (CUEMU_CONTROL->delay_us && random >> 30 == 0) /* one operation in four */
            usleep((random >> 8) % CUEMU_CONTROL->delay_us);
        if (!CUEMU_CONTROL->error)
            execute(r, seed ? random >> 4 : 0);
        ring->tail++;
        cuemu_futex_wake(&ring->tail);
    }
    return NULL;
}

static bool map_memory(void)
{
    struct {
        pid_t host;
        size_t device_bytes, shared_bytes;
    } first;
    int flags = MAP_SHARED | MAP_FIXED_NOREPLACE, both = PROT_READ | PROT_WRITE;
    void *shared = (void *)CUEMU_SHARED_BASE, *device = (void *)CUEMU_DEVICE_BASE;
    if (pread(CUEMU_SHARED_FD, &first, sizeof first, 0) != sizeof first ||
        mmap(shared, first.shared_bytes, both, flags, CUEMU_SHARED_FD, 0) != shared ||
        mmap(device, first.device_bytes, both, flags, CUEMU_DEVICE_FD, 0) != device)
        return false;
    return true;
}

int cuemu_device_main(void)
{
    if (!map_memory()) {
        perror("cuemu-device: memory of the host process");
        return 1;
    }
    unsigned char index = 0;
    do { /* a byte from the host is a new stream; end of file means that the host is gone */
        pthread_t thread;
        if (pthread_create(&thread, NULL, stream_main, (void *)(uintptr_t)index))
            return 1;
    } while (read(CUEMU_LIFE_FD, &index, 1) > 0);
    _exit(0);
}
