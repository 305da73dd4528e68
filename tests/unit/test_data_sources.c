/* SPDX-License-Identifier: Apache-2.0 */
/* Where data comes from: prepared folders, Megatron's index, several files with their own labels
 * and documents, mixtures by weight. */
#include "scratch.h"

#include <inttypes.h>
#include <stdbool.h>
#include <sys/stat.h>

#include "train/data.h"
#include "train/data_mix.h"

enum { S = 4 };

struct sample {
    int32_t inputs[S], targets[S], positions[S], first[S];
};

static ndm_data *open_data(const ndm_data_options *o)
{
    ndm_data *d = NULL;

    if (ndm_data_open(o, &d) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    return d;
}

static struct sample read_sample(ndm_data *d, int64_t index)
{
    struct sample s;

    if (ndm_data_sample(d, index, s.inputs, s.targets, s.positions, s.first) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    return s;
}

static void refused(const ndm_data_options *o, ndm_status want, const char *says)
{
    ndm_data *d = NULL;
    ndm_status status = ndm_data_open(o, &d);

    if (status != want || strstr(ndm_error_message(), says) == NULL)
        fail_msg("%s: %s, not: %s", ndm_status_name(status), ndm_error_message(), says);
    ndm_data_close(d);
}

/* A file of `n` uint16 tokens base, base + 1, ... */
static const char *write_tokens(const char *name, int base, int n)
{
    uint16_t tokens[256];

    for (int i = 0; i < n; i++)
        tokens[i] = (uint16_t)(base + i);
    return scratch_write(name, tokens, (size_t)n * 2);
}

/* ---- folders ---- */

/* Folder with tokens base.., labels that ignore every third, and documents at 0 and 5. */
static const char *write_folder(const char *name, int base, int n, bool labels, bool documents)
{
    static const int64_t starts[] = {0, 5};
    const char *folder = scratch_path(name);
    char file[64];
    int32_t ids[256];

    assert_int_equal(mkdir(folder, 0777), 0);
    for (int i = 0; i < n; i++)
        ids[i] = i % 3 ? base + i : NDM_IGNORE;
    snprintf(file, sizeof file, "%s/tokens.uint16.bin", name);
    write_tokens(file, base, n);
    snprintf(file, sizeof file, "%s/labels.bin", name);
    if (labels)
        scratch_write(file, ids, (size_t)n * 4);
    snprintf(file, sizeof file, "%s/documents.bin", name);
    if (documents)
        scratch_write(file, starts, sizeof starts);
    return folder;
}

static void remove_folder(const char *folder)
{
    static const char *const names[] = {"tokens.uint16.bin", "labels.bin", "documents.bin"};
    char path[8400];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

/* A folder's labels and documents hold for its tokens, also behind another file. */
static void folders_bring_their_labels_and_documents(void **state)
{
    const char *files[] = {write_folder("a", 10, 9, true, true), write_tokens("b.bin", 50, 4),
                           write_folder("c", 70, 8, true, false)};
    ndm_data_options o = {.files = files, .file_count = 3, .seq_len = S, .vocab = 256};
    ndm_data *d = open_data(&o);
    /* token:     10..18 | 50..53 | 70..77; documents start at 0, 5 | 9 | 13 */
    static const int32_t label[21] = {-100, 11, 12,   -100, 14, 15,   -100, 17, 18,   50, 51,
                                      52,   53, -100, 71,   72, -100, 74,   75, -100, 77};
    static const int begins[21] = {0, 0, 0,  0,  0,  5,  5,  5,  5,  9, 9,
                                   9, 9, 13, 13, 13, 13, 13, 13, 13, 13};

    (void)state;
    assert_int_equal(ndm_data_tokens(d), 21);
    assert_int_equal(ndm_data_samples(d), 5);
    for (int i = 0; i < 5; i++) {
        struct sample s = read_sample(d, i);
        for (int p = 0; p < S; p++) {
            int at = i * S + p, from = begins[at] > i * S ? begins[at] : i * S;
            assert_int_equal(s.targets[p], begins[at + 1] == at + 1 ? NDM_IGNORE : label[at + 1]);
            assert_int_equal(s.first[p], from - i * S);
            assert_int_equal(s.positions[p], at - from);
        }
    }
    ndm_data_close(d);
    o.files = files + 1, o.file_count = 1; /* alone it has no documents at all */
    refused(&o, NDM_ERR_CONFIG, "too few");
    remove_folder(files[0]);
    remove_folder(files[2]);
}

/* ---- Megatron ---- */

struct index {
    unsigned char bytes[512];
    size_t n;
};

static void add(struct index *x, const void *data, size_t n)
{
    memcpy(x->bytes + x->n, data, n);
    x->n += n;
}

static struct index make_index(int type, int width, const int32_t *lengths, int64_t n,
                               const int64_t *documents, int64_t m)
{
    struct index x = {{0}, 0};
    int64_t version = 1, pointer = 0;
    unsigned char code = (unsigned char)type;

    add(&x, "MMIDIDX\0", 9);
    add(&x, &version, 8);
    add(&x, &code, 1);
    add(&x, &n, 8);
    add(&x, &m, 8);
    add(&x, lengths, (size_t)n * 4);
    for (int64_t i = 0; i < n; pointer += width * lengths[i++])
        add(&x, &pointer, 8);
    add(&x, documents, (size_t)m * 8);
    return x;
}

/* Sequences of 3, 2, 0, 4 tokens; documents are the first two, an empty one, and the rest. */
static void megatron_documents_come_from_the_index(void **state)
{
    static const int32_t lengths[] = {3, 2, 0, 4};
    static const int64_t documents[] = {0, 2, 3, 4}, none[] = {0, 0, 0, 4, 4};
    struct index x = make_index(8, 2, lengths, 4, documents, 4);
    const char *file = write_tokens("m.bin", 10, 9);
    ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = S, .vocab = 256};
    ndm_data *d;
    struct sample s;

    (void)state;
    scratch_write("m.idx", x.bytes, x.n);
    d = open_data(&o);
    assert_int_equal(ndm_data_tokens(d), 9);
    s = read_sample(d, 0);
    assert_memory_equal(s.first, ((int32_t[]){0, 0, 0, 0}), sizeof s.first);
    assert_memory_equal(s.targets, ((int32_t[]){11, 12, 13, 14}), sizeof s.targets);
    s = read_sample(d, 1);
    assert_memory_equal(s.first, ((int32_t[]){0, 1, 1, 1}), sizeof s.first);
    assert_memory_equal(s.positions, ((int32_t[]){0, 0, 1, 2}), sizeof s.positions);
    assert_memory_equal(s.targets, ((int32_t[]){NDM_IGNORE, 16, 17, 18}), sizeof s.targets);
    ndm_data_close(d);

    x = make_index(8, 2, lengths, 4, none, 5); /* one document among empty ones */
    scratch_write("m.idx", x.bytes, x.n);
    d = open_data(&o);
    s = read_sample(d, 1);
    assert_memory_equal(s.first, ((int32_t[]){0, 0, 0, 0}), sizeof s.first);
    assert_memory_equal(s.targets, ((int32_t[]){15, 16, 17, 18}), sizeof s.targets);
    ndm_data_close(d);
}

/* While a run reads: no entry leads out of the tables. */
static void an_index_that_is_written_over_is_told(void **state)
{
    static const int32_t lengths[] = {3, 2, 0, 4};
    static const int64_t documents[] = {0, 2, 3, 4}, wrong[] = {4, -1, INT64_MIN, INT64_MAX};
    struct index x = make_index(8, 2, lengths, 4, documents, 4);
    const char *file = write_tokens("m.bin", 10, 9);
    ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = S, .vocab = 256};
    ndm_data *d;
    struct sample s;

    (void)state;
    scratch_write("m.idx", x.bytes, x.n);
    d = open_data(&o);
    s = read_sample(d, 0);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        memcpy(x.bytes + 34 + 12 * 4 + 8, &wrong[i], 8); /* of document 1 */
        scratch_write("m.idx", x.bytes, x.n);
        assert_int_equal(ndm_data_sample(d, 0, s.inputs, s.targets, s.positions, s.first),
                         NDM_ERR_FORMAT);
        assert_non_null(strstr(ndm_error_message(), "written over"));
    }
    ndm_data_close(d);
}

