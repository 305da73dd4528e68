/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors: golden files, ranges and blocks, hostile headers, writing from several processes'
 * parts. */
#include "scratch.h"

#include <sys/stat.h>

#include "core/dtype.h"
#include "model/safetensors.h"

static ndm_safetensors *open_golden(const char *name)
{
    ndm_safetensors *r = NULL;
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", NDM_GOLDEN, name);
    if (ndm_safetensors_open(path, &r) != NDM_OK)
        fail_msg("%s: %s", name, ndm_error_message());
    return r;
}

static void a_file_lists_its_tensors(void **state)
{
    ndm_safetensors *r = open_golden("llama_basic/model.safetensors");
    const ndm_tensor_info *info;

    (void)state;
    assert_int_equal(ndm_safetensors_count(r), 21);
    assert_string_equal(ndm_safetensors_at(r, 0)->name, "lm_head.weight");
    assert_string_equal(ndm_safetensors_metadata(r, "format"), "pt");
    assert_null(ndm_safetensors_metadata(r, "other"));
    assert_null(ndm_safetensors_find(r, "lm_head"));
    assert_int_equal(ndm_safetensors_require(r, "lm_head.weight", 2, (int64_t[]){256, 64}, &info),
                     NDM_OK);
    assert_int_equal(info->dtype, NDM_F32);
    assert_int_equal(ndm_safetensors_require(r, "lm_head.weight", 2, (int64_t[]){64, 256}, &info),
                     NDM_ERR_FORMAT);
    assert_non_null(strstr(ndm_error_message(), "has shape [256, 64], the model wants [64, 256]"));
    assert_int_equal(ndm_safetensors_require(r, "lm_head.wieght", 1, (int64_t[]){1}, &info),
                     NDM_ERR_FORMAT);
    assert_non_null(strstr(ndm_error_message(), "the nearest is 'lm_head.weight'"));
    ndm_safetensors_close(r);
}

static void shards_read_as_one(void **state)
{
    ndm_safetensors *r = open_golden("llama_bf16_weights");
    const char *name = "model.layers.1.mlp.down_proj.weight";
    uint16_t raw[8];
    float wide[8];

    (void)state;
    assert_int_equal(ndm_safetensors_files(r), 3);
    assert_int_equal(ndm_safetensors_find(r, name)->dtype, NDM_BF16);
    assert_int_equal(ndm_safetensors_read(r, name, 100, 8, raw, NDM_BF16), NDM_OK);
    assert_int_equal(ndm_safetensors_read(r, name, 100, 8, wide, NDM_F32), NDM_OK);
    for (int i = 0; i < 8; i++)
        assert_true(wide[i] == ndm_bf16_to_f32(raw[i]));
    ndm_safetensors_close(r);
}

static void blocks_are_parts_of_the_whole(void **state)
{
    ndm_safetensors *r = open_golden("llama_basic");
    const char *name = "model.layers.0.mlp.down_proj.weight"; /* [64, 176] */
    static const int64_t blocks[][4] = {{0, 64, 0, 176},    {3, 9, 0, 176}, {0, 64, 88, 176},
                                        {63, 64, 175, 176}, {5, 5, 0, 9},   {7, 30, 44, 45}};
    float *whole = malloc(64 * 176 * sizeof *whole), *part = malloc(64 * 176 * sizeof *part);

    (void)state;
    assert_int_equal(ndm_safetensors_read(r, name, 0, 64 * 176, whole, NDM_F32), NDM_OK);
    for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
        int64_t r0 = blocks[b][0], r1 = blocks[b][1], c0 = blocks[b][2], c1 = blocks[b][3];

        assert_int_equal(ndm_safetensors_read_block(r, name, r0, r1, c0, c1, part, NDM_F32),
                         NDM_OK);
        for (int64_t i = r0; i < r1; i++) {
            for (int64_t j = c0; j < c1; j++)
                assert_true(part[(i - r0) * (c1 - c0) + j - c0] == whole[i * 176 + j]);
        }
    }
    assert_int_equal(ndm_safetensors_read_block(r, name, 0, 65, 0, 1, part, NDM_F32),
                     NDM_ERR_USAGE);
    assert_int_equal(ndm_safetensors_read(r, name, 64 * 176, 1, part, NDM_F32), NDM_ERR_USAGE);
    assert_int_equal(ndm_safetensors_read(r, name, 0, 1, part, NDM_I32), NDM_ERR_FORMAT);
    free(whole);
    free(part);
    ndm_safetensors_close(r);
}

