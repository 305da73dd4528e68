/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of a config.json that take more than one key: rotary embedding and sliding window. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_read.h"
#include "model/config_internal.h"

/* ---- rope: rope_theta and rope_scaling, or transformers 5's rope_parameters with both inside ----
 */

static const struct {
    const char *name;
    ndm_rope_kind kind;
    const char *keys[6]; /* besides rope_type, type, rope_theta, partial_rotary_factor */
} rope_types[] = {
    {"default", NDM_ROPE_DEFAULT, {NULL}},
    {"linear", NDM_ROPE_LINEAR, {"factor"}},
    {"llama3",
     NDM_ROPE_LLAMA3,
     {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
};
#define ROPE_TYPES (sizeof rope_types / sizeof *rope_types)

static ndm_status find_rope_type(const json_t *rope, const char *file, size_t *index)
{
    const char *name, *old;

    NDM_TRY(ndm_json_get_string(rope, "type", false, NULL, &old, file));
    NDM_TRY(ndm_json_get_string(rope, "rope_type", false, old ? old : "default", &name, file));
    if (old != NULL && strcmp(old, name) != 0)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: rope has rope_type '%s' and type '%s'", file, name, old);
    for (size_t i = 0; i < ROPE_TYPES; i++) {
        if (strcmp(rope_types[i].name, name) == 0) {
            *index = i;
            return NDM_OK;
        }
    }
    NDM_FAIL(NDM_ERR_CONFIG, "%s: rope_type '%s' is not known; known: default, linear, llama3",
             file, name);
}

static bool rope_key_is_known(const char *key, size_t type)
{
    static const char *const always[] = {"rope_type", "type", "rope_theta"};

    for (size_t i = 0; i < sizeof always / sizeof *always; i++) {
        if (strcmp(always[i], key) == 0)
            return true;
    }
    for (int i = 0; i < 6 && rope_types[type].keys[i] != NULL; i++) {
        if (strcmp(rope_types[type].keys[i], key) == 0)
            return true;
    }
    return false;
}

static ndm_status check_rope_keys(const json_t *rope, size_t type, const char *file)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)rope, key, value)
    {
        bool whole = strcmp(key, "partial_rotary_factor") == 0 && json_number_value(value) == 1.0;

        if (!rope_key_is_known(key, type) && !whole && !ndm_config_is_nothing(value))
            NDM_FAIL(NDM_ERR_CONFIG, "%s: rope key '%s' is not known for rope_type '%s'", file, key,
                     rope_types[type].name);
    }
    return NDM_OK;
}

/* rope_theta stands beside or inside; in both places it must be the same. */
static ndm_status read_theta(const json_t *root, const json_t *rope, ndm_model_config *c,
                             const char *file)
{
    double outer, inner;

    NDM_TRY(ndm_json_get_double(root, "rope_theta", false, NAN, &outer, file));
    inner = outer;
    if (rope != NULL)
        NDM_TRY(ndm_json_get_double(rope, "rope_theta", false, outer, &inner, file));
    if (!isnan(outer) && inner != outer)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: rope_theta is %g and, in the rope parameters, %g", file,
                 outer, inner);
    if (!isnan(inner))
        c->rope_theta = inner;
    return NDM_OK;
}

static ndm_status pick_rope(const json_t *root, const json_t **rope, const char *file)
{
    const json_t *parameters, *scaling;

    NDM_TRY(ndm_json_get_object(root, "rope_parameters", false, &parameters, file));
    NDM_TRY(ndm_json_get_object(root, "rope_scaling", false, &scaling, file));
    if (parameters != NULL && scaling != NULL && !json_equal(parameters, scaling))
        NDM_FAIL(NDM_ERR_CONFIG, "%s: rope_parameters and rope_scaling differ; keep one", file);
    *rope = parameters != NULL ? parameters : scaling;
    return NDM_OK;
}

