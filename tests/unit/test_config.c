/* SPDX-License-Identifier: Apache-2.0 */
/* Model configuration: what is read from config.json, what is refused, what is written back. */
#include "scratch.h"

#include <math.h>

#include "model/config.h"
#include "model/safetensors.h"

#define BASE                                                                               \
    "\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "           \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 176, " \
    "\"vocab_size\": 256"

static ndm_status load_text(const char *text, ndm_model_config *config)
{
    return ndm_model_config_load(scratch_write("config.json", text, strlen(text)), config);
}

static void golden(const char *name, ndm_model_config *config)
{
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", NDM_GOLDEN, name);
    if (ndm_model_config_load(path, config) != NDM_OK)
        fail_msg("%s: %s", name, ndm_error_message());
}

static const char *const golden_names[] = {
    "gpt2_packed",        "gpt2_tiny",    "llama3_rope", "llama_accum",  "llama_basic",
    "llama_bf16_weights", "llama_masked", "llama_mqa",   "llama_packed", "llama_tied_oddvocab",
    "mistral_swa",        "qwen2_bias",   "qwen3_qknorm"};

/* The weights that transformers wrote for a config are as many as the config says. */
static void parameters_are_those_of_the_file(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof golden_names / sizeof *golden_names; i++) {
        ndm_model_config c;
        ndm_safetensors *r;
        int64_t elements = 0;
        char path[4096];

        golden(golden_names[i], &c);
        snprintf(path, sizeof path, "%s/%s", NDM_GOLDEN, golden_names[i]);
        assert_int_equal(ndm_safetensors_open(path, &r), NDM_OK);
        for (int64_t t = 0; t < ndm_safetensors_count(r); t++)
            elements += ndm_safetensors_at(r, t)->count;
        assert_int_equal(ndm_model_config_parameters(&c), elements);
        ndm_safetensors_close(r);
        ndm_model_config_finish(&c);
    }
}

static void fields_of_families(void **state)
{
    ndm_model_config c;

    (void)state;
    golden("llama3_rope", &c);
    assert_int_equal(c.rope, NDM_ROPE_LLAMA3);
    assert_true(c.rope_theta == 500000.0 && c.rope_factor == 8.0);
    assert_true(c.rope_low_freq_factor == 1.0 && c.rope_high_freq_factor == 4.0);
    assert_int_equal(c.rope_original_positions, 32);
    assert_int_equal(c.head_dim, 24);
    ndm_model_config_finish(&c);
    golden("llama_bf16_weights", &c);
    assert_int_equal(c.rope, NDM_ROPE_DEFAULT);
    assert_true(c.rope_theta == 20000.0);
    assert_int_equal(c.dtype, NDM_BF16);
    ndm_model_config_finish(&c);
    golden("qwen2_bias", &c);
    assert_true(c.qkv_bias && !c.o_bias && !c.mlp_bias && !c.qk_norm && !c.tied);
    assert_int_equal(c.sliding_window, 0);
    ndm_model_config_finish(&c);
    golden("qwen3_qknorm", &c);
    assert_true(c.qk_norm && !c.qkv_bias && c.tied);
    assert_int_equal(c.head_dim, 16);
    ndm_model_config_finish(&c);
    golden("mistral_swa", &c);
    assert_int_equal(ndm_model_config_window(&c, 0), 16);
    assert_int_equal(ndm_model_config_window(&c, 1), 16);
    ndm_model_config_finish(&c);
    golden("gpt2_tiny", &c);
    assert_true(c.learned_positions && c.fused_qkv && c.tied && !c.gated);
    assert_int_equal(c.norm, NDM_NORM_LAYER);
    assert_int_equal(c.activation, NDM_GELU_TANH);
    assert_int_equal(c.ffn, 128);
    assert_int_equal(c.rope, NDM_ROPE_NONE);
    assert_string_equal(ndm_family_table(c.family)->decoder_class, "GPT2Block");
    ndm_model_config_finish(&c);
}

