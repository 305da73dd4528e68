/* SPDX-License-Identifier: Apache-2.0 */
/* Model configuration: reads a Hugging Face config.json, checks the rules between fields, counts
 * parameters. */
#include "model/config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "core/file.h"
#include "core/json_read.h"
#include "core/log.h"
#include "core/text.h"
#include "model/config_internal.h"

static ndm_status find_family(const char *model_type, const char *file, ndm_family *family)
{
    const char *names[NDM_FAMILY_COUNT], *near;

    for (int f = 0; f < NDM_FAMILY_COUNT; f++) {
        names[f] = ndm_family_table((ndm_family)f)->model_type;
        if (strcmp(names[f], model_type) == 0) {
            *family = (ndm_family)f;
            return NDM_OK;
        }
    }
    near = ndm_text_nearest(model_type, names, NDM_FAMILY_COUNT);
    NDM_FAIL(
        NDM_ERR_CONFIG,
        "%s: model_type '%s' is not known%s%s%s; known: llama, mistral, qwen2, qwen3, gemma, gpt2",
        file, model_type, near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
}

static ndm_status read_field(const json_t *root, const ndm_config_field *f, ndm_model_config *c,
                             const char *file)
{
    char *at = (char *)c + f->offset;

    switch (f->type) {
    case 'i':
        return ndm_json_get_int64(root, f->key, f->required, (int64_t)f->otherwise, (int64_t *)at,
                                  file);
    case 'd':
        return ndm_json_get_double(root, f->key, f->required, f->otherwise, (double *)at, file);
    default:
        return ndm_json_get_bool(root, f->key, f->required, f->otherwise != 0, (bool *)at, file);
    }
}

static ndm_status read_fields(const json_t *root, ndm_model_config *c, const char *file)
{
    for (size_t i = 0; i < ndm_config_field_count; i++) {
        if (ndm_config_fields[i].families & NDM_FAMILY_BIT(c->family))
            NDM_TRY(read_field(root, &ndm_config_fields[i], c, file));
    }
    return NDM_OK;
}

static ndm_status parse_activation(const char *name, const char *file, ndm_activation *activation)
{
    static const struct {
        const char *name;
        ndm_activation activation;
    } known[] = {
        {"silu", NDM_SILU},           {"swish", NDM_SILU},
        {"gelu", NDM_GELU_ERF},       {"gelu_new", NDM_GELU_TANH},
        {"gelu_fast", NDM_GELU_TANH}, {"gelu_pytorch_tanh", NDM_GELU_TANH},
    };

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i].name, name) == 0) {
            *activation = known[i].activation;
            return NDM_OK;
        }
    }
    NDM_FAIL(NDM_ERR_CONFIG,
             "%s: activation '%s' is not known; known: silu, gelu, gelu_new, gelu_pytorch_tanh",
             file, name);
}

/* Gemma's first files say "gelu" and mean the tanh form, which transformers used whatever
 * hidden_act said. */
static ndm_status read_activation(const json_t *root, ndm_model_config *c, const char *file)
{
    const char *name, *key = c->family == NDM_GPT2 ? "activation_function" : "hidden_act";
    const char *otherwise = c->family == NDM_GPT2 ? "gelu_new" : "silu";

    if (c->family == NDM_GEMMA) {
        const char *old;

        NDM_TRY(ndm_json_get_string(root, "hidden_act", false, "gelu_pytorch_tanh", &old, file));
        if (strcmp(old, "gelu") == 0)
            old = "gelu_pytorch_tanh";
        key = "hidden_activation", otherwise = old;
    }
    NDM_TRY(ndm_json_get_string(root, key, false, otherwise, &name, file));
    return parse_activation(name, file, &c->activation);
}

static ndm_status read_biases(const json_t *root, ndm_model_config *c, const char *file)
{
    bool bias = false;

    if (c->family != NDM_LLAMA && c->family != NDM_QWEN3 && c->family != NDM_GEMMA)
        return NDM_OK;
    NDM_TRY(ndm_json_get_bool(root, "attention_bias", false, false, &bias, file));
    c->qkv_bias = c->o_bias = bias;
    return NDM_OK;
}

/* Only the families below give their embedding a padding row; a negative id counts from the end. */
static ndm_status read_pad_token(const json_t *root, ndm_model_config *c, const char *file)
{
    int64_t otherwise = c->family == NDM_GEMMA && json_object_get(root, "pad_token_id") == NULL
                            ? 0
                            : -1;
    int64_t id;

    c->pad_token = -1;
    if (c->family == NDM_GPT2)
        return NDM_OK;
    if (otherwise < 0 && !json_is_integer(json_object_get(root, "pad_token_id")))
        return NDM_OK;
    NDM_TRY(ndm_json_get_int64(root, "pad_token_id", false, otherwise, &id, file));
    if (id >= c->vocab || id < -c->vocab)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: pad_token_id %" PRId64 " is not in the vocabulary of %" PRId64, file, id,
                 c->vocab);
    c->pad_token = id < 0 ? id + c->vocab : id;
    return NDM_OK;
}

