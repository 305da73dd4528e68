/* SPDX-License-Identifier: Apache-2.0 */
/* What sets one instruction set's table apart from another's. */
#ifndef NDM_KERNELS_FAST_ISA_H
#define NDM_KERNELS_FAST_ISA_H

#include "kernels/fast.h"

#if defined(NDM_ISA_AVX512)
#define NDM_FAST_TABLE ndm_kernels_avx512
#define NDM_ISA_NAME "avx512"
#define NDM_ISA_SUMMARY "16 floats: AVX-512 F, BW, DQ, VL"
#define NDM_ISA_PRIORITY 30
#elif defined(NDM_ISA_AVX2)
#define NDM_FAST_TABLE ndm_kernels_avx2
#define NDM_ISA_NAME "avx2"
#define NDM_ISA_SUMMARY "8 floats: AVX2, FMA, F16C"
#define NDM_ISA_PRIORITY 20
#else
#define NDM_FAST_TABLE ndm_kernels_portable
#define NDM_ISA_NAME "portable"
#define NDM_ISA_SUMMARY "4 floats, in the compiler's vector types"
#define NDM_ISA_PRIORITY 10
#endif

#endif
