/* SPDX-License-Identifier: Apache-2.0 */
/* The option table: types, precedence, flags, environment, and what it prints. */
#include "option_case.h"
#include "option_sample.h"

#include <core/log.h>

static void defaults_hold_until_someone_speaks(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    assert_int_equal(ndm_option_int64(o, "dp_shard"), -1);
    assert_int_equal(ndm_option_int64(o, "zero"), 3);
    assert_true(ndm_option_double(o, "beta1") == 0.9);
    assert_int_equal(ndm_option_enum(o, "dtype"), 0);
    assert_string_equal(ndm_option_string(o, "dtype"), "auto");
    assert_false(ndm_option_bool(o, "shuffle"));
    assert_int_equal(ndm_option_count(o, "data"), 0);
    assert_null(ndm_option_string(o, "save-dir"));
    assert_int_equal(ndm_option_int64(o, "chunk"), 65536);
    assert_false(ndm_option_is_set(o, "zero"));
    assert_true(ndm_option_has_value(o, "zero"));
    assert_false(ndm_option_has_value(o, "save-dir"));
    assert_string_equal(ndm_option_origin(o, "zero"), "default");
    ndm_options_destroy(o);
    ndm_options_destroy(NULL);
}

static void load_one(ndm_options *o, int source)
{
    switch (source) {
    case 0:
        expect_ok(load_yaml(o, "zero: 1\n\nshuffle: yes\ndata: a.txt\n"));
        break;
    case 1:
        setenv("NDM_ZERO", "2", 1);
        setenv("NDM_DATA", "b.txt,c.txt", 1);
        expect_ok(ndm_options_load_env(o));
        unsetenv("NDM_ZERO");
        unsetenv("NDM_DATA");
        break;
    default:
        expect_ok(load_flags(o, "--data d.txt --data e.txt --beta1=0.5"));
        break;
    }
}

/* All six orders of loading give flags > environment > file > defaults. */
static void precedence_does_not_depend_on_order(void **state)
{
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < 6; k++) {
        ndm_options *o = fresh(&sample);
        for (int i = 0; i < 3; i++)
            load_one(o, orders[k][i]);
        assert_int_equal(ndm_option_int64(o, "zero"), 2);
        assert_string_equal(ndm_option_origin(o, "zero"), "NDM_ZERO");
        assert_true(ndm_option_bool(o, "shuffle"));
        assert_string_equal(ndm_option_origin(o, "shuffle"), "run.yaml:3");
        assert_int_equal(ndm_option_count(o, "data"), 2);
        assert_string_equal(ndm_option_item(o, "data", 0), "d.txt");
        assert_string_equal(ndm_option_item(o, "data", 1), "e.txt");
        assert_string_equal(ndm_option_origin(o, "data"), "--data");
        assert_true(ndm_option_double(o, "beta1") == 0.5);
        assert_int_equal(ndm_option_enum(o, "dtype"), 0);
        ndm_options_destroy(o);
    }
}

