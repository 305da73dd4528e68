/* SPDX-License-Identifier: Apache-2.0 */
/* Which keys of a config.json are known: read into a field, fixed to a value, without effect here;
 * and why others are refused. */
#include <fnmatch.h>
#include <stddef.h>
#include <string.h>

#include "model/config_internal.h"

#define ALL (NDM_FAMILY_BIT(NDM_FAMILY_COUNT) - 1u)
#define GPT2 NDM_FAMILY_BIT(NDM_GPT2)
#define MODERN (ALL & ~GPT2)
#define QWEN (NDM_FAMILY_BIT(NDM_QWEN2) | NDM_FAMILY_BIT(NDM_QWEN3))
#define LLAMA NDM_FAMILY_BIT(NDM_LLAMA)
#define AT(field) offsetof(ndm_model_config, field)

const ndm_config_field ndm_config_fields[] = {
    {"hidden_size", AT(hidden), 0, MODERN, 'i', true},
    {"num_hidden_layers", AT(layers), 0, MODERN, 'i', true},
    {"num_attention_heads", AT(heads), 0, MODERN, 'i', true},
    {"num_key_value_heads", AT(kv_heads), 0, LLAMA, 'i', false},
    {"num_key_value_heads", AT(kv_heads), 0, MODERN & ~LLAMA, 'i', true},
    {"head_dim", AT(head_dim), 0, MODERN, 'i', false},
    {"intermediate_size", AT(ffn), 0, MODERN, 'i', true},
    {"vocab_size", AT(vocab), 0, ALL, 'i', true},
    {"max_position_embeddings", AT(max_positions), 2048, MODERN, 'i', false},
    {"rms_norm_eps", AT(norm_eps), 1e-6, MODERN, 'd', false},
    {"mlp_bias", AT(mlp_bias), 0, LLAMA, 'b', false},
    {"initializer_range", AT(initializer_range), 0.02, ALL, 'd', false},
    {"n_embd", AT(hidden), 0, GPT2, 'i', true},
    {"n_layer", AT(layers), 0, GPT2, 'i', true},
    {"n_head", AT(heads), 0, GPT2, 'i', true},
    {"n_inner", AT(ffn), 0, GPT2, 'i', false},
    {"n_positions", AT(max_positions), 1024, GPT2, 'i', false},
    {"layer_norm_epsilon", AT(norm_eps), 1e-5, GPT2, 'd', false},
};
const size_t ndm_config_field_count = sizeof ndm_config_fields / sizeof *ndm_config_fields;

/* Keys that config.c and config_read.c look at themselves. */
static const struct {
    const char *key;
    unsigned families;
} read_keys[] = {
    {"model_type", ALL},
    {"torch_dtype", ALL},
    {"dtype", ALL},
    {"tie_word_embeddings", ALL},
    {"hidden_act", MODERN},
    {"hidden_activation", NDM_FAMILY_BIT(NDM_GEMMA)},
    {"activation_function", GPT2},
    {"attention_bias", LLAMA | NDM_FAMILY_BIT(NDM_QWEN3) | NDM_FAMILY_BIT(NDM_GEMMA)},
    {"pad_token_id", ALL},
    {"rope_theta", MODERN},
    {"rope_scaling", MODERN},
    {"rope_parameters", MODERN},
    {"sliding_window", QWEN | NDM_FAMILY_BIT(NDM_MISTRAL)},
    {"use_sliding_window", QWEN},
    {"max_window_layers", QWEN},
    {"layer_types", MODERN & ~NDM_FAMILY_BIT(NDM_MISTRAL)},
};

