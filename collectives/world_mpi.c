/* SPDX-License-Identifier: Apache-2.0 */
/* A world of MPI ranks: initialises MPI, or uses one that is; finalises it without hanging. */
#include "collectives/world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "collectives/yield.h"
#include "core/clock.h"

static const int64_t MESSAGE_LIMIT = (int64_t)1 << 30;

/* MPI over UCX: receive buffers in shared memory, of which a rank takes 512 at once (4 MiB), come
 * by
 * 16. Inside a node the engine sends little that way. UCX complains of variables that none of its
 * transports reads: whoever sets some himself is left alone, as is a node without such memory. */
static void take_few_buffers(void)
{
    for (char **entry = environ; *entry; entry++)
        if (strncmp(*entry, "UCX_", 4) == 0)
            return;
    if (access("/dev/shm", W_OK | X_OK) != 0)
        return;
    (void)setenv("UCX_POSIX_RX_BUFS_GROW", "16", 0);
    (void)setenv("UCX_SYSV_RX_BUFS_GROW", "16", 0);
}

static ndm_status init(bool *ours)
{
    int initialised = 0, finalised = 0, provided = 0;

    MPI_Finalized(&finalised);
    if (finalised)
        NDM_FAIL(NDM_ERR_STATE,
                 "comm: MPI has been finalised: a process joins an MPI world once; for several "
                 "contexts one after the other, let the program initialise and finalise MPI");
    MPI_Initialized(&initialised);
    *ours = !initialised;
    if (initialised)
        return NDM_OK;
    take_few_buffers();
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        NDM_FAIL(NDM_ERR_COMM, "comm: MPI could not be initialised");
    return NDM_OK;
}

/* Somebody else's communicator is duplicated, so that no message of theirs meets ours. Tested, not
 * waited for: MPI's own wait holds a core that another rank needs. */
static ndm_status duplicate(MPI_Comm comm, int64_t timeout_ns, MPI_Comm *copy)
{
    MPI_Request request;
    int done = 0;
    int64_t start = ndm_clock_ns();

    if (MPI_Comm_idup(comm, copy, &request) != MPI_SUCCESS)
        NDM_FAIL(NDM_ERR_COMM, "comm: the MPI communicator could not be duplicated");
    while (!done) {
        if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS)
            NDM_FAIL(NDM_ERR_COMM, "comm: the MPI communicator could not be duplicated");
        ndm_clock_yield();
        if (!done && ndm_clock_ns() - start > timeout_ns)
            NDM_FAIL(NDM_ERR_TIMEOUT,
                     "comm: not all ranks of the MPI communicator joined within %.3g s",
                     (double)timeout_ns * 1e-9);
    }
    return NDM_OK;
}

static ndm_status check_tags(void)
{
    int *bound = NULL, found = 0;

    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &bound, &found);
    if (!found || *bound < NDM_P2P_TAG_NOTICE)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "comm: this MPI has tags up to %d, %d are needed",
                 found ? *bound : 0, NDM_P2P_TAG_NOTICE);
    return NDM_OK;
}

/* A group whose ranks all talk to each other, of an MPI that is there. */
static ndm_status check_given(MPI_Comm comm)
{
    int inter = 0;

    if (comm == MPI_COMM_NULL)
        NDM_FAIL(NDM_ERR_USAGE, "comm: the MPI communicator handed in is MPI_COMM_NULL");
    if (MPI_Comm_test_inter(comm, &inter) != MPI_SUCCESS || inter)
        NDM_FAIL(NDM_ERR_USAGE, "comm: the MPI communicator handed in is no intracommunicator");
    return NDM_OK;
}

static ndm_status attach(ndm_world *world, const ndm_world_options *options, bool ours)
{
    ndm_p2p *p2p = world->p2p;
    int rank, size, level;

    MPI_Query_thread(&level);
    p2p->any_thread = level >= MPI_THREAD_SERIALIZED;
    p2p->message_limit = MESSAGE_LIMIT;
    p2p->comm = options->mpi_comm ? *(const MPI_Comm *)options->mpi_comm : MPI_COMM_WORLD;
    NDM_TRY(check_given(p2p->comm));
    MPI_Comm_size(p2p->comm, &size);
    MPI_Comm_rank(p2p->comm, &rank);
    world->rank = rank;
    world->size = size;
    NDM_TRY(ndm_launcher_check(size));
    NDM_TRY(check_tags());
    if (!ours) {
        NDM_TRY(duplicate(p2p->comm, world->timeout_ns, &p2p->comm));
        p2p->owns_comm = true;
    }
    MPI_Comm_set_errhandler(p2p->comm, MPI_ERRORS_RETURN);
    return NDM_OK;
}

ndm_status ndm_world_join_mpi(ndm_world *world, const ndm_world_options *options)
{
    bool ours = false;

    world->p2p = calloc(1, sizeof *world->p2p);
    if (!world->p2p)
        NDM_FAIL(NDM_ERR_MEMORY, "comm: no memory for the world");
    NDM_TRY(init(&ours));
    world->p2p->finalize = ours;
    ndm_status status = attach(world, options, ours);
    if (status != NDM_OK && ours && world->size == 1)
        MPI_Finalize();
    return status;
}

bool ndm_world_mpi_is_gone(void)
{
    int finalised = 0;

    MPI_Finalized(&finalised);
    return finalised != 0;
}

/* Between nodes, MPICH 4.0's finalisation can wait for ever for a peer's disconnection. An
 * executable that has the interposer leaves that step out. One that has not leaves finalisation
 * out: all ranks have met, and the process is about to end. */
void ndm_world_leave_mpi(ndm_world *world)
{
    ndm_p2p *p2p = world->p2p;

    if (p2p->owns_comm)
        MPI_Comm_free(&p2p->comm);
    if (!p2p->finalize)
        return;
    if (world->nodes > 1 && !&ndm_ucp_leave_connected)
        return;
    if (world->nodes > 1)
        ndm_ucp_leave_connected = 1;
    MPI_Finalize();
}

void ndm_world_mpi_version(char *text, size_t bytes)
{
    char all[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;

    if (MPI_Get_library_version(all, &length) != MPI_SUCCESS)
        snprintf(all, sizeof all, "unknown");
    all[strcspn(all, "\n")] = '\0'; /* what follows is how it was built */
    for (char *c = all; *c != '\0'; c++)
        *c = *c == '\t' ? ' ' : *c;
    snprintf(text, bytes, "%s", all);
}
