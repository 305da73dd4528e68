/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the world that it finds, and prints its size. With "given", hands in a communicator of its
 * own: the ranks of even and of odd number. launchers.sh looks at the outcome. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm.h"

static int outcome(const ndm_world_options *options)
{
    ndm_world *world;
    ndm_status status = ndm_world_join(options, &world);
    int initialised = 0;

    if (status != NDM_OK) {
        fprintf(stderr, "%s\n", ndm_error_message());
        return ndm_status_exit_code(status);
    }
    MPI_Initialized(&initialised);
    printf("rank %lld of %lld, mpi %d\n", (long long)ndm_world_rank(world),
           (long long)ndm_world_size(world), initialised);
    ndm_world_leave(world);
    return 0;
}

int main(int argc, char **argv)
{
    ndm_world_options options = {.timeout_ns = 10000000000};
    MPI_Comm half;
    int code, rank, finalised = 1;

    if (argc < 2 || strcmp(argv[1], "given") != 0)
        return outcome(&options);
    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    options.mpi_comm = &half;
    code = outcome(&options);
    MPI_Finalized(&finalised); /* what we initialised is ours to finalise */
    MPI_Comm_free(&half);
    MPI_Finalize();
    return code + finalised;
}