/* Sizes published with the models. */
static void presets_have_the_published_sizes(void **state)
{
    static const struct {
        const char *name;
        int64_t parameters;
    } want[] = {
        {"gpt2-124m", 124439808},     {"gpt2-1558m", 1557611200},   {"tinyllama-1.1b", 1100048384},
        {"llama-1b", 1235814400},     {"llama-3b", 3212749824},     {"llama-2-7b", 6738415616},
        {"llama-3-8b", 8030261248},   {"llama-3-70b", 70553706496}, {"llama-3-405b", 405853388800},
        {"mistral-7b", 7241732096},   {"qwen2-0.5b", 494032768},    {"qwen3-0.6b", 596049920},
        {"gemma-2b", 2506172416},     {"llama-2-13b", 13015864320}, {"llama-2-70b", 68976648192},
        {"qwen2.5-7b", 7615616512},   {"qwen2.5-14b", 14770033664}, {"qwen2.5-32b", 32763876352},
        {"qwen2.5-72b", 72706203648}, {"qwen3-8b", 8190735360},     {"qwen3-14b", 14768307200},
        {"qwen3-32b", 32762123264},
    };

    (void)state;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        ndm_model_config c;

        assert_int_equal(ndm_model_config_preset(want[i].name, &c), NDM_OK);
        assert_int_equal(ndm_model_config_parameters(&c), want[i].parameters);
        ndm_model_config_finish(&c);
    }
}

static void assert_same(const ndm_model_config *a, const ndm_model_config *b)
{
    ndm_model_config x = *a, y = *b;

    for (int64_t i = 0; i < x.layers; i++)
        assert_int_equal(ndm_model_config_window(a, i), ndm_model_config_window(b, i));
    x.source = y.source = NULL;
    x.layer_windowed = y.layer_windowed = NULL;
    assert_memory_equal(&x, &y, sizeof x);
}

static void a_written_preset_reads_back(void **state)
{
    (void)state;
    for (const char *const *name = ndm_model_preset_names(); *name != NULL; name++) {
        ndm_model_config c, again;

        assert_non_null(ndm_model_preset_summary(*name));
        assert_int_equal(ndm_model_config_resolve(*name, &c), NDM_OK);
        c.dtype = NDM_BF16;
        assert_int_equal(ndm_model_config_write(&c, scratch_path("written.json")), NDM_OK);
        if (ndm_model_config_load(scratch_path("written.json"), &again) != NDM_OK)
            fail_msg("%s: %s", *name, ndm_error_message());
        assert_same(&c, &again);
        ndm_model_config_finish(&c);
        ndm_model_config_finish(&again);
    }
}

static void a_loaded_file_is_written_whole(void **state)
{
    ndm_model_config c;
    char text[4096] = {0};
    FILE *file;

    (void)state;
    assert_int_equal(load_text("{" BASE ", \"rms_norm_eps\": 1e-05, \"eos_token_id\": [1, 2], "
                               "\"torch_dtype\": \"float32\", \"rope_theta\": 500000.0}",
                               &c),
                     NDM_OK);
    c.dtype = NDM_BF16;
    assert_int_equal(ndm_model_config_write(&c, scratch_path("whole.json")), NDM_OK);
    ndm_model_config_finish(&c);
    file = fopen(scratch_path("whole.json"), "r");
    assert_non_null(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "\"eos_token_id\": ["));
    assert_non_null(strstr(text, "\"torch_dtype\": \"bfloat16\""));
    assert_non_null(strstr(text, "\"rms_norm_eps\": 1e-5,"));
    assert_non_null(strstr(text, "\"rope_theta\": 500000.0"));
}

