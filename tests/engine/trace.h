/* SPDX-License-Identifier: Apache-2.0 */
/* A traced run: every collective of a run as it was issued, and what the engine's own account says.
 */
#ifndef NDM_TESTS_ENGINE_TRACE_H
#define NDM_TESTS_ENGINE_TRACE_H

#include "tests/equiv/equiv.h"

typedef struct call {
    int64_t step;
    ndm_collective kind;
    const void *comm; /* compared, never read: it goes with the context */
    int64_t count;
    ndm_dtype dtype;
} call;

/* Calls and bytes by direction and kind. */
typedef struct account {
    int64_t calls[2][NDM_COLLECTIVE_COUNT], bytes[2][NDM_COLLECTIVE_COUNT];
} account;

/* Facts of a kind of unit: its share, its whole, and what describe() says of it. */
typedef struct unit_facts {
    int64_t slice, numel;
    account said;
} unit_facts;

typedef struct trace {
    call *calls; /* [n] */
    int64_t n, step;
    const void *shard, *replicas, *block, *tp; /* communicators; block of the layers' units */
    unit_facts embed, layer, head;             /* a layer's are all alike */
    int64_t rows, hidden;                      /* of activations between tp regions */
    account tp_said;                           /* of all tp regions of a forward and backward */
    ndm_comm_stats first_step;                 /* of the shard communicator, after it */
    int64_t shard_bytes[NDM_COLLECTIVE_COUNT]; /* received there in all steps but the first */
} trace;

/* Trains a model of `layers` layers and records. Collective over: world. */
void trace_run(int64_t layers, const variant *v, trace *t);
void trace_finish(trace *t);

/* Calls of a step of a kind, communicator and count; count < 0: any. */
int64_t trace_count(const trace *t, int64_t step, ndm_collective kind, const void *comm,
                    int64_t count);

#endif
