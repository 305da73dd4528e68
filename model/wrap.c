/* SPDX-License-Identifier: Apache-2.0 */
/* The wrap policy: which blocks share a unit. Blocks are the embedding, the layers, and the head
 * (final norm and lm_head).
 *
 * A tied head reads the embedding's weight, so the two share a unit under every policy. */
#include <stdio.h>
#include <string.h>

#include "core/log.h"
#include "model/model.h"

static bool same_unit_as_embedding(const ndm_model_config *c, int64_t block, int64_t n_blocks)
{
    return c->tied && block == n_blocks - 1;
}

static void plan_auto(const ndm_model_config *c, int64_t n_blocks, int64_t *unit_of,
                      int64_t *n_units)
{
    *n_units = 0;
    for (int64_t b = 0; b < n_blocks; b++)
        unit_of[b] = same_unit_as_embedding(c, b, n_blocks) ? 0 : (*n_units)++;
}

/* Embedding and head keep the root's unit unless a class names them. Without classes the layers are
 * units, as where Accelerate's files leave them to the model. */
static ndm_status plan_classes(const ndm_model_config *c, const char *const *classes,
                               int64_t n_blocks, int64_t *unit_of, int64_t *n_units)
{
    const ndm_family_info *f = ndm_family_table(c->family);
    bool layers = !classes || !classes[0], embedding = false;

    for (int i = 0; classes && classes[i]; i++) {
        if (strcmp(classes[i], f->decoder_class) == 0)
            layers = true;
        else if (strcmp(classes[i], f->embedding_class) == 0)
            embedding = true;
        else if (strcmp(classes[i], f->architecture) != 0)
            NDM_FAIL(NDM_ERR_CONFIG,
                     "wrap class '%s' matches nothing in this %s model; units can be: %s, %s, %s",
                     classes[i], f->model_type, f->decoder_class, f->embedding_class,
                     f->architecture);
    }
    int64_t root = embedding && !c->tied ? -1 : 0, next = root < 0 ? 0 : 1;
    for (int64_t b = 0; b < n_blocks; b++) {
        bool is_layer = b > 0 && b < n_blocks - 1;
        if (is_layer ? layers : b == 0 && root < 0)
            unit_of[b] = next++;
        else if (root < 0)
            unit_of[b] = root = next++;
        else
            unit_of[b] = root;
    }
    *n_units = next;
    return NDM_OK;
}

static int64_t block_numel(const ndm_model_config *c, int64_t block, int64_t n_blocks)
{
    int64_t table = c->vocab * c->hidden;

    if (block > 0 && block < n_blocks - 1)
        return ndm_model_config_block_parameters(c);
    if (block == 0)
        return table + (c->learned_positions ? c->max_positions * c->hidden : 0);
    return c->hidden + (c->tied ? 0 : table);
}

/* Consecutive blocks join until a unit has the minimum; what is left joins the last. */
static void plan_size(const ndm_model_config *c, int64_t minimum, int64_t n_blocks,
                      int64_t *unit_of, int64_t *n_units)
{
    int64_t unit = 0, numel = 0;

    for (int64_t b = 0; b < n_blocks; b++) {
        if (same_unit_as_embedding(c, b, n_blocks)) {
            unit_of[b] = 0;
            continue;
        }
        if (numel >= minimum) {
            unit++;
            numel = 0;
        }
        unit_of[b] = unit;
        numel += block_numel(c, b, n_blocks);
    }
    if (numel < minimum && unit > 0) {
        for (int64_t b = 0; b < n_blocks; b++)
            if (unit_of[b] == unit)
                unit_of[b] = unit - 1;
        unit--;
    }
    *n_units = unit + 1;
}

ndm_status ndm_wrap_plan(const ndm_model_config *config, const ndm_fsdp_config *fsdp,
                         int64_t n_blocks, int64_t *unit_of, int64_t *n_units)
{
    switch (fsdp->wrap) {
    case NDM_WRAP_AUTO:
        plan_auto(config, n_blocks, unit_of, n_units);
        return NDM_OK;
    case NDM_WRAP_TRANSFORMER:
        return plan_classes(config, fsdp->wrap_classes, n_blocks, unit_of, n_units);
    case NDM_WRAP_SIZE:
        if (fsdp->min_num_params < 1)
            NDM_FAIL(NDM_ERR_CONFIG,
                     "size_based_wrap with min_num_params=%lld; at least 1 is needed",
                     (long long)fsdp->min_num_params);
        plan_size(config, fsdp->min_num_params, n_blocks, unit_of, n_units);
        return NDM_OK;
    }
    NDM_FAIL(NDM_ERR_CONFIG, "wrap policy %d is unknown", (int)fsdp->wrap);
}
