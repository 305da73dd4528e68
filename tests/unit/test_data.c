/* SPDX-License-Identifier: Apache-2.0 */
/* Data: order of samples, documents and labels against a naive reading, token formats, refusals. */
#include "scratch.h"

#include <inttypes.h>
#include <stdbool.h>

#include "core/rng.h"
#include "golden_case.h"
#include "train/data.h"

enum { S_MAX = 128 };

struct sample {
    int32_t inputs[S_MAX], targets[S_MAX], positions[S_MAX], first[S_MAX];
};

static ndm_data *open_data(const ndm_data_options *o)
{
    ndm_data *d = NULL;

    if (ndm_data_open(o, &d) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    return d;
}

static void read_sample(ndm_data *d, int64_t index, struct sample *s)
{
    if (ndm_data_sample(d, index, s->inputs, s->targets, s->positions, s->first) != NDM_OK)
        fail_msg("%s", ndm_error_message());
}

/* In order, the samples of step t have the valid tokens that the reference counted. */
static void golden_valid_tokens(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN_CASES; i++) {
        json_t *train = golden_json(golden_cases[i], "train.json");
        json_t *config = golden_json(golden_cases[i], "config.json");
        json_t *expected = golden_json(golden_cases[i], "expected.json"), *step;
        const char *file = golden_path(golden_cases[i], "tokens.bin");
        ndm_data_options o = {.files = &file,
                              .file_count = 1,
                              .seq_len = golden_int(train, "seq_len"),
                              .vocab = golden_int(config, "vocab_size")};
        int64_t batch = golden_int(train, "global_batch");
        ndm_data *d;
        size_t k;

        if (json_is_string(json_object_get(train, "labels")))
            o.labels = golden_path(golden_cases[i], "labels.bin");
        if (json_is_string(json_object_get(train, "documents")))
            o.documents = golden_path(golden_cases[i], "documents.bin");
        d = open_data(&o);
        assert_int_equal(ndm_data_samples(d), batch * golden_int(train, "steps"));
        json_array_foreach(json_object_get(expected, "steps"), k, step)
        {
            int64_t valid = 0;

            for (int64_t b = 0; b < batch; b++) {
                struct sample s;

                read_sample(d, (int64_t)k * batch + b, &s);
                for (int64_t p = 0; p < o.seq_len; p++)
                    valid += s.targets[p] >= 0;
            }
            assert_int_equal(valid, golden_int(step, "tokens"));
        }
        ndm_data_close(d);
        json_decref(train);
        json_decref(config);
        json_decref(expected);
    }
}

enum { N = 700 };

struct naive {
    uint16_t tokens[N];
    int32_t labels[N];
    int64_t document[N]; /* start of the document of each token */
    int64_t starts[N], documents;
};

static void draw(struct naive *n, uint64_t seed)
{
    n->documents = 0;
    for (int i = 0; i < N; i++) {
        bool starts = i == 0 || ndm_rng_u64(seed, 1, (uint64_t)i) % 9 == 0;

        n->tokens[i] = (uint16_t)(1 + ndm_rng_u64(seed, 2, (uint64_t)i) % 999);
        n->labels[i] = ndm_rng_u64(seed, 3, (uint64_t)i) % 4 ? n->tokens[i] : NDM_IGNORE;
        n->document[i] = starts ? i : n->document[i - 1];
        if (starts)
            n->starts[n->documents++] = i;
    }
}

