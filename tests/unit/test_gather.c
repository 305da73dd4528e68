/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering: ranges of a file that are asked for in any order, checked by blocks, past the page
 * cache and through it. */
#include "scratch.h"

#include <stdatomic.h>

#include "core/file.h"
#include "model/safetensors_gather.h"

enum { ROWS = 1500, COLUMNS = 3001, COUNT = ROWS * COLUMNS, TAIL = 3 };

/* Element i of the file: the upper half of float i. */
static float number(int64_t i)
{
    float value = (float)i;
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    bits &= 0xffff0000u;
    memcpy(&value, &bits, sizeof bits);
    return value;
}

/* Two bf16 tensors of 9 MB and a short one, at an odd place: more than one piece, none aligned. */
static const char *make_large(void)
{
    char *bytes = malloc(512 + 2 * (2 * COUNT + TAIL));
    const char *path;

    assert_non_null(bytes);
    int n = snprintf(bytes + 8, 500,
                     "{\"a\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]},"
                     "\"b\":{\"dtype\":\"BF16\",\"shape\":[%d,%d],\"data_offsets\":[%d,%d]},"
                     "\"c\":{\"dtype\":\"BF16\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}",
                     ROWS, COLUMNS, 2 * COUNT, ROWS, COLUMNS, 2 * COUNT, 4 * COUNT, TAIL, 4 * COUNT,
                     4 * COUNT + 2 * TAIL);
    if (n % 2 == 0)
        bytes[8 + n++] = ' ';
    memcpy(bytes, (char[8]){(char)(n % 256), (char)(n / 256)}, 8);
    for (int64_t i = 0; i < 2 * COUNT + TAIL; i++) {
        float value = number(i);
        memcpy(bytes + 8 + n + 2 * i, (const char *)&value + 2, 2);
    }
    path = scratch_write("large.safetensors", bytes, (size_t)(8 + n + 2 * (2 * COUNT + TAIL)));
    free(bytes);
    return path;
}

typedef struct watch {
    int64_t block_bytes, file_bytes, refused; /* a block, -1 = none */
    atomic_llong *seen;
} watch;

static ndm_status see_block(const void *user, int64_t file, int64_t begin, const void *data,
                            int64_t bytes)
{
    const watch *w = user;
    int64_t left = w->file_bytes - begin, want = left < w->block_bytes ? left : w->block_bytes;

    if (file != 0 || !data || begin % w->block_bytes != 0 || bytes != want)
        NDM_FAIL(NDM_ERR_INTERNAL, "the block at %lld has %lld bytes", (long long)begin,
                 (long long)bytes);
    atomic_fetch_add(w->seen, bytes);
    if (begin / w->block_bytes == w->refused)
        NDM_FAIL(NDM_ERR_CHECK, "block %lld is refused", (long long)w->refused);
    return NDM_OK;
}

enum { FIRST = 1001, N = 500 }; /* columns of b, as ranks of tp have them */

static void ask(ndm_gather *g, float *columns, float *whole)
{
    memset(whole, 0, (COUNT + TAIL) * sizeof *whole);
    memset(columns, 0, ROWS * N * sizeof *columns);
    assert_int_equal(ndm_gather_add(g, "c", 0, TAIL, whole + COUNT), NDM_OK);
    for (int64_t row = ROWS - 1; row >= 0; row--)
        assert_int_equal(ndm_gather_add(g, "b", row * COLUMNS + FIRST, N, columns + row * N),
                         NDM_OK);
    assert_int_equal(ndm_gather_add(g, "a", 0, COUNT, whole), NDM_OK);
}

static void expect_numbers(const float *columns, const float *whole)
{
    for (int64_t i = 0; i < COUNT; i++)
        assert_true(whole[i] == number(i));
    for (int64_t i = 0; i < TAIL; i++)
        assert_true(whole[COUNT + i] == number(2 * COUNT + i));
    for (int64_t i = 0; i < ROWS * N; i++)
        assert_true(columns[i] == number(COUNT + i / N * COLUMNS + FIRST + i % N));
}

static void whatever_is_asked_for_comes(void **state)
{
    static const struct {
        int64_t block_bytes;
        int threads;
        bool shared;
        int64_t rank;
    } ways[] = {{0, 1, false, 0}, {0, 3, true, 2}, {1 << 20, 4, false, 1}, {1000, 2, false, 0}};
    float *whole = malloc((COUNT + TAIL) * sizeof *whole);
    float *columns = malloc(ROWS * N * sizeof *columns);
    const char *path = make_large();
    ndm_safetensors *r;
    ndm_gather *g;

    (void)state;
    assert_int_equal(ndm_safetensors_open(path, &r), NDM_OK);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        atomic_llong seen = 0;
        watch w = {.block_bytes = ways[i].block_bytes, .refused = -1, .seen = &seen};
        ndm_gather_options o = {.threads = ways[i].threads,
                                .shared = ways[i].shared,
                                .rank = ways[i].rank,
                                .ranks = 3,
                                .check = w.block_bytes ? see_block : NULL,
                                .block_bytes = w.block_bytes,
                                .user = &w};

        assert_int_equal(ndm_file_size(path, &w.file_bytes), NDM_OK);
        assert_int_equal(ndm_gather_create(r, &o, &g), NDM_OK);
        assert_int_equal(ndm_gather_run(g), NDM_OK); /* of nothing */
        ask(g, columns, whole);
        assert_int_equal(ndm_gather_run(g), NDM_OK);
        expect_numbers(columns, whole);
        assert_true(seen >= (w.block_bytes ? 2 * (COUNT + ROWS * N) : 0)); /* what was asked for */
        ndm_gather_destroy(g);
    }
    ndm_safetensors_close(r);
    free(whole);
    free(columns);
}

static void what_fails_is_told(void **state)
{
    static float values[2 * COLUMNS];
    const char *path = make_large();
    atomic_llong seen = 0;
    watch w = {.block_bytes = 4096, .refused = 3, .seen = &seen};
    ndm_gather_options o = {.threads = 2, .check = see_block, .block_bytes = 4096, .user = &w};
    ndm_safetensors *r;
    ndm_gather *g;

    (void)state;
    assert_int_equal(ndm_file_size(path, &w.file_bytes), NDM_OK);
    assert_int_equal(ndm_safetensors_open(path, &r), NDM_OK);
    assert_int_equal(ndm_gather_create(r, &o, &g), NDM_OK);
    assert_int_equal(ndm_gather_add(g, "d", 0, 1, values), NDM_ERR_FORMAT);
    assert_int_equal(ndm_gather_add(g, "c", 2, 2, values), NDM_ERR_USAGE);
    assert_int_equal(ndm_gather_add(g, "a", COLUMNS, 2 * COLUMNS, values), NDM_OK);
    assert_int_equal(ndm_gather_run(g), NDM_ERR_CHECK);
    assert_non_null(strstr(ndm_error_message(), "block 3 is refused"));
    assert_int_equal(truncate(path, 5 << 20), 0);
    assert_int_equal(ndm_gather_add(g, "b", 0, COLUMNS, values), NDM_OK);
    assert_int_equal(ndm_gather_run(g), NDM_ERR_FORMAT);
    assert_non_null(strstr(ndm_error_message(), "large.safetensors: ends at byte"));
    ndm_gather_destroy(g);
    ndm_safetensors_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whatever_is_asked_for_comes),
        cmocka_unit_test(what_fails_is_told),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
