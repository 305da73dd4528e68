/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a config.json: the loaded one as it was, or one made from the fields. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "model/config_internal.h"

static const char *torch_dtype(ndm_dtype dtype)
{
    switch (dtype) {
    case NDM_BF16:
        return "bfloat16";
    case NDM_F16:
        return "float16";
    case NDM_F64:
        return "float64";
    default:
        return "float32";
    }
}

static const char *activation_name(const ndm_model_config *c)
{
    if (c->activation == NDM_SILU)
        return "silu";
    if (c->activation == NDM_GELU_ERF)
        return "gelu";
    return c->family == NDM_GPT2 ? "gelu_new" : "gelu_pytorch_tanh";
}

/* A failed set leaves out a key; make_json() sees that by counting. */
static void set(json_t *root, const char *key, json_t *value, int *failed)
{
    *failed |= json_object_set_new(root, key, value);
}

static void set_rope(json_t *root, const ndm_model_config *c, int *failed)
{
    json_t *rope;

    set(root, "rope_theta", json_real(c->rope_theta), failed);
    if (c->rope == NDM_ROPE_DEFAULT)
        return;
    rope = json_object();
    set(rope, "rope_type", json_string(c->rope == NDM_ROPE_LINEAR ? "linear" : "llama3"), failed);
    set(rope, "factor", json_real(c->rope_factor), failed);
    if (c->rope == NDM_ROPE_LLAMA3) {
        set(rope, "low_freq_factor", json_real(c->rope_low_freq_factor), failed);
        set(rope, "high_freq_factor", json_real(c->rope_high_freq_factor), failed);
        set(rope, "original_max_position_embeddings", json_integer(c->rope_original_positions),
            failed);
    }
    set(root, "rope_scaling", rope, failed);
}

static void set_window(json_t *root, const ndm_model_config *c, int *failed)
{
    bool qwen = c->family == NDM_QWEN2 || c->family == NDM_QWEN3;

    if (qwen)
        set(root, "use_sliding_window", json_boolean(c->sliding_window > 0), failed);
    if (qwen || c->family == NDM_MISTRAL)
        set(root, "sliding_window",
            c->sliding_window > 0 ? json_integer(c->sliding_window) : json_null(), failed);
    if (c->layer_windowed != NULL) {
        json_t *types = json_array();

        for (int64_t i = 0; i < c->layers; i++)
            *failed |= json_array_append_new(
                types, json_string(c->layer_windowed[i] ? "sliding_attention" : "full_attention"));
        set(root, "layer_types", types, failed);
    }
}

static void set_modern(json_t *root, const ndm_model_config *c, int *failed)
{
    set(root, "hidden_size", json_integer(c->hidden), failed);
    set(root, "num_hidden_layers", json_integer(c->layers), failed);
    set(root, "num_attention_heads", json_integer(c->heads), failed);
    set(root, "num_key_value_heads", json_integer(c->kv_heads), failed);
    set(root, "head_dim", json_integer(c->head_dim), failed);
    set(root, "intermediate_size", json_integer(c->ffn), failed);
    set(root, "max_position_embeddings", json_integer(c->max_positions), failed);
    set(root, "rms_norm_eps", json_real(c->norm_eps), failed);
    set(root, "hidden_act", json_string(activation_name(c)), failed);
    if (c->family == NDM_GEMMA)
        set(root, "hidden_activation", json_string(activation_name(c)), failed);
    if (c->family == NDM_LLAMA || c->family == NDM_QWEN3 || c->family == NDM_GEMMA)
        set(root, "attention_bias", json_boolean(c->o_bias), failed);
    if (c->family == NDM_LLAMA)
        set(root, "mlp_bias", json_boolean(c->mlp_bias), failed);
    set(root, "pad_token_id", c->pad_token >= 0 ? json_integer(c->pad_token) : json_null(), failed);
    set_rope(root, c, failed);
    set_window(root, c, failed);
}

static void set_gpt2(json_t *root, const ndm_model_config *c, int *failed)
{
    static const char *const dropouts[] = {"attn_pdrop", "embd_pdrop", "resid_pdrop"};

    set(root, "n_embd", json_integer(c->hidden), failed);
    set(root, "n_layer", json_integer(c->layers), failed);
    set(root, "n_head", json_integer(c->heads), failed);
    set(root, "n_inner", json_integer(c->ffn), failed);
    set(root, "n_positions", json_integer(c->max_positions), failed);
    set(root, "n_ctx", json_integer(c->max_positions), failed);
    set(root, "layer_norm_epsilon", json_real(c->norm_eps), failed);
    set(root, "activation_function", json_string(activation_name(c)), failed);
    for (int i = 0; i < 3; i++)
        set(root, dropouts[i], json_real(0), failed);
}

static json_t *make_json(const ndm_model_config *c, int *failed)
{
    const ndm_family_info *family = ndm_family_table(c->family);
    json_t *root = json_object();

    set(root, "architectures", json_pack("[s]", family->architecture), failed);
    set(root, "model_type", json_string(family->model_type), failed);
    set(root, "vocab_size", json_integer(c->vocab), failed);
    if (c->family == NDM_GPT2)
        set_gpt2(root, c, failed);
    else
        set_modern(root, c, failed);
    set(root, "tie_word_embeddings", json_boolean(c->tied), failed);
    set(root, "initializer_range", json_real(c->initializer_range), failed);
    set(root, "torch_dtype", json_string(torch_dtype(c->dtype)), failed);
    return root;
}

/* The loaded document; only the dtype is set, under the name it had. */
static json_t *copy_source(const ndm_model_config *c, int *failed)
{
    json_t *root = json_deep_copy(c->source);
    const char *key = json_object_get(root, "dtype") != NULL ? "dtype" : "torch_dtype";
    const char *name = json_string_value(json_object_get(root, key));

    if (name == NULL || strcmp(name, torch_dtype(c->dtype)) != 0)
        set(root, key, json_string(torch_dtype(c->dtype)), failed);
    return root;
}

/* The shortest digits that read back equal, for the whole document. */
static char *dump(const json_t *root)
{
    char *text = NULL;
    bool same = false;

    for (unsigned digits = 15; digits <= 17 && !same; digits++) {
        json_t *again;

        free(text);
        text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(digits));
        again = text != NULL ? json_loads(text, 0, NULL) : NULL;
        same = json_equal(again, root);
        json_decref(again);
    }
    return text;
}

static ndm_status write_text(const char *path, const char *text)
{
    ndm_atomic_file file;

    NDM_TRY(ndm_atomic_file_begin(path, &file));
    fputs(text, file.stream);
    fputc('\n', file.stream);
    return ndm_atomic_file_commit(&file);
}

ndm_status ndm_model_config_write(const ndm_model_config *c, const char *path)
{
    int failed = 0;
    json_t *root = c->source != NULL ? copy_source(c, &failed) : make_json(c, &failed);
    char *text = failed ? NULL : dump(root);
    ndm_status status;

    json_decref(root);
    if (text == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for the configuration", path);
    status = write_text(path, text);
    free(text);
    return status;
}
