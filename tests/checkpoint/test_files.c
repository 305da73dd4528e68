/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of checkpoints and their checksums: names, the newest, retention, damage. One process. */
#include "../unit/scratch.h"

#include <sys/stat.h>

#include "core/file.h"
#include "core/rng.h"
#include "train/checkpoint_tools.h"

/* ---- helpers ---- */

static void expect_ok(ndm_status status)
{
    if (status != NDM_OK)
        fail_msg("%s: %s", ndm_status_name(status), ndm_error_message());
}

static char *path_of(const char *folder, const char *name)
{
    char *path = ndm_text_printf("%s/%s", folder, name);

    assert_non_null(path);
    return path;
}

static void write_file(const char *path, const void *data, size_t bytes)
{
    FILE *f = fopen(path, "wb");

    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* A folder that passes for complete: one data file, its checksums, trainer.json. */
static void make_checkpoint(const char *folder, const char *name, int64_t step)
{
    ndm_checkpoint_facts facts = {.state = {.step = step}, .model_dtype = NDM_F32};
    char *path = path_of(folder, name), *data = path_of(path, "data");
    char *sums_path = path_of(path, NDM_CHECKPOINT_SUMS);
    char *trainer = path_of(path, NDM_CHECKPOINT_TRAINER);
    ndm_hash128 hash;
    ndm_sums sums;

    expect_ok(ndm_file_make_dirs(path));
    write_file(data, "0123456789", 10);
    ndm_sums_init(&sums, 4);
    expect_ok(ndm_sums_add_file(&sums, "data", 10));
    ndm_sums_put(&sums, 0, 0, "0123456789", 10);
    expect_ok(ndm_sums_save(&sums, sums_path, &hash));
    ndm_hash_128_hex(hash, facts.sums_hash);
    expect_ok(ndm_checkpoint_facts_write(&facts, trainer));
    ndm_sums_finish(&sums);
    free(path);
    free(data);
    free(sums_path);
    free(trainer);
}

static char *fresh_folder(const char *name)
{
    char *folder = path_of(scratch_folder, name);

    expect_ok(ndm_file_make_dirs(folder));
    return folder;
}

static void drop(char *folder, const char *const *names)
{
    for (; *names; names++) {
        char *path = path_of(folder, *names);
        expect_ok(ndm_checkpoint_remove(path));
        free(path);
    }
    expect_ok(ndm_checkpoint_remove(folder));
    free(folder);
}

static bool is_there(const char *folder, const char *name)
{
    char *path = path_of(folder, name);
    bool there = ndm_file_exists(path);

    free(path);
    return there;
}

/* ---- names and the newest ---- */

static void names_are_parsed_as_numbers(void **state)
{
    static const char *const wrong[] = {
        "step-",   "step-12a",    "step-1.5",
        "Step-1",  ".step-1.tmp", "step-1 ",
        "xstep-1", "step--1",     "step-00000000000000000000000000000000000001"};
    char text[NDM_CHECKPOINT_NAME_BYTES];
    int64_t step = -7;

    (void)state;
    assert_string_equal(ndm_checkpoint_name(100, text), "step-00000100");
    assert_string_equal(ndm_checkpoint_name(123456789012, text), "step-123456789012");
    assert_true(ndm_checkpoint_parse_name("step-00000100", &step));
    assert_int_equal(step, 100);
    assert_true(ndm_checkpoint_parse_name("step-7", &step));
    assert_int_equal(step, 7);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        if (ndm_checkpoint_parse_name(wrong[i], &step))
            fail_msg("'%s' was taken", wrong[i]);
}

/* By text, step-9 is after step-1000; by date, the oldest number is the newest folder. */
static void the_newest_is_the_highest_number(void **state)
{
    static const char *const names[] = {"step-1000", "step-00000100", "step-9", "step-2000",
                                        "step-3000", "step-x",        NULL};
    char name[NDM_CHECKPOINT_NAME_BYTES], *folder = fresh_folder("newest");
    int64_t step;

    (void)state;
    expect_ok(ndm_checkpoint_find_latest(folder, &step, name));
    assert_int_equal(step, -1);
    make_checkpoint(folder, "step-1000", 1000);
    make_checkpoint(folder, "step-00000100", 100);
    make_checkpoint(folder, "step-9", 9);
    char *empty = path_of(folder, "step-3000"), *foreign = path_of(folder, "step-x");
    expect_ok(ndm_file_make_dirs(empty)); /* nothing in it */
    expect_ok(ndm_file_make_dirs(foreign));
    make_checkpoint(folder, "step-2000", 2000); /* a file of another size */
    char *cut = ndm_text_printf("%s/step-2000/data", folder);
    write_file(cut, "0123", 4);
    expect_ok(ndm_checkpoint_find_latest(folder, &step, name));
    assert_int_equal(step, 1000);
    assert_string_equal(name, "step-1000");
    free(empty);
    free(foreign);
    free(cut);
    drop(folder, names);
}

static void a_folder_that_is_not_there_has_none(void **state)
{
    char name[NDM_CHECKPOINT_NAME_BYTES];
    int64_t step = 5;

    (void)state;
    expect_ok(ndm_checkpoint_find_latest("/nowhere/at/all", &step, name));
    assert_int_equal(step, -1);
}

/* ---- retention and publishing ---- */

static void retention_keeps_the_newest_and_the_written(void **state)
{
    static const char *const names[] = {"step-1", "step-2", "step-30", "step-4", "step-99", NULL};
    char *folder = fresh_folder("keep"), *incomplete = path_of(folder, "step-99");

    (void)state;
    make_checkpoint(folder, "step-1", 1);
    make_checkpoint(folder, "step-2", 2);
    make_checkpoint(folder, "step-30", 30);
    make_checkpoint(folder, "step-4", 4);
    expect_ok(ndm_file_make_dirs(incomplete)); /* counts for nothing, and is left alone */
    expect_ok(ndm_checkpoint_retain(folder, 0, 4));
    assert_true(is_there(folder, "step-1"));
    expect_ok(ndm_checkpoint_retain(folder, 2, 4));
    assert_false(is_there(folder, "step-1"));
    assert_false(is_there(folder, "step-2"));
    assert_true(is_there(folder, "step-4"));
    assert_true(is_there(folder, "step-30"));
    assert_true(is_there(folder, "step-99"));
    expect_ok(ndm_checkpoint_retain(folder, 1, 4));
    assert_true(is_there(folder, "step-4"));
    assert_false(is_there(folder, "step-30"));
    free(incomplete);
    drop(folder, names);
}

/* A checkpoint may be a link to where it was moved, or have something of a user's in it. */
static void what_is_elsewhere_or_foreign_stays(void **state)
{
    static const char *const names[] = {"step-3", "step-4", NULL};
    char *folder = fresh_folder("links"), *away = fresh_folder("away");
    char *moved = path_of(away, "step-1"), *link = path_of(folder, "step-1");
    char *notes = path_of(folder, "step-2/notes"), *left = path_of(folder, ".step-2.old.tmp");
    char *kept = path_of(left, "notes"), *temporary = path_of(folder, ".step-3.tmp");
    char *again = path_of(folder, "step-3");

    (void)state;
    make_checkpoint(away, "step-1", 1);
    make_checkpoint(folder, "step-2", 2);
    make_checkpoint(folder, "step-4", 4);
    expect_ok(ndm_file_make_dirs(notes));
    assert_int_equal(symlink(moved, link), 0);
    expect_ok(ndm_checkpoint_retain(folder, 1, 4));
    assert_false(is_there(folder, "step-1") || is_there(folder, ".step-1.old.tmp"));
    assert_true(is_there(moved, "data"));
    assert_false(is_there(folder, "step-2"));
    expect_ok(ndm_checkpoint_sweep(folder));
    assert_true(ndm_file_is_dir(kept));
    assert_int_equal(symlink(moved, again), 0);
    make_checkpoint(folder, ".step-3.tmp", 3);
    expect_ok(ndm_checkpoint_publish(folder, temporary, again));
    assert_true(is_there(moved, "data") && is_there(again, "data"));
    assert_false(is_there(folder, ".step-3.tmp"));
    assert_int_equal(rmdir(kept), 0);
    expect_ok(ndm_checkpoint_sweep(folder));
    assert_false(ndm_file_exists(left));
    expect_ok(ndm_checkpoint_remove(moved));
    assert_int_equal(rmdir(away), 0);
    char *const paths[] = {away, moved, link, notes, left, kept, temporary, again};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        free(paths[i]);
    drop(folder, names);
}

static void publishing_replaces_what_is_there(void **state)
{
    static const char *const names[] = {"step-5", NULL};
    char *folder = fresh_folder("publish"), *old = path_of(folder, "step-5");
    char *temporary = path_of(folder, ".step-5.tmp"), *mark = path_of(temporary, "mark");

    (void)state;
    make_checkpoint(folder, "step-5", 5);
    expect_ok(ndm_file_make_dirs(temporary));
    write_file(mark, "new", 3);
    expect_ok(ndm_checkpoint_publish(folder, temporary, old));
    assert_false(ndm_file_exists(temporary));
    assert_true(is_there(old, "mark"));
    assert_false(is_there(old, "data"));
    free(old);
    free(temporary);
    free(mark);
    drop(folder, names);
}

static void sweeping_takes_unfinished_saves_alone(void **state)
{
    static const char *const names[] = {"step-5", ".other.tmp", NULL};
    char *folder = fresh_folder("sweep"), *unfinished = path_of(folder, ".step-00000006.tmp");
    char *foreign = path_of(folder, ".other.tmp");

    (void)state;
    make_checkpoint(folder, "step-5", 5);
    make_checkpoint(folder, ".step-00000006.tmp", 6);
    expect_ok(ndm_file_make_dirs(foreign));
    expect_ok(ndm_checkpoint_sweep(folder));
    assert_false(ndm_file_exists(unfinished));
    assert_true(ndm_file_exists(foreign));
    assert_true(is_there(folder, "step-5"));
    free(unfinished);
    free(foreign);
    drop(folder, names);
}

static void too_little_room_is_told_with_numbers(void **state)
{
    (void)state;
    expect_ok(ndm_checkpoint_check_space(scratch_folder, 1));
    assert_int_equal(ndm_checkpoint_check_space(scratch_folder, INT64_MAX), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "9223372036854775807 bytes does not fit"));
}

