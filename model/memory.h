/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a model's activations: made before the first step, zero, given back all at once.
 *
 * Ranks of tp on one node can share it: a gathered array is then one array for all of them, where
 * each writes its own rows and a barrier makes the whole; and partial sums are read where their
 * rank has made them. Where there are no windows, both are this rank's own.
 *
 * A rank that runs out of memory still takes part in the windows that follow, so that nobody waits
 * for it there: takes then give NULL, return NDM_OK, and `failed` says it at the end. Before memory
 * is used, all ranks agree on it. */
#ifndef NDM_MODEL_MEMORY_H
#define NDM_MODEL_MEMORY_H

#include <ndmesh/collectives.h>
#include <ndmesh/context.h>

/* One allocation: device memory, or a window of `shared`. */
typedef struct ndm_memory_piece {
    ndm_comm *shared;
    void *base;
} ndm_memory_piece;

typedef struct ndm_model_memory {
    ndm_context *context;
    ndm_memory_piece *pieces; /* [n], room for `capacity` */
    int64_t n, capacity;
    ndm_status failed; /* of the first piece that this rank could not make */
} ndm_model_memory;

void ndm_model_memory_finish(ndm_model_memory *memory);

/* bytes 0 gives NULL. */
NDM_MUST_USE ndm_status ndm_model_memory_take(ndm_model_memory *memory, int64_t bytes,
                                              ndm_memory_kind kind, void **pointer);

/* An array that the members of comm gather: [size][bytes_per_rank], one for all in a window.
 * Collective over comm. */
NDM_MUST_USE ndm_status ndm_model_memory_take_gathered(ndm_model_memory *memory, ndm_comm *comm,
                                                       int64_t bytes_per_rank, ndm_memory_kind kind,
                                                       void **pointer);

/* An array of this rank, [bytes], that the other members can read in a window. Collective over
 * comm. */
NDM_MUST_USE ndm_status ndm_model_memory_take_readable(ndm_model_memory *memory, ndm_comm *comm,
                                                       int64_t bytes, ndm_memory_kind kind,
                                                       void **pointer);

#endif
