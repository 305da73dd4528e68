/* SPDX-License-Identifier: Apache-2.0 */
/* cuBLASLt: descriptors, one algorithm, products with bias, scales of fp8 tensors and the amax of
 * the result. */
#include "cuemu_cublas.h"

#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    cublasComputeType_t compute;
    cudaDataType_t scale_type;
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    bool has_bias_type;
    const void *bias;
    const float *scale_a, *scale_b, *scale_d;
    float *amax_d;
} matmul;

typedef struct {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld, stride;
    int batch;
} layout;

typedef struct {
    uint32_t align[4]; /* that callers promise for A, B, C, D; bytes */
    uint32_t schemes;  /* of reductions: a mask */
} preference;

typedef struct { /* what an algorithm was found for: used for anything else, GPUs fail or go wrong
                  */
    uint32_t magic, align[4];
    int m, n, k;
    bool reduced;
} algorithm;

enum { ALGORITHM_MAGIC = 0x63756c74, ALIGN_BYTES = 256 };

_Static_assert(sizeof(preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t), "fits");
_Static_assert(sizeof(algorithm) <= sizeof(cublasLtMatmulAlgo_t), "fits");
_Static_assert(sizeof(matmul) <= sizeof(cublasLtMatmulDescOpaque_t), "fits the opaque descriptor");
_Static_assert(sizeof(layout) <= sizeof(cublasLtMatrixLayoutOpaque_t), "fits the opaque layout");

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    cuemu_own_stream();
    if (cuemu_health())
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = malloc(1);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return CUBLAS_STATUS_SUCCESS;
}

size_t cublasLtGetVersion(void)
{
    return CUBLAS_VERSION;
}

/* ---- descriptors ---- */

