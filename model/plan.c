/* SPDX-License-Identifier: Apache-2.0 */
/* The activation plan: sizes of everything on this rank, which slots are kept, and all buffers
 * before the first step. Nothing is allocated within a step. */
#include <stdlib.h>

#include "mesh/rules.h"
#include "model/model.h"

/* Places of tokens, and rows of padding behind them, are counted in 32 bits. */
enum { CHUNK_FLOATS = 16 << 20, TOKENS_MAX = 1 << 30 };

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t round_up(int64_t n, int64_t to)
{
    return (n + to - 1) / to * to;
}

static ndm_status check_mesh(const ndm_model *m)
{
    const ndm_model_config *c = &m->config;
    ndm_mesh_demands demands = {
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .ffn = c->ffn,
        .vocab = c->vocab,
        .seq_len = m->options.seq_len,
        .micro_batch = m->options.micro_batch,
        .cp_method = m->context->parallelism.cp_method,
        .sequence_parallel = ndm_context_sequence_parallel(m->context),
        .padded = NDM_PAD_FFN | NDM_PAD_VOCAB | NDM_PAD_TOKENS | NDM_PAD_SEQ,
    };
    ndm_demands strategies = {c->heads,
                              c->kv_heads,
                              c->head_dim,
                              c->hidden,
                              c->ffn,
                              c->vocab,
                              m->options.seq_len,
                              m->options.micro_batch,
                              true,
                              c->sliding_window,
                              m->dtype};

    NDM_TRY(ndm_mesh_check(m->context->mesh, &demands));
    return ndm_engine_check(m->context, &strategies);
}

static ndm_status check_options(const ndm_model *m)
{
    const ndm_model_options *o = &m->options;

    if (o->micro_batch < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "micro_batch=%lld; at least 1 is needed",
                 (long long)o->micro_batch);
    if (o->seq_len < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "seq_len=%lld; at least 1 is needed", (long long)o->seq_len);
    if (o->seq_len > TOKENS_MAX / o->micro_batch)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "micro_batch=%lld of seq_len=%lld; a forward takes at most %d tokens",
                 (long long)o->micro_batch, (long long)o->seq_len, TOKENS_MAX);
    if (m->config.learned_positions && o->seq_len > m->config.max_positions)
        NDM_FAIL(NDM_ERR_CONFIG, "seq_len=%lld is longer than the model's %lld learned positions",
                 (long long)o->seq_len, (long long)m->config.max_positions);
    if (!(o->label_smoothing >= 0.0 && o->label_smoothing < 1.0))
        NDM_FAIL(NDM_ERR_CONFIG, "label_smoothing=%g; 0 <= s < 1 is needed", o->label_smoothing);
    if ((unsigned)o->recompute > NDM_RECOMPUTE_SELECTIVE)
        NDM_FAIL(NDM_ERR_CONFIG, "recompute=%d; none, full and selective are known", o->recompute);
    if (o->head_chunk < 0)
        NDM_FAIL(NDM_ERR_CONFIG, "head_chunk=%lld must not be negative", (long long)o->head_chunk);
    if (o->tp_overlap_chunks < 0 || o->tp_overlap_chunks > NDM_REGION_PARTS_MAX)
        NDM_FAIL(NDM_ERR_CONFIG, "tp_overlap_chunks=%lld; 0 to %d are allowed",
                 (long long)o->tp_overlap_chunks, NDM_REGION_PARTS_MAX);
    return NDM_OK;
}