static void try_index(const ndm_data_options *o, struct index x, size_t at, int64_t value,
                      size_t width, const char *says)
{
    memcpy(x.bytes + at, &value, width);
    scratch_write("m.idx", x.bytes, x.n);
    refused(o, NDM_ERR_FORMAT, says);
}

static void hostile_indices_are_refused(void **state)
{
    static const int32_t lengths[] = {3, 6};
    static const int64_t documents[] = {0, 1, 2};
    const struct index x = make_index(8, 2, lengths, 2, documents, 3);
    const char *file = write_tokens("m.bin", 10, 9);
    const ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = S, .vocab = 256};
    struct index cut = x;

    (void)state;
    try_index(&o, x, 9, 2, 8, "version 2");
    try_index(&o, x, 17, 7, 1, "type 7");
    try_index(&o, x, 18, INT64_MAX, 8, "do not hold the 9223372036854775807 sequences");
    try_index(&o, x, 18, -1, 8, "do not hold the -1 sequences");
    try_index(&o, x, 26, INT64_MAX / 8, 8, "do not hold");
    try_index(&o, x, 34, 4, 4, "sequence 1 has 6 tokens from byte 6");
    try_index(&o, x, 34, -3, 4, "sequence 0 has -3 tokens");
    try_index(&o, x, 38, 5, 4, "its sequences have 8 tokens, the .bin has 9");
    try_index(&o, x, 42, 2, 8, "sequence 0 has 3 tokens from byte 2");
    try_index(&o, x, 58, 1, 8, "entry 0 of its documents is sequence 1");
    try_index(&o, x, 66, 3, 8, "entry 1 of its documents is sequence 3");
    try_index(&o, x, 66, -1, 8, "entry 1 of its documents is sequence -1");
    try_index(&o, x, 74, 1, 8, "entry 2 of its documents is sequence 1");
    cut.n -= 8;
    try_index(&o, cut, 9, 1, 8, "do not hold");
    cut.n = 20;
    try_index(&o, cut, 9, 1, 8, "too few for an index");
}

