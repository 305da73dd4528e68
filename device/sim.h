/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated world: no memory, and a clock for each stream and the host.
 *
 * Allocations give addresses that nobody may touch. A launch moves its stream's clock by the price
 * that a model of the machine sets, and the host's by what launching costs; events carry times.
 * Everything is priced in the order of the program. Collectives take time on links, which they
 * share: whoever is issued first goes first, and others use what is left. Times are ns. */
#ifndef NDM_DEVICE_SIM_H
#define NDM_DEVICE_SIM_H

#include "device/device.h"
#include "device/sim_machine.h"

enum { NDM_SIM_CAUSES = 1 << NDM_AXIS_COUNT }; /* what a wait is for: an axis set */

/* Parts of a step, in their order; making activations again lies inside the backward. */
typedef enum ndm_sim_phase {
    NDM_SIM_FORWARD,
    NDM_SIM_HEAD, /* logits and loss, both directions */
    NDM_SIM_RECOMPUTE,
    NDM_SIM_BACKWARD,
    NDM_SIM_OPTIMIZER,
    NDM_SIM_PHASE_COUNT
} ndm_sim_phase;

typedef enum ndm_sim_category {
    NDM_SIM_GEMM,
    NDM_SIM_ATTENTION,
    NDM_SIM_MEMORY, /* kernels that memory bounds */
    NDM_SIM_CATEGORY_COUNT
} ndm_sim_category;

/* What a launch costs. */
typedef struct ndm_sim_charge {
    double ns, host_ns;
    double flops; /* of matrix products and attention */
    double held;  /* bytes of temporaries, until the next launch says otherwise */
    ndm_sim_category category;
    ndm_sim_phase phase; /* of this launch */
} ndm_sim_charge;

/* Copies and zeros are priced like kernels: op is one of these, args an ndm_sim_copy. */
enum { NDM_SIM_OP_ZERO = -1, NDM_SIM_OP_COPY = -2 };
typedef struct ndm_sim_copy {
    const void *dst, *src;
    int64_t bytes;
    ndm_copy_kind kind;
} ndm_sim_copy;

typedef struct ndm_sim_options ndm_sim_options;

/* What a pricing function keeps between launches, zero at the start; phase is where the step is. */
typedef struct ndm_sim_state {
    ndm_sim_phase phase;
    double held;                         /* bytes that the loss holds */
    double fp8_saved_ns;                 /* by the last matrix product */
    bool forward_known, forward_trans_b; /* how the forward's matrix products store their weights */
} ndm_sim_state;
typedef void (*ndm_sim_price_fn)(const ndm_sim_options *options, ndm_sim_state *state,
                                 const ndm_launch *launch, ndm_sim_charge *charge);

/* What makes a simulated world; borrowed by it. */
struct ndm_sim_options {
    const ndm_sim_machine *machine;
    const ndm_sim_stack *stack;
    ndm_sim_price_fn price;
    int64_t ranks, rank; /* size of the world, and the rank that is run */
    bool trace;          /* keep what each stream did */
};

/* Where the compute stream's time went since the last reset: the sum of all is the time passed. */
typedef struct ndm_sim_totals {
    double busy[NDM_SIM_PHASE_COUNT][NDM_SIM_CATEGORY_COUNT];
    double exposed[NDM_SIM_PHASE_COUNT][NDM_SIM_CAUSES]; /* waiting for collectives */
    double host[NDM_SIM_PHASE_COUNT];                    /* waiting for the host to launch */
    double slowed; /* part of busy: compute beside collectives is slower */
    double flops;
    int64_t launches;
    double collective_ns[NDM_SIM_CAUSES]; /* work of all collectives, hidden or not */
    int64_t collectives[NDM_SIM_CAUSES];
} ndm_sim_totals;

typedef struct ndm_sim_span {
    const char *name; /* static storage */
    const ndm_stream *stream;
    double begin, end;
    unsigned cause; /* axis set of a collective, 0 for kernels */
} ndm_sim_span;

/* Time of the host, once it has waited for all streams. */
double ndm_sim_now(const ndm_device *device);
double ndm_sim_exposed(const ndm_sim_totals *totals); /* sums over phases and causes */
double ndm_sim_total(const ndm_sim_totals *totals);
ndm_sim_totals ndm_sim_get_totals(const ndm_device *device);
void ndm_sim_reset(ndm_device *device); /* totals and trace */
const ndm_sim_span *ndm_sim_trace(const ndm_device *device, int64_t *n);

/* Bytes in use at most as an allocator would hand them out: each allocation rounded up. */
int64_t ndm_sim_peak_rounded(const ndm_device *device);
const ndm_sim_options *ndm_sim_options_of(const ndm_device *device);

void ndm_sim_hold(ndm_device *device, int64_t bytes); /* accounted as activations */

/* Kind of the memory that an address is in, by the address alone; and whether it is a window. */
ndm_memory_kind ndm_sim_kind_of(const void *address);
bool ndm_sim_is_window(const void *address);
/* Memory that ranks of a host share: accounted as this rank's part. */
NDM_MUST_USE ndm_status ndm_sim_alloc_window(ndm_device *device, int64_t bytes_per_rank,
                                             int64_t ranks, ndm_memory_kind kind, void **all);

/* Bytes of an element of float arrays of the engine in this world: activations may be narrower. */
double ndm_sim_element_bytes(const ndm_device *device, const void *address);

/* A collective on a stream, over a link. */
typedef struct ndm_sim_work {
    const char *name;
    double ns, host_ns;
    ndm_sim_link link;
    unsigned cause;
    double
        overlap; /* share of the last matrix product's time that hides it on the compute stream */
} ndm_sim_work;
NDM_MUST_USE ndm_status ndm_sim_collect(ndm_stream *stream, const ndm_sim_work *work);

/* A kernel of a stack on the compute stream that the engine does not launch. */
void ndm_sim_charge_compute(ndm_device *device, const char *name, double ns);

#endif
