/* SPDX-License-Identifier: Apache-2.0 */
/* This rank's tokens of a micro-batch: picked from whole sequences by the strategies, checked, and
 * copied to the device. Positions, targets and document starts are data that move with their
 * tokens. */
#include "model/model.h"

/* Host arrays of [N], in the order of model->host. */
typedef struct staged {
    int32_t *ids, *grad_ids, *targets, *positions, *index, *first, *window_first;
} staged;

static staged stage(ndm_model *m)
{
    int32_t *h = m->host;
    int64_t n = m->size.padded;

    return (staged){h, h + n, h + 2 * n, h + 3 * n, h + 4 * n, h + 5 * n, h + 6 * n};
}

/* Token `at` of a sequence; a token sees itself at least. */
static ndm_status check_token(const ndm_model *m, const ndm_batch *b, int64_t sequence, int32_t at)
{
    int64_t i = sequence * m->options.seq_len + at;
    int32_t id = b->inputs[i], target = b->targets[i];
    int32_t position = b->positions ? b->positions[i] : at, first = b->first ? b->first[i] : 0;

    if (id < 0 || id >= m->config.vocab)
        NDM_FAIL(NDM_ERR_CONFIG, "sequence %lld, token %d: id %d is outside the vocabulary of %lld",
                 (long long)sequence, at, id, (long long)m->config.vocab);
    if (target >= m->config.vocab)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "sequence %lld, token %d: label %d is outside the vocabulary of %lld",
                 (long long)sequence, at, target, (long long)m->config.vocab);
    if (position < 0 || position >= m->options.seq_len)
        NDM_FAIL(NDM_ERR_CONFIG, "sequence %lld, token %d: position %d is outside 0..%lld",
                 (long long)sequence, at, position, (long long)m->options.seq_len - 1);
    if (first < 0 || first > at)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "sequence %lld, token %d: the first it may attend to, %d, is outside 0..%d",
                 (long long)sequence, at, first, at);
    return NDM_OK;
}

ndm_status ndm_model_check_batch(const ndm_model *model, const ndm_batch *batch, int64_t sequences)
{
    if (!batch || !batch->inputs || !batch->targets)
        NDM_FAIL(NDM_ERR_USAGE, "%s NULL",
                 !batch ? "the batch is" : "inputs or targets of the batch are");
    if (batch->sequences != sequences)
        NDM_FAIL(NDM_ERR_USAGE, "a batch of %lld sequences; %lld are needed",
                 (long long)batch->sequences, (long long)sequences);
    for (int64_t i = 0; i < sequences; i++)
        for (int32_t at = 0; at < model->options.seq_len; at++)
            NDM_TRY(check_token(model, batch, i, at));
    return NDM_OK;
}

/* Row of a token that does not exist: padding of the sequence to the cp chunks, or of the rows to
 * tp. */
static void stage_padding(const staged *s, int64_t row, int32_t place)
{
    s->ids[row] = s->grad_ids[row] = -1;
    s->targets[row] = -100;
    s->positions[row] = 0;
    s->index[row] = s->first[row] =
        place; /* it sees itself alone, and no token sees it: it comes last */
}

static void stage_row(const ndm_model *m, const staged *s, const ndm_batch *b, int64_t sequence,
                      int32_t at, int64_t row)
{
    int64_t from = sequence * m->options.seq_len + at;
    int32_t id = b->inputs[from];

    s->ids[row] = id;
    s->grad_ids[row] = id == m->config.pad_token
                           ? -1
                           : id; /* transformers' padding_idx: that row learns nothing */
    s->targets[row] = b->targets[from];
    s->positions[row] = b->positions ? b->positions[from] : at;
    s->index[row] = at;
    s->first[row] = b->first ? b->first[from] : 0;
}

static void stage_batch(ndm_model *m, const staged *s, const ndm_batch *b)
{
    int64_t row = 0, seq_len = m->options.seq_len;

    for (int64_t i = 0; i < b->sequences; i++)
        for (int64_t j = 0; j < m->size.tokens; j++, row++) {
            if (m->picks[j] >= seq_len)
                stage_padding(s, row, m->picks[j]);
            else
                stage_row(m, s, b, i, m->picks[j], row);
        }
    for (; row < m->size.padded; row++)
        stage_padding(s, row, 0);
    m->use_first = b->first != NULL || m->config.sliding_window > 0;
    for (row = 0; row < m->size.padded; row++) {
        int32_t window = s->index[row] - (int32_t)m->config.sliding_window + 1;
        s->window_first[row] = s->first[row] > window ? s->first[row] : window;
    }
}

ndm_status ndm_model_feed(ndm_model *model, const ndm_batch *batch)
{
    staged s = stage(model);
    int64_t bytes = model->size.padded * (int64_t)sizeof(int32_t);
    struct {
        void *device;
        const int32_t *host;
    } copies[] = {{model->ids, s.ids},
                  {model->grad_ids, s.grad_ids},
                  {model->targets, s.targets},
                  {model->positions, s.positions},
                  {model->index, s.index},
                  {model->first, s.first},
                  {model->window_first, s.window_first}};

    stage_batch(model, &s, batch);
    for (size_t i = 0; i < sizeof copies / sizeof copies[0]; i++)
        NDM_TRY(ndm_copy(model->context->compute, copies[i].device, copies[i].host, bytes,
                         NDM_HOST_TO_DEVICE));
    return NDM_OK;
}