/* Each text is BASE with something added or replaced; the message names file, key and rule. */
static void refusals_name_the_key(void **state)
{
    static const struct {
        const char *text;
        ndm_status status;
        const char *says;
    } cases[] = {
        {"{" BASE ", \"attention_dropout\": 0.1}", NDM_ERR_CONFIG, "'attention_dropout': dropout"},
        {"{" BASE ", \"num_experts\": 8}", NDM_ERR_CONFIG, "'num_experts' is not known"},
        {"{" BASE ", \"sliding_window\": 16}", NDM_ERR_CONFIG, "'sliding_window' is not known"},
        {"{" BASE ", \"quantization_config\": {\"bits\": 4}}", NDM_ERR_CONFIG, "quantized"},
        {"{" BASE ", \"hidden_act\": \"relu2\"}", NDM_ERR_CONFIG, "'relu2' is not known"},
        {"{" BASE ", \"head_dim\": 15}", NDM_ERR_CONFIG, "head_dim 15 is odd"},
        {"{" BASE ", \"partial_rotary_factor\": 0.5}", NDM_ERR_CONFIG, "partial_rotary_factor"},
        {"{" BASE ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}}", NDM_ERR_CONFIG,
         "rope_type 'yarn'"},
        {"{" BASE ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0}}",
         NDM_ERR_FORMAT, "'low_freq_factor' is missing"},
        {"{" BASE ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0, \"beta\": 1}}",
         NDM_ERR_CONFIG, "rope key 'beta'"},
        {"{" BASE ", \"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 2e4}}",
         NDM_ERR_CONFIG, "rope_theta is 10000 and"},
        {"{" BASE ", \"rope_theta\": 0}", NDM_ERR_CONFIG, "rope_theta is 0, must be above 0"},
        {"{" BASE ", \"layer_types\": [\"full_attention\"]}", NDM_ERR_CONFIG, "layer_types has 1"},
        {"{" BASE ", \"layer_types\": [\"full_attention\", \"chunked_attention\"]}", NDM_ERR_CONFIG,
         "layer_types[1] is 'chunked_attention'"},
        {"{" BASE ", \"pad_token_id\": 256}", NDM_ERR_CONFIG, "pad_token_id 256"},
        {"{" BASE ", \"rms_norm_eps\": 0}", NDM_ERR_CONFIG, "epsilon"},
        {"{" BASE ", \"rms_norm_eps\": \"small\"}", NDM_ERR_FORMAT, "'rms_norm_eps'"},
        {"{" BASE ", \"torch_dtype\": \"int8\"}", NDM_ERR_CONFIG, "'int8'"},
        {"{" BASE ", \"vocab_size\": 256}", NDM_ERR_FORMAT, "duplicate"},
        {"{\"hidden_size\": 64}", NDM_ERR_FORMAT, "'model_type' is missing"},
        {"{\"model_type\": \"llama4\"}", NDM_ERR_CONFIG, "known: llama, mistral, qwen2"},
        {"{\"model_type\": \"llama\"}", NDM_ERR_FORMAT, "'hidden_size' is missing"},
        {"{\"model_type\": \"gpt2\", \"vocab_size\": 9, \"n_layer\": 1, \"n_head\": 3, "
         "\"n_embd\": 8}",
         NDM_ERR_CONFIG, "heads do not divide hidden_size 8"},
        {"{\"model_type\": \"llama\", \"hidden_size\": 64, \"num_hidden_layers\": 2, "
         "\"num_attention_heads\": 4, \"num_key_value_heads\": 3, \"intermediate_size\": 8, "
         "\"vocab_size\": 9}",
         NDM_ERR_CONFIG, "num_key_value_heads 3 does not divide num_attention_heads 4"},
        {"{\"model_type\": \"llama\", \"hidden_size\": 9000000000000000000, "
         "\"num_hidden_layers\": 2, \"num_attention_heads\": 1, \"intermediate_size\": 8, "
         "\"vocab_size\": 9}",
         NDM_ERR_CONFIG, "hidden_size is 9000000000000000000, must be 1 to"},
        {"[1, 2]", NDM_ERR_FORMAT, "not a JSON object"},
        {"", NDM_ERR_FORMAT, "config.json"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ndm_model_config c;
        ndm_status status = load_text(cases[i].text, &c);

        if (status != cases[i].status || strstr(ndm_error_message(), cases[i].says) == NULL)
            fail_msg("%s: %s: %s", cases[i].text, ndm_status_name(status), ndm_error_message());
        assert_non_null(strstr(ndm_error_message(), "config.json"));
    }
}