/* ---- mixtures ---- */

/* Any stretch of the mix has each source's share to within one sample of it and one of rounding,
 * and each source's samples come in order, each once. */
static void a_mix_keeps_its_shares_everywhere(void **state)
{
    static const double weights[] = {7, 2.5, 0.5};
    int64_t next[3] = {0};
    ndm_mix mix;

    (void)state;
    assert_int_equal(ndm_mix_init(weights, 3, &mix), NDM_OK);
    for (int64_t i = 0; i < 2 * NDM_MIX_PERIOD + 1234; i++) {
        int64_t local, k = ndm_mix_locate(&mix, i, &local);

        assert_int_equal(local, next[k]++);
        for (int s = 0; s < 3; s++) {
            double share = weights[s] / 10.0 * (double)(i + 1);
            assert_true(share - (double)next[s] < 1.5 && (double)next[s] - share < 1.5);
        }
    }
    ndm_mix_finish(&mix);
}

/* Random access, in whatever order ranks ask, gives what a reading in order gives. Sources wrap by
 * themselves. */
static void mixed_samples_depend_on_their_number_alone(void **state)
{
    const char *one = write_tokens("x.bin", 0, 41), *two = write_tokens("y.bin", 100, 13);
    char text[20000];
    const char *file = text;
    ndm_data_options o = {.files = &file, .file_count = 1, .seq_len = S, .vocab = 256, .seed = 5};
    int from[2] = {0};

    (void)state;
    snprintf(text, sizeof text, "%s:0.75,%s:.25", one, two);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        o.shuffle = shuffle;
        ndm_data *d = open_data(&o), *again = open_data(&o);
        assert_int_equal(ndm_data_samples(d), 10 + 3);
        for (int64_t i = 0; i < 40; i++) {
            int64_t other = 39 - i;
            struct sample a = read_sample(d, i), b = read_sample(again, other);
            struct sample c = read_sample(again, i);
            assert_memory_equal(&a, &c, sizeof a);
            b = read_sample(d, other), c = read_sample(again, other);
            assert_memory_equal(&b, &c, sizeof b);
            from[a.inputs[0] >= 100]++;
            ndm_data_advise(d, i);
            for (int p = 1; p < S; p++)
                assert_int_equal(a.inputs[p], a.inputs[0] + p);
        }
        ndm_data_close(d);
        ndm_data_close(again);
    }
    assert_int_equal(from[0], 60);
    assert_int_equal(from[1], 20);
}

static void weights_that_mean_nothing_are_refused(void **state)
{
    const char *plain = write_tokens("x.bin", 0, 41);
    char text[20000], more[20000];
    const char *files[] = {text, more};
    ndm_data_options o = {.files = files, .file_count = 2, .seq_len = S, .vocab = 256};

    (void)state;
    snprintf(text, sizeof text, "%s:2", plain);
    snprintf(more, sizeof more, "%s", plain);
    refused(&o, NDM_ERR_USAGE, "1 of 2 data files have a weight");
    snprintf(more, sizeof more, "%s:0", plain);
    refused(&o, NDM_ERR_USAGE, "a weight is a number above 0");
    snprintf(more, sizeof more, "%s:1e-9", plain);
    refused(&o, NDM_ERR_CONFIG, "less than 1 sample in 100000");
    snprintf(more, sizeof more, "%s:1", plain);
    o.labels = plain;
    refused(&o, NDM_ERR_USAGE, "put it beside the tokens");
    o.labels = NULL, o.no_weights = true;
    refused(&o, NDM_ERR_USAGE, "evaluation takes every sample once");
    o.no_weights = false, o.file_count = 1; /* one file with a weight is that file */
    ndm_data_close(open_data(&o));
    snprintf(text, sizeof text, "%s", write_tokens("with,comma:inf", 0, 41)); /* a name */
    ndm_data_close(open_data(&o));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_bring_their_labels_and_documents),
        cmocka_unit_test(megatron_documents_come_from_the_index),
        cmocka_unit_test(an_index_that_is_written_over_is_told),
        cmocka_unit_test(hostile_indices_are_refused),
        cmocka_unit_test(a_mix_keeps_its_shares_everywhere),
        cmocka_unit_test(mixed_samples_depend_on_their_number_alone),
        cmocka_unit_test(weights_that_mean_nothing_are_refused),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