/* ---- trainer.json ---- */

static void trainer_json_comes_back_and_shows_damage(void **state)
{
    static const char *const names[] = {"step-12", NULL};
    char *folder = fresh_folder("facts"), *path = path_of(folder, "step-12");
    char *trainer = path_of(path, NDM_CHECKPOINT_TRAINER);
    ndm_checkpoint_facts facts;
    ndm_buffer text = {0};

    (void)state;
    make_checkpoint(folder, "step-12", 12);
    expect_ok(ndm_checkpoint_facts_read(path, &facts));
    assert_int_equal(facts.state.step, 12);
    assert_string_equal(facts.version, NDM_VERSION);
    expect_ok(ndm_file_read(trainer, &text));
    char *digits = strstr(text.data, "\"step\": 12");
    assert_non_null(digits);
    digits[9] = '3'; /* "32" */
    write_file(trainer, text.data, text.length);
    assert_int_equal(ndm_checkpoint_facts_read(path, &facts), NDM_ERR_CHECK);
    assert_non_null(strstr(ndm_error_message(), "trainer.json"));
    write_file(trainer, "{", 1);
    assert_int_equal(ndm_checkpoint_facts_read(path, &facts), NDM_ERR_FORMAT);
    ndm_buffer_finish(&text);
    free(path);
    free(trainer);
    drop(folder, names);
}

