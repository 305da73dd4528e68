/* SPDX-License-Identifier: Apache-2.0 */
/* The families: class names, and what a family alone decides. Adding a family is adding a row and a
 * case. */
#include <math.h>
#include <string.h>

#include "model/config_internal.h"

#define MODERN(type, Class, is_tied)                                                             \
    {                                                                                            \
        .model_type = type, .architecture = #Class "ForCausalLM", .model_class = #Class "Model", \
        .decoder_class = #Class "DecoderLayer", .attention_class = #Class "Attention",           \
        .mlp_class = #Class "MLP", .norm_class = #Class "RMSNorm", .linear_class = "Linear",     \
        .embedding_class = "Embedding", .tied = is_tied                                          \
    }

static const ndm_family_info families[NDM_FAMILY_COUNT] = {
    [NDM_LLAMA] = MODERN("llama", Llama, false),
    [NDM_MISTRAL] = MODERN("mistral", Mistral, false),
    [NDM_QWEN2] = MODERN("qwen2", Qwen2, false),
    [NDM_QWEN3] = MODERN("qwen3", Qwen3, false),
    [NDM_GEMMA] = MODERN("gemma", Gemma, true),
    [NDM_GPT2] = {.model_type = "gpt2",
                  .architecture = "GPT2LMHeadModel",
                  .model_class = "GPT2Model",
                  .decoder_class = "GPT2Block",
                  .attention_class = "GPT2Attention",
                  .mlp_class = "GPT2MLP",
                  .norm_class = "LayerNorm",
                  .linear_class = "Conv1D",
                  .embedding_class = "Embedding",
                  .tied = true},
};

const ndm_family_info *ndm_family_table(ndm_family family)
{
    return &families[family];
}

static void init_gpt2(ndm_model_config *c)
{
    c->norm = NDM_NORM_LAYER;
    c->activation = NDM_GELU_TANH;
    c->gated = false;
    c->qkv_bias = c->o_bias = c->mlp_bias = true;
    c->fused_qkv = c->learned_positions = true;
    c->rope = NDM_ROPE_NONE;
    c->rope_theta = c->rope_factor = 0;
}

void ndm_model_config_init(ndm_model_config *c, ndm_family family)
{
    memset(c, 0, sizeof *c);
    c->family = family;
    c->norm = NDM_NORM_RMS;
    c->activation = NDM_SILU;
    c->gated = true;
    c->qkv_bias = family == NDM_QWEN2;
    c->qk_norm = family == NDM_QWEN3;
    c->norm_weight_offset = family == NDM_GEMMA ? 1.0f : 0.0f;
    c->tied = families[family].tied;
    c->embedding_scale = 1.0f;
    c->rope = NDM_ROPE_DEFAULT;
    c->rope_theta = 10000.0;
    c->rope_factor = 1.0;
    c->pad_token = -1;
    c->initializer_range = 0.02;
    c->dtype = NDM_F32;
    if (family == NDM_GEMMA)
        c->activation = NDM_GELU_TANH;
    if (family == NDM_GPT2)
        init_gpt2(c);
}
