/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLAS: handles and matrix products, executed by cuemu_gemm.c in the device process. */
#include "cuemu_cublas.h"

#include <stdio.h>
#include <stdlib.h>

struct cublasContext {
    cudaStream_t stream;
    cublasMath_t math;
    cublasAtomicsMode_t atomics;
    cublasPointerMode_t pointers;
};

bool cuemu_blas_type(cudaDataType type, cuemu_type *out)
{
    static const struct {
        cudaDataType from;
        cuemu_type to;
    } types[] = {{CUDA_R_32F, CUEMU_F32},
                 {CUDA_R_16BF, CUEMU_BF16},
                 {CUDA_R_16F, CUEMU_F16},
                 {CUDA_R_8F_E4M3, CUEMU_E4M3},
                 {CUDA_R_8F_E5M2, CUEMU_E5M2}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].from == type) {
            *out = types[i].to;
            return true;
        }
    return false;
}

static bool on_device(const char *name, const void *at, cuemu_type type, int64_t rows,
                      int64_t columns, int64_t ld, int64_t stride, int batch)
{
    int64_t last = stride * (batch - 1) + ld * (columns - 1) + rows;
    if (cuemu_is_device(at, (size_t)last * cuemu_type_bytes(type)))
        return true;
    fprintf(stderr, "cuemu: cuBLAS: %s at %p, %lld elements, is not device memory\n", name, at,
            (long long)last);
    return false;
}

cublasStatus_t cuemu_blas_product(const cuemu_gemm *g, cudaStream_t stream)
{
    if (g->m < 0 || g->n < 0 || g->k < 0 || g->batch < 1 || g->lda < (g->trans_a ? g->k : g->m) ||
        g->ldb < (g->trans_b ? g->n : g->k) || g->ldc < g->m || g->ldd < g->m)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!g->m || !g->n)
        return CUBLAS_STATUS_SUCCESS;
    int64_t rows_a = g->trans_a ? g->k : g->m, rows_b = g->trans_b ? g->n : g->k;
    if (g->k && (!on_device("A", g->a, g->type_a, rows_a, g->m + g->k - rows_a, g->lda, g->stride_a,
                            g->batch) ||
                 !on_device("B", g->b, g->type_b, rows_b, g->n + g->k - rows_b, g->ldb, g->stride_b,
                            g->batch)))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!on_device("D", g->d, g->type_d, g->m, g->n, g->ldd, g->stride_d, g->batch) ||
        (g->beta != 0 &&
         !on_device("C", g->c, g->type_c, g->m, g->n, g->ldc, g->stride_c, g->batch)))
        return CUBLAS_STATUS_INVALID_VALUE;
    cuemu_record r = {.kind = CUEMU_GEMM, .u.gemm = *g};
    return cuemu_push(stream, &r) ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

