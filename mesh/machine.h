/* SPDX-License-Identifier: Apache-2.0 */
/* Where a process sits in a machine, as hwloc sees it: this machine, or a synthetic one. */
#ifndef NDM_MESH_MACHINE_H
#define NDM_MESH_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "mesh/placement.h"
#include <ndmesh/status.h>

typedef struct ndm_machine ndm_machine;

/* synthetic: NULL for this machine, or hwloc's description of one, e.g. "pack:2 l3:2 core:4 pu:1"
 * (NDM_ERR_USAGE if it is none). Close with ndm_machine_close(). */
NDM_MUST_USE ndm_status ndm_machine_open(const char *synthetic, ndm_machine **machine);
void ndm_machine_close(ndm_machine *machine); /* NULL is fine */

int64_t ndm_machine_cores(const ndm_machine *machine);

/* Facts of a process on host `host` that is bound to cores first..first+n-1, or as the calling
 * process is. What the binding leaves open, the OS may change, and so it stays NDM_PLACE_UNKNOWN.
 */
NDM_MUST_USE ndm_status ndm_machine_facts_of_cores(const ndm_machine *machine, int64_t host,
                                                   int64_t first, int64_t n,
                                                   ndm_place_facts *facts);
void ndm_machine_facts_of_self(const ndm_machine *machine, int64_t host, ndm_place_facts *facts);

/* Keeps the process to cores first..first+n-1, with threads that it makes from now on.
 * NDM_ERR_UNSUPPORTED where the system refuses. */
NDM_MUST_USE ndm_status ndm_machine_bind_self(const ndm_machine *machine, int64_t first, int64_t n);

/* One line: "1 package, 1 NUMA node, 1 L3 (48 MiB), 2 cores, 2 PUs, 24 GiB". Returns text. */
const char *ndm_machine_summary(const ndm_machine *machine, char *text, size_t text_bytes);

/* The processor as it names itself, or "unknown". Belongs to the machine. */
const char *ndm_machine_processor(const ndm_machine *machine);

/* Version of hwloc. Returns text. */
const char *ndm_machine_library_version(char *text, size_t text_bytes);

#endif
