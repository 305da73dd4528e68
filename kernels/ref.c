/* SPDX-License-Identifier: Apache-2.0 */
/* The table of reference kernels: complete, and the fallback of every other table of the cpu world.
 */
#include "kernels/ref.h"

const ndm_kernel_table ndm_kernels_ref = {
    .name = "ref",
    .summary = "plain loops with sums in double; the truth that others are compared with",
    .device = "cpu",
    .priority = 0,
    .body =
        {
#define REF_BODY(name, doc) [NDM_OP_##name] = (void (*)(void))ndm_ref_##name,
            NDM_KERNEL_LIST(REF_BODY)
#undef REF_BODY
        },
};