static void flags_are_read_in_all_forms(void **state)
{
    (void)state;
    static const char *const argv[] = {"a.yaml",    "--dp_shard", "-1",          "--ZERO=2",
                                       "--shuffle", "b.yaml",     "--save-dir=", "--save-dir",
                                       "x=y",       "--zero",     "1",           "--",
                                       "--zero",    "-"};
    const char *positional[14];
    int n = 0;
    ndm_options *o = fresh(&sample);
    expect_message(ndm_options_load_args(o, 14, argv, positional, &n), NDM_ERR_USAGE,
                   "--save-dir: the text is empty");
    ndm_options_destroy(o);

    static const char *const good[] = {"a.yaml", "--dp_shard", "-1",  "--ZERO=2", "--shuffle",
                                       "b.yaml", "--save-dir", "x=y", "--zero",   "1",
                                       "--",     "--zero",     "-"};
    o = fresh(&sample);
    expect_ok(ndm_options_load_args(o, 13, good, positional, &n));
    assert_int_equal(n, 4);
    assert_string_equal(positional[0], "a.yaml");
    assert_string_equal(positional[1], "b.yaml");
    assert_string_equal(positional[2], "--zero");
    assert_string_equal(positional[3], "-");
    assert_int_equal(ndm_option_int64(o, "zero"), 1);
    assert_true(ndm_option_bool(o, "shuffle"));
    assert_string_equal(ndm_option_string(o, "save_dir"), "x=y");
    expect_ok(load_flags(o, "--no-shuffle"));
    assert_false(ndm_option_bool(o, "shuffle"));
    assert_string_equal(ndm_option_origin(o, "shuffle"), "--no-shuffle");
    expect_ok(load_flags(o, "--shuffle true --shuffle off"));
    assert_false(ndm_option_bool(o, "shuffle"));
    expect_ok(load_flags(o, "--wrap-classes A,B --wrap_classes C --chunk 1.5MiB --dp-shard auto"));
    assert_string_equal(ndm_option_string(o, "wrap-classes"), "A, B, C");
    assert_int_equal(ndm_option_int64(o, "chunk"), 3 << 19);
    assert_int_equal(ndm_option_int64(o, "dp-shard"), -1);
    ndm_options_destroy(o);
}

static void bad_flags_say_what_is_allowed(void **state)
{
    (void)state;
    flags_refused(&sample, "--dp-shrad 2",
                  "unknown option '--dp-shrad'; did you mean '--dp-shard'?");
    flags_refused(&sample, "--bf16", "unknown option '--bf16'; did you mean '--dtype'?");
    flags_refused(&sample, "--wheel 2", "unknown option '--wheel'; see 'ndmesh help train'");
    flags_refused(&sample, "--no-zero",
                  "'--no-zero': --zero takes a value, so it cannot be negated");
    flags_refused(&sample, "-z", "unknown option '-z'; options start with two dashes");
    flags_refused(&sample, "--zero", "--zero needs a value");
    flags_refused(&sample, "--data --zero 1", "--data needs a value: FILE");
    flags_refused(&sample, "--zero x", "--zero: 'x' is not an integer");
    flags_refused(&sample, "--zero 2.5", "--zero: '2.5' is not an integer");
    flags_refused(&sample, "--zero=", "--zero: '' is not an integer");
    flags_refused(&sample, "--zero 99999999999999999999",
                  "--zero: '99999999999999999999' is not an integer");
    flags_refused(&sample, "--zero 4", "--zero: 4 is outside [1, 3]");
    flags_refused(&sample, "--dp-shard -2", "--dp-shard: -2 is below -1");
    flags_refused(&sample, "--beta1 1", "--beta1: 1 is outside [0, 1)");
    flags_refused(&sample, "--beta1 nan", "--beta1: 'nan' is not a number");
    flags_refused(&sample, "--beta1 0x1p-1", "--beta1: '0x1p-1' is not a number");
    flags_refused(&sample, "--beta1 0.5s", "--beta1: '0.5s' is not a number");
    flags_refused(&sample, "--shuffle=maybe", "--shuffle: 'maybe' is neither true nor false");
    flags_refused(&sample, "--dtype bf61",
                  "--dtype: 'bf61' is not one of auto, fp32, bf16; did you mean 'bf16'?");
    flags_refused(&sample, "--dtype int4", "--dtype: 'int4' is not one of auto, fp32, bf16");
    flags_refused(&sample, "--chunk 3X",
                  "--chunk: '3X' is not a size in bytes, such as 4096, 64K or 1.5GiB");
    flags_refused(&sample, "--chunk -1",
                  "--chunk: '-1' is not a size in bytes, such as 4096, 64K or 1.5GiB");
    flags_refused(&sample, "--wrap-classes A,,B", "--wrap-classes: an empty text in the list");
}

