/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * For programs that have MPI already: a communicator of theirs becomes the world of a context.
 * Include it beside ndmesh.h; it needs mpi.h, and the library's MPI has to be the program's.
 */
#ifndef NDMESH_INTEROP_MPI_H
#define NDMESH_INTEROP_MPI_H

#include <mpi.h>
#include <ndmesh/context.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Lets ndm_context_create() take the ranks of a communicator, and no others.
 *
 * @param options  of every rank of the communicator
 * @param comm     an intracommunicator of an MPI that the program has initialised, with
 *                 MPI_THREAD_SERIALIZED or more where ndmesh shall use a thread of its own
 *                 (progress_thread). Read by ndm_context_create(), which duplicates it: no message
 *                 of ndmesh meets one of the program. Not owned: it may be freed after that. The
 *                 program finalises MPI, after ndm_context_destroy(). MPI_COMM_NULL and
 *                 intercommunicators are NDM_ERR_USAGE
 */
static inline void ndm_context_options_take_mpi(ndm_context_options *options, const MPI_Comm *comm)
{
    options->mpi_comm = comm;
}

#ifdef __cplusplus
}
#endif
#endif