/* ---- checksums ---- */

enum { FILE_BYTES = 1000, BLOCK = 64 };

static void fill_bytes(unsigned char *data, size_t n)
{
    for (size_t i = 0; i < n; i++)
        data[i] = (unsigned char)ndm_rng_u64(3, 0, i);
}

static void start_sums(ndm_sums *sums)
{
    ndm_sums_init(sums, BLOCK);
    expect_ok(ndm_sums_add_file(sums, "cut.bin", FILE_BYTES));
}

/* Rank k of 3 writes every third piece of `piece` bytes. */
static void write_pieces(const unsigned char *data, int64_t piece, int k, const char *part)
{
    ndm_sums sums;

    start_sums(&sums);
    for (int64_t at = k * piece; at < FILE_BYTES; at += 3 * piece)
        ndm_sums_put(&sums, 0, at, data + at, FILE_BYTES - at < piece ? FILE_BYTES - at : piece);
    expect_ok(ndm_sums_write_part(&sums, part));
    ndm_sums_finish(&sums);
}

static void read_parts(ndm_sums *sums, char *const *parts)
{
    start_sums(sums);
    for (int k = 0; k < 3; k++)
        expect_ok(ndm_sums_read_part(sums, parts[k]));
}

/* Three ranks write pieces of any size: what no one has whole is shared out, and filled from the
 * file. */