static ndm_status set_sizes(ndm_model *m)
{
    const ndm_model_config *c = &m->config;
    ndm_sizes *s = &m->size;
    int64_t tp = ndm_context_axes_size(m->context, NDM_AXIS_TP),
            t = ndm_context_coord(m->context, NDM_TP);
    bool split = ndm_context_sequence_parallel(m->context);

    s->tokens = m->options.seq_len;
    m->picks = malloc((size_t)(s->tokens * 2 + 4096) * sizeof *m->picks);
    if (!m->picks)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a sequence of %lld tokens", (long long)s->tokens);
    NDM_TRY(ndm_engine_batch(m->context, m->picks, &s->tokens));
    m->use_index = ndm_context_axes_size(m->context, NDM_AXIS_CP) > 1;
    s->batch = m->options.micro_batch;
    s->rows = s->batch * s->tokens;
    m->region.parts = ndm_region_parts(m, s->rows, tp);
    s->padded = round_up(s->rows, tp * m->region.parts);
    s->local = split ? s->padded / tp : s->padded;
    s->row0 = split ? t * s->local : 0;
    s->hidden = c->hidden;
    s->heads = c->heads / tp;
    s->kv_heads = c->kv_heads > tp ? c->kv_heads / tp : (c->kv_heads + tp - 1) / tp;
    s->head_dim = c->head_dim;
    s->q_width = s->heads * c->head_dim;
    s->kv_width = s->kv_heads * c->head_dim;
    s->qkv_width = s->q_width + 2 * s->kv_width;
    s->ffn = (c->ffn + tp - 1) / tp;
    s->gu_width = c->gated ? 2 * s->ffn : s->ffn;
    s->vocab_rows = (c->vocab + tp - 1) / tp;
    s->vocab_first = min64(t * s->vocab_rows, c->vocab);
    s->vocab_valid = min64(s->vocab_rows, c->vocab - s->vocab_first);
    s->chunk = m->options.head_chunk > 0 ? m->options.head_chunk : CHUNK_FLOATS / s->vocab_rows;
    s->chunk = min64(s->chunk < 1 ? 1 : s->chunk, s->padded);
    return NDM_OK;
}

/* Elements of a slot in one layer. */
static int64_t slot_numel(const ndm_model *m, ndm_slot slot)
{
    const ndm_sizes *s = &m->size;
    const int64_t numel[NDM_SLOT_COUNT] = {
        [S_X0] = s->local * s->hidden,
        [S_MEAN1] = m->config.norm == NDM_NORM_LAYER ? s->local : 0,
        [S_RSTD1] = s->local,
        [S_H1] = s->padded * s->hidden,
        [S_QKV] = s->padded * s->qkv_width,
        [S_QK_RSTD] = m->config.qk_norm ? s->padded * (s->heads + s->kv_heads) : 0,
        [S_QKV2] = m->config.qk_norm ? s->padded * s->qkv_width : 0,
        [S_ATT] = s->padded * s->q_width,
        [S_LSE] = s->batch * s->heads * s->tokens,
        [S_X1] = s->local * s->hidden,
        [S_MEAN2] = m->config.norm == NDM_NORM_LAYER ? s->local : 0,
        [S_RSTD2] = s->local,
        [S_H2] = s->padded * s->hidden,
        [S_GU] = s->padded * s->gu_width,
        [S_ACT] = s->padded * s->ffn,
    };
    return round_up(numel[slot], NDM_UNIT_ALIGN);
}

static bool slot_is_statistic(ndm_slot slot)
{
    return slot == S_MEAN1 || slot == S_RSTD1 || slot == S_MEAN2 || slot == S_RSTD2 ||
           slot == S_QK_RSTD || slot == S_LSE;
}

static bool is_norm_output(ndm_slot slot)
{
    return slot == S_H1 || slot == S_H2;
}

/* What a norm or an activation wrote is read again only by the weights of the next product, and its
 * own backward has all that makes it in registers. Not so rows that tp gathers behind a norm, nor
 * where regions go in parts: there the sums of gradients travel beside the products of weights,
 * which must not wait for the norm that needs the sums. */
static bool made_by_backward(const ndm_model *m, ndm_slot slot)
{
    bool whole = m->size.local == m->size.padded && m->region.parts == 1;

    if (m->context->device->keeps_inputs)
        return false;
    return slot == S_ACT || (is_norm_output(slot) && whole);
}

