/* SPDX-License-Identifier: Apache-2.0 */
/* Whether a run fits: what a dry run counts, of all ranks of a host, against what the host has. A
 * kernel that runs out of memory kills without a word. */
#include "train/run_fit.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/host_memory.h"
#include "core/resident.h"
#include "device/count.h"
#include "model/model.h"
#include "strategies/internal.h"
#include "train/trainer.h"

typedef struct share {
    int64_t bytes, limit;
} share;

/* The memory of a GPU is not the host's, and its driver says itself when there is no more. A dry
 * run has another device than the run would have. */
bool ndm_setup_is_of_host(const ndm_options *o, const ndm_context *context)
{
    const char *backend = ndm_option_string(o, "backend");
    const ndm_device *device = ndm_context_device(context);
    char why[256];

    if (strcmp(ndm_device_name(device), ndm_device_count.name) != 0)
        return device->ops->host_accessible;
    if (strcmp(backend, "auto") != 0)
        return strcmp(backend, "cpu") == 0;
    for (const ndm_device_ops *const *d = ndm_device_list(); *d; d++)
        if (strcmp((*d)->name, "cuda") == 0 && (!(*d)->probe || (*d)->probe(why, sizeof why)))
            return false;
    return true;
}

static int64_t limit_of_host(const ndm_options *o, const ndm_context *context)
{
    if (!ndm_setup_is_of_host(o, context))
        return 0;
    return ndm_option_has_value(o, "host-memory") ? ndm_option_int64(o, "host-memory")
                                                  : ndm_host_memory_bytes();
}

/* Sums over the node of the rank `of`. */
static void sum_node(const ndm_world *w, const share *all, int64_t of, ndm_fit *f)
{
    int64_t node = ndm_world_node(w, of);

    *f = (ndm_fit){.limit = all[of].limit, .largest_rank = of};
    snprintf(f->host, sizeof f->host, "%s", ndm_world_host(w, of));
    for (int64_t r = 0; r < ndm_world_size(w); r++) {
        if (ndm_world_node(w, r) != node)
            continue;
        f->needed += all[r].bytes;
        f->ranks++;
        if (all[r].bytes > f->largest)
            f->largest = all[r].bytes, f->largest_rank = r;
        if (all[r].limit < f->limit)
            f->limit = all[r].limit;
    }
}

ndm_status ndm_fit_find(const ndm_options *options, const ndm_context *context, int64_t bytes,
                        ndm_fit *fit)
{
    ndm_world *w = context->world;
    int64_t n = ndm_world_size(w), node = -1;
    share mine = {bytes, limit_of_host(options, context)}, *all = calloc((size_t)n, sizeof *all);
    ndm_fit f;

    *fit = (ndm_fit){0};
    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory to ask %" PRId64 " ranks", n);
    ndm_status status = ndm_world_exchange(w, &mine, (int64_t)sizeof mine, all);
    for (int64_t of = 0; of < n && status == NDM_OK; of++) {
        if (ndm_world_node(w, of) <= node)
            continue; /* seen */
        node = ndm_world_node(w, of);
        sum_node(w, all, of, &f);
        if (node == 0 || f.limit - f.needed < fit->limit - fit->needed)
            *fit = f;
    }
    free(all);
    return status;
}

ndm_status ndm_fit_judge(const ndm_fit *f)
{
    char needed[NDM_TEXT_BYTES_BYTES], limit[NDM_TEXT_BYTES_BYTES], most[NDM_TEXT_BYTES_BYTES];

    if (f->limit == 0 || f->needed <= f->limit)
        return NDM_OK;
    NDM_FAIL(NDM_ERR_MEMORY,
             "the run does not fit: it needs %s on host %s, which has %s for the %" PRId64
             " rank%s there (rank %" PRId64 " alone %s); --dry-run says for what, ndmesh plan "
             "what other machines do, and --host-memory 0 checks nothing",
             ndm_text_of_bytes(f->needed, needed), f->host, ndm_text_of_bytes(f->limit, limit),
             f->ranks, f->ranks > 1 ? "s" : "", f->largest_rank,
             ndm_text_of_bytes(f->largest, most));
}

/* ---- before a run ------------------------------------------------------------------------- */

/* A step of zeros on the device that counts: everything that is allocated on the way is. */
static ndm_status count(ndm_training *c)
{
    NDM_TRY(ndm_setup_empty_model(c->options, c->context, &c->model));
    NDM_TRY(ndm_setup_trainer(c->options, c->model, &c->trainer));
    NDM_TRY(ndm_context_agree(c->context, ndm_training_set_up_batches(c)));
    int64_t n = c->sequences * ndm_model_get_options(c->model)->seq_len;
    memset(c->buffer, 0, 4 * (size_t)n * sizeof *c->buffer);
    ndm_batch batch = {c->sequences, c->buffer, c->buffer, NULL, NULL};
    return ndm_trainer_step(c->trainer, &batch, &c->last);
}

ndm_status ndm_setup_check_memory(const ndm_options *options, const ndm_context *context)
{
    ndm_training c = {.options = options};
    ndm_fit fit;

    if (limit_of_host(options, context) == 0)
        return NDM_OK;
    NDM_TRY(ndm_setup_count_context(options, context, &c.context));
    ndm_status status = ndm_context_agree(c.context, count(&c));
    int64_t program = ndm_resident_bytes(0);
    int64_t bytes = ndm_device_memory(c.context->device).peak_total_bytes +
                    (program > 0 ? program : 0);
    if (status == NDM_OK)
        bytes += ndm_training_copy_bytes(&c);
    ndm_trainer_destroy(c.trainer);
    ndm_model_destroy(c.model);
    free(c.buffer);
    ndm_context_destroy(c.context);
    NDM_TRY(status);
    NDM_TRY(ndm_fit_find(options, context, bytes, &fit));
    return ndm_fit_judge(&fit);
}
