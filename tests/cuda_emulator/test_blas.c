/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cuBLAS and cuBLASLt against a plain loop in the same order of sums. */
#include "cuemu_shared.h"
#include "test_common.h"

#include <cublas_v2.h>
#include <cublasLt.h>

typedef struct {
    int m, n, k, batch;
    bool trans_a, trans_b;
    float alpha, beta;
    cudaDataType type, type_c;
} product;

static cublasHandle_t handle;
static cublasLtHandle_t lt;
static cudaStream_t stream;
static uint32_t seed = 5;

static size_t size_of(cudaDataType type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 1;
}

static float get(const void *p, size_t i, cudaDataType type)
{
    if (type == CUDA_R_32F)
        return ((const float *)p)[i];
    if (type == CUDA_R_16BF)
        return ndm_bf16_to_f32(((const uint16_t *)p)[i]);
    unsigned bits = ((const uint8_t *)p)[i], e4m3 = type == CUDA_R_8F_E4M3;
    int exponent = (int)(bits >> (e4m3 ? 3 : 2) & (e4m3 ? 15 : 31)),
        mantissa = (int)(bits & (e4m3 ? 7 : 3));
    int scale = e4m3 ? 8 : 4, bias = e4m3 ? 7 : 15;
    float size = exponent ? ldexpf((float)(scale + mantissa) / (float)scale, exponent - bias)
                          : ldexpf((float)mantissa / (float)scale, 1 - bias);
    return bits & 0x80 ? -size : size;
}

static void *random_matrix(size_t n, cudaDataType type)
{
    void *p = malloc(n * size_of(type));
    for (size_t i = 0; i < n; i++)
        if (type == CUDA_R_32F)
            ((float *)p)[i] = random_float(&seed);
        else if (type == CUDA_R_16BF)
            ((uint16_t *)p)[i] = ndm_f32_to_bf16(random_float(&seed));
        else /* finite fp8 up to about 2 */
            ((uint8_t *)p)[i] = (uint8_t)((seed = seed * 1664525u + 1013904223u) >> 24 & 0xbf);
    return p;
}

/* The sum of c[i, j] over k in ascending order, each step rounded to fp32, as the emulator does. */
static float naive(const product *p, const void *a, int lda, const void *b, int ldb, int i, int j)
{
    volatile float sum = 0;
    for (int x = 0; x < p->k; x++) {
        volatile float t = get(a, (size_t)(p->trans_a ? x + i * lda : i + x * lda), p->type) *
                           get(b, (size_t)(p->trans_b ? j + x * ldb : x + j * ldb), p->type);
        sum += t;
    }
    return sum;
}

static float rounded(float value, cudaDataType type)
{
    return type == CUDA_R_16BF ? ndm_bf16_to_f32(ndm_f32_to_bf16(value)) : value;
}

static void check(const product *p)
{
    int lda = (p->trans_a ? p->k : p->m) + 3, ldb = (p->trans_b ? p->n : p->k) + 1, ldc = p->m + 2;
    size_t na = (size_t)lda * (size_t)(p->trans_a ? p->m : p->k),
           nb = (size_t)ldb * (size_t)(p->trans_b ? p->k : p->n);
    size_t nc = (size_t)ldc * (size_t)p->n, batch = (size_t)p->batch, es = size_of(p->type);
    void *a = random_matrix(na * batch, p->type), *b = random_matrix(nb * batch, p->type);
    void *c = random_matrix(nc * batch, p->type_c), *got = malloc(nc * batch * size_of(p->type_c));
    void *da = on_device(a, na * batch * es), *db = on_device(b, nb * batch * es);
    void *dc = on_device(c, nc * batch * size_of(p->type_c));
    OK(cublasGemmStridedBatchedEx(handle, p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                                  p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N, p->m, p->n, p->k,
                                  &p->alpha, da, p->type, lda, (long long)na, db, p->type, ldb,
                                  (long long)nb, &p->beta, dc, p->type_c, ldc, (long long)nc,
                                  p->batch, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    fetch(got, dc, nc * batch * size_of(p->type_c), stream);
    for (size_t z = 0; z < batch; z++)
        for (int j = 0; j < p->n; j++)
            for (int i = 0; i < ldc; i++) {
                size_t at = z * nc + (size_t)(i + j * ldc);
                float before = get(c, at, p->type_c), want = before;
                if (i < p->m) {
                    volatile float sum = naive(p, (char *)a + z * na * es, lda,
                                               (char *)b + z * nb * es, ldb, i, j);
                    volatile float scaled = p->alpha * sum, kept = p->beta * before;
                    want = rounded(p->beta != 0 ? scaled + kept : scaled, p->type_c);
                }
                assert_true(get(got, at, p->type_c) == want); /* rows beyond m are untouched */
            }
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dc));
    free(a);
    free(b);
    free(c);
    free(got);
}

