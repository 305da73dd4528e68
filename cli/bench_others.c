/* SPDX-License-Identifier: Apache-2.0 */
/* Processor time of all programs from /proc/stat, less that of this one and its children. */
#include "cli/bench_others.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"

static double used_s(int who)
{
    struct rusage r;

    if (getrusage(who, &r) != 0)
        return 0.0;
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) +
           (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

/* user, nice, system, interrupts; waiting and stolen time is nobody's. */
static double busy_s(void)
{
    double user, nice, system, idle, iowait, irq, softirq, ticks = (double)sysconf(_SC_CLK_TCK);
    FILE *file = fopen("/proc/stat", "re");
    int n = file == NULL ? 0
                         : fscanf(file, "cpu %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system,
                                  &idle, &iowait, &irq, &softirq);

    if (file != NULL)
        fclose(file);
    return n == 7 ? (user + nice + system + irq + softirq) / ticks : 0.0;
}

void ndm_bench_others_start(ndm_bench_others *others)
{
    *others = (ndm_bench_others){busy_s(), used_s(RUSAGE_SELF) + used_s(RUSAGE_CHILDREN),
                                 ndm_clock_s()};
}

double ndm_bench_others_share(const ndm_bench_others *others)
{
    ndm_bench_others now;

    ndm_bench_others_start(&now);
    double taken = now.busy_s - others->busy_s - (now.own_s - others->own_s);
    double there = (now.at_s - others->at_s) * (double)sysconf(_SC_NPROCESSORS_ONLN);

    return taken > 0.0 && there > 0.0 ? taken / there : 0.0;
}