/* A file of the given header and as many zero bytes of data. */
static const char *make_file(const char *name, const char *header, size_t data)
{
    size_t n = strlen(header);
    char *bytes = calloc(1, 8 + n + data + 1);
    const char *path;

    for (int i = 0; i < 8; i++)
        bytes[i] = (char)(unsigned char)(n >> (8 * i));
    memcpy(bytes + 8, header, n + 1);
    path = scratch_write(name, bytes, 8 + n + data);
    free(bytes);
    return path;
}

#define T(name, dtype, shape, begin, end)                                                      \
    "\"" name "\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" begin \
    ", " end "]}"

static void hostile_headers_are_refused(void **state)
{
    static const struct {
        const char *header;
        size_t data;
        const char *says;
    } cases[] = {
        {"", 0, "does not start with"},
        {"[]", 0, "does not start with"},
        {"{", 0, ":1:"},
        {"{\"a\": 1}", 0, "'a' is not described"},
        {"{\"__metadata__\": {\"format\": 1}}", 0, "__metadata__ 'format'"},
        {"{\"\xff\": 1}", 0, "unable to decode byte"},
        {"{" T("a", "F32", "[2]", "0", "8") ", " T("a", "F32", "[2]", "0", "8") "}", 8,
         "duplicate"},
        {"{" T("a", "F31", "[2]", "0", "8") "}", 8, "'F31'"},
        {"{" T("a", "F32", "[2]", "0", "4") "}", 4, "has 8 bytes, but its data_offsets span 4"},
        {"{" T("a", "F32", "[2]", "0", "8") "}", 4, "not within the 4 bytes"},
        {"{" T("a", "F32", "[2]", "8", "0") "}", 8, "not within"},
        {"{" T("a", "F32", "[2]", "-8", "0") "}", 8, "not within"},
        {"{" T("a", "F32", "[-2]", "0", "8") "}", 8, "dimension 0"},
        {"{" T("a", "F32", "[2.0]", "0", "8") "}", 8, "dimension 0"},
        {"{" T("a", "F32", "[4294967296, 4294967296]", "0", "0") "}", 0, "overflows"},
        {"{" T("a", "F32", "[4611686018427387904]", "0", "0") "}", 0, "overflows"},
        {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "9 dimensions"},
        {"{" T("a", "F32", "[1]", "0", "4") ", " T("b", "F32", "[1]", "0", "4") "}", 4, "overlaps"},
        {"{" T("a", "F32", "[1]", "0", "4") ", " T("b", "F32", "[1]", "8", "12") "}", 12, "hole"},
        {"{" T("a", "F32", "[1]", "0", "4") "}", 8, "4 bytes at the end belong to no tensor"},
        {"{\"a\": {\"shape\": [1], \"data_offsets\": [0, 4]}}", 4, "no dtype"},
        {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 4]}}", 4, "no shape"},
        {"{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0]}}", 4, "data_offsets"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = make_file("hostile.safetensors", cases[i].header, cases[i].data);
        ndm_safetensors *r;
        ndm_status status = ndm_safetensors_open(path, &r);

        if (status != NDM_ERR_FORMAT || strstr(ndm_error_message(), cases[i].says) == NULL)
            fail_msg("%s: %s: %s", cases[i].header, ndm_status_name(status), ndm_error_message());
        assert_non_null(strstr(ndm_error_message(), "hostile.safetensors"));
    }
}