/* Every array of every sample, computed in the plainest way. */
static void samples_equal_a_naive_reading(void **state)
{
    static const int64_t lengths[] = {1, 7, 32, 128};
    static struct naive n;
    uint64_t seed = 20240607;

    (void)state;
    print_message("seed %" PRIu64 "\n", seed);
    draw(&n, seed);
    for (int variant = 0; variant < 16; variant++) {
        int64_t S = lengths[variant % 4];
        const char *file = scratch_write("n.bin", n.tokens, sizeof n.tokens);
        ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = S, .vocab = 1000};
        ndm_data *d;

        if (variant & 4)
            o.labels = scratch_write("labels.bin", n.labels, sizeof n.labels);
        if (variant & 8)
            o.documents = scratch_write("documents.bin", n.starts, (size_t)n.documents * 8);
        d = open_data(&o);
        assert_int_equal(ndm_data_samples(d), (N - 1) / S);
        for (int64_t i = 0; i < ndm_data_samples(d); i++) {
            struct sample s;

            read_sample(d, i, &s);
            for (int64_t p = 0; p < S; p++) {
                int64_t j = i * S + p, begin = o.documents ? n.document[j] : 0;
                int64_t from = begin > i * S ? begin : i * S;
                int32_t target = o.labels ? n.labels[j + 1] : n.tokens[j + 1];

                if (o.documents && n.document[j + 1] == j + 1)
                    target = NDM_IGNORE;
                assert_int_equal(s.inputs[p], n.tokens[j]);
                assert_int_equal(s.targets[p], target);
                assert_int_equal(s.positions[p], j - from);
                assert_int_equal(s.first[p], from - i * S);
            }
        }
        ndm_data_close(d);
    }
}

/* However a step is split, its ranks and micro-batches take each of its samples once, and row order
 * is by micro-batch. */
static void splits_cover_the_step(void **state)
{
    static const int64_t splits[][3] = {{1, 1, 12}, {3, 4, 1}, {2, 3, 2}, {1, 6, 2}, {6, 1, 2}};

    (void)state;
    for (size_t i = 0; i < sizeof splits / sizeof *splits; i++) {
        int seen[12] = {0};
        ndm_data_split s = {splits[i][0], splits[i][1], splits[i][2], 0};

        assert_int_equal(ndm_data_global_batch(&s), 12);
        for (s.dp_rank = 0; s.dp_rank < s.dp; s.dp_rank++) {
            for (int64_t micro = 0; micro < s.grad_accum; micro++) {
                for (int64_t row = 0; row < s.micro_batch; row++) {
                    int64_t index = ndm_data_index(&s, 24, micro, row);

                    assert_in_range(index, 24, 35);
                    assert_int_equal((index - 24) / (s.micro_batch * s.dp), micro);
                    seen[index - 24]++;
                }
            }
        }
        for (int k = 0; k < 12; k++)
            assert_int_equal(seen[k], 1);
    }
}

/* ids 0, 1, 2, ... as text: sample i starts with byte i * S, so an order can be read off. */
static ndm_data *open_counting(bool shuffle, uint64_t seed, const char **file)
{
    unsigned char bytes[101];
    ndm_data_options o = {.files = file,
                          .file_count = 1,
                          .seq_len = 4,
                          .vocab = 256,
                          .shuffle = shuffle,
                          .seed = seed};

    for (int i = 0; i < 101; i++)
        bytes[i] = (unsigned char)i;
    *file = scratch_write("counting.txt", bytes, sizeof bytes);
    return open_data(&o);
}

static void epochs_repeat_or_shuffle(void **state)
{
    const char *file;
    ndm_data *d = open_counting(false, 0, &file);
    int order[4][25], same = 0;
    struct sample s;

    (void)state;
    for (int i = 0; i < 50; i++) {
        read_sample(d, i, &s);
        assert_int_equal(s.inputs[0], i % 25 * 4);
    }
    ndm_data_close(d);
    for (int run = 0; run < 4; run++) { /* epochs 0 and 1, the same seed again, another seed */
        bool seen[25] = {false};

        d = open_counting(true, run == 3 ? 8 : 7, &file);
        for (int i = 0; i < 25; i++) {
            read_sample(d, run == 1 ? 25 + i : i, &s);
            order[run][i] = s.inputs[0] / 4;
            seen[order[run][i]] = true;
        }
        ndm_data_close(d);
        for (int i = 0; i < 25; i++)
            assert_true(seen[i]);
    }
    assert_memory_equal(order[0], order[2], sizeof order[0]);
    for (int i = 0; i < 25; i++)
        same += (order[0][i] == order[1][i]) + (order[0][i] == order[3][i]) + (order[0][i] == i);
    assert_true(same < 30);
}

