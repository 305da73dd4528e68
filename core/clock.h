/* SPDX-License-Identifier: Apache-2.0 */
/* Monotonic time and deadlines. */
#ifndef NDM_CORE_CLOCK_H
#define NDM_CORE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#include "core/module.h"

NDM_MODULE_API int64_t ndm_clock_ns(void); /* monotonic */
double ndm_clock_s(void);                  /* monotonic, seconds */
int64_t ndm_clock_thread_ns(void);         /* processor time of the calling thread */
NDM_MODULE_API void ndm_clock_yield(void); /* sched_yield */

#endif
