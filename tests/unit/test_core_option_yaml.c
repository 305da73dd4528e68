/* SPDX-License-Identifier: Apache-2.0 */
/* Options from YAML: synonyms, nesting, lists, foreign keys, contradictions, and hostile files. */
#include "option_case.h"
#include "option_sample.h"

#include <core/rng.h>

static void keys_synonyms_and_nesting_are_read(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "dp_shard: 4",
        "dp-shard: 4",
        "dp_shard_size: 4",
        "DP-Shard-Size: '4'",
        "parallelism_config: {dp_shard_size: 4}",
        "parallelism_config:\n  parallelism_config_dp_shard_size: 4",
        "parallelism_config:\n  parallelism_dp_shard_size: 4",
        "dp_shard_size: 4\nparallelism_config:\n  dp_shard_size: 4.0",
        "# a comment\n---\ndp_shard: !!int 4\nfsdp_config:\nsave_dir: ~\nzero:\n",
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        ndm_options *o = fresh(&sample);
        expect_ok(load_yaml(o, forms[i]));
        assert_int_equal(ndm_option_int64(o, "dp-shard"), 4);
        assert_false(ndm_option_is_set(o, "zero"));
        assert_false(ndm_option_is_set(o, "save-dir"));
        ndm_options_destroy(o);
    }
}

static void values_have_their_forms(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    expect_ok(load_yaml(o, "beta1: 1e-3\nshuffle: On\nbf16: true\nchunk: 2KiB\n"
                           "save_dir: \"null\"\ndp_shard: auto\n"));
    assert_true(ndm_option_double(o, "beta1") == 1e-3);
    assert_true(ndm_option_bool(o, "shuffle"));
    assert_string_equal(ndm_option_string(o, "dtype"), "bf16");
    assert_int_equal(ndm_option_int64(o, "chunk"), 2048);
    assert_string_equal(ndm_option_string(o, "save-dir"), "null");
    assert_int_equal(ndm_option_int64(o, "dp-shard"), -1);
    assert_string_equal(ndm_option_origin(o, "dtype"), "run.yaml:3");
    ndm_options_destroy(o);

    o = fresh(&sample);
    expect_ok(load_yaml(o, "bf16: no\ndtype: fp32\n")); /* says nothing, so nothing contradicts */
    assert_string_equal(ndm_option_string(o, "dtype"), "fp32");
    ndm_options_destroy(o);
}

static void lists_have_their_forms(void **state)
{
    (void)state;
    static const char *const forms[] = {
        "data: [a.txt, b.txt]",
        "data:\n  - a.txt\n  - b.txt",
        "datasets:\n  - path: a.txt\n  - path: b.txt\n    type: completion",
        "datasets:\n  - a.txt\n  - type:\n    path: b.txt",
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        ndm_options *o = fresh(&sample);
        expect_ok(load_yaml(o, forms[i]));
        assert_string_equal(ndm_option_string(o, "data"), "a.txt, b.txt");
        ndm_options_destroy(o);
    }
    ndm_options *o = fresh(&sample);
    expect_ok(load_yaml(o, "fsdp_config:\n  fsdp_transformer_layer_cls_to_wrap: A,B\ndata: a,b\n"));
    assert_int_equal(ndm_option_count(o, "wrap-classes"), 2);
    assert_int_equal(ndm_option_count(o, "data"), 1);
    ndm_options_destroy(o);
    o = fresh(&sample);
    expect_ok(load_yaml(o, "datasets:\n- weight: 0.7\n  path: a\n- {path: b, weight: }\n"));
    assert_string_equal(ndm_option_string(o, "data"), "a:0.7, b");
    ndm_options_destroy(o);
}

