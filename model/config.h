/* SPDX-License-Identifier: Apache-2.0 */
/* What a decoder is made of: everything in which the families differ is an option here, filled from
 * a Hugging Face config.json or a preset. A key that would change the model and is not understood
 * is refused, never skipped. */
#ifndef NDM_MODEL_CONFIG_H
#define NDM_MODEL_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <ndmesh/status.h>
#include <ndmesh/types.h>

#include "kernels/kernels.h"

typedef enum ndm_family {
    NDM_LLAMA,
    NDM_MISTRAL,
    NDM_QWEN2,
    NDM_QWEN3,
    NDM_GEMMA,
    NDM_GPT2,
    NDM_FAMILY_COUNT
} ndm_family;

typedef enum ndm_norm_kind { NDM_NORM_RMS, NDM_NORM_LAYER } ndm_norm_kind;

typedef enum ndm_rope_kind {
    NDM_ROPE_NONE,
    NDM_ROPE_DEFAULT,
    NDM_ROPE_LINEAR, /* frequencies divided by rope_factor */
    NDM_ROPE_LLAMA3  /* low frequencies divided, high ones kept, a ramp between */
} ndm_rope_kind;

/* What all models of a family have in common. Static storage. */
typedef struct ndm_family_info {
    const char *model_type;   /* "llama" */
    const char *architecture; /* "LlamaForCausalLM" */
    const char *model_class;  /* transformers' class names, which wrap policies use */
    const char *decoder_class;
    const char *attention_class;
    const char *mlp_class;
    const char *norm_class;
    const char *linear_class;
    const char *embedding_class;
    bool tied; /* default of tie_word_embeddings */
} ndm_family_info;

typedef struct ndm_model_config {
    ndm_family family;
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab;
    int64_t max_positions; /* a hard limit with learned positions, else what the model was trained
                              for */
    ndm_norm_kind norm;    /* LayerNorm has a bias */
    double norm_eps;
    float norm_weight_offset; /* Gemma's weights are around 0: 1 is added */
    ndm_activation activation;
    bool gated; /* down(act(gate(x)) * up(x)), else down(act(up(x))) */
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm;   /* RMSNorm over each head of q and k, before rope */
    bool tied;      /* the head is the embedding */
    bool fused_qkv; /* q, k, v are one tensor in the file, and matrices are stored [in, out] (GPT-2)
                     */
    bool learned_positions; /* a table of max_positions rows instead of rope */
    float embedding_scale;  /* Gemma: sqrt(hidden); else 1 */
    ndm_rope_kind rope;
    double rope_theta, rope_factor, rope_low_freq_factor, rope_high_freq_factor;
    int64_t rope_original_positions;
    int64_t sliding_window; /* a token sees itself and the window - 1 before it; 0 = off; see
                               ndm_model_config_window() */
    bool *layer_windowed;   /* [layers], owned; NULL = all layers, when sliding_window is on */
    int64_t pad_token; /* row of the embedding that transformers gives no gradient; -1 = none */
    double initializer_range;
    ndm_dtype dtype;       /* of the weights in files */
    struct json_t *source; /* the whole config.json, owned; NULL for a preset */
} ndm_model_config;

/* Reads DIR/config.json or a file. NDM_ERR_CONFIG: a rule is broken, a key or a value is not
 * understood; NDM_ERR_FORMAT: not JSON, a key is missing or has another type. The message names
 * file and key. Finish with ndm_model_config_finish(). */
NDM_MUST_USE ndm_status ndm_model_config_load(const char *path, ndm_model_config *config);

/* One of the table in presets.def, by name (dash and underscore are equal). */
NDM_MUST_USE ndm_status ndm_model_config_preset(const char *name, ndm_model_config *config);

/* What --model means: a folder or file if there is one, else a preset. */
NDM_MUST_USE ndm_status ndm_model_config_resolve(const char *model, ndm_model_config *config);

void ndm_model_config_finish(ndm_model_config *config); /* an all-zero config is fine */

/* Checks the rules between fields; `context` starts the message. load() and preset() have done it.
 */
NDM_MUST_USE ndm_status ndm_model_config_check(const ndm_model_config *config, const char *context);

/* Writes a config.json: the one that was loaded, whole, or one made for a preset; with the dtype of
 * config. Atomic. */
NDM_MUST_USE ndm_status ndm_model_config_write(const ndm_model_config *config, const char *path);

/* Trainable numbers: all (tied ones once), and those of one decoder block. */
int64_t ndm_model_config_parameters(const ndm_model_config *config);
int64_t ndm_model_config_block_parameters(const ndm_model_config *config);

/* Sliding window of a layer; 0 = it sees everything before it. */
int64_t ndm_model_config_window(const ndm_model_config *config, int64_t layer);

const ndm_family_info *ndm_family_table(ndm_family family);

/* Names of the presets, NULL-terminated, and one line about each. Static storage. */
const char *const *ndm_model_preset_names(void);
const char *ndm_model_preset_summary(const char *name);

#endif