static void broken_lengths_are_refused(void **state)
{
    static const unsigned char huge[16] = {0xff, 0xff, 0xff, 0xff, 0xff,
                                           0xff, 0xff, 0x7f, '{',  '}'};
    static const unsigned char longer[10] = {3, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
    ndm_safetensors *r;

    (void)state;
    assert_int_equal(ndm_safetensors_open(scratch_write("a", "1234567", 7), &r), NDM_ERR_FORMAT);
    assert_int_equal(ndm_safetensors_open(scratch_write("b", huge, 16), &r), NDM_ERR_FORMAT);
    assert_int_equal(ndm_safetensors_open(scratch_write("c", longer, 10), &r), NDM_ERR_FORMAT);
    assert_int_equal(ndm_safetensors_open(scratch_path("nothing"), &r), NDM_ERR_IO);
    assert_int_equal(ndm_safetensors_open(scratch_folder, &r), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "neither model.safetensors nor"));
}

static void empty_tensors_and_scalars_are_read(void **state)
{
    const char *path = make_file("ok.safetensors",
                                 "{" T("scalar", "F32", "[]", "0",
                                       "4") ", " T("none", "F32", "[0, 3]", "4",
                                                   "4") ", " T("u", "BOOL", "[2]", "4", "6") "}  ",
                                 6);
    ndm_safetensors *r = NULL;
    float value = 1;

    (void)state;
    if (ndm_safetensors_open(path, &r) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    assert_int_equal(ndm_safetensors_find(r, "none")->count, 0);
    assert_int_equal(ndm_safetensors_read(r, "scalar", 0, 1, &value, NDM_F32), NDM_OK);
    assert_true(value == 0);
    ndm_safetensors_close(r);
}

static void an_index_must_agree_with_its_shards(void **state)
{
    static const struct {
        const char *index, *says;
    } cases[] = {
        {"{\"weight_map\": {\"a\": \"../x.safetensors\"}}", "beside it"},
        {"{\"weight_map\": {\"a\": \"x.bin\"}}", "beside it"},
        {"{\"weight_map\": {\"a\": 3}}", "not a file name"},
        {"{\"weight_map\": {}}", "no weight_map"},
        {"{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"one.safetensors\"}}",
         "'b' is not in one.safetensors"},
        {"{\"weight_map\": {\"b\": \"two.safetensors\"}}", "'c' of two.safetensors"},
    };
    ndm_safetensors *r;

    (void)state;
    make_file("one.safetensors", "{" T("a", "F32", "[1]", "0", "4") "}", 4);
    make_file("two.safetensors",
              "{" T("b", "F32", "[1]", "0", "4") ", " T("c", "F32", "[1]", "4", "8") "}", 8);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_write("m.safetensors.index.json", cases[i].index,
                                         strlen(cases[i].index));

        assert_int_equal(ndm_safetensors_open(path, &r), NDM_ERR_FORMAT);
        if (strstr(ndm_error_message(), cases[i].says) == NULL)
            fail_msg("%s: %s", cases[i].index, ndm_error_message());
    }
}

static const ndm_tensor_spec specs[] = {
    {"a", NDM_F32, 2, {6, 10}}, {"b", NDM_BF16, 2, {4, 5}}, {"c", NDM_I64, 1, {3}},
    {"d", NDM_F32, 1, {0}},     {"e", NDM_F32, 0, {0}},
};

static void fill(float *values, int n)
{
    for (int i = 0; i < n; i++)
        values[i] = (float)i * 0.37f - 3.0f;
}

/* Two writers, as two processes would be: the first makes the files and writes a part, the second
 * the rest. */
