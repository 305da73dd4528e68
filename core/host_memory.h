/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that processes of this host may use in all. */
#ifndef NDM_CORE_HOST_MEMORY_H
#define NDM_CORE_HOST_MEMORY_H

#include <stdint.h>

/* The smaller of the machine's memory and the limits of this process's control groups, in bytes. No
 * number that moves while others run; 0 where nothing is known. */
int64_t ndm_host_memory_bytes(void);

/* The same of another root: `proc_cgroup` as /proc/self/cgroup, the groups mounted at `mount`, and
 * a machine of so many bytes. */
int64_t ndm_host_memory_of(const char *proc_cgroup, const char *mount, int64_t machine_bytes);

#endif
