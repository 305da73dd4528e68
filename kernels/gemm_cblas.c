/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM by whatever CBLAS the machine has, OpenBLAS first; bf16 and fp16 weights by the native
 * kernel.
 *
 * An OpenBLAS older than the CPU falls back to kernels five times slower without a word, and reads
 * OPENBLAS_CORETYPE only while it is loaded: the probe sets that variable, and one thread, before,
 * unless they are set already. NDM_BLAS names another library, such as MKL's libmkl_rt.so. */
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/gemm_common.h"
#include "kernels/gemm_library.h"

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };

typedef void (*sgemm)(int order, int trans_a, int trans_b, int m, int n, int k, float alpha,
                      const float *a, int lda, const float *b, int ldb, float beta, float *c,
                      int ldc);

static _Atomic(sgemm) function; /* set by the probe, which goes before any call */

static void set_environment(void)
{
    char why[64];

    if (ndm_fast_cpu_has("avx512", why, sizeof why))
        (void)setenv("OPENBLAS_CORETYPE", "SkylakeX", 0);
    else if (ndm_fast_cpu_has("avx2", why, sizeof why))
        (void)setenv("OPENBLAS_CORETYPE", "Haswell", 0);
    (void)setenv("OPENBLAS_NUM_THREADS", "1", 0); /* we cut by ourselves */
    (void)setenv("MKL_THREADING_LAYER", "SEQUENTIAL", 0);
}

static ndm_library_function find(const char *symbol, char *why, size_t why_bytes)
{
    static const char *const usual[] = {"libopenblas.so.0", "libblis.so.4", "libblas.so.3",
                                        "libcblas.so.3", NULL};
    const char *const named[] = {getenv("NDM_BLAS"), NULL};
    bool is_named = named[0] && named[0][0] != '\0';

    return ndm_library_symbol(is_named ? named : usual, symbol, why, why_bytes);
}

static bool probe(char *why, size_t why_bytes)
{
    set_environment();
    sgemm found = (sgemm)find("cblas_sgemm", why, why_bytes);
    if (found)
        atomic_store(&function, found);
    return found != NULL;
}

/* A BLAS need not say which it is: then its file does. */
static void version(char *text, size_t bytes)
{
    char file[256], why[256];
    const char *(*config)(void) = (const char *(*)(void))find("openblas_get_config", why,
                                                              sizeof why);

    if (config)
        (void)snprintf(text, bytes, "%s", config());
    else if (find("cblas_sgemm", file, sizeof file))
        (void)snprintf(text, bytes, "%s", file);
}

static ndm_status library_piece(const ndm_gemm_args *a)
{
    function(ROW_MAJOR, a->trans_a ? TRANS : NO_TRANS, a->trans_b ? TRANS : NO_TRANS, (int)a->m,
             (int)a->n, (int)a->k, a->alpha, a->a, (int)a->lda, a->b, (int)a->ldb, a->beta, a->c,
             (int)a->ldc);
    if (a->bias)
        ndm_gemm_add_bias(a);
    return NDM_OK;
}

/* A CBLAS counts in int, has its own idea of an empty K, and knows no bf16. */
static bool library_can(const ndm_gemm_args *a)
{
    return a->b_dtype == NDM_F32 && a->k > 0 && a->m <= INT_MAX && a->n <= INT_MAX &&
           a->k <= INT_MAX && a->lda <= INT_MAX && a->ldb <= INT_MAX && a->ldc <= INT_MAX;
}

/* OpenBLAS has another kernel for products of up to 10^6 multiplications: pieces of a large one
 * stay clear of it. */
static ndm_status gemm(const void *args)
{
    static const ndm_gemm_cut cut = {16, 0, 64, 4000000};

    return library_can(args) ? ndm_gemm_run(args, &cut, library_piece) : ndm_native_gemm(args);
}

const ndm_kernel_table ndm_kernels_cblas = {
    .name = "cblas",
    .summary = "gemm: cblas_sgemm of the machine's BLAS",
    .device = "cpu",
    .priority = 40,
    .probe = probe,
    .version = version,
    .body = {[NDM_OP_gemm] = (void (*)(void))gemm},
};
