/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, scratch memory and CPU features for the fast cpu kernels. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <omp.h>

#include "core/pages.h"
#include "kernels/fast.h"

enum { WORK_PER_THREAD = 20000, L2_LEAST = 256 << 10 };

int ndm_fast_threads_most(void)
{
    return omp_in_parallel() ? 1 : omp_get_max_threads();
}

int ndm_fast_threads(int64_t work)
{
    int64_t useful = work / WORK_PER_THREAD;

    if (useful < 2)
        return 1;
    int most = ndm_fast_threads_most();
    return useful < most ? (int)useful : most;
}

void ndm_fast_part(int64_t count, int64_t unit, int id, int of, int64_t *first, int64_t *end)
{
    int64_t units = (count + unit - 1) / unit;

    *first = units * id / of * unit;
    *end = units * (id + 1) / of * unit;
    if (*first > count)
        *first = count;
    if (*end > count)
        *end = count;
}

static pthread_key_t scratch_key;
static pthread_once_t scratch_once = PTHREAD_ONCE_INIT;
static bool scratch_has_key;
static _Thread_local void *scratch;
static _Thread_local int64_t scratch_bytes;

static void scratch_make_key(void)
{
    scratch_has_key = pthread_key_create(&scratch_key, free) == 0;
}

void *ndm_fast_scratch(int64_t bytes)
{
    if (bytes <= scratch_bytes)
        return scratch;
    pthread_once(&scratch_once, scratch_make_key);
    free(scratch);
    if (bytes >= NDM_LARGE_PAGE / 2) /* a whole one: every tile of a product walks through it */
        bytes = (bytes + NDM_LARGE_PAGE - 1) / NDM_LARGE_PAGE * NDM_LARGE_PAGE;
    scratch = ndm_pages_alloc(bytes);
    scratch_bytes = scratch ? bytes : 0;
    if (scratch_has_key)
        /* without it the memory stays with the process */
        (void)pthread_setspecific(scratch_key, scratch);
    return scratch;
}

ndm_status ndm_fast_no_memory(const char *what, int64_t bytes)
{
    NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for %lld bytes of scratch a thread", what,
             (long long)bytes);
}

int64_t ndm_fast_l2_bytes(void)
{
    static _Atomic int64_t known;
    int64_t bytes = known;

    if (bytes > 0)
        return bytes;
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    if (bytes < L2_LEAST)
        bytes = L2_LEAST;
    known = bytes;
    return bytes;
}

#if defined(__x86_64__)

#include <cpuid.h>

typedef struct cpu_feature {
    const char *name;
    bool there, avx512;
} cpu_feature;

/* clang 14 does not know its name */
static bool has_f16c(void)
{
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

bool ndm_fast_cpu_has(const char *isa, char *why, size_t why_bytes)
{
    const cpu_feature features[] = {
        {"avx2", __builtin_cpu_supports("avx2") != 0, false},
        {"fma", __builtin_cpu_supports("fma") != 0, false},
        {"f16c", has_f16c(), false},
        {"avx512f", __builtin_cpu_supports("avx512f") != 0, true},
        {"avx512bw", __builtin_cpu_supports("avx512bw") != 0, true},
        {"avx512dq", __builtin_cpu_supports("avx512dq") != 0, true},
        {"avx512vl", __builtin_cpu_supports("avx512vl") != 0, true},
    };
    bool avx512 = strcmp(isa, "avx512") == 0, portable = strcmp(isa, "portable") == 0;

    for (size_t i = 0; i < sizeof features / sizeof features[0] && !portable; i++)
        if (!features[i].there && (avx512 || !features[i].avx512)) {
            (void)snprintf(why, why_bytes, "this CPU has no %s", features[i].name);
            return false;
        }
    (void)snprintf(why, why_bytes, "%s", portable ? "runs on every CPU" : "the CPU has it");
    return true;
}

#else

bool ndm_fast_cpu_has(const char *isa, char *why, size_t why_bytes)
{
    bool portable = strcmp(isa, "portable") == 0;

    (void)snprintf(why, why_bytes, "%s",
                   portable ? "runs on every CPU" : "not built: for x86-64 only");
    return portable;
}

#endif
