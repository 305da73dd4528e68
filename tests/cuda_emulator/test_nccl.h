/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of NCCL share: ranks, a communicator of all, agreement on what was found. */
#pragma once

#include "test_common.h"

#include <mpi.h>
#include <nccl.h>

static int rank, ranks;
static ncclComm_t comm;
static cudaStream_t stream;

/* Every rank passes or fails alike. */
#define AGREE(condition)                                                          \
    do {                                                                          \
        int fine_ = (condition) ? 1 : 0;                                          \
        if (!fine_)                                                               \
            printf("rank %d: %s:%d: %s\n", rank, __FILE__, __LINE__, #condition); \
        MPI_Allreduce(MPI_IN_PLACE, &fine_, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD); \
        assert_true(fine_);                                                       \
    } while (0)

static inline ncclComm_t new_comm(void)
{
    ncclUniqueId id;
    ncclComm_t made = NULL;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    if (!rank)
        ncclGetUniqueId(&id);
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    AGREE(ncclCommInitRankConfig(&made, ranks, id, rank, &config) == ncclSuccess);
    return made;
}

static inline ncclResult_t async_error(ncclComm_t faulty)
{
    ncclResult_t error;
    OK(cudaStreamSynchronize(stream));
    OK(ncclCommGetAsyncError(faulty, &error));
    return error;
}

static inline void begin(int *argc, char ***argv)
{
    setenv("CUEMU_NCCL_TIMEOUT", "2", 0);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (cudaSetDevice(rank) || cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))
        MPI_Abort(MPI_COMM_WORLD, 1);
    comm = new_comm();
}

static inline void end(void)
{
    ncclCommDestroy(comm);
    MPI_Finalize();
}
