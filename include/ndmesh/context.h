/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * A context: this rank's place in the world, its mesh, device, streams and communicators.
 */
#ifndef NDMESH_CONTEXT_H
#define NDMESH_CONTEXT_H

#include <ndmesh/collectives.h>
#include <ndmesh/config.h>
#include <ndmesh/device.h>
#include <ndmesh/mesh.h>
#include <ndmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_context ndm_context;

/** A named fact that must be the same on all ranks, e.g. {"lr", "0.001"}. */
typedef struct ndm_named_value {
    const char *name;
    const char *value;
} ndm_named_value;

/** Whether a rank keeps to cores of its own. */
typedef enum ndm_bind {
    NDM_BIND_NONE = 0, /**< as the process was started */
    NDM_BIND_AUTO,     /**< cores, where the host has several memory nodes, enough cores, and the
                          launcher has not bound the process */
    NDM_BIND_CORES     /**< `threads` neighbouring cores, in the order of the host's ranks */
} ndm_bind;

/** A choice that has a rule of its own. */
typedef enum ndm_toggle { NDM_TOGGLE_AUTO = 0, NDM_TOGGLE_ON, NDM_TOGGLE_OFF } ndm_toggle;

typedef struct ndm_context_options {
    size_t size;             /**< sizeof(ndm_context_options) */
    const char *device;      /**< "auto" (default), "cpu", "cuda", "sim" */
    const char *collectives; /**< "auto" (default), "self", "mpi", "shm", "nccl" */
    const char *kernels;     /**< "auto" (default), "ref", or a comma list of tables (`ndmesh info`
                                lists them) */
    double timeout_s;        /**< deadline of every wait, above 0; INFINITY = none; default 600 */
    int threads; /**< threads of kernels; 0 (default): processors / ranks of this host */
    int64_t memory_limit_bytes;   /**< device allocations beyond it fail; 0 (default): none */
    const ndm_named_value *facts; /**< [n_facts] verified to be equal on all ranks; not kept */
    int64_t n_facts;
    const void *mpi_comm; /**< set by ndm_context_options_take_mpi() of interop_mpi.h; NULL
                             (default): join the world of the launcher */
    const struct ndm_sim_options *sim; /**< for planners inside ndmesh; NULL (default) */
    ndm_toggle progress_thread; /**< a thread that moves messages on while kernels run; default
                                   NDM_TOGGLE_AUTO: between nodes, on a host device */
    ndm_bind bind; /**< default NDM_BIND_NONE: an embedding program's threads are its own matter */
    /** NULL (default), or sets sizes of the mesh once it is known how many ranks there are. Called
     * on rank 0 alone; all ranks take what it set. */
    ndm_status (*choose_mesh)(void *user, int64_t ranks, int64_t hosts,
                              ndm_parallelism_config *parallelism);
    void *choose_user;
    /* Set by ndm_context_options_take_cuda() of interop_cuda.h: */
    int device_index; /**< which of the devices; -1 (default): by the rank's place on its host */
    void *compute_stream; /**< native; ndm_context_stream() runs on it. Not owned: it outlives the
                             context. NULL (default): one of the context's own */
    int64_t ranks;        /**< that the world must have; 0 (default): any number */
} ndm_context_options;

#define NDM_CONTEXT_OPTIONS_INIT                                                               \
    {                                                                                          \
        sizeof(ndm_context_options), "auto", "auto", "auto", 600.0, 0, 0, NULL, 0, NULL, NULL, \
            NDM_TOGGLE_AUTO, NDM_BIND_NONE, NULL, NULL, -1, NULL, 0                            \
    }

/**
 * Joins the world, builds the mesh, verifies that all ranks built the same one, and opens the
 * device.
 *
 * @param parallelism  axis sizes
 * @param options      NULL = defaults
 * @param context      receives the context; destroy with ndm_context_destroy()
 *
 * MPI is initialised here if the program has not done so, and then it is finalised with the
 * context, or when making it failed: a process joins an MPI world once. A program that makes
 * several contexts, one after the other or side by side, initialises and finalises MPI itself
 * (interop_mpi.h).
 *
 * Collective over: world. On failure all ranks fail with the same message.
 * @retval NDM_ERR_CONFIG    the mesh breaks a rule, timeout_s is not above 0, the world has another
 *                           number of ranks than `ranks`, or device_index or compute_stream are
 *                           given and the device is a host's
 * @retval NDM_ERR_MISMATCH  ranks differ in mesh, facts or version: names the rank and the field
 * @retval NDM_ERR_COMM, NDM_ERR_TIMEOUT, NDM_ERR_UNSUPPORTED, NDM_ERR_MEMORY
 */
NDM_API NDM_MUST_USE ndm_status ndm_context_create(const ndm_parallelism_config *parallelism,
                                                   const ndm_context_options *options,
                                                   ndm_context **context);

/** Frees everything; models, units and optimizers of the context must be gone. Collective over:
 * world, unless MPI has been finalised before. NULL is fine. */
NDM_API void ndm_context_destroy(ndm_context *context);

/** After a failure: leaves, together with the other ranks if they come within two seconds, as they
 * do when all have failed alike. Keeps the failure's message. The process should end soon. NULL is
 * fine. */
NDM_API void ndm_context_abandon(ndm_context *context);

NDM_API int64_t ndm_context_rank(const ndm_context *context); /**< world rank */
NDM_API int64_t ndm_context_size(const ndm_context *context); /**< number of ranks */
NDM_API const ndm_mesh *ndm_context_mesh(const ndm_context *context);
NDM_API ndm_device *ndm_context_device(const ndm_context *context);
NDM_API const ndm_parallelism_config *
ndm_context_parallelism(const ndm_context *context); /**< sizes resolved */

/** The stream that kernels run on. Owned by the context. */
NDM_API ndm_stream *ndm_context_stream(const ndm_context *context);

/**
 * The communicator over an axis set that holds this rank, made on first use; owned by the context.
 * Collective over: the group (all members ask in the same order).
 */
NDM_API NDM_MUST_USE ndm_status ndm_context_comm(ndm_context *context, ndm_axis_set axes,
                                                 ndm_comm **comm);

/** All ranks return OK, or all return the status and message of the lowest rank that failed.
 * Collective over: world. */
NDM_API NDM_MUST_USE ndm_status ndm_context_agree(ndm_context *context, ndm_status mine);

/**
 * Says which micro-batch of a step comes next: units synchronise gradients accordingly (see
 * ndm_fsdp_config.defer_sync), and begin them anew at index 0. Call before its forward; a context
 * starts at (0, 1). Not collective.
 */
NDM_API void ndm_context_micro_batch(ndm_context *context, int64_t index, int64_t count);

/** Whether it is the step's last; NULL has none. */
NDM_API bool ndm_context_last_micro_batch(const ndm_context *context);

#ifdef __cplusplus
}
#endif
#endif