ndm_status ndm_config_read_rope(const json_t *root, ndm_model_config *c, const char *file)
{
    const json_t *rope;
    size_t type;

    NDM_TRY(pick_rope(root, &rope, file));
    NDM_TRY(read_theta(root, rope, c, file));
    if (rope == NULL)
        return NDM_OK;
    NDM_TRY(find_rope_type(rope, file, &type));
    NDM_TRY(check_rope_keys(rope, type, file));
    c->rope = rope_types[type].kind;
    if (c->rope == NDM_ROPE_DEFAULT)
        return NDM_OK;
    NDM_TRY(ndm_json_get_double(rope, "factor", true, 1, &c->rope_factor, file));
    if (c->rope == NDM_ROPE_LINEAR)
        return NDM_OK;
    NDM_TRY(ndm_json_get_double(rope, "low_freq_factor", true, 0, &c->rope_low_freq_factor, file));
    NDM_TRY(
        ndm_json_get_double(rope, "high_freq_factor", true, 0, &c->rope_high_freq_factor, file));
    return ndm_json_get_int64(rope, "original_max_position_embeddings", true, 0,
                              &c->rope_original_positions, file);
}

/* ---- sliding window ----------------------------------------------------------------------- */

static ndm_status allocate_layers(ndm_model_config *c, const char *file)
{
    c->layer_windowed = calloc((size_t)c->layers, sizeof *c->layer_windowed);
    if (c->layer_windowed == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for %lld layers", file, (long long)c->layers);
    return NDM_OK;
}

/* layer_types: "full_attention" or "sliding_attention" for each layer. */
static ndm_status read_layer_types(const json_t *types, ndm_model_config *c, const char *file)
{
    if ((int64_t)json_array_size(types) != c->layers)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: layer_types has %zu entries for %lld layers", file,
                 json_array_size(types), (long long)c->layers);
    NDM_TRY(allocate_layers(c, file));
    for (int64_t i = 0; i < c->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));

        c->layer_windowed[i] = type != NULL && strcmp(type, "sliding_attention") == 0;
        if (type == NULL || (!c->layer_windowed[i] && strcmp(type, "full_attention") != 0))
            NDM_FAIL(NDM_ERR_CONFIG,
                     "%s: layer_types[%lld] is '%s'; known: full_attention, sliding_attention",
                     file, (long long)i, type ? type : "not a string");
        if (c->layer_windowed[i] && c->sliding_window == 0)
            NDM_FAIL(NDM_ERR_CONFIG, "%s: layer_types[%lld] is sliding_attention, but no %s", file,
                     (long long)i, "sliding_window is in use");
    }
    return NDM_OK;
}

/* Qwen: without layer_types, the layers from max_window_layers on have the window. */
static ndm_status read_max_window_layers(const json_t *root, ndm_model_config *c, const char *file)
{
    int64_t first;

    NDM_TRY(ndm_json_get_int64(root, "max_window_layers", false, 28, &first, file));
    NDM_TRY(allocate_layers(c, file));
    for (int64_t i = 0; i < c->layers; i++)
        c->layer_windowed[i] = i >= first;
    return NDM_OK;
}

static ndm_status read_window_size(const json_t *root, ndm_model_config *c, const char *file)
{
    bool qwen = c->family == NDM_QWEN2 || c->family == NDM_QWEN3, use = c->family == NDM_MISTRAL;
    int64_t size = 0;

    /* Absent means 4096, null means none: the two differ here and nowhere else. */
    if (json_is_null(json_object_get(root, "sliding_window")))
        return NDM_OK;
    if (qwen)
        NDM_TRY(ndm_json_get_bool(root, "use_sliding_window", false, false, &use, file));
    if (qwen || use)
        NDM_TRY(ndm_json_get_int64(root, "sliding_window", false, 4096, &size, file));
    if (use && size < 1)
        NDM_FAIL(NDM_ERR_CONFIG, "%s: sliding_window is %lld, must be at least 1", file,
                 (long long)size);
    c->sliding_window = use ? size : 0;
    return NDM_OK;
}

ndm_status ndm_config_read_window(const json_t *root, ndm_model_config *c, const char *file)
{
    const json_t *types;

    NDM_TRY(read_window_size(root, c, file));
    NDM_TRY(ndm_json_get_array(root, "layer_types", false, &types, file));
    if (types != NULL)
        return read_layer_types(types, c, file);
    if (c->sliding_window > 0 && c->family != NDM_MISTRAL)
        return read_max_window_layers(root, c, file);
    return NDM_OK;
}