static void unknown_keys_name_the_nearest(void **state)
{
    (void)state;
    yaml_refused(&sample, "zero: 1\n\n\ndp_shrad_size: 2\n", NDM_ERR_USAGE,
                 "run.yaml:4: unknown key 'dp_shrad_size'; did you mean 'dp_shard_size'?");
    yaml_refused(&sample, "parallelism_config:\n  parallelism_config_dp_shrad_size: 2",
                 NDM_ERR_USAGE,
                 "run.yaml:2: unknown key 'parallelism_config_dp_shrad_size' in "
                 "parallelism_config; did you mean 'dp_shard_size'?");
    yaml_refused(&sample, "save_dri: x", NDM_ERR_USAGE,
                 "run.yaml:1: unknown key 'save_dri'; did you mean 'save_dir'?");
    yaml_refused(&sample, "wheels: 4", NDM_ERR_USAGE,
                 "run.yaml:1: unknown key 'wheels'; see 'ndmesh help train'");
    /* a dotted synonym is nesting, not a key with a dot */
    yaml_refused(&sample, "parallelism_config.dp_shard_size: 2", NDM_ERR_USAGE,
                 "run.yaml:1: unknown key 'parallelism_config.dp_shard_size'; see 'ndmesh help "
                 "train'");
    yaml_refused(&sample, "wheels: ", NDM_ERR_USAGE,
                 "run.yaml:1: unknown key 'wheels'; see 'ndmesh help train'");
    yaml_refused(&sample, "datasets:\n  - path: a\n    shards: 2", NDM_ERR_USAGE,
                 "run.yaml:3: unknown key 'shards' in datasets; see 'ndmesh help train'");
}

static void wrong_values_name_place_and_range(void **state)
{
    (void)state;
    yaml_refused(&sample, "zero: 7", NDM_ERR_USAGE, "run.yaml:1: zero: 7 is outside [1, 3]");
    yaml_refused(&sample, "\nzero: [1]", NDM_ERR_USAGE,
                 "run.yaml:2: zero: one value is expected, not a list");
    yaml_refused(&sample, "zero: {a: 1}", NDM_ERR_USAGE,
                 "run.yaml:1: zero: one value is expected, not a mapping");
    yaml_refused(&sample, "shuffle: perhaps", NDM_ERR_USAGE,
                 "run.yaml:1: shuffle: 'perhaps' is neither true nor false");
    yaml_refused(&sample, "dtype: fp16", NDM_ERR_USAGE,
                 "run.yaml:1: dtype: 'fp16' is not one of auto, fp32, bf16");
    yaml_refused(&sample, "fsdp_config: file.json", NDM_ERR_USAGE,
                 "run.yaml:1: fsdp_config: a mapping is expected");
    yaml_refused(&sample, "data:\n  - [a]", NDM_ERR_USAGE,
                 "run.yaml:1: data: an item is not a text (line 2)");
    yaml_refused(&sample, "data:\n  - type: completion", NDM_ERR_USAGE,
                 "run.yaml:1: data: an item has no key 'path' (line 2)");
    yaml_refused(&sample, "wrap_classes: [a b]", NDM_ERR_USAGE,
                 "run.yaml:1: wrap_classes: 'a b' is not a name without blanks");
    yaml_refused(&sample, "save_dir: \"a\\0b\"", NDM_ERR_USAGE,
                 "run.yaml:1: save_dir: the text holds a NUL");
}

static void contradictions_name_both_lines(void **state)
{
    (void)state;
    yaml_refused(&sample, "zero: 1\nshuffle: no\nzero: 1", NDM_ERR_CONFIG,
                 "run.yaml:3: key 'zero' is already given at line 1");
    yaml_refused(&sample, "dp-shard: 1\ndp_shard: 1", NDM_ERR_CONFIG,
                 "run.yaml:2: key 'dp_shard' is already given at line 1");
    yaml_refused(&sample, "dp_shard: 2\ndp_shard_size: 4", NDM_ERR_CONFIG,
                 "run.yaml:2: dp_shard_size: 4 contradicts dp_shard: 2 at line 1");
    yaml_refused(&sample, "bf16: true\ndtype: fp32", NDM_ERR_CONFIG,
                 "run.yaml:2: dtype: fp32 contradicts bf16: bf16 at line 1");
    /* even where a stronger source has spoken */
    ndm_options *o = fresh(&sample);
    expect_ok(load_flags(o, "--dp-shard 8"));
    expect_message(load_yaml(o, "dp_shard: 2\ndp_shard_size: 4"), NDM_ERR_CONFIG,
                   "run.yaml:2: dp_shard_size: 4 contradicts dp_shard: 2 at line 1");
    ndm_options_destroy(o);
}

