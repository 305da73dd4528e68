/* SPDX-License-Identifier: Apache-2.0 */
/* Tiny models whose sizes divide by nothing, and their data. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/rng.h"
#include "equiv.h"

enum { SEED = 20240601 };

const problem problems[] = {
    {.name = "odd",
     .summary = "vocabulary 259 and ffn 86 divide by nothing; untied",
     .hidden = 32,
     .layers = 3,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .ffn = 86,
     .vocab = 259},
    {.name = "masked",
     .summary = "unlike numbers of valid labels; micro-batches, ranks and a step without any",
     .hidden = 32,
     .layers = 2,
     .heads = 4,
     .kv_heads = 4,
     .head_dim = 8,
     .ffn = 43,
     .vocab = 67,
     .masked = true},
    {.name = "tied10",
     .summary = "a tied vocabulary of 10: fewer rows than ranks can share",
     .hidden = 16,
     .layers = 2,
     .heads = 8,
     .kv_heads = 1,
     .head_dim = 4,
     .ffn = 20,
     .vocab = 10,
     .tied = true},
    {.name = "few",
     .summary = "units with fewer elements than ranks: empty slices",
     .hidden = 4,
     .layers = 1,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 2,
     .ffn = 3,
     .vocab = 7},
};
const int problem_count = (int)(sizeof problems / sizeof problems[0]);

static void write_members(const problem *p, FILE *f)
{
    fprintf(f,
            "{\"model_type\": \"llama\", \"hidden_size\": %lld, \"num_hidden_layers\": %lld,\n"
            " \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"head_dim\": %lld,\n"
            " \"intermediate_size\": %lld, \"vocab_size\": %lld, \"hidden_act\": \"silu\",\n"
            " \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, \"max_position_embeddings\": 64,\n"
            " \"initializer_range\": 0.2, \"tie_word_embeddings\": %s}\n",
            (long long)p->hidden, (long long)p->layers, (long long)p->heads, (long long)p->kv_heads,
            (long long)p->head_dim, (long long)p->ffn, (long long)p->vocab,
            p->tied ? "true" : "false");
}

void problem_write_config(const problem *p, char *path, size_t path_bytes)
{
    const char *folder = getenv("TMPDIR");
    int fd;
    FILE *f;

    snprintf(path, path_bytes, "%s/ndm-equiv-XXXXXX.json", folder ? folder : "/tmp");
    fd = mkstemps(path, 5);
    f = fd < 0 ? NULL : fdopen(fd, "w");
    if (!f)
        die("%s cannot be written", path);
    write_members(p, f);
    if (fclose(f))
        die("%s cannot be written", path);
}

/* Samples are [8, 16) all ignored, so that with 8 data-parallel ranks, or 3 micro-batches, some
 * have nothing. Odd ones know their first half only, so that a cp rank has nothing, and every third
 * one the second half with gaps. In step 3 nobody has anything. */
static bool ignored(int64_t step, int64_t sample, int64_t t)
{
    if (step == 3 || (sample >= 8 && sample < 16))
        return true;
    if (sample % 2)
        return t >= SEQ_LEN / 2;
    return sample % 3 == 0 && (t < SEQ_LEN / 2 || t % 5 == 0);
}

void problem_sample(const problem *p, int64_t step, int64_t sample, int32_t *inputs,
                    int32_t *targets)
{
    uint64_t stream = ndm_rng_stream(p->name);
    int64_t first = (step * GLOBAL_BATCH + sample) * (SEQ_LEN + 1);

    for (int64_t t = 0; t < SEQ_LEN; t++) {
        uint64_t at = (uint64_t)(first + t);
        inputs[t] = (int32_t)(ndm_rng_u64(SEED, stream, at) % (uint64_t)p->vocab);
        targets[t] = (int32_t)(ndm_rng_u64(SEED, stream, at + 1) % (uint64_t)p->vocab);
        if (p->masked && ignored(step, sample, t))
            targets[t] = -100;
    }
}
