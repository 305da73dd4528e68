/* SPDX-License-Identifier: Apache-2.0 */
/* Starting ranks: this program again, under MPICH's launcher. */
#ifndef NDM_CLI_LAUNCH_H
#define NDM_CLI_LAUNCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/text.h"
#include <ndmesh/status.h>

/* Path of this program. */
NDM_MUST_USE ndm_status ndm_cli_self(char *path, size_t path_bytes);

/* The launcher's names, the better first; NULL-terminated. Never another MPI's mpiexec. */
const char *const *ndm_cli_launchers(void);

/* Whether `--ranks N` asks this process to become mpiexec: no launcher has started it, and one rank
 * needs none. */
bool ndm_cli_starts_ranks(int64_t ranks);

/* Refuses more ranks than the cores of this machine could take turns with. */
NDM_MUST_USE ndm_status ndm_cli_check_ranks(int64_t ranks);

/* Reads a file of options. One that can be read only once (a pipe) is kept for the ranks under the
 * path `kept`, as long as this process or the launcher that it becomes lives; "" for others. */
NDM_MUST_USE ndm_status ndm_cli_read_once(const char *path, ndm_buffer *text, char *kept,
                                          size_t kept_bytes);

/* Becomes `mpiexec -n ranks ndmesh VERB --ranks N ARGS...`, without another `--ranks`. `verb`
 * is one word or more, NULL-terminated. Returns on failure only. */
NDM_MUST_USE ndm_status ndm_cli_exec_ranks(int64_t ranks, const char *const *verb, int argc,
                                           const char *const *argv);

#endif
