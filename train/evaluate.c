/* SPDX-License-Identifier: Apache-2.0 */
/* Evaluation: the loss over all samples of the evaluation data, weighted by token. Every mesh sees
 * the same samples once: where they run out, a rank gets some whose targets are all ignored. */
#include "train/run_internal.h"

/* Samples [first, ...) of this rank, micro_batch of them. */
static ndm_status read_samples(ndm_training *r, int64_t first, ndm_batch *batch)
{
    int64_t S = ndm_model_get_options(r->model)->seq_len, rows = r->split.micro_batch;
    int64_t n = rows * S, samples = ndm_data_samples(r->eval_data);

    for (int64_t row = 0; row < rows; row++) {
        int32_t *at = r->buffer + row * S;
        int64_t i = first + r->split.dp_rank * rows + row;
        NDM_TRY(
            ndm_data_sample(r->eval_data, i < samples ? i : 0, at, at + n, at + 2 * n, at + 3 * n));
        for (int64_t t = 0; i >= samples && t < S; t++)
            at[n + t] = NDM_IGNORE;
    }
    *batch = (ndm_batch){rows, r->buffer, r->buffer + n, r->buffer + 2 * n, r->buffer + 3 * n};
    return NDM_OK;
}

static ndm_status evaluate(ndm_training *r)
{
    int64_t step = r->split.micro_batch * r->split.dp, samples = ndm_data_samples(r->eval_data);
    int64_t tokens = 0, more;
    double sum = 0.0, part;
    ndm_batch batch;

    for (int64_t first = 0; first < samples; first += step) {
        NDM_TRY(ndm_context_agree(r->context, read_samples(r, first, &batch)));
        NDM_TRY(ndm_trainer_evaluate(r->trainer, &batch, &part, &more));
        sum += part;
        tokens += more;
    }
    return ndm_context_agree(
        r->context, ndm_training_report_eval(r, tokens > 0 ? sum / (double)tokens : 0.0, tokens));
}

ndm_status ndm_training_evaluate_if_due(ndm_training *r, bool is_last)
{
    int64_t every = ndm_option_int64(r->options, "eval-every"),
            step = ndm_trainer_steps(r->trainer);
    bool due = is_last || (every > 0 && step % every == 0);

    if (!r->eval_data || !due || r->evaluated_step == step)
        return NDM_OK;
    r->evaluated_step = step;
    return evaluate(r);
}
