/* SPDX-License-Identifier: Apache-2.0 */
/* The table of the native GEMM: fast_gemm.c in the best instruction set of this CPU. */
#include <stdio.h>

#include "kernels/gemm_common.h"

typedef struct native_choice {
    const char *isa;
    ndm_host_body gemm;
} native_choice;

static const native_choice choices[] = {
#if defined(NDM_HAVE_X86)
    {"avx512", ndm_avx512_gemm},
    {"avx2", ndm_avx2_gemm},
#endif
    {"portable", ndm_portable_gemm},
};

static const native_choice *choose(void)
{
    char why[64];
    const native_choice *choice = choices;

    while (!ndm_fast_cpu_has(choice->isa, why, sizeof why))
        choice++;
    return choice;
}

ndm_status ndm_native_gemm(const void *args)
{
    static _Atomic(const native_choice *) known;
    const native_choice *choice = known;

    if (!choice)
        known = choice = choose();
    return choice->gemm(args);
}

/* Where only portable code runs, a library is better. */
static bool probe(char *why, size_t why_bytes)
{
    const char *isa = choose()->isa;

    (void)snprintf(why, why_bytes, "in %s", isa);
    return strcmp(isa, "portable") != 0;
}

const ndm_kernel_table ndm_kernels_native = {
    .name = "native",
    .summary = "gemm: own packed kernel, in the best instruction set of the CPU",
    .device = "cpu",
    .priority = 50,
    .probe = probe,
    .body = {[NDM_OP_gemm] = (void (*)(void))ndm_native_gemm},
};
