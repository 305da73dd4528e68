/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: a Megatron index over 64 tokens of 2 bytes. What is accepted must have documents
 * that ascend within the tokens. */
#include "fuzz.h"

#include "train/data_documents.h"

enum { TOKENS = 64, WIDTH = 2 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file index = fuzz_file_make(data, size);
    ndm_documents d;
    ndm_status status = ndm_documents_open_index(index.path, TOKENS, WIDTH, &d);
    int64_t before = 0;

    fuzz_outcome(status);
    FUZZ_ASSERT(status != NDM_OK || d.count > 0);
    for (int64_t i = 0; status == NDM_OK && i < d.count; i++) {
        int64_t start = -1;

        FUZZ_ASSERT(ndm_documents_start(&d, i, &start) == NDM_OK);
        FUZZ_ASSERT(start >= before && start <= TOKENS && (i > 0 || start == 0));
        before = start;
    }
    ndm_documents_close(&d);
    close(index.fd);
    return 0;
}
