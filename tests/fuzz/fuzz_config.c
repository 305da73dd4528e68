/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: a config.json. What is accepted must obey the rules, and come back the same when it
 * is written and read. */
#include "fuzz.h"

#include "model/config.h"

static void write_and_read(const ndm_model_config *c)
{
    ndm_model_config again = {0};
    char path[64];

    snprintf(path, sizeof path, "/tmp/ndm-fuzz-%d.json", getpid());
    FUZZ_ASSERT(ndm_model_config_write(c, path) == NDM_OK);
    FUZZ_ASSERT(ndm_model_config_load(path, &again) == NDM_OK);
    FUZZ_ASSERT(ndm_model_config_parameters(&again) == ndm_model_config_parameters(c));
    FUZZ_ASSERT(again.rope_theta == c->rope_theta && again.norm_eps == c->norm_eps);
    ndm_model_config_finish(&again);
    unlink(path);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_file file = fuzz_file_make(data, size);
    ndm_model_config c = {0};
    ndm_status status = ndm_model_config_load(file.path, &c);

    fuzz_outcome(status);
    if (status == NDM_OK) {
        FUZZ_ASSERT(ndm_model_config_check(&c, "accepted") == NDM_OK);
        FUZZ_ASSERT(ndm_model_config_parameters(&c) > 0);
        for (int64_t i = 0; i < c.layers; i++)
            FUZZ_ASSERT(ndm_model_config_window(&c, i) >= 0);
        write_and_read(&c);
        ndm_model_config_finish(&c);
    }
    close(file.fd);
    return 0;
}
