/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix product on CUDA, by cuBLAS. Sums are in fp32; fp32 operands are multiplied as such
 * unless NDM_CUDA_TF32 is set to 1 in the environment.
 *
 * cuBLAS stores columns, the engine rows: C = op(A) op(B) of rows is C' = op(B)' op(A)' of columns,
 * so the operands change places and keep their transposes. 8-bit operands are multiplied as such
 * where that can be (gemm_eight.c), else in bf16: the same numbers, slower. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/gemm.h"

static bool blas_type(ndm_dtype dtype, cudaDataType_t *type)
{
    if (dtype == NDM_F32)
        *type = CUDA_R_32F;
    else if (dtype == NDM_BF16)
        *type = CUDA_R_16BF;
    else if (dtype == NDM_F16)
        *type = CUDA_R_16F;
    else
        return false;
    return true;
}

static cublasComputeType_t compute_type(ndm_dtype operands)
{
    const char *tf32 = getenv("NDM_CUDA_TF32");
    if (operands == NDM_F32 && tf32 && strcmp(tf32, "1") == 0)
        return CUBLAS_COMPUTE_32F_FAST_TF32;
    return CUBLAS_COMPUTE_32F;
}

/* cuBLAS counts in int. */
static ndm_status check_sizes(const ndm_gemm_args *a)
{
    if (a->m > INT32_MAX || a->n > INT32_MAX || a->k > INT32_MAX || a->lda > INT32_MAX ||
        a->ldb > INT32_MAX || a->ldc > INT32_MAX)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "kernel gemm: m %lld n %lld k %lld, strides %lld %lld %lld: cuBLAS takes 31 bits",
                 (long long)a->m, (long long)a->n, (long long)a->k, (long long)a->lda,
                 (long long)a->ldb, (long long)a->ldc);
    return NDM_OK;
}

/* With the bias, if there is one. cuBLASLt adds one of C's type before it rounds; another type, or
 * a shape that it has no algorithm for, takes a pass of our own. */
static ndm_status multiply(ndm_stream *stream, const ndm_gemm_args *a)
{
    cublasComputeType_t compute = compute_type(a->a_dtype);
    cudaDataType_t operands, result;
    cublasHandle_t handle;
    bool done = false;

    if (!blas_type(a->a_dtype, &operands) || !blas_type(a->c_dtype, &result))
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel gemm: dtypes %d, %d: fp32, bf16 or fp16 on cuda",
                 (int)a->a_dtype, (int)a->c_dtype);
    if (a->bias && a->b_dtype == a->c_dtype)
        NDM_TRY(ndm_cuda_gemm_lt(
            stream, a, &(ndm_cuda_gemm_types){operands, operands, result, compute}, &done));
    if (done)
        return NDM_OK;
    NDM_TRY(ndm_cuda_blas(stream, &handle));
    NDM_BLAS_TRY("gemm", cublasGemmEx(handle, a->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                                      a->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N, (int)a->n, (int)a->m,
                                      (int)a->k, &a->alpha, a->b, operands, (int)a->ldb, a->a,
                                      operands, (int)a->lda, &a->beta, a->c, result, (int)a->ldc,
                                      compute, CUBLAS_GEMM_DEFAULT));
    return a->bias ? ndm_cuda_gemm_finish(stream, a, 1.0f) : NDM_OK;
}

/* Packed copies in fp32 of what is narrower, and of C when it is none that fp32 operands can give.
 */