static ndm_status read_dtype(const json_t *root, ndm_model_config *c, const char *file)
{
    const char *old, *name;
    ndm_dtype dtype;

    NDM_TRY(ndm_json_get_string(root, "torch_dtype", false, "float32", &old, file));
    NDM_TRY(ndm_json_get_string(root, "dtype", false, old, &name, file));
    if (ndm_dtype_parse(name, &dtype) != NDM_OK ||
        (dtype != NDM_F32 && dtype != NDM_BF16 && dtype != NDM_F16 && dtype != NDM_F64))
        NDM_FAIL(NDM_ERR_CONFIG, "%s: dtype '%s' is not float32, bfloat16, float16 or float64",
                 file, name);
    c->dtype = dtype;
    return NDM_OK;
}

/* Defaults that depend on other fields, as transformers has them. */
static ndm_status fill_sizes(const json_t *root, ndm_model_config *c, const char *file)
{
    if (c->heads < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: the model has %" PRId64 " attention heads", file, c->heads);
    if (!json_is_integer(json_object_get(root, "num_key_value_heads")))
        c->kv_heads = c->heads;
    if (c->ffn == 0 && c->family == NDM_GPT2)
        c->ffn = c->hidden <= (1 << 20) ? 4 * c->hidden : 0;
    if (c->head_dim == 0 && c->family == NDM_QWEN3)
        c->head_dim = 128;
    if (c->head_dim == 0 && c->family == NDM_GEMMA)
        c->head_dim = 256;
    if (c->head_dim == 0 && c->hidden % c->heads != 0)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: %" PRId64 " heads do not divide hidden_size %" PRId64
                 ", and there is no head_dim",
                 file, c->heads, c->hidden);
    if (c->head_dim == 0)
        c->head_dim = c->hidden / c->heads;
    if (c->family == NDM_GEMMA)
        c->embedding_scale = sqrtf((float)c->hidden);
    return NDM_OK;
}

static ndm_status read_config(const json_t *root, const char *file, ndm_model_config *c)
{
    const char *model_type;
    ndm_family family;

    if (!json_is_object(root))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: is not a JSON object", file);
    NDM_TRY(ndm_json_get_string(root, "model_type", true, NULL, &model_type, file));
    NDM_TRY(find_family(model_type, file, &family));
    NDM_TRY(ndm_config_check_keys(root, family, file));
    ndm_model_config_init(c, family);
    NDM_TRY(read_fields(root, c, file));
    NDM_TRY(ndm_json_get_bool(root, "tie_word_embeddings", false, c->tied, &c->tied, file));
    NDM_TRY(fill_sizes(root, c, file));
    NDM_TRY(read_activation(root, c, file));
    NDM_TRY(read_biases(root, c, file));
    NDM_TRY(read_pad_token(root, c, file));
    NDM_TRY(read_dtype(root, c, file));
    if (family != NDM_GPT2)
        NDM_TRY(ndm_config_read_rope(root, c, file));
    NDM_TRY(ndm_model_config_check(c, file)); /* before layers are counted out */
    return ndm_config_read_window(root, c, file);
}

static ndm_status load_file(const char *file, ndm_model_config *config)
{
    ndm_model_config c = {0};
    json_t *root;
    ndm_status status;

    NDM_TRY(ndm_json_load_file(file, &root));
    status = read_config(root, file, &c);
    if (status != NDM_OK) {
        json_decref(root);
        ndm_model_config_finish(&c);
        return status;
    }
    c.source = root;
    *config = c;
    return NDM_OK;
}

