/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 8-bit numbers by cuBLASLt, on devices that multiply them (sm_89 and later).
 *
 * It takes both operands with the terms of a sum side by side, sizes and strides that are multiples
 * of 16, and not e5m2 twice. An operand that lies the other way is turned first: a byte an element,
 * which is little beside the product. Sums are in fp32 and scales are applied to them. */
#include "kernels/cuda/gemm.h"

enum { LEAST_CAPABILITY = 89, MULTIPLE = 16 };

static cudaDataType_t type_of(ndm_dtype dtype)
{
    return dtype == NDM_F8E4M3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}

static bool fits(const void *pointer, int64_t stride)
{
    return (uintptr_t)pointer % MULTIPLE == 0 && stride % MULTIPLE == 0;
}

/* An operand that is turned needs no alignment where it lies. */
static bool possible(const ndm_stream *stream, const ndm_gemm_args *a)
{
    return ndm_cuda_capability(stream) >= LEAST_CAPABILITY &&
           !(a->a_dtype == NDM_F8E5M2 && a->b_dtype == NDM_F8E5M2) && a->m % MULTIPLE == 0 &&
           a->n % MULTIPLE == 0 && a->k % MULTIPLE == 0 && fits(a->c, a->ldc) &&
           (a->trans_a || fits(a->a, a->lda)) && (!a->trans_b || fits(a->b, a->ldb));
}

/* A as [M, K] and B as [N, K]. */
static ndm_status turn(ndm_stream *stream, ndm_gemm_args *a)
{
    int64_t a_bytes = a->trans_a ? a->m * a->k : 0, b_bytes = a->trans_b ? 0 : a->n * a->k;
    void *memory = NULL;

    if (a_bytes + b_bytes == 0)
        return NDM_OK;
    NDM_TRY(ndm_cuda_scratch(stream, a_bytes + b_bytes, &memory)); /* multiples of 256 */
    char *turned_a = memory, *turned_b = turned_a + a_bytes;
    if (a_bytes > 0) {
        NDM_TRY(ndm_cuda_gemm_turn_eight(stream, a->a, a->k, a->m, a->lda, turned_a));
        a->a = turned_a, a->lda = a->k, a->trans_a = false;
    }
    if (b_bytes > 0) {
        NDM_TRY(ndm_cuda_gemm_turn_eight(stream, a->b, a->k, a->n, a->ldb, turned_b));
        a->b = turned_b, a->ldb = a->k, a->trans_b = true;
    }
    return NDM_OK;
}

ndm_status ndm_cuda_gemm_eight(ndm_stream *stream, const ndm_gemm_args *args, bool *done)
{
    ndm_gemm_args a = *args;

    *done = false;
    if (!possible(stream, &a))
        return NDM_OK;
    a.bias = NULL;
    NDM_TRY(turn(stream, &a));
    return ndm_cuda_gemm_lt(stream, &a,
                            &(ndm_cuda_gemm_types){type_of(a.a_dtype), type_of(a.b_dtype),
                                                   a.c_dtype == NDM_F32 ? CUDA_R_32F : CUDA_R_16BF,
                                                   CUBLAS_COMPUTE_32F},
                            done);
}