static ndm_status multiply_widened(ndm_stream *stream, const ndm_gemm_args *args)
{
    ndm_gemm_args a = *args;
    int64_t a_rows = a.trans_a ? a.k : a.m, a_width = a.trans_a ? a.m : a.k;
    int64_t b_rows = a.trans_b ? a.n : a.k, b_width = a.trans_b ? a.k : a.n;
    int64_t a_count = a.a_dtype == NDM_F32 ? 0 : (a_rows * a_width + 63) / 64 * 64;
    int64_t b_count = a.b_dtype == NDM_F32 ? 0 : (b_rows * b_width + 63) / 64 * 64;
    int64_t c_count = a.c_dtype == NDM_F32 ? 0 : a.m * a.n;
    void *memory = NULL;

    NDM_TRY(
        ndm_cuda_scratch(stream, (a_count + b_count + c_count) * (int64_t)sizeof(float), &memory));
    float *wide_a = memory, *wide_b = wide_a + a_count, *wide_c = wide_b + b_count;
    if (a_count > 0) {
        NDM_TRY(ndm_cuda_gemm_widen(stream, a.a, a.a_dtype, a_rows, a_width, a.lda, wide_a));
        a.a = wide_a, a.lda = a_width;
    }
    if (b_count > 0) {
        NDM_TRY(ndm_cuda_gemm_widen(stream, a.b, a.b_dtype, b_rows, b_width, a.ldb, wide_b));
        a.b = wide_b, a.ldb = b_width;
    }
    a.a_dtype = a.b_dtype = NDM_F32;
    a.bias = NULL; /* of the type that b had: added at the end */
    if (c_count == 0)
        return multiply(stream, &a);
    if (a.beta != 0.0f)
        NDM_TRY(ndm_cuda_gemm_widen(stream, a.c, a.c_dtype, a.m, a.n, a.ldc, wide_c));
    a.c = wide_c, a.c_dtype = NDM_F32, a.ldc = a.n;
    NDM_TRY(multiply(stream, &a));
    return ndm_cuda_gemm_narrow(stream, wide_c, args);
}

/* In bf16, which holds 8-bit numbers and their scales exactly. */
static ndm_status multiply_eight_widened(ndm_stream *stream, const ndm_gemm_args *args)
{
    ndm_gemm_args a = *args;
    int64_t a_rows = a.trans_a ? a.k : a.m, a_width = a.trans_a ? a.m : a.k;
    int64_t b_rows = a.trans_b ? a.n : a.k, b_width = a.trans_b ? a.k : a.n;
    int64_t a_bytes = (a_rows * a_width + 63) / 64 * 128, b_bytes = b_rows * b_width * 2;
    void *memory = NULL;

    NDM_TRY(ndm_cuda_scratch(stream, a_bytes + b_bytes, &memory));
    char *wide_a = memory, *wide_b = wide_a + a_bytes;
    NDM_TRY(ndm_cuda_gemm_widen_eight(stream, a.a, a.a_dtype, a_rows, a_width, a.lda, a.a_scale,
                                      wide_a));
    NDM_TRY(ndm_cuda_gemm_widen_eight(stream, a.b, a.b_dtype, b_rows, b_width, a.ldb, a.b_scale,
                                      wide_b));
    a.a = wide_a, a.lda = a_width, a.b = wide_b, a.ldb = b_width;
    a.a_dtype = a.b_dtype = NDM_BF16;
    a.bias = NULL;
    return multiply(stream, &a);
}

/* The bias has a type of its own. */
static ndm_status multiply_eight(ndm_stream *stream, const ndm_gemm_args *args)
{
    ndm_gemm_args a = *args;
    bool done;

    if (a.c_dtype != NDM_F32 && a.c_dtype != NDM_BF16)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel gemm: 8-bit products are fp32 or bf16 on cuda");
    NDM_TRY(ndm_cuda_gemm_eight(stream, &a, &done));
    if (!done)
        NDM_TRY(multiply_eight_widened(stream, &a));
    a.b_dtype = a.bias_dtype;
    return a.bias ? ndm_cuda_gemm_finish(stream, &a, 1.0f) : NDM_OK;
}

ndm_status ndm_cuda_gemm(ndm_stream *stream, const void *args)
{
    const ndm_gemm_args *a = args;
    bool eight = a->a_dtype == NDM_F8E4M3 || a->a_dtype == NDM_F8E5M2;
    bool wide = a->a_dtype != a->b_dtype || (a->a_dtype == NDM_F32 && a->c_dtype != NDM_F32) ||
                (a->a_dtype != a->c_dtype && a->c_dtype != NDM_F32);

    NDM_TRY(check_sizes(a));
    if (eight && a->k > 0)
        return multiply_eight(stream, a);
    if (a->k == 0)
        return ndm_cuda_gemm_finish(stream, a, a->beta);
    if (!wide)
        return multiply(stream, a);
    NDM_TRY(multiply_widened(stream, a));
    return a->bias ? ndm_cuda_gemm_finish(stream, a, 1.0f) : NDM_OK;
}
