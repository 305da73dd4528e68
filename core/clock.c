/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time, and processor time of a thread. */
#include <core/clock.h>

#include <sched.h>
#include <time.h>

static int64_t read_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

int64_t ndm_clock_ns(void)
{
    return read_ns(CLOCK_MONOTONIC);
}

int64_t ndm_clock_thread_ns(void)
{
    return read_ns(CLOCK_THREAD_CPUTIME_ID);
}

double ndm_clock_s(void)
{
    return (double)ndm_clock_ns() * 1e-9;
}

void ndm_clock_yield(void)
{
    sched_yield();
}
