/* SPDX-License-Identifier: Apache-2.0 */
/* Names, growing strings, files, hashes, clock and log lines. */
#include "scratch.h"

#include <core/clock.h>
#include <core/file.h>
#include <core/hash.h>
#include <core/log.h>
#include <core/text.h>

#include <fcntl.h>
#include <locale.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/wait.h>
#include <unistd.h>

static void distance_counts_edits(void **state)
{
    (void)state;
    assert_int_equal(ndm_text_distance("tp", "tp"), 0);
    assert_int_equal(ndm_text_distance("dp-shard", "DP_SHARD"), 0);
    assert_int_equal(ndm_text_distance("", "abc"), 3);
    assert_int_equal(ndm_text_distance("dp_shrad_size", "dp_shard_size"), 1); /* a swap */
    assert_int_equal(ndm_text_distance("kitten", "sitting"), 3);
    assert_int_equal(ndm_text_distance("ca", "abc"), 3); /* each place is edited once */
    char longer[300];
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    assert_int_equal(ndm_text_distance(longer, "a"), 299);
}

static void nearest_is_what_was_meant_or_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"dp-replicate", "dp-shard",    NULL,         "cp",
                                        "tp",           "micro-batch", "grad-accum", "lr"};
    const size_t n = sizeof names / sizeof *names;
    assert_string_equal(ndm_text_nearest("dp_shrad", names, n), "dp-shard");
    assert_string_equal(ndm_text_nearest("tpp", names, n), "tp");
    assert_string_equal(ndm_text_nearest("MICRO_BATCHES", names, n), "micro-batch");
    assert_string_equal(ndm_text_nearest("micro", names, n), "micro-batch");
    assert_null(ndm_text_nearest("wheel-barrow", names, n));
    assert_null(ndm_text_nearest("xy", names, n));
    assert_null(ndm_text_nearest("", names, n));
}

static void buffers_grow(void **state)
{
    (void)state;
    ndm_buffer b = {0};
    assert_string_equal(ndm_buffer_text(&b), "");
    for (int i = 0; i < 1000; i++)
        ndm_buffer_printf(&b, "%03d,", i);
    assert_int_equal(b.length, 4000);
    assert_int_equal(strlen(b.data), 4000);
    assert_true(strncmp(b.data + 3996, "999,", 4) == 0);
    ndm_buffer_append(&b, "a\0b", 3);
    assert_int_equal(b.length, 4003);
    assert_int_equal(ndm_buffer_status(&b), NDM_OK);
    ndm_buffer_finish(&b);
    assert_null(b.data);

    const char *const parts[] = {"a", "bc", ""};
    char *joined = ndm_text_join(parts, 3, ", ");
    assert_string_equal(joined, "a, bc, ");
    free(joined);
    joined = ndm_text_join(parts, 0, ", ");
    assert_string_equal(joined, "");
    free(joined);
}

static void doubles_read_back_equal(void **state)
{
    (void)state;
    static const double values[] = {0.1, 1e-3, 1.0 / 3, 1e300, 5e-324, 123456789, -0.0, 2.5};
    char text[NDM_TEXT_DOUBLE_BYTES];
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        assert_true(strtod(ndm_text_of_double(values[i], text), NULL) == values[i]);
    assert_string_equal(ndm_text_of_double(0.1, text), "0.1");
    assert_string_equal(ndm_text_of_double(1e-3, text), "0.001");
    assert_string_equal(ndm_text_of_double(4404760.0, text), "4404760");
    assert_string_equal(ndm_text_of_double(-2e14, text), "-200000000000000");
}

static void remove_folder(const char *parent, const char *child)
{
    char *path = ndm_text_printf("%s/%s", parent, child);
    assert_int_equal(rmdir(path), 0); /* it would not, were a temporary file left */
    free(path);
}

