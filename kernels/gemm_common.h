/* SPDX-License-Identifier: Apache-2.0 */
/* What the GEMM kernels of the cpu world share: cutting a product over threads, and the parts that
 * libraries lack. */
#ifndef NDM_KERNELS_GEMM_COMMON_H
#define NDM_KERNELS_GEMM_COMMON_H

#include "kernels/fast.h"

/* Computes one product on the calling thread alone. */
typedef ndm_status (*ndm_gemm_piece)(const ndm_gemm_args *args);

/* How C may be cut into a grid of blocks, one a thread. K is never cut, so that a piece which sums
 * in an order that depends on K alone gives the same bits for any number of threads. */
typedef struct ndm_gemm_cut {
    int64_t row_unit,
        column_unit;     /* blocks are whole multiples, but the last; column_unit 0: rows only */
    int64_t least_rows;  /* of a block */
    int64_t least_flops; /* of a block */
} ndm_gemm_cut;

ndm_status ndm_gemm_run(const ndm_gemm_args *args, const ndm_gemm_cut *cut, ndm_gemm_piece piece);

/* C += bias on every row. */
void ndm_gemm_add_bias(const ndm_gemm_args *args);

/* The native kernel of each instruction set, and of the best one that this CPU has. */
ndm_status ndm_portable_gemm(const void *args);
ndm_status ndm_avx2_gemm(const void *args);
ndm_status ndm_avx512_gemm(const void *args);
ndm_status ndm_native_gemm(const void *args);

#endif