static void foreign_keys_are_ignored_or_refused(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    expect_ok(load_yaml(o, "debug: {a: [1, 2]}\nwandb_project: p\nload_in_8bit: false\nlora_r:\n"
                           "lora_target_modules: []\nfsdp_config:\n  fsdp_offload_params: false\n"
                           "deepspeed_config: {}\n"));
    ndm_options_destroy(o);
    yaml_refused(&sample, "\nload_in_8bit: true", NDM_ERR_CONFIG,
                 "run.yaml:2: 'load_in_8bit: true' is refused: weights stay whole");
    yaml_refused(&sample, "lora_r: 8", NDM_ERR_CONFIG,
                 "run.yaml:1: 'lora_r: 8' is refused: there are no adapters");
    yaml_refused(&sample, "lora_target_modules: [q]", NDM_ERR_CONFIG,
                 "run.yaml:1: 'lora_target_modules' is refused: there are no adapters");
    yaml_refused(&sample, "fsdp_config:\n  fsdp_offload_params: true", NDM_ERR_CONFIG,
                 "run.yaml:2: 'fsdp_offload_params: true' is refused: nothing is offloaded");
    yaml_refused(&sample, "datasets:\n  - path: a\n    type: alpaca", NDM_ERR_CONFIG,
                 "run.yaml:3: 'type: alpaca' is refused: nothing is formatted");
    yaml_refused(&sample, "deepspeed_config: {zero_stage: 3}", NDM_ERR_CONFIG,
                 "run.yaml:1: 'deepspeed_config' is refused: another engine");
}

static void ignored_keys_are_listed_once(void **state)
{
    (void)state;
    ndm_options *o = fresh(&sample);
    char text[512] = "";
    ndm_options_set_silent(o, false);
    fflush(stderr);
    int saved = dup(2);
    FILE *file = tmpfile();
    assert_non_null(file);
    dup2(fileno(file), 2);
    ndm_status status = load_yaml(o, "debug: 1\nzero: 2\nwandb_name: x\nload_in_8bit: false\n");
    fflush(stderr);
    dup2(saved, 2);
    close(saved);
    expect_ok(status);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_string_equal(text, "ndmesh: warning: config: run.yaml: these keys change nothing here: "
                              "debug, wandb_name\n");
    ndm_options_destroy(o);
}

static void what_is_no_plain_yaml_is_refused(void **state)
{
    (void)state;
    yaml_refused(&sample, "zero: &z 1\nchunk: *z", NDM_ERR_FORMAT,
                 "run.yaml:2: alias '*z': write the value out instead");
    yaml_refused(&sample, "zero: 1\n---\nzero: 2", NDM_ERR_FORMAT,
                 "run.yaml:2: a second document; one is read");
    yaml_refused(
        &sample, "zero: !!python/object:os.system 1", NDM_ERR_FORMAT,
        "run.yaml:1: tag 'tag:yaml.org,2002:python/object:os.system': only plain values are read");
    yaml_refused(&sample, "zero: !mine 1", NDM_ERR_FORMAT,
                 "run.yaml:1: tag '!mine': only plain values are read");
    yaml_refused(&sample, "- a\n- b", NDM_ERR_FORMAT,
                 "run.yaml:1: 'key: value' lines are expected");
    yaml_refused(&sample, "just text", NDM_ERR_FORMAT,
                 "run.yaml:1: 'key: value' lines are expected");
    yaml_refused(&sample, "[a]: 1", NDM_ERR_FORMAT, "run.yaml:1: a key is not a name");
    yaml_refused(&sample, "? \n: 1", NDM_ERR_FORMAT, "run.yaml:1: a key is not a name");
    yaml_refused(&sample, "\"a\\0\": 1", NDM_ERR_FORMAT, "run.yaml:1: a key is not a name");
}

/* Refused as no YAML, whatever the words of the parser. */
static void format_error(const char *text, size_t bytes, const char *start)
{
    ndm_options *o = fresh(&sample);
    assert_int_equal(ndm_options_load_yaml_text(o, text, bytes, "run.yaml"), NDM_ERR_FORMAT);
    if (strncmp(ndm_error_message(), start, strlen(start)) != 0)
        fail_msg("'%s' does not start with '%s'", ndm_error_message(), start);
    ndm_options_destroy(o);
}

