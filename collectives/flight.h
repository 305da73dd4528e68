/* SPDX-License-Identifier: Apache-2.0 */
/* Flight recorder: the last collectives of this rank, for messages and for a file after a failure.
 */
#ifndef NDM_COLLECTIVES_FLIGHT_H
#define NDM_COLLECTIVES_FLIGHT_H

#include "collectives/comm.h"

/* What identifies a collective, and what all its members must agree on. Sent between ranks as it
 * is.
 */
typedef struct ndm_signature {
    uint32_t comm_id, generation; /* generation: which ndm_comms of the process */
    uint64_t sequence;            /* the first collective of a communicator is #1 */
    int64_t count;
    int64_t root; /* of a broadcast, else 0 */
    int32_t kind; /* ndm_collective */
    int32_t dtype, recv_dtype, op;
    char comm_name[64];
} ndm_signature;

typedef enum ndm_flight_state {
    NDM_FLIGHT_ISSUED,
    NDM_FLIGHT_STARTED,
    NDM_FLIGHT_DONE,
    NDM_FLIGHT_FAILED
} ndm_flight_state;

typedef struct ndm_flight_record {
    uint64_t id; /* 1, 2, ... in order of issue; 0 = empty */
    ndm_signature signature;
    ndm_flight_state state;
    const ndm_comm *comm; /* compared only: it may be gone */
    int64_t issued_ns, started_ns, ended_ns;
} ndm_flight_record;

enum { NDM_FLIGHT_RECORDS = 64 };

/* A ring; a record is overwritten when 64 newer ones exist, even if it is still in flight. */
typedef struct ndm_flight {
    ndm_flight_record records[NDM_FLIGHT_RECORDS];
    uint64_t issued;
} ndm_flight;

/* Adds a record and returns its id. */
uint64_t ndm_flight_add(ndm_flight *flight, const ndm_comm *comm, const ndm_signature *signature);

/* Sets the state; does nothing if the record has been overwritten. */
void ndm_flight_set(ndm_flight *flight, uint64_t id, ndm_flight_state state);

/* The record of a collective, or NULL if it is not (or no longer) there. */
const ndm_flight_record *ndm_flight_find(const ndm_flight *flight, uint32_t comm_id,
                                         uint32_t generation, uint64_t sequence);

/* The latest finished collective of a communicator, or NULL. */
const ndm_flight_record *ndm_flight_last_done(const ndm_flight *flight, const ndm_comm *comm);

bool ndm_signature_equal(const ndm_signature *a, const ndm_signature *b);

/* "reduce_scatter #412 of 128 fp32"; returns text. */
const char *ndm_signature_text(const ndm_signature *signature, char *text, size_t text_bytes);

#endif
