/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of 8-bit products, which the cuda world does not have yet: refused by name. */
#include "kernels/cuda/body.h"

ndm_status ndm_cuda_amax(ndm_stream *stream, const void *args)
{
    (void)stream, (void)args;
    NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel amax: the cuda world has no 8-bit products yet");
}

ndm_status ndm_cuda_quantize(ndm_stream *stream, const void *args)
{
    (void)stream, (void)args;
    NDM_FAIL(NDM_ERR_UNSUPPORTED, "kernel quantize: the cuda world has no 8-bit products yet");
}
