/* SPDX-License-Identifier: Apache-2.0 */
/* What started this process, by the environment that launchers leave. A launcher of another MPI
 * starts N worlds of one rank each, which would all train alone: that is refused. */
#include "collectives/world.h"

#include <stdlib.h>
#include <string.h>

static int64_t number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtoll(text, NULL, 10) : 0;
}

static bool any(const char *const *names)
{
    for (; *names; names++)
        if (getenv(*names))
            return true;
    return false;
}

static bool under_slurm(void)
{
    return getenv("SLURM_PROCID") &&
           (number("SLURM_STEP_NUM_TASKS") > 1 || number("SLURM_NTASKS") > 1);
}

bool ndm_launcher_present(void)
{
    static const char *const names[] = {"PMI_RANK",
                                        "PMI_SIZE",
                                        "PMI_FD",
                                        "PMI_PORT",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "OMPI_COMM_WORLD_SIZE",
                                        NULL};
    return any(names) || under_slurm();
}

static bool mpi_is(const char *name)
{
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;

    MPI_Get_library_version(version, &length);
    return strstr(version, name) != NULL;
}

ndm_status ndm_launcher_check(int64_t world_size)
{
    bool mpich = mpi_is("MPICH");

    if (world_size > 1)
        return NDM_OK;
    if (mpich && number("OMPI_COMM_WORLD_SIZE") > 1)
        NDM_FAIL(NDM_ERR_COMM,
                 "comm: started by Open MPI's mpiexec (%lld ranks), but ndmesh is built with "
                 "MPICH: use mpiexec.mpich",
                 (long long)number("OMPI_COMM_WORLD_SIZE"));
    if (!mpich && number("PMI_SIZE") > 1)
        NDM_FAIL(NDM_ERR_COMM,
                 "comm: started by MPICH's mpiexec (%lld ranks), but ndmesh is built with another "
                 "MPI: use that one's mpiexec",
                 (long long)number("PMI_SIZE"));
    if (under_slurm())
        NDM_FAIL(NDM_ERR_COMM,
                 "comm: Slurm started %s tasks, but each sees a world of one rank: use srun "
                 "--mpi=pmi2",
                 getenv("SLURM_STEP_NUM_TASKS") ? getenv("SLURM_STEP_NUM_TASKS")
                                                : getenv("SLURM_NTASKS"));
    if (number("PMIX_RANK") > 0)
        NDM_FAIL(NDM_ERR_COMM,
                 "comm: a PMIx launcher started this as rank %s, but MPI sees a world of one rank: "
                 "use mpiexec.mpich",
                 getenv("PMIX_RANK"));
    return NDM_OK;
}
