/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of each family as a table: Hugging Face's name, shape, role under tensor parallelism, and
 * when it exists. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

typedef enum dim { ONE, HIDDEN, Q, KV, QKV, FFN, HEAD, VOCAB, POSITIONS } dim;

typedef enum when {
    ALWAYS,
    QKV_BIAS,
    O_BIAS,
    MLP_BIAS,
    GATE_BIAS,
    GATED,
    QK_NORM,
    LAYER_NORM,
    LEARNED,
    UNTIED
} when;

typedef struct row {
    ndm_weight weight;
    const char *name; /* "%lld" is the layer */
    dim out, in;      /* in ONE: one dimension */
    ndm_role role;
    when when;
    int parts;
} row;

static const row llama_embed[] = {
    {W_EMBED, "model.embed_tokens.weight", VOCAB, HIDDEN, NDM_ROLE_VOCAB, ALWAYS, 0}, {0}};

static const row llama_layer[] = {
    {W_Q, "model.layers.%lld.self_attn.q_proj.weight", Q, HIDDEN, NDM_ROLE_COLUMN, ALWAYS, 0},
    {W_K, "model.layers.%lld.self_attn.k_proj.weight", KV, HIDDEN, NDM_ROLE_COLUMN, ALWAYS, 0},
    {W_V, "model.layers.%lld.self_attn.v_proj.weight", KV, HIDDEN, NDM_ROLE_COLUMN, ALWAYS, 0},
    {B_Q, "model.layers.%lld.self_attn.q_proj.bias", Q, ONE, NDM_ROLE_COLUMN, QKV_BIAS, 0},
    {B_K, "model.layers.%lld.self_attn.k_proj.bias", KV, ONE, NDM_ROLE_COLUMN, QKV_BIAS, 0},
    {B_V, "model.layers.%lld.self_attn.v_proj.bias", KV, ONE, NDM_ROLE_COLUMN, QKV_BIAS, 0},
    {W_O, "model.layers.%lld.self_attn.o_proj.weight", HIDDEN, Q, NDM_ROLE_ROW, ALWAYS, 0},
    {B_O, "model.layers.%lld.self_attn.o_proj.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, O_BIAS, 0},
    {W_GATE, "model.layers.%lld.mlp.gate_proj.weight", FFN, HIDDEN, NDM_ROLE_COLUMN, GATED, 0},
    {W_UP, "model.layers.%lld.mlp.up_proj.weight", FFN, HIDDEN, NDM_ROLE_COLUMN, ALWAYS, 0},
    {B_GATE, "model.layers.%lld.mlp.gate_proj.bias", FFN, ONE, NDM_ROLE_COLUMN, GATE_BIAS, 0},
    {B_UP, "model.layers.%lld.mlp.up_proj.bias", FFN, ONE, NDM_ROLE_COLUMN, MLP_BIAS, 0},
    {W_DOWN, "model.layers.%lld.mlp.down_proj.weight", HIDDEN, FFN, NDM_ROLE_ROW, ALWAYS, 0},
    {B_DOWN, "model.layers.%lld.mlp.down_proj.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, MLP_BIAS, 0},
    {W_NORM1, "model.layers.%lld.input_layernorm.weight", HIDDEN, ONE, NDM_ROLE_REPLICATED, ALWAYS,
     0},
    {W_NORM2, "model.layers.%lld.post_attention_layernorm.weight", HIDDEN, ONE, NDM_ROLE_REPLICATED,
     ALWAYS, 0},
    {W_QNORM, "model.layers.%lld.self_attn.q_norm.weight", HEAD, ONE, NDM_ROLE_REPLICATED, QK_NORM,
     0},
    {W_KNORM, "model.layers.%lld.self_attn.k_norm.weight", HEAD, ONE, NDM_ROLE_REPLICATED, QK_NORM,
     0},
    {0},
};

static const row llama_head[] = {
    {W_HEAD, "lm_head.weight", VOCAB, HIDDEN, NDM_ROLE_VOCAB, UNTIED, 0},
    {W_NORM_F, "model.norm.weight", HIDDEN, ONE, NDM_ROLE_REPLICATED, ALWAYS, 0},
    {0},
};

static const row gpt2_embed[] = {
    {W_EMBED, "transformer.wte.weight", VOCAB, HIDDEN, NDM_ROLE_VOCAB, ALWAYS, 0},
    {W_POSITION, "transformer.wpe.weight", POSITIONS, HIDDEN, NDM_ROLE_REPLICATED, LEARNED, 0},
    {0},
};

static const row gpt2_layer[] = {
    {W_QKV, "transformer.h.%lld.attn.c_attn.weight", QKV, HIDDEN, NDM_ROLE_COLUMN, ALWAYS, 3},
    {B_QKV, "transformer.h.%lld.attn.c_attn.bias", QKV, ONE, NDM_ROLE_COLUMN, QKV_BIAS, 3},
    {W_O, "transformer.h.%lld.attn.c_proj.weight", HIDDEN, Q, NDM_ROLE_ROW, ALWAYS, 0},
    {B_O, "transformer.h.%lld.attn.c_proj.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, O_BIAS, 0},
    {W_UP, "transformer.h.%lld.mlp.c_fc.weight", FFN, HIDDEN, NDM_ROLE_COLUMN, ALWAYS, 0},
    {B_UP, "transformer.h.%lld.mlp.c_fc.bias", FFN, ONE, NDM_ROLE_COLUMN, MLP_BIAS, 0},
    {W_DOWN, "transformer.h.%lld.mlp.c_proj.weight", HIDDEN, FFN, NDM_ROLE_ROW, ALWAYS, 0},
    {B_DOWN, "transformer.h.%lld.mlp.c_proj.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, MLP_BIAS, 0},
    {W_NORM1, "transformer.h.%lld.ln_1.weight", HIDDEN, ONE, NDM_ROLE_REPLICATED, ALWAYS, 0},
    {B_NORM1, "transformer.h.%lld.ln_1.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, LAYER_NORM, 0},
    {W_NORM2, "transformer.h.%lld.ln_2.weight", HIDDEN, ONE, NDM_ROLE_REPLICATED, ALWAYS, 0},
    {B_NORM2, "transformer.h.%lld.ln_2.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, LAYER_NORM, 0},
    {0},
};

static const row gpt2_head[] = {
    {W_HEAD, "lm_head.weight", VOCAB, HIDDEN, NDM_ROLE_VOCAB, UNTIED, 0},
    {W_NORM_F, "transformer.ln_f.weight", HIDDEN, ONE, NDM_ROLE_REPLICATED, ALWAYS, 0},
    {B_NORM_F, "transformer.ln_f.bias", HIDDEN, ONE, NDM_ROLE_REPLICATED, LAYER_NORM, 0},
    {0},
};

static const row *rows_of(const ndm_model_config *c, ndm_block_kind kind)
{
    static const row *const llama[] = {llama_embed, llama_layer, llama_head};
    static const row *const gpt2[] = {gpt2_embed, gpt2_layer, gpt2_head};

    return c->fused_qkv ? gpt2[kind] : llama[kind];
}

static bool exists(const ndm_model_config *c, when w)
{
    switch (w) {
    case QKV_BIAS:
        return c->qkv_bias;
    case O_BIAS:
        return c->o_bias;
    case MLP_BIAS:
        return c->mlp_bias;
    case GATE_BIAS:
        return c->mlp_bias && c->gated;
    case GATED:
        return c->gated;
    case QK_NORM:
        return c->qk_norm;
    case LAYER_NORM:
        return c->norm == NDM_NORM_LAYER;
    case LEARNED:
        return c->learned_positions;
    case UNTIED:
        return !c->tied;
    default:
        return true;
    }
}

static int64_t extent(const ndm_model_config *c, dim d)
{
    switch (d) {
    case HIDDEN:
        return c->hidden;
    case Q:
        return c->heads * c->head_dim;
    case KV:
        return c->kv_heads * c->head_dim;
    case QKV:
        return (c->heads + 2 * c->kv_heads) * c->head_dim;
    case FFN:
        return c->ffn;
    case HEAD:
        return c->head_dim;
    case VOCAB:
        return c->vocab;
    case POSITIONS:
        return c->max_positions;
    default:
        return 1;
    }
}

/* Heads are not cut: the dim of a column or row role that runs over heads comes in so many blocks.
 */
static int64_t blocks_of(const ndm_model_config *c, const row *r)
{
    dim cut = r->role == NDM_ROLE_ROW ? r->in : r->out;

    if (r->role != NDM_ROLE_ROW && r->role != NDM_ROLE_COLUMN)
        return 0;
    return cut == Q || cut == QKV ? c->heads : cut == KV ? c->kv_heads : 0;
}

static bool is_norm_weight(ndm_weight w)
{
    return w == W_NORM1 || w == W_NORM2 || w == W_NORM_F || w == W_QNORM || w == W_KNORM;
}

static ndm_status make_spec(const ndm_model_config *c, const ndm_block *block, const row *r,
                            ndm_param_spec *spec)
{
    char name[160];
    bool matrix = r->in != ONE;

    snprintf(name, sizeof name, r->name, (long long)block->layer);
    *spec = (ndm_param_spec){
        .name = strdup(name),
        .ndim = matrix ? 2 : 1,
        .shape = {extent(c, r->out), matrix ? extent(c, r->in) : 1},
        .role = r->role,
        .head_local = r->weight == W_QNORM || r->weight == W_KNORM || r->weight == W_POSITION,
        .blocks = blocks_of(c, r),
        .whole_rows = r->weight == W_HEAD,
        .parts = r->parts,
    };
    if (!spec->name)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the name %s", name);
    if (matrix && c->fused_qkv && block->kind == NDM_BLOCK_LAYER) {
        spec->transposed = true;
        spec->shape[0] = extent(c, r->in);
        spec->shape[1] = extent(c, r->out);
    }
    if (matrix)
        spec->init_std = (float)c->initializer_range;
    else if (is_norm_weight(r->weight))
        spec->init_mean = 1.0f - c->norm_weight_offset;
    return NDM_OK;
}

/* The matrices of a linear op have one scale. A unit may hold several layers. */
static void group_for_fp8(const ndm_block *block, int base, ndm_param_spec *specs)
{
    for (int i = 0; i < ndm_decoder_op_count; i++)
        for (int j = 0; j < NDM_LINEAR_MAX; j++) {
            int w = ndm_decoder_ops[i].w[j];
            if (w != W_NONE && block->param[w] >= 0 && specs[block->param[w] - base].ndim == 2)
                specs[block->param[w] - base].fp8_group = 1 + block->layer * ndm_decoder_op_count +
                                                          i;
        }
}

ndm_status ndm_block_specs(const ndm_model_config *config, ndm_block *block, int base,
                           ndm_param_spec *specs, int *n)
{
    *n = 0;
    for (int w = 0; w < NDM_WEIGHT_COUNT; w++)
        block->param[w] = -1;
    for (const row *r = rows_of(config, block->kind); r->name; r++) {
        if (!exists(config, r->when))
            continue;
        NDM_TRY(make_spec(config, block, r, &specs[*n]));
        block->param[r->weight] = base + (*n)++;
    }
    if (block->kind == NDM_BLOCK_LAYER)
        group_for_fp8(block, base, specs);
    return NDM_OK;
}