static void harmless_keys_and_no_op_values_pass(void **state)
{
    ndm_model_config c;

    (void)state;
    if (load_text("{" BASE ", \"attention_dropout\": 0.0, \"attn_logit_softcapping\": null, "
                  "\"use_cache\": true, \"_name_or_path\": \"x\", \"bos_token_id\": 1, "
                  "\"transformers_version\": \"4.40.0\", \"pretraining_tp\": 2, "
                  "\"novelty\": null, \"rope_scaling\": null, \"mlp_bias\": true, "
                  "\"attention_bias\": true}",
                  &c) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    assert_true(c.mlp_bias && c.qkv_bias && c.o_bias);
    assert_int_equal(c.pad_token, -1);
    ndm_model_config_finish(&c);
}

#define QWEN                                                                               \
    "\"model_type\": \"qwen2\", \"hidden_size\": 64, \"num_hidden_layers\": 4, "           \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"intermediate_size\": 176, " \
    "\"vocab_size\": 256, \"use_sliding_window\": true, \"sliding_window\": 8"

static void windows_are_per_layer(void **state)
{
    ndm_model_config c;

    (void)state;
    assert_int_equal(load_text("{" QWEN ", \"max_window_layers\": 3}", &c), NDM_OK);
    assert_int_equal(ndm_model_config_window(&c, 2), 0);
    assert_int_equal(ndm_model_config_window(&c, 3), 8);
    ndm_model_config_finish(&c);
    assert_int_equal(load_text("{" QWEN ", \"layer_types\": [\"sliding_attention\", "
                               "\"full_attention\", \"sliding_attention\", \"full_attention\"]}",
                               &c),
                     NDM_OK);
    assert_int_equal(ndm_model_config_window(&c, 0), 8);
    assert_int_equal(ndm_model_config_window(&c, 1), 0);
    assert_int_equal(ndm_model_config_window(&c, 2), 8);
    ndm_model_config_finish(&c);
}

static void gemma_scales_and_offsets(void **state)
{
    ndm_model_config c;

    (void)state;
    if (load_text("{\"model_type\": \"gemma\", \"hidden_size\": 64, \"num_hidden_layers\": 1, "
                  "\"num_attention_heads\": 4, \"num_key_value_heads\": 1, \"vocab_size\": 99, "
                  "\"intermediate_size\": 8, \"hidden_act\": \"gelu\"}",
                  &c) != NDM_OK)
        fail_msg("%s", ndm_error_message());
    assert_true(c.embedding_scale == 8.0f && c.norm_weight_offset == 1.0f && c.tied);
    assert_int_equal(c.activation, NDM_GELU_TANH);
    assert_int_equal(c.head_dim, 256);
    assert_int_equal(c.pad_token, 0);
    ndm_model_config_finish(&c);
}

static void an_unknown_model_names_the_nearest(void **state)
{
    ndm_model_config c;

    (void)state;
    assert_int_equal(ndm_model_config_resolve("llama_tiny", &c), NDM_OK);
    assert_int_equal(ndm_model_config_resolve("lama-tiny", &c), NDM_ERR_CONFIG);
    assert_non_null(strstr(ndm_error_message(), "'llama-tiny'"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_those_of_the_file),
        cmocka_unit_test(fields_of_families),
        cmocka_unit_test(presets_have_the_published_sizes),
        cmocka_unit_test(a_written_preset_reads_back),
        cmocka_unit_test(a_loaded_file_is_written_whole),
        cmocka_unit_test(refusals_name_the_key),
        cmocka_unit_test(harmless_keys_and_no_op_values_pass),
        cmocka_unit_test(windows_are_per_layer),
        cmocka_unit_test(gemma_scales_and_offsets),
        cmocka_unit_test(an_unknown_model_names_the_nearest),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
