/* SPDX-License-Identifier: Apache-2.0 */
/* Logits of one sequence as a file: every rank writes the tokens and the part of the vocabulary
 * that it has. */
#include <stdlib.h>

#include "core/file.h"
#include "core/given.h"
#include "model/model.h"

static bool has_first_sequence(const ndm_model *m)
{
    return ndm_context_coord(m->context, NDM_DP_REPLICATE) == 0 &&
           ndm_context_coord(m->context, NDM_DP_SHARD) == 0;
}

ndm_status ndm_model_tap_logits(ndm_model *m, int64_t row, int64_t rows)
{
    int64_t width = m->size.vocab_rows, left = m->size.tokens - row;
    int64_t n = rows < left ? rows : left; /* of the first sequence, whose rows come first */

    if (!m->tap || n <= 0)
        return NDM_OK;
    return ndm_copy(m->context->compute, ndm_model_at(m, m->tap, row * width), m->logits,
                    n * width * (int64_t)ndm_dtype_bytes(m->dtype), NDM_DEVICE_TO_HOST);
}

/* Forward with a tap; the sum of losses is what it was before. */
static ndm_status run_tapped(ndm_model *m, const ndm_batch *batch, void *tap)
{
    ndm_stream *stream = m->context->compute;
    double before;

    NDM_TRY(ndm_copy(stream, &before, m->loss, (int64_t)sizeof before, NDM_DEVICE_TO_HOST));
    NDM_TRY(ndm_stream_synchronize(stream));
    m->tap = tap;
    ndm_status status = ndm_model_evaluate(m, batch);
    m->tap = NULL;
    NDM_TRY(status);
    NDM_TRY(ndm_copy(stream, m->loss, &before, (int64_t)sizeof before, NDM_HOST_TO_DEVICE));
    return ndm_stream_synchronize(stream);
}

static ndm_status begin(const ndm_model *m, const char *folder, ndm_safetensors_writer *writer)
{
    if (ndm_context_rank(m->context) != 0)
        return NDM_OK;
    NDM_TRY(ndm_file_make_dirs(folder));
    return ndm_safetensors_writer_begin(writer);
}

/* Rows of this rank's tokens, columns of its vocabulary, neither with padding. */
static ndm_status write_own(const ndm_model *m, const void *tap, ndm_safetensors_writer *writer)
{
    const ndm_sizes *s = &m->size;

    if (!has_first_sequence(m) || s->vocab_valid < 1)
        return NDM_OK;
    for (int64_t i = 0; i < s->tokens; i++)
        if (m->picks[i] < m->options.seq_len)
            NDM_TRY(ndm_safetensors_write_block(writer, "logits", m->picks[i], m->picks[i] + 1,
                                                s->vocab_first, s->vocab_first + s->vocab_valid,
                                                ndm_model_at(m, tap, i * s->vocab_rows), m->dtype));
    return ndm_safetensors_writer_sync(writer);
}

static ndm_status plan(const ndm_model *m, const char *file, char **folder,
                       ndm_safetensors_writer **writer, void **tap)
{
    ndm_tensor_spec spec = {"logits", NDM_F32, 2, {m->options.seq_len, m->config.vocab}};
    char *stem;

    *tap = malloc((size_t)(m->size.tokens * m->size.vocab_rows) * ndm_dtype_bytes(m->dtype));
    if (!*tap)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the logits of %lld tokens",
                 (long long)m->size.tokens);
    NDM_TRY(ndm_model_split_path(file, folder, &stem));
    ndm_status status = ndm_safetensors_writer_create(*folder, stem, &spec, 1, 0, NULL, writer);
    free(stem);
    return status;
}

ndm_status ndm_model_save_logits(ndm_model *model, const ndm_batch *batch, const char *file)
{
    NDM_NEED(model);
    NDM_NEED(file);
    ndm_context *c = model->context;
    ndm_safetensors_writer *writer = NULL;
    char *folder = NULL;
    void *tap = NULL;
    ndm_status status;

    NDM_TRY_OR(status, ndm_context_agree(c, plan(model, file, &folder, &writer, &tap)), done);
    NDM_TRY_OR(status, run_tapped(model, batch, tap), done);
    NDM_TRY_OR(status, ndm_context_agree(c, begin(model, folder, writer)), done);
    status = ndm_context_agree(c, write_own(model, tap, writer));
done:
    ndm_safetensors_writer_destroy(writer);
    free(folder);
    free(tap);
    return status;
}