static void products_equal_a_plain_loop(void **state)
{
    (void)state;
    for (int t = 0; t < 4; t++)
        for (int type = 0; type < 3; type++) {
            cudaDataType in = type ? CUDA_R_16BF : CUDA_R_32F,
                         out = type == 2 ? CUDA_R_16BF : CUDA_R_32F;
            check(&(product){37, 29, 53, 1, t & 1, t >> 1, 1, 0, in, out});
            check(&(product){16, 300, 8, 3, t & 1, t >> 1, 0.5f, 1, in, out});
            check(&(product){1, 1, 1, 1, t & 1, t >> 1, 2, -1, in, out});
        }
}

static void tf32_only_where_asked(void **state)
{
    (void)state;
    float a = 1 + 0x1p-12f, one = 1, zero = 0, c;
    float *da = on_device(&a, 4), *db = on_device(&one, 4), *dc = on_device(NULL, 4);
    OK(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
    OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, da, 1, db, 1, &zero, dc, 1));
    fetch(&c, dc, 4, stream);
    assert_true(c == a);
    OK(cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH));
    OK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, da, 1, db, 1, &zero, dc, 1));
    fetch(&c, dc, 4, stream);
    assert_true(c == 1);
    OK(cublasSetMathMode(handle, CUBLAS_DEFAULT_MATH));
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dc));
}

static void wrong_calls_are_refused(void **state)
{
    (void)state;
    float x[64], one = 1, *d = on_device(x, sizeof x);
    assert_int_equal(
        cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 8, 2, 2, &one, d, 4, d, 2, &one, d, 8),
        CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(
        cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, x, 2, d, 2, &one, d, 2),
        CUBLAS_STATUS_INVALID_VALUE);
    assert_int_equal(cublasGemmEx(handle, CUBLAS_OP_N, CUBLAS_OP_N, 2, 2, 2, &one, d, CUDA_R_16BF,
                                  2, d, CUDA_R_32F, 2, &one, d, CUDA_R_32F, 2, CUBLAS_COMPUTE_32F,
                                  CUBLAS_GEMM_DEFAULT),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    assert_string_equal(cublasGetStatusName(CUBLAS_STATUS_NOT_SUPPORTED),
                        "CUBLAS_STATUS_NOT_SUPPORTED");
    OK(cudaFree(d));
}

/* ---- cuBLASLt ---- */

static cublasStatus_t lt_product(const product *p, const void *a, const void *b, void *d,
                                 const void *bias, const float *scale_a, const float *scale_b,
                                 cudaDataType type_b)
{
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t la, lb, ld;
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t best;
    cublasOperation_t ta = p->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N,
                      tb = p->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    int found = 0;
    OK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &ta, sizeof ta));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &tb, sizeof tb));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                      sizeof epilogue));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scale_a,
                                      sizeof scale_a));
    OK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scale_b,
                                      sizeof scale_b));
    int ra = p->trans_a ? p->k : p->m, rb = p->trans_b ? p->n : p->k;
    OK(cublasLtMatrixLayoutCreate(&la, p->type, (uint64_t)ra, (uint64_t)(p->m + p->k - ra), ra));
    OK(cublasLtMatrixLayoutCreate(&lb, type_b, (uint64_t)rb, (uint64_t)(p->n + p->k - rb), rb));
    OK(cublasLtMatrixLayoutCreate(&ld, p->type_c, (uint64_t)p->m, (uint64_t)p->n, p->m));
    OK(cublasLtMatmulPreferenceCreate(&preference));
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(lt, desc, la, lb, ld, ld, preference, 1,
                                                           &best, &found);
    if (!status)
        status = cublasLtMatmul(lt, desc, &p->alpha, a, la, b, lb, &p->beta, d, ld, d, ld,
                                &best.algo, NULL, 0, stream);
    OK(cublasLtMatmulPreferenceDestroy(preference));
    OK(cublasLtMatrixLayoutDestroy(la));
    OK(cublasLtMatrixLayoutDestroy(lb));
    OK(cublasLtMatrixLayoutDestroy(ld));
    OK(cublasLtMatmulDescDestroy(desc));
    return status;
}

static void lt_adds_the_bias(void **state)
{
    (void)state;
    product p = {24, 10, 12, 1, true, false, 1, 0, CUDA_R_16BF, CUDA_R_16BF};
    uint16_t *a = random_matrix(24 * 12, p.type), *b = random_matrix(12 * 10, p.type), got[24 * 10];
    uint16_t *bias = random_matrix(24, p.type);
    void *da = on_device(a, 24 * 12 * 2), *db = on_device(b, 12 * 10 * 2),
         *dbias = on_device(bias, 48);
    void *d = on_device(NULL, sizeof got);
    OK(lt_product(&p, da, db, d, dbias, NULL, NULL, p.type));
    fetch(got, d, sizeof got, stream);
    for (int j = 0; j < 10; j++)
        for (int i = 0; i < 24; i++) {
            float want = naive(&p, a, 12, b, 12, i, j) + ndm_bf16_to_f32(bias[i]);
            assert_int_equal(got[i + 24 * j], ndm_f32_to_bf16(want));
        }
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(dbias));
    OK(cudaFree(d));
    free(a);
    free(b);
    free(bias);
}

