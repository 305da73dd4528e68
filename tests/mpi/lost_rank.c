/* SPDX-License-Identifier: Apache-2.0 */
/* A job that loses a rank: rank 1 kills itself between two barriers. Prints "unreachable" if the
 * others get past it. Errors are also appended to the file argv[1]: the launcher may be gone before
 * they come. lost_rank.sh looks at the outcome. */
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include "collectives/comm.h"

static ndm_status run(ndm_world *world)
{
    ndm_parallelism_config config = NDM_PARALLELISM_CONFIG_INIT;
    ndm_device_options options = {0};
    ndm_device *device;
    ndm_stream *stream;
    ndm_mesh *mesh;
    ndm_comms *comms;
    ndm_comm *comm;

    NDM_TRY(ndm_device_create("cpu", &options, &device));
    NDM_TRY(ndm_mesh_create(&config, ndm_world_size(world), &mesh));
    NDM_TRY(ndm_comms_create(world, mesh, device, "auto", &comms));
    NDM_TRY(ndm_stream_create(device, NDM_STREAM_COMPUTE, "compute", &stream));
    NDM_TRY(ndm_comms_get(comms, NDM_AXES_ALL, &comm));
    NDM_TRY(ndm_barrier(comm, stream));
    if (ndm_world_rank(world) == 1)
        raise(SIGKILL);
    NDM_TRY(ndm_barrier(comm, stream));
    printf("unreachable\n");
    return NDM_OK;
}

static void report(const char *path)
{
    FILE *file = path ? fopen(path, "a") : NULL;

    fprintf(stderr, "ndmesh: error: %s\n", ndm_error_message());
    if (file) {
        fprintf(file, "%s\n", ndm_error_message());
        fclose(file);
    }
}

int main(int argc, char **argv)
{
    ndm_world_options options = {.bootstrap = "mpi", .timeout_ns = 8000000000};
    ndm_world *world;
    ndm_status status = ndm_world_join(&options, &world);

    signal(SIGUSR1, SIG_IGN); /* how the launcher tells survivors */
    if (status == NDM_OK)
        status = run(world);
    if (status != NDM_OK)
        report(argc > 1 ? argv[1] : NULL);
    _exit(ndm_status_exit_code(status));
}
