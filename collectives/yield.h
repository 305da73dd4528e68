/* SPDX-License-Identifier: Apache-2.0 */
/* The switch of the interposer (yield_interposer.c): set to 1 before MPI_Finalize, connections are
 * left open. Weak: an executable without the interposer does not have it. */
#ifndef NDM_COLLECTIVES_YIELD_H
#define NDM_COLLECTIVES_YIELD_H

extern int ndm_ucp_leave_connected __attribute__((weak, visibility("default")));

#endif
