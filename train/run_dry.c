/* SPDX-License-Identifier: Apache-2.0 */
/* A dry run: the run itself, with its checks, its plan and one whole step, on a device that has no
 * memory and does nothing. So the bytes are those of the very allocations. */
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "device/count.h"
#include "model/model.h"
#include "train/run_dry.h"

/* ---- checks ------------------------------------------------------------------------------- */

/* What would be loaded is there, and has the shapes of the model. */
static ndm_status check_weights(const ndm_training *r)
{
    bool has;

    if (r->resumed[0])
        return ndm_model_check_weights(r->model, r->resumed);
    NDM_TRY(ndm_setup_has_weights(r->options, &has));
    return has ? ndm_model_check_weights(r->model, ndm_option_string(r->options, "model")) : NDM_OK;
}

/* A step on the first samples: everything that is allocated on the way is. */
static ndm_status count_step(ndm_training *r)
{
    NDM_TRY(ndm_training_read_samples(r));
    ndm_batch batch = ndm_training_batch(r);
    return ndm_trainer_step(r->trainer, &batch, &r->last);
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Weights and two moments of what this rank writes. */
int64_t ndm_training_copy_bytes(const ndm_training *r)
{
    int64_t n, bytes = 0;
    ndm_unit *const *units = ndm_model_units(r->model, &n);

    if (!ndm_option_string(r->options, "save-dir") || !ndm_option_bool(r->options, "save-async") ||
        ndm_option_int64(r->options, "save-every") == 0)
        return 0;
    for (int64_t i = 0; i < n; i++)
        if (ndm_unit_writes(units[i]))
            bytes += 3 * ndm_unit_slice_numel(units[i]) * (int64_t)sizeof(float);
    return bytes;
}

static ndm_status measure(ndm_dry_report *d, ndm_training *r)
{
    int64_t n = ndm_context_size(r->context), fields = sizeof d->mine / sizeof(int64_t);
    ndm_memory_stats stats = ndm_device_memory(r->context->device);
    ndm_dry_memory *all = calloc((size_t)n, sizeof *all);

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to ask %lld ranks", (long long)n);
    memcpy(d->mine.bytes, stats.peak_bytes, sizeof d->mine.bytes);
    d->mine.device = stats.peak_total_bytes;
    d->mine.host = ndm_training_copy_bytes(r);
    d->mine.program = r->program_bytes;
    ndm_status status = ndm_world_exchange(r->context->world, &d->mine, (int64_t)sizeof d->mine,
                                           all);
    for (int64_t i = 0; i < n; i++)
        for (int64_t f = 0; f < fields; f++) {
            const int64_t *from = (const int64_t *)&all[i];
            int64_t *to = (int64_t *)&d->worst;
            to[f] = from[f] > to[f] ? from[f] : to[f];
        }
    free(all);
    return status;
}

static ndm_status report(ndm_training *r, FILE *out)
{
    ndm_dry_report d = {.run = r};

    NDM_TRY(measure(&d, r));
    NDM_TRY(
        ndm_fit_find(r->options, r->context, d.mine.device + d.mine.host + d.mine.program, &d.fit));
    if (ndm_context_rank(r->context) == 0) {
        if (ndm_option_bool(r->options, "json"))
            NDM_TRY(ndm_dry_print_json(&d, out));
        else
            ndm_dry_print_text(&d, out);
    }
    return ndm_fit_judge(&d.fit); /* ends as the run would */
}

ndm_status ndm_training_dry_run(ndm_training *r, FILE *out)
{
    NDM_TRY(ndm_context_agree(r->context, check_weights(r)));
    NDM_TRY(count_step(r));
    return ndm_context_agree(r->context, report(r, out));
}