cublasStatus_t cublasLtMatmulDescInit_internal(cublasLtMatmulDesc_t desc, size_t bytes,
                                               cublasComputeType_t compute,
                                               cudaDataType_t scale_type)
{
    if (bytes < sizeof(matmul))
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(desc, 0, bytes);
    *(matmul *)desc = (matmul){
        .compute = compute, .scale_type = scale_type, .epilogue = CUBLASLT_EPILOGUE_DEFAULT};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *desc, cublasComputeType_t compute,
                                        cudaDataType_t scale_type)
{
    *desc = calloc(1, sizeof **desc);
    if (!*desc)
        return CUBLAS_STATUS_ALLOC_FAILED;
    return cublasLtMatmulDescInit_internal(*desc, sizeof **desc, compute, scale_type);
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t assign(void *to, size_t size, const void *from, size_t bytes)
{
    if (bytes != size)
        return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(to, from, size);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t only_zero(const void *from, size_t bytes)
{
    int32_t value = 0;
    if (bytes <= sizeof value)
        memcpy(&value, from, bytes);
    return value || bytes > sizeof value ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

#define ASSIGN(field) assign(&(field), sizeof(field), from, bytes)

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void *from, size_t bytes)
{
    matmul *d = (matmul *)desc;
    switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return ASSIGN(d->trans_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return ASSIGN(d->trans_b);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return ASSIGN(d->epilogue);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return ASSIGN(d->bias);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        d->has_bias_type = true;
        return ASSIGN(d->bias_type);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return ASSIGN(d->scale_a);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return ASSIGN(d->scale_b);
    case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
        return ASSIGN(d->scale_d);
    case CUBLASLT_MATMUL_DESC_AMAX_D_POINTER:
        return ASSIGN(d->amax_d);
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
    case CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET:
        return CUBLAS_STATUS_SUCCESS;       /* speed only */
    case CUBLASLT_MATMUL_DESC_POINTER_MODE: /* host scalars */
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: /* one scale a tensor */
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
    case CUBLASLT_MATMUL_DESC_D_SCALE_MODE:
        return only_zero(from, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatrixLayoutInit_internal(cublasLtMatrixLayout_t desc, size_t bytes,
                                                 cudaDataType type, uint64_t rows, uint64_t columns,
                                                 int64_t ld)
{
    if (bytes < sizeof(layout))
        return CUBLAS_STATUS_INVALID_VALUE;
    memset(desc, 0, bytes);
    *(layout *)desc = (layout){
        .type = type, .rows = rows, .columns = columns, .ld = ld, .batch = 1};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *desc, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld)
{
    *desc = calloc(1, sizeof **desc);
    if (!*desc)
        return CUBLAS_STATUS_ALLOC_FAILED;
    return cublasLtMatrixLayoutInit_internal(*desc, sizeof **desc, type, rows, columns, ld);
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t desc,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void *from, size_t bytes)
{
    layout *l = (layout *)desc;
    switch (attribute) {
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        return ASSIGN(l->batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        return ASSIGN(l->stride);
    case CUBLASLT_MATRIX_LAYOUT_LD:
        return ASSIGN(l->ld);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        return ASSIGN(l->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        return ASSIGN(l->columns);
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        return ASSIGN(l->type);
    case CUBLASLT_MATRIX_LAYOUT_ORDER: /* column-major is 0 */
        return only_zero(from, bytes);
    default:
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

cublasStatus_t cublasLtMatmulPreferenceInit_internal(cublasLtMatmulPreference_t desc, size_t bytes)
{
    memset(desc, 0, bytes);
    for (int i = 0; i < 4; i++)
        ((preference *)desc)->align[i] = ALIGN_BYTES;
    ((preference *)desc)->schemes = CUBLASLT_REDUCTION_SCHEME_MASK;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *desc)
{
    *desc = calloc(1, sizeof **desc);
    if (!*desc)
        return CUBLAS_STATUS_ALLOC_FAILED;
    return cublasLtMatmulPreferenceInit_internal(*desc, sizeof **desc);
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t desc)
{
    free(desc);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t desc,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void *from, size_t bytes)
{
    preference *p = (preference *)desc;
    switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES:
        return ASSIGN(p->align[0]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES:
        return ASSIGN(p->align[1]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES:
        return ASSIGN(p->align[2]);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES:
        return ASSIGN(p->align[3]);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK:
        return ASSIGN(p->schemes);
    default: /* workspace, waves and such: the one algorithm asks for nothing */
        return CUBLAS_STATUS_SUCCESS;
    }
}

/* ---- products ---- */

static bool is_fp8(cuemu_type type)
{
    return type == CUEMU_E4M3 || type == CUEMU_E5M2;
}

/* What GPUs of 8.9 and 9.0 ask of fp8: A transposed, B not, sizes of 16, no two e5m2. */
static bool fp8_fits(const cuemu_gemm *g)
{
    return g->trans_a && !g->trans_b && is_fp8(g->type_a) && is_fp8(g->type_b) &&
           !(g->type_a == CUEMU_E5M2 && g->type_b == CUEMU_E5M2) && g->m % 16 == 0 &&
           g->n % 16 == 0 && g->k % 16 == 0 && g->lda % 16 == 0 && g->ldb % 16 == 0;
}

static bool types_fit(const cuemu_gemm *g)
{
    if (is_fp8(g->type_a) || is_fp8(g->type_b))
        return fp8_fits(g);
    return g->type_a == g->type_b && (g->type_d == g->type_a || g->type_d == CUEMU_F32) &&
           g->type_c == g->type_d && !g->scale_a && !g->scale_b && !g->scale_d && !g->amax_d;
}

static cublasStatus_t bias_of(const matmul *d, cuemu_gemm *g)
{
    cudaDataType_t fallback = g->type_d == CUEMU_F32 && !is_fp8(g->type_a) ? CUDA_R_32F
                              : g->type_d == CUEMU_F16                     ? CUDA_R_16F
                                                                           : CUDA_R_16BF;
    if (d->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
        return CUBLAS_STATUS_SUCCESS;
    if (d->epilogue != CUBLASLT_EPILOGUE_BIAS ||
        !cuemu_blas_type(d->has_bias_type ? d->bias_type : fallback, &g->type_bias))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    g->bias = d->bias;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t describe(const matmul *d, const layout *a, const layout *b, const layout *c,
                               const layout *o, cuemu_gemm *g)
{
    bool tf32 = d->compute == CUBLAS_COMPUTE_32F_FAST_TF32;
    *g = (cuemu_gemm){.trans_a = d->trans_a != CUBLAS_OP_N,
                      .trans_b = d->trans_b != CUBLAS_OP_N,
                      .batch = o->batch,
                      .m = (int)o->rows,
                      .n = (int)o->columns,
                      .lda = a->ld,
                      .ldb = b->ld,
                      .ldc = c->ld,
                      .ldd = o->ld,
                      .stride_a = a->stride,
                      .stride_b = b->stride,
                      .stride_c = c->stride,
                      .stride_d = o->stride,
                      .scale_a = d->scale_a,
                      .scale_b = d->scale_b,
                      .scale_d = d->scale_d,
                      .amax_d = d->amax_d};
    g->k = (int)(g->trans_a ? a->rows : a->columns);
    if (!cuemu_blas_type(a->type, &g->type_a) || !cuemu_blas_type(b->type, &g->type_b) ||
        !cuemu_blas_type(c->type, &g->type_c) || !cuemu_blas_type(o->type, &g->type_d) ||
        !(tf32 || d->compute == CUBLAS_COMPUTE_32F) || d->scale_type != CUDA_R_32F || !types_fit(g))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    g->tf32 = tf32 && g->type_a == CUEMU_F32;
    if ((g->trans_a ? a->columns : a->rows) != o->rows ||
        (g->trans_b ? b->columns : b->rows) != (uint64_t)g->k ||
        (g->trans_b ? b->rows : b->columns) != o->columns || c->rows != o->rows ||
        c->columns != o->columns)
        return CUBLAS_STATUS_INVALID_VALUE;
    return bias_of(d, g);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t limits, int asked,
                                              cublasLtMatmulHeuristicResult_t results[], int *found)
{
    cuemu_gemm g;
    *found = 0;
    if (!handle || !limits || asked < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = describe((const matmul *)desc, (const layout *)a, (const layout *)b,
                                     (const layout *)c, (const layout *)d, &g);
    if (status)
        return status;
    algorithm *best = (algorithm *)&results[0].algo;
    memset(&results[0], 0, sizeof results[0]);
    results[0].wavesCount = 1;
    *best = (algorithm){.magic = ALGORITHM_MAGIC, .m = g.m, .n = g.n, .k = g.k};
    best->reduced = ((const preference *)limits)->schemes & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    memcpy(best->align, ((const preference *)limits)->align, sizeof best->align);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
}

static bool algorithm_fits(const algorithm *x, const cuemu_gemm *g)
{
    const void *at[] = {g->a, g->b, g->beta != 0 ? g->c : NULL, g->d};
    static const char names[] = "ABCD";
    if (!x)
        return true;
    if (x->magic != ALGORITHM_MAGIC || x->m != g->m || x->n != g->n || x->k != g->k) {
        fprintf(stderr, "cuemu: cuBLASLt: an algorithm for %d x %d x %d, used for %d x %d x %d\n",
                x->m, x->n, x->k, g->m, g->n, g->k);
        return false;
    }
    for (int i = 0; i < 4; i++)
        if (x->align[i] && (uintptr_t)at[i] % x->align[i]) {
            fprintf(stderr, "cuemu: cuBLASLt: %c at %p is not on %u bytes, as was promised\n",
                    names[i], at[i], x->align[i]);
            return false;
        }
    return true;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t layout_a, const void *b,
                              cublasLtMatrixLayout_t layout_b, const void *beta, const void *c,
                              cublasLtMatrixLayout_t layout_c, void *d,
                              cublasLtMatrixLayout_t layout_d, const cublasLtMatmulAlgo_t *chosen,
                              void *workspace, size_t workspace_bytes, cudaStream_t stream)
{
    cuemu_gemm g;
    if (!handle || (workspace_bytes && !cuemu_is_device(workspace, workspace_bytes)))
        return CUBLAS_STATUS_INVALID_VALUE;
    cublasStatus_t status = describe((const matmul *)desc, (const layout *)layout_a,
                                     (const layout *)layout_b, (const layout *)layout_c,
                                     (const layout *)layout_d, &g);
    if (status)
        return status;
    g.alpha = *(const float *)alpha;
    g.beta = *(const float *)beta;
    g.a = a;
    g.b = b;
    g.c = c;
    g.d = d;
    g.reduced = !chosen || ((const algorithm *)chosen)->reduced;
    return algorithm_fits((const algorithm *)chosen, &g) ? cuemu_blas_product(&g, stream)
                                                         : CUBLAS_STATUS_INVALID_VALUE;
}
