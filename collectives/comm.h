/* SPDX-License-Identifier: Apache-2.0 */
/* Worlds of ranks, communicators, and what a backend provides. */
#ifndef NDM_COLLECTIVES_COMM_H
#define NDM_COLLECTIVES_COMM_H

#include "device/device.h"
#include <ndmesh/collectives.h>
#include <ndmesh/mesh.h>

/* ---- the world: who is there (collectives/world*.c) ------------------------------------------ */

typedef struct ndm_world ndm_world;

typedef struct ndm_world_options {
    const char *bootstrap; /* "auto": MPI under a launcher or when MPI is already initialised, else
                              one rank; "self"; "mpi" */
    const void
        *mpi_comm; /* NULL, or MPI_Comm * of an initialised MPI: the world is that communicator */
    int64_t timeout_ns;                /* deadline of every wait; 0 = 600 s */
    const struct ndm_sim_options *sim; /* NULL, or the world is simulated: device/sim.h */
} ndm_world_options;

/* Joins the world. Refuses another MPI's launcher (Open MPI's or Slurm's environment with an MPICH
 * world of one) by name and says the fix: NDM_ERR_COMM. Collective over: world. */
NDM_MUST_USE ndm_status ndm_world_join(const ndm_world_options *options, ndm_world **world);

/* Leaves; finalises MPI if join initialised it. After a failure, ndm_world_abandon() instead:
 * leaves likewise if all ranks come within two seconds, having failed alike, else alone. It keeps
 * the failure's message. Queues of streams stand still from here on. */
void ndm_world_leave(ndm_world *world);
void ndm_world_abandon(ndm_world *world);

NDM_MODULE_API int64_t ndm_world_rank(const ndm_world *world);
NDM_MODULE_API int64_t ndm_world_size(const ndm_world *world);
int64_t ndm_world_local_rank(const ndm_world *world); /* among the ranks of this host */
int64_t ndm_world_local_size(const ndm_world *world);
NDM_MODULE_API int64_t ndm_world_timeout_ns(const ndm_world *world);
bool ndm_world_is_simulated(const ndm_world *world); /* all other ranks are as this one */
/* Something has to be called for messages to move on, and another thread may do it: there are
 * several nodes, and MPI allows it. */
bool ndm_world_wants_helper(const ndm_world *world);
bool ndm_world_takes_helper(const ndm_world *world); /* MPI allows it */
NDM_MODULE_API const char *ndm_world_host(const ndm_world *world,
                                          int64_t rank); /* host name of a rank */
NDM_MODULE_API int64_t ndm_world_node(const ndm_world *world,
                                      int64_t rank); /* hosts numbered by first appearance */

/* all, [size][bytes]: every rank's `mine`, [bytes]. Host memory, small. Collective over: world.
 * Deadline applies. */
NDM_MODULE_API NDM_MUST_USE ndm_status ndm_world_exchange(ndm_world *world, const void *mine,
                                                          int64_t bytes, void *all);

/* Makes ranks agree: all return NDM_OK, or all return the status and message of the lowest rank
 * that failed, which is named. Call as NDM_TRY(ndm_world_agree(world, something_local())).
 * Collective over: world. */
NDM_MODULE_API NDM_MUST_USE ndm_status ndm_world_agree(ndm_world *world, ndm_status mine);

/* Compares named text facts over ranks ("mesh.tp" = "2", "version" = ...), in the same order
 * everywhere. NDM_ERR_MISMATCH names the first rank that differs from rank 0, the field, and both
 * values. Collective over: world. */
typedef struct ndm_fact {
    const char *name;
    const char *value;
} ndm_fact;
NDM_MUST_USE ndm_status ndm_world_verify(ndm_world *world, const ndm_fact *facts, int64_t n_facts);

/* One line of what the MPI library says of itself, before MPI_Init as well. */
void ndm_world_mpi_version(char *text, size_t bytes);

/* The last collectives of this rank as JSON, {"rank": ., "records": [...]}, oldest first: what it
 * did before something went wrong. */
NDM_MUST_USE ndm_status ndm_world_dump_flight(const ndm_world *world, const char *path);

/* ---- communicators (collectives/comm.c) ------------------------------------------------------ */

typedef struct ndm_comms ndm_comms; /* all communicators of one mesh, interned by rank set */

/* backend: "auto", "self", "mpi", "shm", "nccl", "staged", "sim". Keeps pointers to world, mesh and
 * device.
 */
NDM_MUST_USE ndm_status ndm_comms_create(ndm_world *world, const ndm_mesh *mesh, ndm_device *device,
                                         const char *backend, ndm_comms **comms);
