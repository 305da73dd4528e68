/* SPDX-License-Identifier: Apache-2.0 */
/* A step of a benchmark, drawn and made again. */
#include "cli/bench_again.h"

#include <math.h>

#include "core/rng.h"
#include "strategies/internal.h"
#include "train/run_setup.h"
#include "train/trainer.h"

void ndm_bench_draw(const ndm_options *options, const ndm_model *model, int64_t sequences,
                    int64_t step, int32_t *tokens)
{
    const ndm_context *context = ndm_model_context(model);
    int64_t s = ndm_model_get_options(model)->seq_len, vocab = ndm_model_vocab(model);
    ndm_group dp = ndm_mesh_group(context->mesh, NDM_AXES_DP, ndm_context_rank(context));
    uint64_t seed = (uint64_t)ndm_option_int64(options, "seed");
    int32_t *inputs = tokens, *targets = tokens + sequences * s;

    for (int64_t i = 0; i < sequences; i++) {
        uint64_t sample = (uint64_t)((step * dp.size + dp.index) * sequences + i);
        for (int64_t j = 0; j <= s; j++) {
            int32_t id = (int32_t)(ndm_rng_u64(seed, sample, (uint64_t)j) % (uint64_t)vocab);
            if (j < s)
                inputs[i * s + j] = id;
            if (j > 0)
                targets[i * s + j - 1] = id;
        }
    }
}

ndm_status ndm_bench_again(const ndm_options *options, ndm_context *context, const ndm_batch *batch,
                           const ndm_step_result *first, bool spoil, int64_t *wrong)
{
    ndm_model *model = NULL;
    ndm_trainer *trainer = NULL;
    ndm_step_result again;
    ndm_status status;

    NDM_TRY(ndm_setup_model(options, context, &model));
    NDM_TRY_OR(status, ndm_setup_trainer(options, model, &trainer), done);
    NDM_TRY_OR(status, ndm_trainer_step(trainer, batch, &again), done);
    if (spoil)
        again.loss = nextafter(again.loss, INFINITY);
    *wrong = (again.loss != first->loss) + (again.grad_norm != first->grad_norm);
done:
    ndm_trainer_destroy(trainer);
    ndm_model_destroy(model);
    return status;
}