/* An algorithm holds for the sizes and the alignment it was found for. */
static void lt_refuses_broken_promises(void **state)
{
    (void)state;
    product p = {16, 16, 16, 1, true, false, 1, 0, CUDA_R_16BF, CUDA_R_16BF};
    char *d = on_device(NULL, 4096);
    OK(cudaMemset(d, 0, 4096));
    OK(lt_product(&p, d, d + 1024, d + 2048, NULL, NULL, NULL, p.type));
    assert_int_equal(lt_product(&p, d + 16, d + 1024, d + 2048, NULL, NULL, NULL, p.type),
                     CUBLAS_STATUS_INVALID_VALUE);
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(d));
}

static void lt_multiplies_fp8_with_scales(void **state)
{
    (void)state;
    product p = {32, 16, 48, 1, true, false, 1, 0, CUDA_R_8F_E4M3, CUDA_R_32F}, q = p;
    uint8_t *a = random_matrix(32 * 48, p.type), *b = random_matrix(48 * 16, p.type);
    float scales[2] = {0.25f, 3}, got[32 * 16];
    void *da = on_device(a, 32 * 48), *db = on_device(b, 48 * 16);
    float *ds = on_device(scales, sizeof scales), *d = on_device(NULL, sizeof got);
    OK(lt_product(&p, da, db, d, NULL, ds, ds + 1, CUDA_R_8F_E4M3));
    fetch(got, d, sizeof got, stream);
    for (int j = 0; j < 16; j++)
        for (int i = 0; i < 32; i++)
            assert_true(got[i + 32 * j] == 0.75f * naive(&p, a, 48, b, 48, i, j));
    OK(lt_product(&p, da, db, d, NULL, ds, ds + 1, CUDA_R_8F_E5M2));
    q.trans_a = false; /* fp8 asks for A transposed, B not */
    assert_int_equal(lt_product(&q, da, db, d, NULL, ds, ds + 1, CUDA_R_8F_E4M3),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    q = p;
    q.n = 8; /* and for sizes of 16 */
    assert_int_equal(lt_product(&q, da, db, d, NULL, ds, ds + 1, CUDA_R_8F_E4M3),
                     CUBLAS_STATUS_NOT_SUPPORTED);
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(da));
    OK(cudaFree(db));
    OK(cudaFree(ds));
    OK(cudaFree(d));
    free(a);
    free(b);
}

static unsigned put_bits(cuemu_type type, float x)
{
    uint16_t bits = 0;
    cuemu_number_put(&bits, 0, type, x);
    return bits;
}

static bool same(float a, float b)
{
    return a == b || (isnan(a) && isnan(b));
}

static void check_rounding(int type, cuemu_type mine, float x)
{
    float want = test_value(type, test_bits(type, x)), got = test_value(type, put_bits(mine, x));
    if (!same(got, want) || signbit(got) != signbit(want))
        fail_msg("type %d: %a rounds to %a, in CUDA's headers to %a", type, x, got, want);
}

/* Every code, and what lies between two codes, against the conversions of CUDA's headers. */
static void small_types_round_as_cuda(void **state)
{
    (void)state;
    static const cuemu_type types[] = {CUEMU_BF16, CUEMU_F16, CUEMU_E4M3, CUEMU_E5M2};
    for (int t = 0; t < 4; t++)
        for (unsigned bits = 0; bits < (t < 2 ? 65536u : 256u); bits++) {
            float x = test_value(t, bits);
            uint16_t code = (uint16_t)bits;
            assert_true(same(cuemu_number_get(&code, 0, types[t]), x));
            if (isnan(x))
                continue;
            float next = test_value(t, bits + 1), half = x + (next - x) / 2;
            const float tried[] = {
                x,     half,    nextafterf(half, 0), nextafterf(half, 2 * half), 1.3f * x,
                2 * x, 1e6f * x};
            for (size_t i = 0; i < sizeof tried / sizeof *tried; i++)
                if (!isnan(tried[i]))
                    check_rounding(t, types[t], tried[i]);
        }
}

static int setup(void **state)
{
    (void)state;
    stream = new_stream();
    return cublasCreate(&handle) || cublasSetStream(handle, stream) || cublasLtCreate(&lt);
}

static int teardown(void **state)
{
    (void)state;
    return cublasDestroy(handle) || cublasLtDestroy(lt) || cudaStreamDestroy(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_types_round_as_cuda),
        cmocka_unit_test(products_equal_a_plain_loop),
        cmocka_unit_test(tf32_only_where_asked),
        cmocka_unit_test(wrong_calls_are_refused),
        cmocka_unit_test(lt_adds_the_bias),
        cmocka_unit_test(lt_refuses_broken_promises),
        cmocka_unit_test(lt_multiplies_fp8_with_scales),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