static void broken_files_are_refused_with_their_line(void **state)
{
    (void)state;
    static const char *const broken[][2] = {
        {"zero: 1\n  bad: [", "run.yaml:2:"}, {"zero: [1, 2", "run.yaml:"},
        {"a: b: c", "run.yaml:1:"},           {"\tzero: 1", "run.yaml:1:"},
        {"zero: \"open", "run.yaml:"},        {"zero: 1\n}", "run.yaml:2:"},
        {"zero: \xff\xfe", "run.yaml: byte"}, {"zero: \x01", "run.yaml:"},
    };
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        format_error(broken[i][0], strlen(broken[i][0]), broken[i][1]);
    size_t bytes = (1 << 20) + 1;
    char *big = malloc(bytes);
    memset(big, '#', bytes);
    format_error(big, bytes, "run.yaml: 1048577 bytes");
    memset(big, '[', bytes);
    format_error(big, bytes - 1, "run.yaml:1: nested deeper than 32 levels");
    free(big);
    ndm_options *o = fresh(&sample);
    expect_ok(load_yaml(o, ""));
    expect_ok(load_yaml(o, "# nothing\n"));
    expect_ok(load_yaml(o, "---\n...\n"));
    expect_message(ndm_options_load_yaml(o, "no/such.yaml"), NDM_ERR_IO,
                   "no/such.yaml: No such file or directory");
    ndm_options_destroy(o);
}

static void a_mapping_of_very_many_keys_is_refused(void **state)
{
    (void)state;
    ndm_buffer text = {0};
    for (int i = 0; i < 3000; i++)
        ndm_buffer_printf(&text, "wandb_%d: 1\n", i);
    format_error(text.data, text.length, "run.yaml:1: a mapping of 3000 keys");
    ndm_buffer_finish(&text);
}

/* Bytes of a good file, changed at random: any outcome but a crash, and every failure has a
 * message. */
static void mutated_files_never_crash(void **state)
{
    (void)state;
    static const char good[] = "dp_shard: 4\nfsdp_config:\n  fsdp_offload_params: false\n"
                               "datasets:\n  - path: a\n    type: completion\nbeta1: 1e-3\n"
                               "wrap_classes: [A, \"B\"]\nwandb_x: {a: 1}\n";
    const uint64_t seed = 4711;
    int accepted = 0, refused = 0;
    print_message("seed %llu\n", (unsigned long long)seed);
    for (uint64_t i = 0; i < 5000; i++) {
        char text[sizeof good];
        memcpy(text, good, sizeof good);
        for (uint64_t k = 0; k <= i % 8 / 5; k++) {
            uint64_t r = ndm_rng_u64(seed, i, k);
            static const char bytes[] = "\n :-[]{}\"'&*!|>#%@?,\x80\x01~\tzB9";
            text[r % (sizeof good - 1)] = bytes[(r >> 32) % (sizeof bytes - 1)];
        }
        ndm_options *o = fresh(&sample);
        ndm_error_set(NDM_OK, "", 0, "%s", "");
        ndm_status status = ndm_options_load_yaml_text(o, text, sizeof good - 1, "run.yaml");
        assert_int_equal(status == NDM_OK, ndm_error_message()[0] == '\0');
        accepted += status == NDM_OK;
        refused += status != NDM_OK;
        ndm_options_destroy(o);
    }
    print_message("%d accepted, %d refused\n", accepted, refused);
    assert_true(accepted > 100 && refused > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys_synonyms_and_nesting_are_read),
        cmocka_unit_test(values_have_their_forms),
        cmocka_unit_test(lists_have_their_forms),
        cmocka_unit_test(unknown_keys_name_the_nearest),
        cmocka_unit_test(wrong_values_name_place_and_range),
        cmocka_unit_test(contradictions_name_both_lines),
        cmocka_unit_test(foreign_keys_are_ignored_or_refused),
        cmocka_unit_test(ignored_keys_are_listed_once),
        cmocka_unit_test(what_is_no_plain_yaml_is_refused),
        cmocka_unit_test(broken_files_are_refused_with_their_line),
        cmocka_unit_test(a_mapping_of_very_many_keys_is_refused),
        cmocka_unit_test(mutated_files_never_crash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