static void files_are_written_whole_and_read_back(void **state)
{
    (void)state;
    const char *folder = scratch_folder;
    char *deep = ndm_text_printf("%s/a/b//c/", folder);
    char *path = ndm_text_printf("%s/a/b/c/data.bin", folder);
    assert_int_equal(ndm_file_make_dirs(deep), NDM_OK);
    assert_int_equal(ndm_file_make_dirs(deep), NDM_OK);
    assert_true(ndm_file_is_dir(deep));
    assert_false(ndm_file_exists(path));

    char data[40000];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (char)(i * 7);
    assert_int_equal(ndm_file_write_atomic(path, data, sizeof data), NDM_OK);
    int64_t bytes = 0;
    assert_int_equal(ndm_file_size(path, &bytes), NDM_OK);
    assert_int_equal(bytes, sizeof data);
    ndm_buffer read = {0};
    assert_int_equal(ndm_file_read(path, &read), NDM_OK);
    assert_int_equal(read.length, sizeof data);
    assert_memory_equal(read.data, data, sizeof data);
    ndm_buffer_finish(&read);

    ndm_atomic_file file;
    assert_int_equal(ndm_atomic_file_begin(path, &file), NDM_OK);
    fputs("half", file.stream);
    char *temporary = ndm_text_duplicate(file.temporary);
    assert_true(ndm_file_exists(temporary));
    ndm_atomic_file_abort(&file);
    assert_false(ndm_file_exists(temporary));
    assert_int_equal(ndm_file_size(path, &bytes), NDM_OK);
    assert_int_equal(bytes, sizeof data);

    assert_int_equal(ndm_file_write_atomic(path, "", 0), NDM_OK);
    assert_int_equal(ndm_file_read(path, &read), NDM_OK);
    assert_int_equal(read.length, 0);
    ndm_buffer_finish(&read);
    free(temporary);
    unlink(path);
    remove_folder(folder, "a/b/c");
    remove_folder(folder, "a/b");
    remove_folder(folder, "a");
    free(path);
    free(deep);
}

static void file_errors_name_path_and_reason(void **state)
{
    (void)state;
    ndm_buffer read = {0};
    int64_t bytes;
    assert_int_equal(ndm_file_read("no/such", &read), NDM_ERR_IO);
    assert_string_equal(ndm_error_message(), "no/such: No such file or directory");
    assert_int_equal(ndm_file_read(".", &read), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "is a folder"));
    assert_int_equal(ndm_file_size("no/such", &bytes), NDM_ERR_IO);
    assert_int_equal(ndm_file_write_atomic("no/such/x", "a", 1), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "no/such/x"));
    assert_int_equal(ndm_file_write_atomic("/dev/full/x", "a", 1), NDM_ERR_IO);
    assert_int_equal(ndm_file_make_dirs("/dev/null/x"), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "/dev/null"));
}

/* Nobody writes to it: opening it for reading would wait without end. */
static void pipes_are_read_within_a_while(void **state)
{
    (void)state;
    const char *path = scratch_path("pipe");
    ndm_buffer text = {0};

    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ndm_file_read_within(path, 30, &text), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), path));
    assert_non_null(strstr(ndm_error_message(), "for 30 ms"));
    assert_int_equal(ndm_file_write(path, "a", 1), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), path));

    pid_t writer = fork();
    if (writer == 0) {
        FILE *out = fopen(path, "w");
        usleep(20 * 1000);
        fputs("a: 1\n", out);
        _exit(fclose(out) != 0);
    }
    assert_int_equal(ndm_file_read_within(path, 20 * 1000, &text), NDM_OK);
    assert_string_equal(text.data, "a: 1\n");
    ndm_buffer_finish(&text);
    assert_int_equal(waitpid(writer, NULL, 0), writer);
    unlink(path);
}

static void expect_text(const char *path, const char *text)
{
    ndm_buffer read = {0};

    assert_int_equal(ndm_file_read(path, &read), NDM_OK);
    assert_string_equal(read.data, text);
    ndm_buffer_finish(&read);
}

/* A link to a file, one to a link, and one to nothing yet: they stay, and their target is written.
 */
static void links_stay_links(void **state)
{
    const char *file = scratch_path("file"), *link = scratch_path("link");
    const char *far = scratch_path("far");
    struct stat s;

    (void)state;
    assert_int_equal(symlink("file", link), 0);
    assert_int_equal(symlink(link, far), 0);
    assert_int_equal(ndm_file_write_atomic(link, "one", 3), NDM_OK);
    expect_text(file, "one");
    assert_int_equal(chmod(file, 0640), 0);
    assert_int_equal(ndm_file_write_atomic(far, "two", 3), NDM_OK);
    expect_text(file, "two");
    assert_true(lstat(link, &s) == 0 && S_ISLNK(s.st_mode));
    assert_true(lstat(far, &s) == 0 && S_ISLNK(s.st_mode));
    assert_true(stat(file, &s) == 0 && (s.st_mode & 0777) == 0640);
    unlink(file);
    assert_int_equal(symlink("far", file), 0);
    assert_int_equal(ndm_file_write_atomic(far, "three", 5), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "symbolic links"));
}

