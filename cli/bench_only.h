/* SPDX-License-Identifier: Apache-2.0 */
/* Steps without their communication, or without their compute: what each would take alone. */
#ifndef NDM_CLI_BENCH_ONLY_H
#define NDM_CLI_BENCH_ONLY_H

#include <ndmesh/context.h>

/* In the order of the option's choices. */
typedef enum ndm_bench_only {
    NDM_ONLY_ALL,
    NDM_ONLY_COMPUTE,
    NDM_ONLY_COMMUNICATION
} ndm_bench_only;

/* From now on, for good: kernels are not run, or collectives that are issued on streams move
 * nothing. What is computed means nothing any more. Communicators that are made later work. */
void ndm_bench_leave_out(ndm_context *context, ndm_bench_only only);

#endif
