/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator as the host process sees it. */
#pragma once

#include "cuemu_host.h"

#include <nccl.h>

struct ncclComm {
    cuemu_comm *shared; /* NULL until it is connected */
    int rank, ranks, index, device;
    int queue;               /* index of the communicator whose order of calls it has part in */
    struct ncclComm *shares; /* the parent, with splitShare: order of calls and abort are one */
    bool blocking, nvls, finishing;
    bool threaded; /* there is a thread to be joined */
    pthread_t thread;
    _Atomic int state;      /* ncclResult_t of what a thread does, or has failed with */
    _Atomic uint32_t polls; /* times it was asked since then */
    uint32_t calls;
    int settling; /* times that it will say a call is in progress */
};

/* What a call answers on it now: NCCL takes none while another is in progress. */
ncclResult_t cuemu_comm_ready(ncclComm_t comm);
/* A call was issued: success, or in progress for a while if it does not block. */
ncclResult_t cuemu_comm_issued(ncclComm_t comm);