static ndm_keeping keeping_of(const ndm_model *m, ndm_slot slot)
{
    if (made_by_backward(m, slot))
        return NDM_MADE_BY_BACKWARD;
    switch (m->options.recompute) {
    case NDM_RECOMPUTE_FULL:
        return slot == S_X0 ? NDM_KEPT : NDM_MADE_AGAIN;
    case NDM_RECOMPUTE_SELECTIVE:
        return is_norm_output(slot) || slot == S_ACT ? NDM_MADE_AGAIN : NDM_KEPT;
    default:
        return NDM_KEPT;
    }
}

static ndm_status allocate(ndm_model *m, int64_t bytes, ndm_memory_kind kind, void *pointer)
{
    return ndm_model_memory_take(&m->memory, bytes, kind, pointer);
}

static ndm_status floats(ndm_model *m, int64_t n, ndm_memory_kind kind, void *pointer)
{
    return allocate(m, n * (int64_t)sizeof(float), kind, pointer);
}

static int64_t activation_bytes(const ndm_model *m, int64_t n)
{
    return n * (int64_t)ndm_dtype_bytes(m->dtype);
}

static ndm_status activations(ndm_model *m, int64_t n, void **pointer)
{
    return allocate(m, activation_bytes(m, n), NDM_MEMORY_ACTIVATIONS, pointer);
}

/* Rows that tp gathers: [N, C], one array for the ranks of a node, unless they come in parts. */
static ndm_status gathered_rows(ndm_model *m, void **pointer)
{
    int64_t bytes = activation_bytes(m, m->size.local * m->size.hidden);
    ndm_comm *tp;

    if (m->size.local == m->size.padded || m->region.parts > 1)
        return activations(m, m->size.padded * m->size.hidden, pointer);
    NDM_TRY(ndm_context_comm(m->context, NDM_AXIS_TP, &tp));
    return ndm_model_memory_take_gathered(&m->memory, tp, bytes, NDM_MEMORY_ACTIVATIONS, pointer);
}

/* Partial sums of this rank that tp reduces: [N, C], readable by the ranks of a node. */
static ndm_status partial_rows(ndm_model *m, void **pointer)
{
    int64_t bytes = activation_bytes(m, m->size.padded * m->size.hidden);
    ndm_comm *tp;

    if (m->region.parts > 1)
        return activations(m, m->size.padded * m->size.hidden, pointer);
    NDM_TRY(ndm_context_comm(m->context, NDM_AXIS_TP, &tp));
    return ndm_model_memory_take_readable(&m->memory, tp, bytes, NDM_MEMORY_ACTIVATIONS, pointer);
}

/* A shared array may be written again only when all ranks have read it. Kept slots are written once
 * a step; those made again in the backward are not safe, since nothing orders a rank's next making
 * behind another's last reading. */
static ndm_status allocate_slot(ndm_model *m, ndm_slot slot, void **place)
{
    if (is_norm_output(slot) && m->keeping[slot] == NDM_KEPT)
        return gathered_rows(m, place);
    if (slot_is_statistic(slot))
        return floats(m, slot_numel(m, slot), NDM_MEMORY_ACTIVATIONS, place);
    return activations(m, slot_numel(m, slot), place);
}

/* What lies in the host's memory. */
static ndm_status allocate_host(ndm_model *m)
{
    int64_t layers = m->config.layers, n = m->size.padded;

    for (int i = 0; i < NDM_SLOT_COUNT; i++) {
        m->slots[i] = calloc((size_t)layers, sizeof *m->slots[i]);
        if (!m->slots[i])
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for the plan of %lld layers", (long long)layers);
    }
    m->host = malloc((size_t)(NDM_DATA_ARRAYS * n) * sizeof *m->host);
    if (!m->host)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a micro-batch of %lld tokens", (long long)n);
    return NDM_OK;
}

static ndm_status allocate_slots(ndm_model *m)
{
    for (int i = 0; i < NDM_SLOT_COUNT; i++) {
        ndm_keeping keeping = m->keeping[i] = keeping_of(m, (ndm_slot)i);
        int64_t own = keeping == NDM_KEPT ? m->config.layers : keeping == NDM_MADE_AGAIN ? 1 : 0;
        for (int64_t l = 0; l < own; l++)
            NDM_TRY(allocate_slot(m, (ndm_slot)i, &m->slots[i][l]));
    }
    return NDM_OK;
}

