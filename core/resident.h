/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that a process occupies, as the kernel counts it. */
#ifndef NDM_CORE_RESIDENT_H
#define NDM_CORE_RESIDENT_H

#include <stdint.h>

/* Resident bytes, pages that processes share divided among them, so that ranks can be added up. -1
 * where the kernel does not say. pid 0: this process. */
int64_t ndm_resident_bytes(int64_t pid);

#endif
