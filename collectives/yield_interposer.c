/* SPDX-License-Identifier: Apache-2.0 */
/* Makes MPICH over UCX share a core. Linked into executables, where it takes precedence over UCX.
 *
 * MPI_Init and MPI_Finalize wait by polling UCX and never yield: with more ranks than cores, each
 * waits out the time slices of the others, and starting 16 ranks on 2 cores takes 3 s instead of
 * 0.6 s. This progress function yields after some idle polls. It costs nothing where every rank has
 * a core, and is never called where MPI does not use UCX. */
#include <dlfcn.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>

#include "collectives/yield.h"

enum { IDLE_POLLS = 10 };

typedef unsigned (*progress_function)(void *worker);
typedef void *(*disconnect_function)(void *endpoint);

int ndm_ucp_leave_connected = 0;

__attribute__((visibility("default"))) unsigned ucp_worker_progress(void *worker);
__attribute__((visibility("default"))) void *ucp_disconnect_nb(void *endpoint);

/* ISO C has no cast from an object pointer to a function. */
static void find(const char *name, void *function, size_t bytes)
{
    void *symbol = dlsym(RTLD_NEXT, name);
    memcpy(function, &symbol, bytes);
}

unsigned ucp_worker_progress(void *worker)
{
    static progress_function real;
    static int idle;
    unsigned n = 0;

    if (!real)
        find("ucp_worker_progress", &real, sizeof real);
    if (real)
        n = real(worker);
    idle = n ? 0 : idle + 1;
    if (idle > IDLE_POLLS)
        sched_yield();
    return n;
}

/* NULL means that the disconnection is complete. */
void *ucp_disconnect_nb(void *endpoint)
{
    static disconnect_function real;

    if (ndm_ucp_leave_connected)
        return NULL;
    if (!real)
        find("ucp_disconnect_nb", &real, sizeof real);
    return real ? real(endpoint) : NULL;
}
