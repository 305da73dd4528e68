/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: a safetensors file. What is accepted must be readable from end to end. */
#include "fuzz.h"

#include <string.h>

#include "core/dtype.h"
#include "model/safetensors.h"

static void read_tensor(const ndm_safetensors *r, const ndm_tensor_info *info)
{
    size_t bytes = (size_t)info->count * ndm_dtype_bytes(info->dtype);
    char *out = malloc(bytes + 1);

    FUZZ_ASSERT(out != NULL);
    FUZZ_ASSERT(ndm_safetensors_read(r, info->name, 0, info->count, out, info->dtype) == NDM_OK);
    FUZZ_ASSERT(ndm_safetensors_read(r, info->name, info->count, 1, out, info->dtype) != NDM_OK);
    if (info->ndim == 2 && info->shape[0] > 0 && info->shape[1] > 1)
        FUZZ_ASSERT(ndm_safetensors_read_block(r, info->name, 0, 1, 1, info->shape[1], out,
                                               info->dtype) == NDM_OK);
    free(out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file file = fuzz_file_make(data, size);
    ndm_safetensors *r = NULL;
    ndm_status status = ndm_safetensors_open(file.path, &r);

    fuzz_outcome(status);
    for (int64_t i = 0; status == NDM_OK && i < ndm_safetensors_count(r); i++) {
        const ndm_tensor_info *info = ndm_safetensors_at(r, i);

        FUZZ_ASSERT(ndm_safetensors_find(r, info->name) == info);
        read_tensor(r, info);
    }
    ndm_safetensors_close(r);
    close(file.fd);
    return 0;
}
