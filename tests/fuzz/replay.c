/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a fuzz target over a folder of inputs without libFuzzer: replay FOLDER [MUTATIONS].
 *
 * A file named ok-* must be accepted, any other must be refused. Then each is cut, and has bytes
 * changed, MUTATIONS times: whatever comes of that, it must not crash. The changes depend on the
 * file's name alone. */
#include "fuzz.h"

#include <dirent.h>
#include <string.h>

#include "core/rng.h"

struct input {
    uint8_t *data;
    size_t size;
};

static struct input read_input(const char *folder, const char *name)
{
    struct input in = {malloc(1 << 20), 0};
    char path[4096];
    FILE *file;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    file = fopen(path, "rb");
    FUZZ_ASSERT(file != NULL && in.data != NULL);
    in.size = fread(in.data, 1, 1 << 20, file);
    fclose(file);
    return in;
}

static void run(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(
        size + (size == 0)); /* of exactly this size, so that a sanitizer sees a read beyond it */

    FUZZ_ASSERT(copy != NULL);
    memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    free(copy);
}

static void mutate(const struct input *in, uint64_t seed, uint64_t n)
{
    static const char marks[] = "0192{}[]:,\"-eE\n "; /* what parsers look for */
    uint8_t *data = malloc(in->size + 1);
    uint64_t r = ndm_rng_u64(seed, 0, n);
    size_t size = in->size;

    FUZZ_ASSERT(data != NULL);
    memcpy(data, in->data, size);
    if (r % 4 == 0)
        size = size ? (r >> 8) % size : 0;
    for (uint64_t k = 0; size > 0 && k <= r % 3; k++) {
        uint64_t change = ndm_rng_u64(seed, 1 + k, n);

        if (change & 1)
            data[(change >> 16) % size] = (uint8_t)(change >> 8);
        else
            data[(change >> 16) % size] = (uint8_t)marks[(change >> 8) % (sizeof marks - 1)];
    }
    run(data, size);
    free(data);
}

/* Whether the file was accepted or refused as its name says. */
static int replay(const char *folder, const char *name, uint64_t mutations)
{
    struct input in = read_input(folder, name);
    int want = strncmp(name, "ok-", 3) == 0, got;

    run(in.data, in.size);
    got = ndm_fuzz_status == NDM_OK;
    if (got != want)
        fprintf(stderr, "%s/%s: %s%s\n", folder, name,
                got ? "accepted" : "refused: ", got ? "" : ndm_error_message());
    for (uint64_t n = 0; n < mutations; n++)
        mutate(&in, ndm_rng_stream(name), n);
    free(in.data);
    return got == want;
}

int main(int argc, char **argv)
{
    uint64_t mutations = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    DIR *folder = argc > 1 ? opendir(argv[1]) : NULL;
    int files = 0, wrong = 0;
    struct dirent *entry;

    if (folder == NULL) {
        fprintf(stderr, "replay FOLDER [MUTATIONS]\n");
        return 2;
    }
    while ((entry = readdir(folder)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        files++;
        wrong += !replay(argv[1], entry->d_name, mutations);
    }
    closedir(folder);
    printf("%d inputs, %d wrong\n", files, wrong);
    return files == 0 || wrong > 0;
}