/* The places of slots that layers share. What the backward makes lies over the gradient that it is
 * made beside, which nothing reads any more. */
static void share_slots(ndm_model *m)
{
    for (int i = 0; i < NDM_SLOT_COUNT; i++)
        for (int64_t l = 0; l < m->config.layers && m->keeping[i] != NDM_KEPT; l++)
            m->slots[i][l] = m->keeping[i] == NDM_MADE_AGAIN ? m->slots[i][0]
                             : i == S_ACT                    ? m->d_act
                                                             : m->d_full;
}

static ndm_status allocate_data(ndm_model *m)
{
    int32_t **arrays[NDM_DATA_ARRAYS] = {&m->ids,   &m->grad_ids, &m->targets,     &m->positions,
                                         &m->index, &m->first,    &m->window_first};
    int64_t n = m->size.padded;

    for (int64_t i = 0; i < NDM_DATA_ARRAYS; i++)
        NDM_TRY(allocate(m, n * (int64_t)sizeof(int32_t), NDM_MEMORY_ACTIVATIONS, arrays[i]));
    return allocate(m, (int64_t)sizeof(double), NDM_MEMORY_ACTIVATIONS, &m->loss);
}

/* Logits are gone when gradients flow down the layers, and outputs of activations, which lie over
 * their gradient, before there are any: one place for all. What attention leaves in rows of padding
 * must stay zero. A stack of others holds logits beside them. */
static ndm_status allocate_over_logits(ndm_model *m)
{
    const ndm_sizes *s = &m->size;
    bool apart = m->context->device->keeps_inputs, padding = s->rows != s->padded;
    struct {
        void **place;
        int64_t numel;
        bool over;
    } arrays[] = {{&m->grad, s->local * s->hidden, true},
                  {&m->d_att, s->padded * s->q_width, true},
                  {&m->d_act, s->padded * s->ffn, true},
                  {&m->d_qkv, s->padded * s->qkv_width, !padding}};
    int64_t logits = s->chunk * s->vocab_rows, over = 0;

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        over += !apart && arrays[i].over ? round_up(arrays[i].numel, NDM_UNIT_ALIGN) : 0;
    NDM_TRY(activations(m, over > logits ? over : logits, &m->logits));
    over = 0;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        if (apart || !arrays[i].over || !m->logits) {
            NDM_TRY(activations(m, arrays[i].numel, arrays[i].place));
            continue;
        }
        *arrays[i].place = ndm_model_at(m, m->logits, over);
        over += round_up(arrays[i].numel, NDM_UNIT_ALIGN);
    }
    return NDM_OK;
}

static ndm_status allocate_shared(ndm_model *m)
{
    const ndm_sizes *s = &m->size;
    const ndm_memory_kind kind = NDM_MEMORY_ACTIVATIONS;
    int64_t local = s->local * s->hidden;
    int64_t tp = ndm_context_axes_size(m->context, NDM_AXIS_TP);

    NDM_TRY(activations(m, local, &m->x_final));
    NDM_TRY(floats(m, s->local, kind, &m->mean_final));
    NDM_TRY(floats(m, s->local, kind, &m->rstd_final));
    NDM_TRY(gathered_rows(m, &m->h_final));
    NDM_TRY(allocate_over_logits(m));
    NDM_TRY(floats(m, s->chunk * 4, kind, &m->stats));
    NDM_TRY(floats(m, tp > 1 ? tp * s->chunk * 4 : 0, kind, &m->stats_all));
    NDM_TRY(partial_rows(m, &m->branch));
    NDM_TRY(partial_rows(m, &m->d_full));
    if (s->local != s->padded)
        NDM_TRY(gathered_rows(m, &m->d_out));
    m->region.d_out_shared = m->d_out && m->memory.pieces[m->memory.n - 1].shared;
    if (s->local != s->padded && m->region.parts > 1) {
        NDM_TRY(activations(m, local, &m->region.own_in));
        NDM_TRY(activations(m, local, &m->region.own_out));
    }
    NDM_TRY(floats(m, s->batch * s->heads * s->tokens, kind, &m->delta));
    return allocate(m, ndm_norm_workspace_bytes(s->hidden), NDM_MEMORY_WORKSPACE, &m->workspace);
}