static void files_are_one_stream(void **state)
{
    const uint16_t b[5] = {103, 104, 105, 106, 107};
    const char *files[3];
    ndm_data_options o = {.files = files, .file_count = 3, .seq_len = 4, .vocab = 256};
    struct sample s;
    ndm_data *d;

    (void)state;
    files[0] = scratch_write("one.txt", "def", 3); /* 100 to 102 */
    files[1] = scratch_write("two.bin", b, sizeof b);
    files[2] = scratch_write("three.txt", "l", 1); /* 108 */
    d = open_data(&o);
    assert_int_equal(ndm_data_tokens(d), 9);
    for (int i = 0; i < 2; i++) {
        read_sample(d, i, &s);
        for (int p = 0; p < 4; p++) {
            assert_int_equal(s.inputs[p], 100 + 4 * i + p);
            assert_int_equal(s.targets[p], 101 + 4 * i + p);
        }
    }
    ndm_data_close(d);
}

static void check_format(const char *path, int64_t tokens, int64_t vocab)
{
    ndm_data_options o = {.files = &path, .file_count = 1, .seq_len = 4, .vocab = vocab};
    ndm_data *d = open_data(&o);
    struct sample s;

    assert_int_equal(ndm_data_tokens(d), tokens);
    read_sample(d, 1, &s);
    for (int p = 0; p < 4; p++)
        assert_int_equal(s.inputs[p], 10 + 4 + p);
    ndm_data_close(d);
}

/* Tokens 10, 11, 12, ... in each format. */
static void formats_are_told_apart(void **state)
{
    uint16_t u16[64];
    uint32_t u32[64], header[256] = {20240520, 1, 64};
    unsigned char llmc[1024 + sizeof u32];

    (void)state;
    for (int i = 0; i < 64; i++)
        u16[i] = (uint16_t)(10 + i), u32[i] = 10u + (uint32_t)i;
    check_format(scratch_write("u16.bin", u16, sizeof u16), 64, 100);
    check_format(scratch_write("u16.bin", u16, sizeof u16), 64, 150000);
    check_format(scratch_write("u32.bin", u32, sizeof u32), 64, 100);
    check_format(scratch_write("u32.bin", u32, sizeof u32), 64, 150000);
    memcpy(llmc, header, 1024), memcpy(llmc + 1024, u16, sizeof u16);
    check_format(scratch_write("gpt2.bin", llmc, 1024 + sizeof u16), 64, 100);
    header[0] = 20240801, header[1] = 7;
    memcpy(llmc, header, 1024), memcpy(llmc + 1024, u32, sizeof u32);
    check_format(scratch_write("llama3.bin", llmc, 1024 + sizeof u32), 64, 100);
    check_format(scratch_write("short.uint32.bin", u32, 40), 10, 100); /* too short for a guess */
    check_format(scratch_write("short.uint16.bin", u16, 40), 20, 100);
}

static void expect(const ndm_data_options *o, ndm_status want, const char *says)
{
    ndm_data *d = NULL;
    struct sample s;
    ndm_status status = ndm_data_open(o, &d);

    if (status == NDM_OK)
        status = ndm_data_sample(d, 0, s.inputs, s.targets, s.positions, s.first);
    if (status != want || strstr(ndm_error_message(), says) == NULL)
        fail_msg("%s: %s", ndm_status_name(status), ndm_error_message());
    ndm_data_close(d);
}