static void any_cut_gives_the_same_checksums(void **state)
{
    char *parts[] = {path_of(scratch_folder, "part0"), path_of(scratch_folder, "part1"),
                     path_of(scratch_folder, "part2")};
    char *fills[] = {path_of(scratch_folder, "fill0"), path_of(scratch_folder, "fill1"),
                     path_of(scratch_folder, "fill2")};
    unsigned char data[FILE_BYTES];
    ndm_sums whole, sums;

    (void)state;
    fill_bytes(data, sizeof data);
    scratch_write("cut.bin", data, sizeof data);
    start_sums(&whole);
    ndm_sums_put(&whole, 0, 0, data, FILE_BYTES);
    for (int64_t piece = 1; piece <= FILE_BYTES; piece += 13) {
        for (int k = 0; k < 3; k++)
            write_pieces(data, piece, k, parts[k]);
        for (int k = 0; k < 3; k++) {
            read_parts(&sums, parts);
            expect_ok(ndm_sums_fill(&sums, scratch_folder, k, 3));
            expect_ok(ndm_sums_write_part(&sums, fills[k]));
            ndm_sums_finish(&sums);
        }
        read_parts(&sums, fills);
        for (int64_t b = 0; b < whole.files[0].n_blocks; b++) {
            assert_true(sums.files[0].known[b]);
            assert_memory_equal(&sums.files[0].blocks[b], &whole.files[0].blocks[b],
                                sizeof(ndm_hash128));
        }
        ndm_sums_finish(&sums);
    }
    ndm_sums_finish(&whole);
    for (int k = 0; k < 3; k++) {
        free(parts[k]);
        free(fills[k]);
    }
}

static void a_block_that_nobody_hashed_is_an_error(void **state)
{
    char *path = path_of(scratch_folder, "incomplete.json");
    ndm_hash128 hash;
    ndm_sums sums;

    (void)state;
    ndm_sums_init(&sums, 4);
    expect_ok(ndm_sums_add_file(&sums, "x", 9));
    ndm_sums_put(&sums, 0, 0, "01234567", 8);
    assert_int_equal(ndm_sums_save(&sums, path, &hash), NDM_ERR_INTERNAL);
    assert_non_null(strstr(ndm_error_message(), "x: nobody hashed its block 2"));
    ndm_sums_finish(&sums);
    free(path);
}

static void damage(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");

    assert_non_null(f);
    fseek(f, at, SEEK_SET);
    int c = fgetc(f);
    fseek(f, at, SEEK_SET);
    fputc(c ^ 1, f);
    assert_int_equal(fclose(f), 0);
}