/* Bytes of a pipe's reader, which may be gone at once. */
static pid_t start_reader(const char *path, int bytes)
{
    pid_t reader = fork();

    if (reader == 0) {
        int fd = open(path, O_RDONLY), got = 0;
        char text[4096];
        for (ssize_t n = 1; got < bytes && n > 0; got += (int)n)
            n = read(fd, text, sizeof text);
        _exit(got != bytes);
    }
    return reader;
}

static void pipes_are_written_in_place(void **state)
{
    enum { MANY = 300000 }; /* more than a pipe holds */
    const char *path = scratch_path("out");
    char *data = calloc(1, MANY);
    int outcome = -1;
    struct stat s;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ndm_file_write_atomic(path, "a", 1), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "nobody reads this pipe"));
    int held = open(path, O_RDONLY | O_NONBLOCK);
    pid_t reader = start_reader(path, MANY);
    usleep(20 * 1000);
    close(held);
    assert_int_equal(ndm_file_write_atomic(path, data, MANY), NDM_OK);
    assert_int_equal(waitpid(reader, &outcome, 0), reader);
    assert_int_equal(outcome, 0);
    assert_true(lstat(path, &s) == 0 && S_ISFIFO(s.st_mode));
    held = open(path, O_RDONLY | O_NONBLOCK);
    ndm_atomic_file file;
    assert_int_equal(ndm_atomic_file_begin(path, &file), NDM_OK);
    close(held);
    fputs("to nobody", file.stream);
    assert_int_equal(ndm_atomic_file_commit(&file), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "nobody reads this pipe"));
    free(data);
}

/* Nodes of its own, like the null device and the full one: only root makes them. */
static void devices_are_written_in_place(void **state)
{
    const char *null = scratch_path("null"), *full = scratch_path("full");
    struct stat s;

    (void)state;
    if (mknod(null, S_IFCHR | 0600, makedev(1, 3)) != 0 ||
        mknod(full, S_IFCHR | 0600, makedev(1, 7)) != 0 || access(null, W_OK) != 0 ||
        close(open(null, O_WRONLY)) != 0)
        skip();
    assert_int_equal(ndm_file_write_atomic(null, "a", 1), NDM_OK);
    assert_true(lstat(null, &s) == 0 && S_ISCHR(s.st_mode));
    assert_int_equal(ndm_file_write_atomic(full, "a", 1), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "No space left"));
    assert_true(lstat(full, &s) == 0 && S_ISCHR(s.st_mode));
    assert_int_equal(ndm_file_write_atomic(scratch_folder, "a", 1), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "Is a directory"));
}

static void hashes_are_xxh3(void **state)
{
    (void)state;
    char hex[NDM_HASH128_HEX_BYTES], hex64[NDM_HASH64_HEX_BYTES];
    assert_string_equal(ndm_hash_64_hex(ndm_hash_64("", 0), hex64), "2d06800538d394c2");
    assert_string_equal(ndm_hash_128_hex(ndm_hash_128("", 0), hex),
                        "99aa06d3014798d86001c324468d497f");
    ndm_hasher *h;
    char data[5000];
    memset(data, 'q', sizeof data);
    assert_int_equal(ndm_hasher_create(&h), NDM_OK);
    for (size_t at = 0, step = 1; at < sizeof data; at += step, step = step * 3 % 701 + 1)
        ndm_hasher_update(h, data + at, at + step < sizeof data ? step : sizeof data - at);
    assert_int_equal(ndm_hasher_digest_64(h), ndm_hash_64(data, sizeof data));
    ndm_hash128 a = ndm_hasher_digest_128(h), b = ndm_hash_128(data, sizeof data);
    assert_true(a.low == b.low && a.high == b.high);
    ndm_hasher_reset(h);
    assert_int_equal(ndm_hasher_digest_64(h), ndm_hash_64("", 0));
    ndm_hasher_destroy(h);
    ndm_hasher_destroy(NULL);
}