static void write_in_parts(int64_t shard_bytes, int64_t files, bool stage, bool commit)
{
    ndm_safetensors_writer *w[2];
    const int64_t c[3] = {-1, 2, INT64_MAX};
    float a[60], b[20], e = 7;

    fill(a, 60), fill(b, 20);
    for (int p = 0; p < 2; p++)
        assert_int_equal(ndm_safetensors_writer_create(scratch_folder, "part", specs, 5,
                                                       shard_bytes, NULL, &w[p]),
                         NDM_OK);
    assert_int_equal(ndm_safetensors_writer_files(w[0]), files);
    for (int p = 0; stage && p < 2; p++)
        assert_int_equal(ndm_safetensors_writer_stage(w[p]), NDM_OK);
    assert_int_equal(ndm_safetensors_writer_begin(w[0]), NDM_OK);
    assert_int_equal(ndm_safetensors_write(w[0], "a", 0, 25, a, NDM_F32), NDM_OK);
    assert_int_equal(ndm_safetensors_write(w[1], "a", 25, 35, a + 25, NDM_F32), NDM_OK);
    for (int p = 0; p < 2; p++) {
        float half[4 * 3];
        int64_t c0 = p ? 3 : 0, c1 = p ? 5 : 3;

        for (int64_t i = 0; i < 4; i++)
            memcpy(half + i * (c1 - c0), b + i * 5 + c0, (size_t)(c1 - c0) * sizeof *half);
        assert_int_equal(ndm_safetensors_write_block(w[p], "b", 0, 4, c0, c1, half, NDM_F32),
                         NDM_OK);
    }
    assert_int_equal(ndm_safetensors_write(w[1], "c", 0, 3, c, NDM_I64), NDM_OK);
    assert_int_equal(ndm_safetensors_write(w[0], "e", 0, 1, &e, NDM_F32), NDM_OK);
    assert_int_equal(ndm_safetensors_write(w[0], "x", 0, 1, &e, NDM_F32), NDM_ERR_USAGE);
    assert_int_equal(ndm_safetensors_write(w[0], "a", 59, 2, a, NDM_F32), NDM_ERR_USAGE);
    for (int p = 0; p < 2; p++)
        assert_int_equal(ndm_safetensors_writer_sync(w[p]), NDM_OK);
    if (commit)
        assert_int_equal(ndm_safetensors_writer_commit(w[0]), NDM_OK);
    for (int p = 0; p < 2; p++)
        ndm_safetensors_writer_destroy(w[p]);
}

static void check_parts(int64_t files)
{
    ndm_safetensors *r = NULL;
    float a[60], b[20], want[60], e;
    int64_t c[3];

    if (ndm_safetensors_open_stem(scratch_folder, "part", &r) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    assert_int_equal(ndm_safetensors_files(r), files);
    assert_int_equal(ndm_safetensors_count(r), 5);
    fill(want, 60);
    assert_int_equal(ndm_safetensors_read(r, "a", 0, 60, a, NDM_F32), NDM_OK);
    assert_int_equal(ndm_safetensors_read(r, "b", 0, 20, b, NDM_F32), NDM_OK);
    assert_int_equal(ndm_safetensors_read(r, "c", 0, 3, c, NDM_I64), NDM_OK);
    assert_int_equal(ndm_safetensors_read(r, "e", 0, 1, &e, NDM_F32), NDM_OK);
    assert_memory_equal(a, want, sizeof a);
    for (int i = 0; i < 20; i++)
        assert_true(b[i] == ndm_bf16_to_f32(ndm_f32_to_bf16(want[i])));
    assert_true(c[0] == -1 && c[1] == 2 && c[2] == INT64_MAX);
    assert_true(e == 7);
    for (int64_t i = 0; i < 5; i++)
        assert_int_equal(ndm_safetensors_at(r, i)->offset %
                             (int64_t)ndm_dtype_bytes(ndm_safetensors_at(r, i)->dtype),
                         0);
    ndm_safetensors_close(r);
}

static void what_is_written_in_parts_reads_back(void **state)
{
    (void)state;
    write_in_parts(100, 2, false, false); /* a alone: it is larger than a shard; then b to e */
    check_parts(2);
    write_in_parts(0, 1, false, false); /* over it: the index of before must not win */
    check_parts(1);
}

/* Files of the folder that begin with the stem. */
static int count_files(void)
{
    DIR *folder = opendir(scratch_folder);
    struct dirent *e;
    int n = 0;

    while ((e = readdir(folder)) != NULL)
        n += strncmp(e->d_name, "part", 4) == 0;
    closedir(folder);
    return n;
}

/* Any over any: nothing of the one before is left, others' files are, and a write that was not
 * completed has changed nothing. */
static void files_take_the_place_of_others(void **state)
{
    static const struct {
        int64_t shard_bytes, files;
    } plans[] = {{0, 1}, {100, 2}, {50, 3}, {100, 2}, {100, 2}, {0, 1}, {0, 1}};
    const char *others[] = {"part-of-me.safetensors", "part-1-of-2.safetensors",
                            "part-00001-of-00002.safetensors.bak"};

    (void)state;
    for (int i = 0; i < 3; i++)
        scratch_write(others[i], "x", 1);
    scratch_write("part-00001-of-00009.safetensors.partial", "x", 1);
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        int64_t n = plans[i].files;

        write_in_parts(plans[i].shard_bytes, n, true, true);
        check_parts(n);
        assert_int_equal(count_files(), 3 + n + (n > 1));
        write_in_parts(n > 1 ? 0 : 100, n > 1 ? 1 : 2, true, false);
        check_parts(n);
        assert_int_equal(count_files(), 3 + n + (n > 1));
    }
}

