/* SPDX-License-Identifier: Apache-2.0 */
/* Joins the world that it finds, and prints its size. With "given", hands in a communicator of its
 * own: the ranks of even and of odd number; with "null" and "inter", one that cannot be a world.
 * With "gone", MPI ends first. launchers.sh looks at the outcome. */
#include <mpi.h>
#include <stdio.h>
#include <string.h>

#include "collectives/comm.h"

static int outcome(const ndm_world_options *options, bool mpi_ends)
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
    if (mpi_ends)
        MPI_Finalize();
    ndm_world_leave(world);
    return 0;
}

/* Of the ranks of even and of odd number, or what stands in for it. */
static MPI_Comm choose(const char *how)
{
    MPI_Comm half, inter;
    int rank;

    if (strcmp(how, "null") == 0)
        return MPI_COMM_NULL;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    if (strcmp(how, "inter") != 0)
        return half;
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, 1 - rank % 2, 0, &inter);
    MPI_Comm_free(&half);
    return inter;
}

int main(int argc, char **argv)
{
    ndm_world_options options = {.timeout_ns = 10000000000};
    MPI_Comm comm;
    int code, finalised = 1;

    if (argc < 2)
        return outcome(&options, false);
    MPI_Init(NULL, NULL);
    comm = choose(argv[1]);
    options.mpi_comm = &comm;
    if (strcmp(argv[1], "gone") == 0)
        return outcome(&options, true);
    code = outcome(&options, false);
    MPI_Finalized(&finalised); /* what we initialised is ours to finalise */
    if (comm != MPI_COMM_NULL)
        MPI_Comm_free(&comm);
    MPI_Finalize();
    return code + finalised;
}