/* Every range of a file reads right, and a damaged byte is found by exactly the ranges whose blocks
 * hold it. */
static void reads_are_verified(void **state)
{
    enum { BAD = 333 };
    unsigned char data[FILE_BYTES], out[FILE_BYTES];
    fill_bytes(data, sizeof data);
    const char *path = scratch_write("read.bin", data, sizeof data);
    ndm_sums sums;

    (void)state;
    ndm_sums_init(&sums, BLOCK);
    expect_ok(ndm_sums_add_file(&sums, "read.bin", FILE_BYTES));
    ndm_sums_put(&sums, 0, 0, data, FILE_BYTES);
    for (int damaged = 0; damaged <= 1; damaged++) {
        FILE *f = fopen(path, "rb");
        ndm_verified v = {.sums = &sums};
        assert_non_null(f);
        for (int64_t from = 0; from < FILE_BYTES; from += 29)
            for (int64_t n = 1; from + n <= FILE_BYTES; n += 61) {
                bool hit = damaged && from / BLOCK <= BAD / BLOCK &&
                           (from + n - 1) / BLOCK >= BAD / BLOCK;
                ndm_status status = ndm_verified_read(&v, fileno(f), path, out, n, from);
                assert_int_equal(status, hit ? NDM_ERR_CHECK : NDM_OK);
                if (!hit)
                    assert_memory_equal(out, data + from, (size_t)n);
                else
                    assert_non_null(strstr(ndm_error_message(), "bytes 320 to 383"));
            }
        assert_int_equal(ndm_verified_read(&v, fileno(f), path, out, 2, FILE_BYTES - 1),
                         NDM_ERR_CHECK);
        ndm_verified_finish(&v);
        fclose(f);
        damage(path, BAD);
    }
    ndm_sums_finish(&sums);
}

/* ---- verify ---- */

typedef struct heard {
    int n;
    char text[4096];
} heard;

static void hear(void *user, const char *message)
{
    heard *h = user;

    h->n++;
    snprintf(h->text, sizeof h->text, "%s", message);
}

static void verify_names_what_does_not_hold(void **state)
{
    static const char *const names[] = {"step-3", NULL};
    char *folder = fresh_folder("verify"), *path = path_of(folder, "step-3");
    char *data = path_of(path, "data");
    int64_t faults;
    heard h = {0};

    (void)state;
    make_checkpoint(folder, "step-3", 3);
    expect_ok(ndm_checkpoint_verify(path, hear, &h, &faults));
    assert_int_equal(faults, 0);
    damage(data, 5);
    expect_ok(ndm_checkpoint_verify(path, hear, &h, &faults));
    assert_int_equal(faults, 1);
    assert_int_equal(h.n, 1);
    assert_non_null(strstr(h.text, "step-3/data: bytes 4 to 7"));
    assert_int_equal(unlink(data), 0);
    expect_ok(ndm_checkpoint_verify(path, hear, &h, &faults));
    assert_int_equal(faults, 1);
    assert_non_null(strstr(h.text, "data"));
    free(path);
    free(data);
    drop(folder, names);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_parsed_as_numbers),
        cmocka_unit_test(the_newest_is_the_highest_number),
        cmocka_unit_test(a_folder_that_is_not_there_has_none),
        cmocka_unit_test(retention_keeps_the_newest_and_the_written),
        cmocka_unit_test(what_is_elsewhere_or_foreign_stays),
        cmocka_unit_test(publishing_replaces_what_is_there),
        cmocka_unit_test(sweeping_takes_unfinished_saves_alone),
        cmocka_unit_test(too_little_room_is_told_with_numbers),
        cmocka_unit_test(trainer_json_comes_back_and_shows_damage),
        cmocka_unit_test(any_cut_gives_the_same_checksums),
        cmocka_unit_test(a_block_that_nobody_hashed_is_an_error),
        cmocka_unit_test(reads_are_verified),
        cmocka_unit_test(verify_names_what_does_not_hold),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
