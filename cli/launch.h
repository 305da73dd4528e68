/* SPDX-License-Identifier: Apache-2.0 */
/* Starting ranks: this program again, under MPICH's launcher. */
#ifndef NDM_CLI_LAUNCH_H
#define NDM_CLI_LAUNCH_H

#include <stddef.h>
#include <stdint.h>

#include <ndmesh/status.h>

/* Path of this program. */
NDM_MUST_USE ndm_status ndm_cli_self(char *path, size_t path_bytes);

/* The launcher's names, the better first; NULL-terminated. Never another MPI's mpiexec. */
const char *const *ndm_cli_launchers(void);

/* Becomes `mpiexec -n ranks ndmesh VERB ARGS...`, without `--ranks N` among the arguments. `verb`
 * is one word or more, NULL-terminated. Returns on failure only. */
NDM_MUST_USE ndm_status ndm_cli_exec_ranks(int64_t ranks, const char *const *verb, int argc,
                                           const char *const *argv);

#endif
