/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: a run's YAML file, read with the options of train. What is accepted must print as a
 * file that is accepted. */
#include "fuzz.h"

#include "core/option.h"
#include "train/options.h"

static void print_and_read(const ndm_options *options)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    ndm_options *again = NULL;

    FUZZ_ASSERT(out != NULL);
    ndm_options_print_config(options, out);
    FUZZ_ASSERT(fclose(out) == 0);
    FUZZ_ASSERT(ndm_options_create(&ndm_train_option_table, &again) == NDM_OK);
    ndm_options_set_silent(again, true);
    if (ndm_options_load_yaml_text(again, text, bytes, "printed") != NDM_OK) {
        fprintf(stderr, "%s\n%.*s", ndm_error_message(), (int)bytes, text);
        abort();
    }
    ndm_options_destroy(again);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ndm_options *options = NULL;
    ndm_status status;

    FUZZ_ASSERT(ndm_options_create(&ndm_train_option_table, &options) == NDM_OK);
    ndm_options_set_silent(options, true);
    status = ndm_options_load_yaml_text(options, (const char *)data, size, "input.yaml");
    fuzz_outcome(status);
    if (status == NDM_OK)
        print_and_read(options);
    ndm_options_destroy(options);
    return 0;
}
