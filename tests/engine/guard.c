/* SPDX-License-Identifier: Apache-2.0 */
/* The guard device, and the calls of MPI that may move data of any request in flight. */
#include "guard.h"

#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

extern const ndm_device_ops ndm_device_cpu;

enum { ALIGNMENT = 256 };

typedef struct block {
    struct block *next;
    char *base;
    size_t bytes; /* of the pages that hold it */
    void *memory;
} block;

typedef struct guard_device {
    ndm_host_device host; /* first */
    struct guard_device *next;
    block *blocks;
    int depth; /* of enter; memory is open above 0 */
} guard_device;

static guard_device *devices; /* all that are open */
static int64_t live, openings;

static void protect(const guard_device *d, int protection)
{
    for (const block *b = d->blocks; b; b = b->next)
        if (mprotect(b->base, b->bytes, protection) != 0)
            abort();
}

static void enter(ndm_device *device)
{
    guard_device *d = (guard_device *)device;

    if (d->depth++ > 0)
        return;
    openings++;
    protect(d, PROT_READ | PROT_WRITE);
}

static void leave(ndm_device *device)
{
    guard_device *d = (guard_device *)device;

    if (--d->depth == 0)
        protect(d, PROT_NONE);
}

static ndm_status create(const ndm_device_options *options, ndm_device **device)
{
    guard_device *d = calloc(1, sizeof *d);

    (void)options;
    if (!d)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a device");
    d->host.enter = enter;
    d->host.leave = leave;
    d->next = devices;
    devices = d;
    *device = &d->host.base;
    return NDM_OK;
}

static void destroy(ndm_device *device)
{
    guard_device **link = &devices;

    while (&(*link)->host.base != device)
        link = &(*link)->next;
    *link = (*link)->next;
    free(device);
}

static ndm_status allocate(ndm_device *device, int64_t bytes, void **memory)
{
    guard_device *d = (guard_device *)device;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t rounded = ((size_t)bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    size_t pages = (rounded + page - 1) / page * page;
    block *b = calloc(1, sizeof *b);
    char *base = mmap(NULL, pages + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (!b || base == MAP_FAILED) {
        free(b);
        return NDM_ERR_MEMORY;
    }
    *b = (block){d->blocks, base, pages, base + pages - rounded};
    d->blocks = b;
    live++;
    if (d->depth > 0 && mprotect(base, pages, PROT_READ | PROT_WRITE) != 0)
        return NDM_ERR_MEMORY;
    *memory = b->memory;
    return NDM_OK;
}

/* The addresses go, so that what comes too late crashes as well. */
static void release(ndm_device *device, void *memory, int64_t bytes)
{
    block **link = &((guard_device *)device)->blocks;

    (void)bytes;
    while ((*link)->memory != memory)
        link = &(*link)->next;
    block *b = *link;
    *link = b->next;
    munmap(b->base, b->bytes + (size_t)sysconf(_SC_PAGESIZE));
    free(b);
    live--;
}

void guard_register(void)
{
    static ndm_device_ops ops;

    ops = ndm_device_cpu;
    ops.in_place = false;
    ops.name = "guard";
    ops.create = create;
    ops.destroy = destroy;
    ops.alloc = allocate;
    ops.free = release;
    setenv("UCX_TLS", "posix,sysv,self", 1);
    if (ndm_device_register(&ops) != NDM_OK)
        abort();
}

int64_t guard_live(void)
{
    return live;
}

int64_t guard_openings(void)
{
    return openings;
}

/* ---- MPI ------------------------------------------------------------------------------------- */

/* A call on any communicator moves the data of all requests, those of device memory among them: a
 * transport touches memory when it likes, between calls of ours as well, and that is its right. */
static void enter_all(void)
{
    for (guard_device *d = devices; d; d = d->next)
        enter(&d->host.base);
}

static void leave_all(void)
{
    for (guard_device *d = devices; d; d = d->next)
        leave(&d->host.base);
}

#define OPENED(call)       \
    do {                   \
        enter_all();       \
        int code = (call); \
        leave_all();       \
        return code;       \
    } while (0)

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    OPENED(PMPI_Test(request, flag, status));
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status)
{
    OPENED(PMPI_Iprobe(source, tag, comm, flag, status));
}

int MPI_Recv(void *data, int n, MPI_Datatype type, int source, int tag, MPI_Comm comm,
             MPI_Status *status)
{
    OPENED(PMPI_Recv(data, n, type, source, tag, comm, status));
}

int MPI_Allreduce(const void *send, void *recv, int n, MPI_Datatype type, MPI_Op op, MPI_Comm comm)
{
    OPENED(PMPI_Allreduce(send, recv, n, type, op, comm));
}

int MPI_Allgather(const void *send, int n_send, MPI_Datatype send_type, void *recv, int n_recv,
                  MPI_Datatype recv_type, MPI_Comm comm)
{
    OPENED(PMPI_Allgather(send, n_send, send_type, recv, n_recv, recv_type, comm));
}

int MPI_Reduce(const void *send, void *recv, int n, MPI_Datatype type, MPI_Op op, int root,
               MPI_Comm comm)
{
    OPENED(PMPI_Reduce(send, recv, n, type, op, root, comm));
}
