/* SPDX-License-Identifier: Apache-2.0 */
/* What a stream has for its kernels: handles of cuBLAS, their workspace, and scratch. */
#include "device/cuda/internal.h"

/* What cuBLAS asks for on sm_90 and later; with a workspace of ours it allocates none itself, and
 * gives the same bits on every run. */
static const int64_t WORKSPACE_BYTES = 32 << 20;

/* From the pool, counted like any other. */
static ndm_status take(ndm_device *device, int64_t bytes, void **memory)
{
    ndm_status status = ndm_cuda_alloc(device, bytes, memory);

    if (status == NDM_ERR_MEMORY)
        NDM_FAIL(NDM_ERR_MEMORY, "device: cuda: no %lld bytes of workspace", (long long)bytes);
    NDM_TRY(status);
    ndm_device_account(device, NDM_MEMORY_WORKSPACE, bytes);
    return NDM_OK;
}

static void give(ndm_device *device, void *memory, int64_t bytes)
{
    if (!memory)
        return;
    ndm_device_account(device, NDM_MEMORY_WORKSPACE, -bytes);
    ndm_cuda_free(device, memory, bytes);
}

static ndm_status need_workspace(ndm_cuda_stream *s)
{
    return s->workspace ? NDM_OK : take(s->base.device, WORKSPACE_BYTES, &s->workspace);
}

ndm_status ndm_cuda_blas(ndm_stream *stream, cublasHandle_t *handle)
{
    ndm_cuda_stream *s = (ndm_cuda_stream *)stream;

    if (!s->blas) {
        cublasHandle_t made;
        NDM_TRY(need_workspace(s));
        NDM_BLAS_TRY("cublasCreate", cublasCreate(&made));
        s->blas = made;
        NDM_BLAS_TRY("cublasSetStream", cublasSetStream(made, s->handle));
        NDM_BLAS_TRY("cublasSetWorkspace",
                     cublasSetWorkspace(made, s->workspace, (size_t)WORKSPACE_BYTES));
        /* Parts of a sum are added in fp32 and not in the result's type. TF32 stays off. */
        NDM_BLAS_TRY("cublasSetMathMode",
                     cublasSetMathMode(made, CUBLAS_DEFAULT_MATH |
                                                 CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION));
    }
    *handle = s->blas;
    return NDM_OK;
}

ndm_status ndm_cuda_get_blas_lt(ndm_stream *stream, ndm_cuda_blas_lt *lt)
{
    ndm_cuda_stream *s = (ndm_cuda_stream *)stream;

    NDM_TRY(need_workspace(s));
    if (!s->blas_lt)
        NDM_BLAS_TRY("cublasLtCreate", cublasLtCreate(&s->blas_lt));
    *lt = (ndm_cuda_blas_lt){s->blas_lt, s->workspace, (size_t)WORKSPACE_BYTES};
    return NDM_OK;
}

/* Grows by a quarter at least, so that it soon stops growing. */
ndm_status ndm_cuda_scratch(ndm_stream *stream, int64_t bytes, void **memory)
{
    ndm_cuda_stream *s = (ndm_cuda_stream *)stream;

    if (s->scratch_bytes < bytes) {
        int64_t room = s->scratch_bytes + s->scratch_bytes / 4;
        int64_t wanted = bytes > room ? bytes : room;
        void *larger;
        NDM_TRY(take(stream->device, wanted, &larger));
        give(stream->device, s->scratch, s->scratch_bytes);
        s->scratch = larger;
        s->scratch_bytes = wanted;
    }
    *memory = s->scratch;
    return NDM_OK;
}

void ndm_cuda_blas_finish(ndm_cuda_stream *stream)
{
    ndm_device *device = stream->base.device;

    if (stream->blas)
        (void)cublasDestroy(stream->blas);
    if (stream->blas_lt)
        (void)cublasLtDestroy(stream->blas_lt);
    give(device, stream->workspace, WORKSPACE_BYTES);
    give(device, stream->scratch, stream->scratch_bytes);
    stream->workspace = stream->scratch = NULL;
}
