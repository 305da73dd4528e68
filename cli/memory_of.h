/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a tree of processes occupies, as the kernel counts it. */
#ifndef NDM_CLI_MEMORY_OF_H
#define NDM_CLI_MEMORY_OF_H

#include <stdint.h>

/* ndm_resident_bytes(), summed over pid and all its descendants that run this program, and how many
 * they are: a launcher between them does not count. */
int64_t ndm_memory_tree_pss_bytes(int64_t pid, int64_t *n);

/* Descendants of pid, children first: up to most of them. */
int64_t ndm_memory_descendants(int64_t pid, int64_t *pids, int64_t most);

#endif
