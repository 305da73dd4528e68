/* SPDX-License-Identifier: Apache-2.0 */
/* Finding out why a collective does not move: who is late, lost, or called something else.
 *
 * A rank that has waited for a second tells those it waits for what it waits in (a notice). Whoever
 * receives a notice compares it with its own record of the same collective; if they differ it
 * answers with that record, and both fail naming both calls. Nothing of this costs anything while
 * collectives make progress. */
#ifndef NDM_COLLECTIVES_STALL_H
#define NDM_COLLECTIVES_STALL_H

#include "collectives/run.h"

typedef struct ndm_stall ndm_stall;

NDM_MUST_USE ndm_status ndm_stall_create(ndm_world *world);
void ndm_stall_destroy(ndm_world *world);

/* Sends notices, looks for processes that are gone and for messages of another collective.
 * NDM_ERR_COMM, NDM_ERR_MISMATCH. */
NDM_MUST_USE ndm_status ndm_stall_probe(const ndm_run *run);

/* Receives notices. NDM_ERR_MISMATCH. */
NDM_MUST_USE ndm_status ndm_stall_listen(ndm_world *world);

/* Fails with NDM_ERR_TIMEOUT. */
NDM_MUST_USE ndm_status ndm_stall_deadline(const ndm_run *run);

/* "reduce_scatter #412 on dp_shard_cp {2,3}: rank 3 (node b, pid 8812) has not arrived; ..." */
void ndm_stall_describe(const ndm_run *run, char *text, size_t text_bytes);

/* Fails with NDM_ERR_MISMATCH, naming what rank and what this rank called. */
NDM_MUST_USE ndm_status ndm_stall_mismatch(const ndm_comm *comm, int64_t rank,
                                           const ndm_signature *theirs, const ndm_signature *mine);

#endif