/* ---- handles ---- */

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle)
{
    cuemu_own_stream();
    if (cuemu_health())
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetVersion_v2(cublasHandle_t handle, int *version)
{
    (void)handle;
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream)
{
    if (!cuemu_stream_valid(stream))
        return CUBLAS_STATUS_INVALID_VALUE;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetStream_v2(cublasHandle_t handle, cudaStream_t *stream)
{
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t bytes)
{
    if (!handle || (bytes && !cuemu_is_device(workspace, bytes)) || (uintptr_t)workspace % 256)
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t mode)
{
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t *mode)
{
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetAtomicsMode(cublasHandle_t handle, cublasAtomicsMode_t mode)
{
    handle->atomics = mode;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode)
{
    handle->pointers = mode;
    return mode == CUBLAS_POINTER_MODE_HOST ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- products ---- */

cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t transa,
                                          cublasOperation_t transb, int m, int n, int k,
                                          const void *alpha, const void *a, cudaDataType type_a,
                                          int lda, long long stride_a, const void *b,
                                          cudaDataType type_b, int ldb, long long stride_b,
                                          const void *beta, void *c, cudaDataType type_c, int ldc,
                                          long long stride_c, int batch,
                                          cublasComputeType_t compute, cublasGemmAlgo_t algorithm)
{
    (void)algorithm;
    if (!handle || !handle->stream)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    cuemu_gemm g = {.trans_a = transa != CUBLAS_OP_N,
                    .trans_b = transb != CUBLAS_OP_N,
                    .m = m,
                    .n = n,
                    .k = k,
                    .batch = batch,
                    .lda = lda,
                    .ldb = ldb,
                    .ldc = ldc,
                    .ldd = ldc,
                    .stride_a = stride_a,
                    .stride_b = stride_b,
                    .stride_c = stride_c,
                    .stride_d = stride_c,
                    .alpha = *(const float *)alpha,
                    .beta = *(const float *)beta,
                    .a = a,
                    .b = b,
                    .c = c,
                    .d = c};
    bool pedantic = compute == CUBLAS_COMPUTE_32F_PEDANTIC,
         tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    if (!cuemu_blas_type(type_a, &g.type_a) || !cuemu_blas_type(type_b, &g.type_b) ||
        !cuemu_blas_type(type_c, &g.type_c) || g.type_a != g.type_b || g.type_a > CUEMU_F16 ||
        (g.type_c != g.type_a && g.type_c != CUEMU_F32) ||
        !(compute == CUBLAS_COMPUTE_32F || pedantic || tf32))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    g.type_d = g.type_c;
    tf32 = tf32 || (!pedantic && handle->math & CUBLAS_TF32_TENSOR_OP_MATH);
    g.tf32 = tf32 && g.type_a == CUEMU_F32;
    g.reduced = !(handle->math & CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    return cuemu_blas_product(&g, handle->stream);
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t transa,
                            cublasOperation_t transb, int m, int n, int k, const void *alpha,
                            const void *a, cudaDataType type_a, int lda, const void *b,
                            cudaDataType type_b, int ldb, const void *beta, void *c,
                            cudaDataType type_c, int ldc, cublasComputeType_t compute,
                            cublasGemmAlgo_t algorithm)
{
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, type_a, lda, 0, b,
                                      type_b, ldb, 0, beta, c, type_c, ldc, 0, 1, compute,
                                      algorithm);
}

cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t transa,
                              cublasOperation_t transb, int m, int n, int k, const float *alpha,
                              const float *a, int lda, const float *b, int ldb, const float *beta,
                              float *c, int ldc)
{
    return cublasGemmEx(handle, transa, transb, m, n, k, alpha, a, CUDA_R_32F, lda, b, CUDA_R_32F,
                        ldb, beta, c, CUDA_R_32F, ldc, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
}

cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t transa,
                                         cublasOperation_t transb, int m, int n, int k,
                                         const float *alpha, const float *a, int lda,
                                         long long stride_a, const float *b, int ldb,
                                         long long stride_b, const float *beta, float *c, int ldc,
                                         long long stride_c, int batch)
{
    return cublasGemmStridedBatchedEx(handle, transa, transb, m, n, k, alpha, a, CUDA_R_32F, lda,
                                      stride_a, b, CUDA_R_32F, ldb, stride_b, beta, c, CUDA_R_32F,
                                      ldc, stride_c, batch, CUBLAS_COMPUTE_32F,
                                      CUBLAS_GEMM_DEFAULT);
}

const char *cublasGetStatusName(cublasStatus_t status)
{
    static const char *names[] = {
        [CUBLAS_STATUS_SUCCESS] = "CUBLAS_STATUS_SUCCESS",
        [CUBLAS_STATUS_NOT_INITIALIZED] = "CUBLAS_STATUS_NOT_INITIALIZED",
        [CUBLAS_STATUS_ALLOC_FAILED] = "CUBLAS_STATUS_ALLOC_FAILED",
        [CUBLAS_STATUS_INVALID_VALUE] = "CUBLAS_STATUS_INVALID_VALUE",
        [CUBLAS_STATUS_ARCH_MISMATCH] = "CUBLAS_STATUS_ARCH_MISMATCH",
        [CUBLAS_STATUS_MAPPING_ERROR] = "CUBLAS_STATUS_MAPPING_ERROR",
        [CUBLAS_STATUS_EXECUTION_FAILED] = "CUBLAS_STATUS_EXECUTION_FAILED",
        [CUBLAS_STATUS_INTERNAL_ERROR] = "CUBLAS_STATUS_INTERNAL_ERROR",
        [CUBLAS_STATUS_NOT_SUPPORTED] = "CUBLAS_STATUS_NOT_SUPPORTED",
    };
    bool known = (size_t)status < sizeof names / sizeof *names && names[status];
    return known ? names[status] : "unknown cuBLAS status";
}

const char *cublasGetStatusString(cublasStatus_t status)
{
    return cublasGetStatusName(status);
}
