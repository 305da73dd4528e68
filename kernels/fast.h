/* SPDX-License-Identifier: Apache-2.0 */
/* What the fast cpu kernels share: names by instruction set, threads, and scratch memory.
 *
 * The files fast_*.c (but fast_common.c) are compiled once for each set, with NDM_ISA its name:
 * NDM_FAST(norm) is ndm_avx512_norm there. Only the probe of a set's table may let its code run. */
#ifndef NDM_KERNELS_FAST_H
#define NDM_KERNELS_FAST_H

#include "core/dtype.h"
#include "kernels/table.h"

#define NDM_PASTE3_(a, b, c) a##b##_##c
#define NDM_PASTE3(a, b, c) NDM_PASTE3_(a, b, c)

#if defined(NDM_ISA)
#define NDM_FAST(name) NDM_PASTE3(ndm_, NDM_ISA, name)
#define NDM_FAST_PROTOTYPE(name, doc) ndm_status NDM_FAST(name)(const void *args);
NDM_KERNEL_LIST(NDM_FAST_PROTOTYPE)
#undef NDM_FAST_PROTOTYPE
#endif

/* Activations of the fast kernels are fp32, as their element type says: a body hands others to the
 * reference. */
static inline const float *ndm_fast_in(const void *x)
{
    return x;
}

static inline float *ndm_fast_out(void *x)
{
    return x;
}

/* Fetches what a pass over rows will read, or write, some cache lines later: a core's own
 * prefetching lags behind where several streams go on at once. Where nothing is there, nothing
 * happens. */
static inline void ndm_fast_fetch(const float *at)
{
    enum { AHEAD = 128 }; /* elements */
    __builtin_prefetch(at + AHEAD);
}

/* How many OpenMP threads to use for `work` units of about a nanosecond: what the device was given,
 * less for little work, one inside a parallel region. No result may depend on it. */
int ndm_fast_threads(int64_t work);
int ndm_fast_threads_most(void);

/* Cuts 0 .. count - 1 into `of` contiguous parts of whole `unit`s; part id is [*first, *end). */
void ndm_fast_part(int64_t count, int64_t unit, int id, int of, int64_t *first, int64_t *end);

/* Memory of the calling thread, 64-byte aligned, kept and grown from call to call and freed when
 * the thread ends. A second call on the thread invalidates what the first gave. NULL without a
 * message when there is none: see ndm_fast_no_memory(). */
void *ndm_fast_scratch(int64_t bytes);
ndm_status ndm_fast_no_memory(const char *what, int64_t bytes);

/* Of the second-level cache of a core, or a guess. No result may depend on it. */
int64_t ndm_fast_l2_bytes(void);

/* Whether this CPU and its operating system run a set: "avx512", "avx2", "portable". why: which
 * feature is missing. */
bool ndm_fast_cpu_has(const char *isa, char *why, size_t why_bytes);

#endif
