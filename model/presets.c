/* SPDX-License-Identifier: Apache-2.0 */
/* Presets: the table of presets.def as configurations. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "model/config_internal.h"

struct preset {
    ndm_family family;
    bool tied;
    int64_t hidden, layers, heads, kv_heads, head_dim, ffn, vocab, max_positions;
    double norm_eps, rope_theta;
    const char *summary;
};

#define NDM_PRESET(name, ...) name,
static const char *const names[] = {
#include "model/presets.def"
    NULL};
#undef NDM_PRESET

#define NDM_PRESET(name, ...) {__VA_ARGS__},
static const struct preset presets[] = {
#include "model/presets.def"
};
#undef NDM_PRESET

#define COUNT (sizeof presets / sizeof *presets)

/* Llama 3.1 and 3.2 reach their 131,072 positions by scaling the low frequencies. */
static void scale_rope(ndm_model_config *c, double factor)
{
    c->rope = NDM_ROPE_LLAMA3;
    c->rope_factor = factor;
    c->rope_low_freq_factor = 1;
    c->rope_high_freq_factor = 4;
    c->rope_original_positions = 8192;
}

static void fill(const struct preset *p, ndm_model_config *c)
{
    ndm_model_config_init(c, p->family);
    c->hidden = p->hidden;
    c->layers = p->layers;
    c->heads = p->heads;
    c->kv_heads = p->kv_heads;
    c->head_dim = p->head_dim;
    c->ffn = p->ffn;
    c->vocab = p->vocab;
    c->max_positions = p->max_positions;
    c->norm_eps = p->norm_eps;
    c->rope_theta = p->rope_theta;
    c->tied = p->tied;
    if (p->family == NDM_LLAMA && p->max_positions == 131072)
        scale_rope(c, p->layers == 126 ? 8 : 32); /* 3.1 has 8, 3.2 has 32 */
    if (p->family == NDM_MISTRAL)
        c->sliding_window = 4096;
    if (p->family == NDM_GEMMA)
        c->embedding_scale = sqrtf((float)p->hidden), c->pad_token = 0;
}

static size_t find(const char *name)
{
    size_t i = 0;

    while (i < COUNT && !ndm_text_name_equal(names[i], name))
        i++;
    return i;
}

/* "meta-llama/Llama-3.1-8B", as other trainers take it. */
static bool is_name_of_hub(const char *name)
{
    const char *slash = strchr(name, '/');

    return slash && slash != name && slash[1] && !strchr(slash + 1, '/') && name[0] != '.';
}

ndm_status ndm_model_config_preset(const char *name, ndm_model_config *config)
{
    const char *near;
    size_t i = find(name);

    if (i < COUNT) {
        fill(&presets[i], config);
        return ndm_model_config_check(config, names[i]);
    }
    near = ndm_text_nearest(name, names, COUNT);
    if (!near && is_name_of_hub(name))
        NDM_FAIL(NDM_ERR_CONFIG,
                 "there is no folder '%s'; nothing is fetched from a hub: download the model, and "
                 "give its folder",
                 name);
    NDM_FAIL(NDM_ERR_CONFIG, "model '%s' is neither a folder, a config.json, nor a preset%s%s%s",
             name, near ? "; the nearest preset is '" : " (such as llama-tiny)", near ? near : "",
             near ? "'" : "");
}

ndm_status ndm_model_config_resolve(const char *model, ndm_model_config *config)
{
    if (ndm_file_exists(model))
        return ndm_model_config_load(model, config);
    return ndm_model_config_preset(model, config);
}

const char *const *ndm_model_preset_names(void)
{
    return names;
}

const char *ndm_model_preset_summary(const char *name)
{
    size_t i = find(name);

    return i < COUNT ? presets[i].summary : NULL;
}
