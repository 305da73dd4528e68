/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of the host: poll, listen to whoever watches, and give up at the deadline. */
#include "core/clock.h"
#include "device/cuda/internal.h"

#include <time.h>

enum { SPINS = 2000, YIELDS = 20000, SLEEP_NS = 50000, LONG_YIELD_NS = 100000 };

static const int64_t LISTEN_NS = 20000000;

void ndm_cuda_watch_add(ndm_device *device, ndm_cuda_watch *watch)
{
    watch->next = ndm_cuda_of(device)->watches;
    ndm_cuda_of(device)->watches = watch;
}

void ndm_cuda_watch_remove(ndm_device *device, ndm_cuda_watch *watch)
{
    ndm_cuda_watch **link = &ndm_cuda_of(device)->watches;

    while (*link && *link != watch)
        link = &(*link)->next;
    if (*link)
        *link = watch->next;
}

int64_t ndm_cuda_host_waits(const ndm_device *device)
{
    return ndm_cuda_of(device)->host_waits;
}

static ndm_status listen(ndm_cuda_dev *device)
{
    for (ndm_cuda_watch *w = device->watches; w; w = w->next)
        NDM_TRY(w->poll(w));
    return NDM_OK;
}

static ndm_status expired(ndm_cuda_dev *device, const char *what)
{
    for (ndm_cuda_watch *w = device->watches; w; w = w->next)
        NDM_TRY(w->expire(w));
    NDM_FAIL(NDM_ERR_TIMEOUT, "device: cuda: %s did not come to its end within %.0f s", what,
             (double)device->base.options.timeout_ns * 1e-9);
}

/* At first a wait costs nothing but time; a long one leaves the processor to others. So does one
 * whose yield takes long: the processor is wanted, and a sleeper comes back sooner than who yields.
 */
static void pause_after(int64_t polls, bool *crowded)
{
    if (polls < SPINS)
        return;
    if (polls < YIELDS && !*crowded) {
        int64_t before = ndm_clock_ns();
        ndm_clock_yield();
        *crowded = ndm_clock_ns() - before > LONG_YIELD_NS;
    } else
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_NS}, NULL);
}

static cudaError_t query(cudaEvent_t event, cudaStream_t stream)
{
    return event ? cudaEventQuery(event) : cudaStreamQuery(stream);
}

static ndm_status wait_for(ndm_cuda_dev *device, cudaEvent_t event, cudaStream_t stream,
                           const char *what)
{
    int64_t start = 0, listened = 0;
    bool crowded = false;
    cudaError_t error;

    for (int64_t polls = 0; (error = query(event, stream)) == cudaErrorNotReady; polls++) {
        pause_after(polls, &crowded);
        if (polls % 64)
            continue;
        int64_t now = ndm_clock_ns();
        start = start ? start : now;
        if (now - start >= device->base.options.timeout_ns)
            return expired(device, what);
        if (now - listened < LISTEN_NS)
            continue;
        listened = now;
        NDM_TRY(listen(device));
    }
    NDM_CUDA_TRY(what, error);
    return listen(device); /* a collective that failed may count as done */
}

static ndm_status wait_and_keep(ndm_cuda_dev *device, cudaEvent_t event, cudaStream_t stream,
                                const char *what)
{
    if (device->failed)
        return device->failed;
    device->host_waits++;
    device->failed = wait_for(device, event, stream, what);
    return device->failed;
}

ndm_status ndm_cuda_wait_event(ndm_cuda_dev *device, cudaEvent_t event, const char *what)
{
    return wait_and_keep(device, event, NULL, what);
}

ndm_status ndm_cuda_wait_stream(ndm_cuda_dev *device, cudaStream_t stream, const char *what)
{
    return wait_and_keep(device, NULL, stream, what);
}