void ndm_comms_destroy(ndm_comms *comms);

/* The communicator over an axis set that holds this rank; made on first use, without communication
 * where the backend can. Axes of size 1 do not count, so two sets with the same ranks give the same
 * communicator. */
NDM_MUST_USE ndm_status ndm_comms_get(ndm_comms *comms, ndm_axis_set axes, ndm_comm **comm);

/* The members of `axes` cut into consecutive blocks of k (k divides the size): the block that holds
 * this rank. */
NDM_MUST_USE ndm_status ndm_comms_get_block(ndm_comms *comms, ndm_axis_set axes, int64_t k,
                                            ndm_comm **comm);

/* Observer of every collective as it is issued: tests count with it, docs are checked with it,
 * traces are written by it. */
typedef struct ndm_collective_call {
    ndm_collective kind;
    const ndm_comm *comm;
    int64_t count; /* elements a rank contributes (as in the call) */
    ndm_dtype dtype;
    const char *stream;
} ndm_collective_call;
typedef void (*ndm_comms_observer)(void *user, const ndm_collective_call *call);
void ndm_comms_observe(ndm_comms *comms, ndm_comms_observer observer, void *user);

/* Iterates over the communicators made so far; NULL after the last. */
NDM_MODULE_API ndm_comm *ndm_comms_at(ndm_comms *comms, int64_t i);

/* Fault injection: holds every collective back by 0..max_polls polls, drawn from (seed, world rank,
 * collective). 0 = off. Tests show with it that no buffer is touched before its collective is done,
 * and that completion may come in any order. NDM_COMM_DELAY=max_polls:seed of the environment sets
 * it for all communicators of a process. */
void ndm_comms_delay(ndm_comms *comms, int64_t max_polls, uint64_t seed);

/* ---- backends: one const struct each, listed in collectives/backends.def --------------------- */

/* One collective as a backend sees it; the front end has checked it, counted it, and settled n == 1
 * as a local copy. */
typedef struct ndm_collective_args {
    ndm_collective kind;
    const void *send;
    void *recv;    /* all_reduce, broadcast: the buffer (send == recv) */
    int64_t count; /* per rank, as in the public call */
    ndm_dtype dtype;
    ndm_dtype recv_dtype;
    ndm_reduce_op op;
    int64_t peer_dst; /* send_recv; broadcast: root in peer_src */
    int64_t peer_src;
} ndm_collective_args;

typedef struct ndm_comm_backend {
    const char *name;
    const char *summary;
    int priority;
    bool (*probe)(ndm_world *world, ndm_device *device, char *why, size_t why_bytes);
    void (*version)(char *text, size_t bytes); /* of its library; NULL = none */
    ndm_status (*comm_init)(ndm_comm *comm);   /* comm->state is the backend's */
    void (*comm_finish)(ndm_comm *comm);
    ndm_status (*run)(ndm_comm *comm, const ndm_collective_args *args, ndm_stream *stream);
    /* Memory that all members of one node see: member i's block of bytes_per_rank starts at all + i
     * * bytes_per_rank, own block included. NULL, or NDM_ERR_UNSUPPORTED when the group spans
     * nodes. An all-gather in place, of blocks of at most bytes_per_rank, is a barrier: after it
     * all see what each has written anywhere in the window. */
    ndm_status (*window_alloc)(ndm_comm *comm, int64_t bytes_per_rank, ndm_memory_kind kind,
                               void **all);
    void (*window_free)(ndm_comm *comm, void *all);
    /* What all communicators of one ndm_comms share; NULL = nothing. Collective over: world. */
    ndm_status (*comms_init)(ndm_comms *comms, void **state);
    void (*comms_finish)(ndm_comms *comms, void *state);
    bool any_world; /* the mesh may have more ranks than the world */
    bool takes_one; /* the groups of a world of one rank as well, where it is asked for by name */
    bool launches;  /* run() only launches on the stream: a graph can hold it */
} ndm_comm_backend;

const ndm_comm_backend *const *ndm_comm_backend_list(void); /* NULL-terminated */

struct ndm_comm {
    ndm_comms *owner;
    const ndm_comm_backend *backend;
    void *state;
    char name[64];
    int64_t size, index;
    int64_t *ranks; /* [size] world ranks */
    uint32_t id;    /* the same on all members, distinct among communicators that share two ranks */
    uint64_t sequence; /* collectives issued */
    ndm_comm_stats stats;
    ndm_world *world;
    uint64_t started; /* collectives started: they start in the order of issue, on all streams */
    bool broken;      /* a collective failed or was dropped: those behind it never start */
};

#endif
