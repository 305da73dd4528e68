/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics lines are the contract's, parse as JSON, and are whole; progress says what it should. */
#include "scratch.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include <jansson.h>

#include "train/metrics.h"
#include "train/progress.h"

static const ndm_step_metrics step = {.step = 3,
                                      .loss = 2.5,
                                      .grad_norm = INFINITY,
                                      .lr = 1e-3,
                                      .tokens = 96,
                                      .tokens_total = 300,
                                      .step_ms = 12.5,
                                      .tokens_per_s = 7680,
                                      .tflops = 0.25,
                                      .mfu = NAN,
                                      .comm_exposed_ms = 1,
                                      .mem_peak_bytes = 3 << 20};

static json_t *line_of(FILE *file)
{
    char text[8192];
    json_t *root;

    assert_non_null(fgets(text, sizeof text, file));
    assert_int_equal(text[strlen(text) - 1], '\n');
    root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(root);
    return root;
}

static void write_file(bool append)
{
    ndm_metrics *m;
    ndm_json *json;

    assert_int_equal(ndm_metrics_open(scratch_path("m.jsonl"), append, &m), NDM_OK);
    json = ndm_metrics_begin(m, "run");
    ndm_json_key_int(json, "ranks", 4);
    ndm_metrics_add_host(json);
    assert_int_equal(ndm_metrics_end(m), NDM_OK);
    assert_int_equal(ndm_metrics_step(m, &step), NDM_OK);
    ndm_metrics_close(m);
}

static void lines_are_json(void **state)
{
    static const char *const keys[] = {
        "step",    "loss",         "grad_norm", "lr",  "tokens",          "tokens_total",
        "step_ms", "tokens_per_s", "tflops",    "mfu", "comm_exposed_ms", "mem_peak_bytes"};
    json_t *run, *line, *host;
    FILE *file;

    (void)state;
    write_file(false);
    write_file(false); /* starts over */
    write_file(true);  /* adds */
    file = fopen(scratch_path("m.jsonl"), "r");
    assert_non_null(file);
    for (int i = 0; i < 2; i++) {
        run = json_object_get(line = line_of(file), "run");
        host = json_object_get(run, "host");
        assert_int_equal(json_integer_value(json_object_get(run, "ranks")), 4);
        assert_true(json_integer_value(json_object_get(host, "cores")) >= 1);
        assert_true(json_integer_value(json_object_get(host, "memory_bytes")) > 0);
        json_decref(line);
        line = line_of(file);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            assert_non_null(json_object_get(line, keys[k]));
        assert_int_equal(json_object_size(line), sizeof keys / sizeof *keys);
        assert_true(json_is_null(json_object_get(line, "grad_norm")));
        assert_true(json_is_null(json_object_get(line, "mfu")));
        assert_true(json_number_value(json_object_get(line, "lr")) == 1e-3);
        json_decref(line);
    }
    assert_int_equal(fgetc(file), EOF);
    fclose(file);
}

/* What a crash left of a line goes before another is added; what cannot be a line of ours stays. */
static void half_a_line_is_not_added_to(void **state)
{
    static const struct {
        const char *left, *kept;
    } cases[] = {{"{\"step\":1}\n{\"step\":2,\"lo", "{\"step\":1}\n{\"step\":"},
                 {"{\"run\":{", "{\"step\":"},
                 {"a note", "a note\n{\"step\":"},
                 {"{\"step\":1}\n", "{\"step\":1}\n{\"step\":"}};

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *path = scratch_write("half.jsonl", cases[i].left, strlen(cases[i].left));
        char text[4096] = {0};
        ndm_metrics *m;
        assert_int_equal(ndm_metrics_open(path, true, &m), NDM_OK);
        assert_int_equal(ndm_metrics_step(m, &step), NDM_OK);
        ndm_metrics_close(m);
        FILE *file = fopen(path, "r");
        assert_true(fread(text, 1, sizeof text - 1, file) > strlen(cases[i].kept));
        fclose(file);
        text[strlen(cases[i].kept)] = '\0';
        assert_string_equal(text, cases[i].kept);
    }
}

static void a_bad_path_is_named(void **state)
{
    ndm_metrics *m;

    (void)state;
    assert_int_equal(ndm_metrics_open("/proc/none/m.jsonl", false, &m), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "/proc/none/m.jsonl"));
}

/* Opening a pipe that nobody reads would wait without end. */
static void pipes_are_written_if_read(void **state)
{
    const char *path = scratch_path("pipe");
    ndm_metrics *m;
    int reader;

    (void)state;
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(ndm_metrics_open(path, false, &m), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), "nobody reads this pipe"));
    reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    assert_int_equal(ndm_metrics_open(path, false, &m), NDM_OK);
    assert_int_equal(ndm_metrics_step(m, &step), NDM_OK);
    char text[8192];
    ssize_t got = read(reader, text, sizeof text);
    assert_true(got > 0 && text[0] == '{' && text[got - 1] == '\n');
    ndm_metrics_close(m);
    close(reader);
}

/* Off a terminal: the first, the last, and every log_every-th step. */
static void plain_progress(void **state)
{
    char text[8192] = {0};
    FILE *file = fmemopen(text, sizeof text - 1, "w");
    ndm_step_metrics s = step;
    ndm_progress p;
    int lines = 0;

    (void)state;
    ndm_progress_init(&p, file, 10, 4);
    assert_false(p.terminal);
    for (s.step = 1; s.step <= 10; s.step++)
        ndm_progress_step(&p, &s);
    ndm_progress_finish(&p);
    fclose(file);
    for (const char *c = text; *c != '\0'; c++)
        lines += *c == '\n';
    assert_int_equal(lines, 4); /* 1, 4, 8, 10 */
    assert_non_null(strstr(text, "step 4/10  loss 2.5000"));
    assert_non_null(strstr(text, "7.68k tokens/s"));
    assert_null(strstr(text, "step 5/10"));
    assert_null(strchr(text, '\r'));
}

static void times_and_silence(void **state)
{
    ndm_progress p;
    char text[32];

    (void)state;
    assert_string_equal(ndm_progress_time(59.6, text, sizeof text), "1:00");
    assert_string_equal(ndm_progress_time(3723, text, sizeof text), "1:02:03");
    assert_string_equal(ndm_progress_time(NAN, text, sizeof text), "0:00");
    ndm_progress_init(&p, NULL, 10, 1);
    ndm_progress_step(&p, &step);
    ndm_progress_finish(&p);
    assert_true(p.mean_ms == 12.5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_are_json),      cmocka_unit_test(half_a_line_is_not_added_to),
        cmocka_unit_test(a_bad_path_is_named), cmocka_unit_test(pipes_are_written_if_read),
        cmocka_unit_test(plain_progress),      cmocka_unit_test(times_and_silence),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