/* An export whose file is a link goes where the link leads. */
static void a_link_is_not_replaced(void **state)
{
    const char *link = scratch_path("part.safetensors");
    struct stat s;

    (void)state;
    unlink(link);
    assert_int_equal(symlink("elsewhere", link), 0);
    write_in_parts(0, 1, true, true);
    check_parts(1);
    assert_true(lstat(link, &s) == 0 && S_ISLNK(s.st_mode));
    assert_true(stat(scratch_path("elsewhere"), &s) == 0 && s.st_size > 300);
}

static void bad_plans_are_refused(void **state)
{
    ndm_tensor_spec twice[2] = {specs[0], specs[0]}, wide = {"w", NDM_F32, 9, {1}};
    ndm_tensor_spec huge = {"h", NDM_F32, 2, {(int64_t)1 << 62, 4}};
    ndm_safetensors_writer *w;

    (void)state;
    assert_int_equal(ndm_safetensors_writer_create(scratch_folder, "x", twice, 2, 0, NULL, &w),
                     NDM_ERR_USAGE);
    assert_int_equal(ndm_safetensors_writer_create(scratch_folder, "x", &wide, 1, 0, NULL, &w),
                     NDM_ERR_USAGE);
    assert_int_equal(ndm_safetensors_writer_create(scratch_folder, "x", &huge, 1, 0, NULL, &w),
                     NDM_ERR_USAGE);
    assert_int_equal(ndm_safetensors_writer_create("/proc/none", "x", specs, 1, 0, NULL, &w),
                     NDM_OK);
    assert_int_equal(ndm_safetensors_writer_begin(w), NDM_ERR_IO);
    ndm_safetensors_writer_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_lists_its_tensors),
        cmocka_unit_test(shards_read_as_one),
        cmocka_unit_test(blocks_are_parts_of_the_whole),
        cmocka_unit_test(hostile_headers_are_refused),
        cmocka_unit_test(broken_lengths_are_refused),
        cmocka_unit_test(empty_tensors_and_scalars_are_read),
        cmocka_unit_test(an_index_must_agree_with_its_shards),
        cmocka_unit_test(what_is_written_in_parts_reads_back),
        cmocka_unit_test(files_take_the_place_of_others),
        cmocka_unit_test(a_link_is_not_replaced),
        cmocka_unit_test(bad_plans_are_refused),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
