/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the configuration that its sources share. */
#ifndef NDM_MODEL_CONFIG_INTERNAL_H
#define NDM_MODEL_CONFIG_INTERNAL_H

#include <jansson.h>

#include "model/config.h"

#define NDM_FAMILY_BIT(family) (1u << (family))

/* A key that is read straight into a field. */
typedef struct ndm_config_field {
    const char *key;
    size_t offset;
    double otherwise; /* default when absent or null */
    unsigned families;
    char type; /* 'i' int64_t, 'd' double, 'b' bool */
    bool required;
} ndm_config_field;

extern const ndm_config_field ndm_config_fields[];
extern const size_t ndm_config_field_count;

/* Sets what the family alone decides; everything else is zero. */
void ndm_model_config_init(ndm_model_config *config, ndm_family family);

/* Refuses keys of a file that are not understood. */
NDM_MUST_USE ndm_status ndm_config_check_keys(const json_t *root, ndm_family family,
                                              const char *file);

/* Whether a value says "nothing": null, false, 0, "", [], {}. */
bool ndm_config_is_nothing(const json_t *value);

NDM_MUST_USE ndm_status ndm_config_read_rope(const json_t *root, ndm_model_config *config,
                                             const char *file);
NDM_MUST_USE ndm_status ndm_config_read_window(const json_t *root, ndm_model_config *config,
                                               const char *file);

#endif
