/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: a documents file over 64 tokens. What is accepted must give samples that see only
 * what they may. */
#include "fuzz.h"

#include <string.h>

#include "train/data.h"

enum { TOKENS = 64, S = 7 };

static void read_samples(ndm_data *d)
{
    int32_t inputs[S], targets[S], positions[S], first[S];

    for (int64_t i = 0; i < ndm_data_samples(d); i++) {
        FUZZ_ASSERT(ndm_data_sample(d, i, inputs, targets, positions, first) == NDM_OK);
        for (int32_t p = 0; p < S; p++) {
            FUZZ_ASSERT(inputs[p] == i * S + p);
            FUZZ_ASSERT(targets[p] == NDM_IGNORE || targets[p] == inputs[p] + 1);
            FUZZ_ASSERT(first[p] >= 0 && first[p] <= p && positions[p] == p - first[p]);
            FUZZ_ASSERT(p == 0 || first[p] == p || first[p] == first[p - 1]);
            FUZZ_ASSERT(p == 0 || (first[p] == p) == (targets[p - 1] == NDM_IGNORE));
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file documents = fuzz_file_make(data, size), tokens;
    unsigned char bytes[TOKENS];
    const char *path;
    ndm_data_options o = {.files = &path, .file_count = 1, .seq_len = S, .vocab = 256};
    ndm_data *d = NULL;
    ndm_status status;

    for (int i = 0; i < TOKENS; i++)
        bytes[i] = (unsigned char)i;
    tokens = fuzz_file_make(bytes, sizeof bytes);
    path = tokens.path;
    o.documents = documents.path;
    status = ndm_data_open(&o, &d);
    fuzz_outcome(status);
    if (status == NDM_OK)
        read_samples(d);
    ndm_data_close(d);
    close(documents.fd);
    close(tokens.fd);
    return 0;
}