static ndm_status allocate_rope(ndm_model *m)
{
    int64_t n = m->options.seq_len * (m->config.head_dim / 2);

    if (m->config.rope == NDM_ROPE_NONE)
        return NDM_OK;
    NDM_TRY(floats(m, n, NDM_MEMORY_WORKSPACE, &m->rope_cos));
    return floats(m, n, NDM_MEMORY_WORKSPACE, &m->rope_sin);
}

static ndm_status fill_rope(ndm_model *m)
{
    return m->config.rope == NDM_ROPE_NONE ? NDM_OK : ndm_rope_tables(m, m->options.seq_len);
}

/* A world that counts narrow activations by itself is told of fp32 ones. */
static ndm_status choose_dtype(ndm_model *m, const ndm_fsdp_config *fsdp)
{
    const ndm_device *device = m->context->device;
    ndm_dtype asked = m->options.activation_dtype;
    bool automatic = asked == NDM_DTYPE_COUNT;

    m->dtype = NDM_F32;
    if (automatic && device->ops->computes_bf16)
        m->dtype = fsdp->param_dtype;
    if (!automatic && device->activation_bytes == (int)sizeof(float))
        m->dtype = asked;
    if (m->dtype != NDM_F32 && m->dtype != NDM_BF16)
        NDM_FAIL(NDM_ERR_CONFIG, "activations in %s; fp32 and bf16 are known",
                 ndm_dtype_name(m->dtype));
    if (m->options.fp8 && strcmp(ndm_kernels_chosen(device, NDM_OP_quantize), "none") == 0)
        NDM_FAIL(NDM_ERR_UNSUPPORTED, "fp8: device %s has no kernel for 8-bit numbers",
                 device->ops->name);
    if (fsdp->fp8_gather && !m->options.fp8)
        NDM_FAIL(NDM_ERR_CONFIG, "fp8_gather without fp8: products take the weights as they are");
    if (m->options.fp8 && m->options.tp_overlap_chunks > 1)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "fp8 with tp_overlap_chunks=%lld: a product has one scale, so its "
                 "rows are quantized at once",
                 (long long)m->options.tp_overlap_chunks);
    return NDM_OK;
}

static ndm_status prepare(ndm_model *m, const ndm_fsdp_config *fsdp)
{
    m->memory.context = m->context;
    NDM_TRY(check_options(m));
    NDM_TRY(choose_dtype(m, fsdp));
    NDM_TRY(check_mesh(m));
    NDM_TRY(set_sizes(m));
    return allocate_host(m);
}

static ndm_status allocate_device(ndm_model *m)
{
    NDM_TRY(allocate_slots(m));
    NDM_TRY(allocate_data(m));
    NDM_TRY(allocate_shared(m));
    share_slots(m);
    NDM_TRY(allocate_rope(m));
    NDM_TRY(ndm_region_init(m));
    return m->memory.failed;
}

ndm_status ndm_model_plan(ndm_model *model, const ndm_fsdp_config *fsdp)
{
    NDM_TRY(ndm_context_agree(model->context, prepare(model, fsdp)));
    NDM_TRY(ndm_context_agree(model->context, allocate_device(model)));
    return ndm_context_agree(model->context, fill_rope(model));
}

void ndm_model_unplan(ndm_model *m)
{
    ndm_region_finish(m);
    ndm_model_memory_finish(&m->memory);
    for (int i = 0; i < NDM_SLOT_COUNT; i++)
        free(m->slots[i]);
    free(m->host);
    free(m->picks);
}
