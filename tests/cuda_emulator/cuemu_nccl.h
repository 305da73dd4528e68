/* SPDX-License-Identifier: Apache-2.0 */
/* A communicator as the host process sees it. */
#pragma once

#include "cuemu_host.h"

#include <nccl.h>

struct ncclComm {
    cuemu_comm *shared;
    int rank, ranks, index, device;
};