static void integers_may_be_written_as_floats(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    expect_ok(load_flags(o, "--dp-shard 1e3"));
    assert_int_equal(ndm_option_int64(o, "dp-shard"), 1000);
    assert_string_equal(ndm_option_string(o, "dp-shard"), "1000");
    ndm_options_destroy(o);
}

static void the_environment_names_its_variable(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    setenv("NDM_BETA1", "2", 1);
    expect_message(ndm_options_load_env(o), NDM_ERR_USAGE, "NDM_BETA1: 2 is outside [0, 1)");
    setenv("NDM_BETA1", "", 1);
    expect_ok(ndm_options_load_env(o));
    assert_false(ndm_option_is_set(o, "beta1"));
    unsetenv("NDM_BETA1");
    setenv("NDM_DP_SHARD", "4", 1);
    setenv("NDM_WRAP_CLASSES", "A, B", 1);
    expect_ok(ndm_options_load_env(o));
    assert_int_equal(ndm_option_int64(o, "dp-shard"), 4);
    assert_string_equal(ndm_option_item(o, "wrap-classes", 1), "B");
    unsetenv("NDM_DP_SHARD");
    unsetenv("NDM_WRAP_CLASSES");
    ndm_options_destroy(o);
}

/* A table whose options need others, in every way. */
static const ndm_option needing_options[] = {
    {.name = "folder", .type = NDM_OPTION_STRING, .help = "text"},
    {.name = "resume", .type = NDM_OPTION_BOOL, .initial = "false", .help = "off unless said"},
    {.name = "kind", .type = NDM_OPTION_ENUM, .choices = "a|ab|b", .initial = "a", .help = "kinds"},
    {.name = "every", .type = NDM_OPTION_INT, .initial = "1", .needs = "folder", .help = "n"},
    {.name = "retry", .type = NDM_OPTION_BOOL, .needs = "resume", .help = "flag"},
    {.name = "size",
     .type = NDM_OPTION_SIZE,
     .initial = "2K",
     .needs = "folder|kind=b",
     .help = "n"},
};

static void flags_that_say_nothing_are_refused(void **state)
{
    (void)state;
    static const ndm_option_table table = {
        .command = "train",
        .usage = "",
        .summary = "",
        .options = needing_options,
        .n_options = sizeof needing_options / sizeof *needing_options,
    };
    const struct {
        const char *flags, *refusal;
    } cases[] = {
        {"--every 2", "--every says nothing without --folder"},
        {"--every 1", NULL}, /* the default */
        {"--every 2 --folder x", NULL},
        {"--retry", "--retry says nothing without --resume"},
        {"--retry --no-resume", "--retry says nothing without --resume"},
        {"--retry --resume", NULL},
        {"--size 3K", "--size says nothing without --folder or --kind=b"},
        {"--size 3K --kind ab", "--size says nothing without --folder or --kind=b"},
        {"--size 3K --kind b", NULL},
        {"--size 3K --folder x", NULL},
        {"--size 2048", NULL}, /* the default in other words */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ndm_options *o = fresh(&table);
        expect_ok(load_flags(o, cases[i].flags));
        if (cases[i].refusal)
            expect_message(ndm_options_check(o), NDM_ERR_USAGE, cases[i].refusal);
        else
            expect_ok(ndm_options_check(o));
        ndm_options_destroy(o);
    }
}

static void required_options_are_asked_for(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    expect_message(ndm_options_check(o), NDM_ERR_USAGE,
                   "data is missing: give --data, or in YAML data or datasets");
    expect_ok(ndm_options_set(o, "data", "x"));
    expect_ok(ndm_options_check(o));
    expect_message(ndm_options_set(o, "dta", "x"), NDM_ERR_USAGE,
                   "unknown option '--dta'; did you mean '--data'?");
    ndm_options_destroy(o);
}

/* What a printing function writes; freed by the caller. */
static char *printed(void (*print)(const ndm_option_table *, FILE *), const ndm_options *options)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    assert_non_null(out);
    if (print)
        print(&sample, out);
    else
        ndm_options_print_config(options, out);
    fclose(out);
    return text;
}

