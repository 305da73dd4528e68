/* SPDX-License-Identifier: Apache-2.0 */
/* The table of one instruction set. Compiled once for each, with NDM_ISA its name. */
#include "kernels/fast_isa.h"

static bool probe(char *why, size_t why_bytes)
{
    return ndm_fast_cpu_has(NDM_ISA_NAME, why, why_bytes);
}

const ndm_kernel_table NDM_FAST_TABLE = {
    .name = NDM_ISA_NAME,
    .summary = NDM_ISA_SUMMARY,
    .device = "cpu",
    .priority = NDM_ISA_PRIORITY,
    .probe = probe,
    .body =
        {
#define FAST_BODY(name, doc) [NDM_OP_##name] = (void (*)(void))NDM_FAST(name),
            NDM_KERNEL_LIST(FAST_BODY)
#undef FAST_BODY
        },
};
