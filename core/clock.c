/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time. */
#include <core/clock.h>

#include <sched.h>
#include <time.h>

int64_t ndm_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double ndm_clock_s(void)
{
    return (double)ndm_clock_ns() * 1e-9;
}

void ndm_clock_yield(void)
{
    sched_yield();
}