static void refusals(void **state)
{
    const char *file = scratch_write("small.txt", "abcdefgh", 8);
    ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = 4, .vocab = 256}, x;
    int32_t labels[8] = {97, 98, 99, 256, 101, 102, 103, 104};
    int64_t late[2] = {1, 4}, equal[3] = {0, 4, 4}, beyond[2] = {0, 8};

    (void)state;
    x = o, x.vocab = 99;
    expect(&x, NDM_ERR_FORMAT, "small.txt: token 2 has id 99, but the vocabulary has 99");
    x = o, x.seq_len = 8;
    expect(&x, NDM_ERR_CONFIG, "8 tokens are too few for one sample of seq_len 8 + 1");
    x = o, x.seq_len = 0;
    expect(&x, NDM_ERR_CONFIG, "seq_len 0");
    x = o, x.file_count = 0;
    expect(&x, NDM_ERR_USAGE, "no data file");
    x = o, x.labels = scratch_write("l.bin", labels, sizeof labels);
    expect(&x, NDM_ERR_FORMAT, "l.bin: label 3 is 256, neither -100 nor an id below 256");
    labels[3] = -1;
    x.labels = scratch_write("l.bin", labels, sizeof labels);
    expect(&x, NDM_ERR_FORMAT, "label 3 is -1");
    x.labels = scratch_write("l.bin", labels, 28);
    expect(&x, NDM_ERR_FORMAT, "not one int32 for each of the 8 tokens");
    x = o, x.documents = scratch_write("d.bin", late, sizeof late);
    expect(&x, NDM_ERR_FORMAT, "d.bin: the first document starts at token 1, not 0");
    x.documents = scratch_write("d.bin", equal, sizeof equal);
    expect(&x, NDM_ERR_FORMAT, "document 2 starts at token 4, which is not within 5 to 7");
    x.documents = scratch_write("d.bin", beyond, sizeof beyond);
    expect(&x, NDM_ERR_FORMAT, "document 1 starts at token 8");
    x.documents = scratch_write("d.bin", beyond, 12);
    expect(&x, NDM_ERR_FORMAT, "no whole number of int64");
    x.documents = scratch_path("none.bin");
    expect(&x, NDM_ERR_IO, "none.bin");
    file = scratch_write("odd.bin", "abc", 3);
    expect(&o, NDM_ERR_FORMAT, "3 bytes are no whole number of uint16 tokens");
    file = scratch_write("empty.txt", "", 0);
    expect(&o, NDM_ERR_FORMAT, "is empty");
    file = scratch_folder;
    expect(&o, NDM_ERR_IO, "is a folder without tokens.bin");
}

/* What is mapped may go: an error then, not a signal. */
static void files_that_are_cut_short_are_told(void **state)
{
    enum { TOKENS = 1 << 16, DOCUMENTS = TOKENS / 8 };
    static int32_t labels[TOKENS];
    static int64_t documents[DOCUMENTS];
    static const char *const cut[] = {"cut.bin", "cut.labels", "cut.documents"};
    struct sample s;

    (void)state;
    for (int i = 0; i < DOCUMENTS; i++)
        documents[i] = i * 8;
    for (int i = 0; i < 3; i++) {
        const char *file = scratch_write("cut.bin", labels, TOKENS * 2);
        ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = 64, .vocab = 256};
        o.labels = scratch_write("cut.labels", labels, sizeof labels);
        o.documents = scratch_write("cut.documents", documents, sizeof documents);
        ndm_data *d = open_data(&o);
        read_sample(d, ndm_data_samples(d) - 1, &s);
        assert_int_equal(truncate(scratch_path(cut[i]), 100), 0);
        assert_int_equal(
            ndm_data_sample(d, ndm_data_samples(d) - 1, s.inputs, s.targets, s.positions, s.first),
            NDM_ERR_IO);
        assert_non_null(strstr(ndm_error_message(), cut[i]));
        assert_non_null(strstr(ndm_error_message(), "it was cut short"));
        ndm_data_close(d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_valid_tokens),
        cmocka_unit_test(samples_equal_a_naive_reading),
        cmocka_unit_test(splits_cover_the_step),
        cmocka_unit_test(epochs_repeat_or_shuffle),
        cmocka_unit_test(files_are_one_stream),
        cmocka_unit_test(formats_are_told_apart),
        cmocka_unit_test(files_that_are_cut_short_are_told),
        cmocka_unit_test(refusals),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