ndm_status ndm_model_config_load(const char *path, ndm_model_config *config)
{
    ndm_status status;
    char *file;

    if (!ndm_file_is_dir(path))
        return load_file(path, config);
    file = ndm_text_printf("%s/config.json", path);
    if (file == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to load it", path);
    status = load_file(file, config);
    free(file);
    return status;
}

void ndm_model_config_finish(ndm_model_config *config)
{
    free(config->layer_windowed);
    json_decref(config->source);
    config->layer_windowed = NULL;
    config->source = NULL;
}

/* ---- rules -------------------------------------------------------------------------------- */

/* Upper limits keep every product of sizes, and the number of parameters, within int64_t. */
static ndm_status check_sizes(const ndm_model_config *c, const char *context)
{
    const struct {
        const char *name;
        int64_t value, limit;
    } sizes[] = {
        {"hidden_size", c->hidden, 1 << 20},
        {"num_hidden_layers", c->layers, 1 << 14},
        {"num_attention_heads", c->heads, 1 << 16},
        {"num_key_value_heads", c->kv_heads, 1 << 16},
        {"head_dim", c->head_dim, 1 << 14},
        {"intermediate_size", c->ffn, 1 << 22},
        {"vocab_size", c->vocab, 1 << 28},
        {"max_position_embeddings", c->max_positions, (int64_t)1 << 31},
    };

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i].value < 1 || sizes[i].value > sizes[i].limit)
            NDM_FAIL(NDM_ERR_CONFIG, "%s: %s is %" PRId64 ", must be 1 to %" PRId64, context,
                     sizes[i].name, sizes[i].value, sizes[i].limit);
    }
    return NDM_OK;
}

static ndm_status check_rope(const ndm_model_config *c, const char *context)
{
    if (c->rope == NDM_ROPE_NONE)
        return NDM_OK;
    if (c->head_dim % 2 != 0)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: head_dim %" PRId64 " is odd, but rope rotates pairs", context,
                 c->head_dim);
    if (!(c->rope_theta > 0))
        NDM_FAIL(NDM_ERR_CONFIG, "%s: rope_theta is %g, must be above 0", context, c->rope_theta);
    if (!(c->rope_factor > 0))
        NDM_FAIL(NDM_ERR_CONFIG, "%s: rope factor is %g, must be above 0", context, c->rope_factor);
    if (c->rope != NDM_ROPE_LLAMA3)
        return NDM_OK;
    if (!(c->rope_low_freq_factor > 0) || !(c->rope_high_freq_factor > c->rope_low_freq_factor))
        NDM_FAIL(
            NDM_ERR_CONFIG,
            "%s: rope low_freq_factor %g and high_freq_factor %g must be positive and ascending",
            context, c->rope_low_freq_factor, c->rope_high_freq_factor);
    if (c->rope_original_positions < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: rope original_max_position_embeddings is %" PRId64, context,
                 c->rope_original_positions);
    return NDM_OK;
}

ndm_status ndm_model_config_check(const ndm_model_config *c, const char *context)
{
    NDM_TRY(check_sizes(c, context));
    if (c->heads % c->kv_heads != 0)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s: num_key_value_heads %" PRId64 " does not divide num_attention_heads %" PRId64,
                 context, c->kv_heads, c->heads);
    if (c->fused_qkv && c->heads * c->head_dim != c->hidden)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: n_head %" PRId64 " does not divide n_embd %" PRId64, context,
                 c->heads, c->hidden);
    if (!(c->norm_eps > 0) || !(c->norm_eps < 1))
        NDM_FAIL(NDM_ERR_CONFIG, "%s: the norm's epsilon is %g, must be above 0 and below 1",
                 context, c->norm_eps);
    if (!(c->initializer_range >= 0))
        NDM_FAIL(NDM_ERR_CONFIG, "%s: initializer_range is %g, must not be negative", context,
                 c->initializer_range);
    return check_rope(c, context);
}

/* ---- what follows from a configuration ---------------------------------------------------- */

int64_t ndm_model_config_window(const ndm_model_config *c, int64_t layer)
{
    if (c->layer_windowed != NULL && !c->layer_windowed[layer])
        return 0;
    return c->sliding_window;
}

static int64_t norm_parameters(const ndm_model_config *c)
{
    return c->norm == NDM_NORM_LAYER ? 2 * c->hidden : c->hidden;
}

int64_t ndm_model_config_block_parameters(const ndm_model_config *c)
{
    int64_t q = c->heads * c->head_dim, qkv = q + 2 * c->kv_heads * c->head_dim;
    int64_t up = c->gated ? 2 * c->ffn : c->ffn;
    int64_t n = 2 * norm_parameters(c) + c->hidden * (qkv + q) + c->hidden * (up + c->ffn);

    n += c->qkv_bias ? qkv : 0;
    n += c->o_bias ? c->hidden : 0;
    n += c->mlp_bias ? up + c->hidden : 0;
    n += c->qk_norm ? 2 * c->head_dim : 0;
    return n;
}

int64_t ndm_model_config_parameters(const ndm_model_config *c)
{
    int64_t n = c->vocab * c->hidden * (c->tied ? 1 : 2);

    n += c->learned_positions ? c->max_positions * c->hidden : 0;
    return n + c->layers * ndm_model_config_block_parameters(c) + norm_parameters(c);
}