/* Keys that may only say what ndmesh does anyway; null always may. */
static const struct {
    const char *key;
    double value;
    const char *why;
} fixed_keys[] = {
    {"attention_dropout", 0, "dropout is not implemented; set it to 0"},
    {"hidden_dropout", 0, "dropout is not implemented; set it to 0"},
    {"attn_pdrop", 0, "dropout is not implemented; set it to 0"},
    {"embd_pdrop", 0, "dropout is not implemented; set it to 0"},
    {"resid_pdrop", 0, "dropout is not implemented; set it to 0"},
    {"attn_logit_softcapping", 0, "soft capping of logits is not implemented"},
    {"final_logit_softcapping", 0, "soft capping of logits is not implemented"},
    {"partial_rotary_factor", 1, "rope over a part of a head is not implemented"},
    {"logit_scale", 1, "scaled logits are not implemented"},
    {"scale_attn_weights", 1, "attention without its scale is not implemented"},
    {"scale_attn_by_inverse_layer_idx", 0, "attention scaled by layer is not implemented"},
    {"use_bidirectional_attention", 0, "only causal attention is implemented"},
    {"add_cross_attention", 0, "only decoders are implemented"},
    {"is_encoder_decoder", 0, "only decoders are implemented"},
    {"quantization_config", 0, "quantized weights are not read; use the original model"},
};

/* Patterns of keys that change nothing about training here. */
static const char *const harmless_keys[] = {
    "_*",
    "architectures",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "*_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "finetuning_task",
    "*_version",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "is_causal",
    "keys_to_ignore_at_inference",
    "label2id",
    "max_length",
    "max_new_tokens",
    "min_length",
    "n_ctx",
    "name",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict*",
    "summary_*",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torchscript",
    "transformers*",
    "typical_p",
    "unsloth*",
    "use_bfloat16",
    "use_cache",
    "diversity_penalty",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "length_penalty",
    "no_repeat_ngram_size",
    "remove_invalid_values",
    "exponential_decay_length_penalty",
    "do_sample",
    "num_beam_groups",
};

#define COUNT(table) (sizeof(table) / sizeof *(table))

bool ndm_config_is_nothing(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return json_object_size(value) == 0;
    case JSON_ARRAY:
        return json_array_size(value) == 0;
    case JSON_STRING:
        return json_string_length(value) == 0;
    case JSON_INTEGER:
    case JSON_REAL:
        return json_number_value(value) == 0;
    case JSON_NULL:
    case JSON_FALSE:
        return true;
    default:
        return false;
    }
}

static bool is_read(const char *key, ndm_family family)
{
    for (size_t i = 0; i < ndm_config_field_count; i++) {
        if (strcmp(ndm_config_fields[i].key, key) == 0 &&
            (ndm_config_fields[i].families & NDM_FAMILY_BIT(family)))
            return true;
    }
    for (size_t i = 0; i < COUNT(read_keys); i++) {
        if (strcmp(read_keys[i].key, key) == 0 && (read_keys[i].families & NDM_FAMILY_BIT(family)))
            return true;
    }
    return false;
}

static bool is_harmless(const char *key)
{
    for (size_t i = 0; i < COUNT(harmless_keys); i++) {
        if (fnmatch(harmless_keys[i], key, 0) == 0)
            return true;
    }
    return false;
}

static bool has_value(const json_t *value, double fixed)
{
    if (json_is_number(value))
        return json_number_value(value) == fixed;
    if (json_is_boolean(value))
        return json_is_true(value) == (fixed != 0);
    return json_is_null(value);
}

static ndm_status check_key(const char *key, const json_t *value, ndm_family family,
                            const char *file)
{
    if (is_read(key, family) || is_harmless(key))
        return NDM_OK;
    for (size_t i = 0; i < COUNT(fixed_keys); i++) {
        if (strcmp(fixed_keys[i].key, key) != 0)
            continue;
        if (!has_value(value, fixed_keys[i].value))
            NDM_FAIL(NDM_ERR_CONFIG, "%s: '%s': %s", file, key, fixed_keys[i].why);
        return NDM_OK;
    }
    if (!ndm_config_is_nothing(value))
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: '%s' is not known for model_type '%s' and might change the model; remove it "
                 "if it does not",
                 file, key, ndm_family_table(family)->model_type);
    return NDM_OK;
}

ndm_status ndm_config_check_keys(const json_t *root, ndm_family family, const char *file)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)root, key, value) NDM_TRY(check_key(key, value, family, file));
    return NDM_OK;
}