static void the_clock_goes_forward(void **state)
{
    (void)state;
    int64_t before = ndm_clock_ns();
    usleep(2000);
    ndm_clock_yield();
    int64_t after = ndm_clock_ns();
    assert_true(after - before >= 2000000);
    assert_true(ndm_clock_s() >= (double)after * 1e-9);
}

/* What one call writes to stderr. */
static void capture(char *text, size_t bytes, ndm_log_level level)
{
    fflush(stderr);
    int saved = dup(2);
    FILE *file = tmpfile();
    assert_non_null(file);
    dup2(fileno(file), 2);
    ndm_log(level, "mesh", "tp=%d", 3);
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    rewind(file);
    size_t n = fread(text, 1, bytes - 1, file);
    text[n] = '\0';
    fclose(file);
}

static void log_lines_name_level_area_and_rank(void **state)
{
    (void)state;
    char text[256];
    ndm_log_set_level(NDM_LOG_INFO);
    capture(text, sizeof text, NDM_LOG_WARNING);
    assert_string_equal(text, "ndmesh: warning: mesh: tp=3\n");
    capture(text, sizeof text, NDM_LOG_DEBUG);
    assert_string_equal(text, "");
    ndm_log_set_rank(3, "[3 dp_shard 1 tp 1]");
    capture(text, sizeof text, NDM_LOG_ERROR);
    assert_string_equal(text, "ndmesh: [3 dp_shard 1 tp 1] error: mesh: tp=3\n");
    capture(text, sizeof text, NDM_LOG_INFO); /* rank 0 alone informs */
    assert_string_equal(text, "");
    ndm_log_set_level(NDM_LOG_DEBUG);
    capture(text, sizeof text, NDM_LOG_INFO);
    assert_string_equal(text, "ndmesh: [3 dp_shard 1 tp 1] info: mesh: tp=3\n");
    assert_int_equal(ndm_log_get_level(), NDM_LOG_DEBUG);
}

/* A program that uses the library may have chosen one that writes 0,5. The file is glibc's
 * LC_NUMERIC of such a locale, which need not be installed. */
static void numbers_have_a_point_in_every_locale(void **state)
{
    static const unsigned char comma[] =
        "\x14\x11\x03\x20\6\0\0\0\x20\0\0\0\x22\0\0\0\x24\0\0\0\x28\0\0\0\x2c\0\0\0\x30\0\0\0"
        ",\0.\0\3\3\0\0,\0\0\0.\0\0\0UTF-8";
    char text[NDM_TEXT_DOUBLE_BYTES], *end;
    ndm_buffer buffer = {0};

    (void)state;
    assert_int_equal(mkdir(scratch_path("commas"), 0700), 0);
    scratch_write("commas/LC_NUMERIC", comma, sizeof comma);
    setenv("LOCPATH", scratch_folder, 1);
    bool there = setlocale(LC_NUMERIC, "commas") != NULL;
    unlink(scratch_path("commas/LC_NUMERIC"));
    rmdir(scratch_path("commas"));
    if (!there)
        skip();
    snprintf(text, sizeof text, "%.1f", 0.5);
    assert_string_equal(text, "0,5");
    assert_string_equal(ndm_text_of_double(0.5, text), "0.5");
    assert_string_equal(ndm_text_of_bytes(1536, text), "1.50 KiB");
    ndm_buffer_printf(&buffer, "%.2f", 0.25);
    assert_string_equal(ndm_buffer_text(&buffer), "0.25");
    ndm_buffer_finish(&buffer);
    assert_true(ndm_text_to_double("0.25,", &end) == 0.25 && *end == ',');
    setlocale(LC_NUMERIC, "C");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(distance_counts_edits),
        cmocka_unit_test(nearest_is_what_was_meant_or_nothing),
        cmocka_unit_test(numbers_have_a_point_in_every_locale),
        cmocka_unit_test(buffers_grow),
        cmocka_unit_test(doubles_read_back_equal),
        cmocka_unit_test(files_are_written_whole_and_read_back),
        cmocka_unit_test(file_errors_name_path_and_reason),
        cmocka_unit_test(pipes_are_read_within_a_while),
        cmocka_unit_test(links_stay_links),
        cmocka_unit_test(pipes_are_written_in_place),
        cmocka_unit_test(devices_are_written_in_place),
        cmocka_unit_test(hashes_are_xxh3),
        cmocka_unit_test(the_clock_goes_forward),
        cmocka_unit_test(log_lines_name_level_area_and_rank),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
