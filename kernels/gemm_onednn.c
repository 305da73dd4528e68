/* SPDX-License-Identifier: Apache-2.0 */
/* GEMM by the native kernel, and by oneDNN's dnnl_sgemm, which generates its kernels for the CPU at
 * the first call, where that one is faster: it reads operands that are used little where they lie,
 * while the native kernel packs all. On one thread that is 8 to 12 % of a weight gradient of 256
 * rows; of nearly all others the native kernel makes 1 to 25 % more.
 *
 * oneDNN 2.6 chooses between a copying and a direct algorithm by the shape, and they sum in
 * different orders. We cut by rows alone, and leave out the shapes for which the number of rows
 * moves that choice (its nocopy_checker for AVX-512): seen with 444 random shapes cut at random.
 * Its own threads are not used: it starts new ones where it finds itself outside of a parallel
 * region. */
#include <stdatomic.h>
#include <stdio.h>

#include <omp.h>

#include "kernels/gemm_common.h"
#include "kernels/gemm_library.h"

enum {
    LEAST_ROWS = 64,       /* of a thread; a row alone would be a matrix-vector product */
    LEAST_FLOPS = 1200000, /* of a thread */
    FEW_ROWS = 256,        /* of a weight gradient: packing B would cost more than it saves */
};

typedef int (*sgemm)(char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                     const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                     int64_t ldc);

static const char *const files[] = {"libdnnl.so.2", "libdnnl.so.3", "libdnnl.so", NULL};
static _Atomic(sgemm) function; /* set by the probe, which goes before any call */

static bool probe(char *why, size_t why_bytes)
{
    sgemm found = (sgemm)ndm_library_symbol(files, "dnnl_sgemm", why, why_bytes);

    if (found)
        atomic_store(&function, found);
    return found != NULL;
}

static void version(char *text, size_t bytes)
{
    typedef struct {
        int major, minor, patch;
    } numbers; /* how dnnl_version_t begins */
    char why[256];
    const numbers *(*get)(void) = (const numbers *(*)(void))ndm_library_symbol(
        files, "dnnl_version", why, sizeof why);

    if (get)
        (void)snprintf(text, bytes, "%d.%d.%d", get()->major, get()->minor, get()->patch);
}

static ndm_status library_piece(const ndm_gemm_args *a)
{
    int threads = omp_get_max_threads(), result;

    if (!omp_in_parallel())
        omp_set_num_threads(1);
    result = function(a->trans_a ? 'T' : 'N', a->trans_b ? 'T' : 'N', a->m, a->n, a->k, a->alpha,
                      a->a, a->lda, a->b, a->ldb, a->beta, a->c, a->ldc);
    if (!omp_in_parallel())
        omp_set_num_threads(threads);
    if (result != 0)
        NDM_FAIL(NDM_ERR_DEVICE, "gemm: dnnl_sgemm of m %lld, n %lld, k %lld failed with status %d",
                 (long long)a->m, (long long)a->n, (long long)a->k, result);
    if (a->bias)
        ndm_gemm_add_bias(a);
    return NDM_OK;
}

/* Whether rows decide the algorithm, or too few are there to share. By the shape alone, never by
 * the number of threads. */
static bool rows_decide(const ndm_gemm_args *a)
{
    return a->m < 2 * (LEAST_ROWS + 16) || (a->n <= 378 && a->k >= 378);
}

static bool native_is_better(const ndm_gemm_args *a)
{
    if (a->b_dtype != NDM_F32 || a->k == 0)
        return true;
    if (2 * a->m * a->n * a->k < 2 * LEAST_FLOPS)
        return false; /* one thread, whoever has more */
    if (!a->trans_a || a->trans_b || a->m > FEW_ROWS)
        return true;
    return rows_decide(a);
}

static ndm_status gemm(const void *args)
{
    static const ndm_gemm_cut cut = {16, 0, LEAST_ROWS, LEAST_FLOPS};

    return native_is_better(args) ? ndm_native_gemm(args) : ndm_gemm_run(args, &cut, library_piece);
}

const ndm_kernel_table ndm_kernels_onednn = {
    .name = "onednn",
    .summary =
        "gemm: native, and dnnl_sgemm where that is faster with the same bits for any threads",
    .device = "cpu",
    .priority = 60,
    .probe = probe,
    .version = version,
    .body = {[NDM_OP_gemm] = (void (*)(void))gemm},
};