static void assert_has(const char *text, const char *want)
{
    if (!strstr(text, want))
        fail_msg("'%s' is missing in:\n%s", want, text);
}

static void the_table_feeds_help_markdown_and_man(void **state)
{
    (void)state;
    char *help = printed(ndm_options_print_help, NULL);
    char *markdown = printed(ndm_options_print_markdown, NULL);
    char *man = printed(ndm_options_print_man, NULL);
    for (size_t i = 0; i < sample.n_options; i++) {
        assert_has(help, sample_options[i].name);
        assert_has(markdown, sample_options[i].name);
        assert_has(help, sample_options[i].help);
    }
    assert_has(help, "usage: ndmesh train [RUN.yaml] [options]");
    assert_has(help, "\nMesh:\n");
    assert_has(help, "ranks that shard, in ranks: at least -1 (default -1)");
    assert_has(help, "a type: auto, fp32, bf16 (default auto)");
    assert_has(help, "files (required)");
    assert_has(markdown, "| `--dp-shard` | integer | -1 | at least -1 | ranks | `dp_shard_size`, "
                         "`parallelism_config.dp_shard_size` | ranks that shard |\n");
    assert_has(markdown, "| `--beta1` | number | 0.9 | 0 to below 1 |");
    assert_has(markdown, "| `load_in_8bit` | false\\|no | weights stay whole |");
    assert_has(man, ".TH NDMESH\\-train 1");
    assert_has(man, ".TP\n.B \\-\\-dp\\-shard \\fIN\\fR\n");
    free(help);
    free(markdown);
    free(man);
}

/* The printed configuration says origins, and reading it back gives the same values. */
static void the_printed_configuration_reads_back(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    expect_ok(load_yaml(o, "dp_shard_size: 2\n"));
    expect_ok(load_flags(o, "--data a#:b.txt --data c\"d --save-dir null --beta1 0.3"));
    char *first = printed(NULL, o);
    assert_has(first, "dp_shard: 2 ");
    assert_has(first, "# run.yaml:1\n");
    assert_has(first, "data: [\"a#:b.txt\", \"c\\\"d\"]");
    assert_has(first, "# --data\n");
    assert_has(first, "# default\n");
    ndm_options *again = fresh(&sample);
    expect_ok(load_yaml(again, first));
    for (size_t i = 0; i < sample.n_options; i++) {
        const char *a = ndm_option_string(o, sample_options[i].name);
        const char *b = ndm_option_string(again, sample_options[i].name);
        assert_true((!a && !b) || strcmp(a, b) == 0);
    }
    free(first);
    ndm_options_destroy(again);

    ndm_buffer text = {0};
    ndm_json json;
    ndm_json_init_buffer(&json, &text, false);
    ndm_options_write_json(o, &json);
    assert_int_equal(ndm_json_finish(&json), NDM_OK);
    assert_string_equal(text.data,
                        "{\"dp_shard\":2,\"zero\":3,\"beta1\":0.3,\"dtype\":\"auto\",\"shuffle\":"
                        "false,\"data\":[\"a#:b.txt\",\"c\\\"d\"],\"wrap_classes\":null,"
                        "\"save_dir\":\"null\",\"chunk\":65536}\n");
    ndm_buffer_finish(&text);
    ndm_options_destroy(o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_hold_until_someone_speaks),
        cmocka_unit_test(precedence_does_not_depend_on_order),
        cmocka_unit_test(flags_are_read_in_all_forms),
        cmocka_unit_test(bad_flags_say_what_is_allowed),
        cmocka_unit_test(integers_may_be_written_as_floats),
        cmocka_unit_test(the_environment_names_its_variable),
        cmocka_unit_test(required_options_are_asked_for),
        cmocka_unit_test(flags_that_say_nothing_are_refused),
        cmocka_unit_test(the_table_feeds_help_markdown_and_man),
        cmocka_unit_test(the_printed_configuration_reads_back),
    };
    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
