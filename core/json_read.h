/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSON with jansson; errors name file, line and key. */
#ifndef NDM_CORE_JSON_READ_H
#define NDM_CORE_JSON_READ_H

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include <ndmesh/status.h>

/* The document, freed by the caller with json_decref(). A key given twice is an error. `name`
 * stands for the file in messages. */
NDM_MUST_USE ndm_status ndm_json_load_file(const char *path, json_t **root);
NDM_MUST_USE ndm_status ndm_json_load_text(const char *text, size_t bytes, const char *name,
                                           json_t **root);

/* Members of an object. An absent key or null is the default, or NDM_ERR_FORMAT when required;
 * another type is NDM_ERR_FORMAT. `context` (a file's name) starts the message. Strings, objects
 * and arrays are borrowed. */
NDM_MUST_USE ndm_status ndm_json_get_int64(const json_t *object, const char *key, bool required,
                                           int64_t otherwise, int64_t *value, const char *context);
NDM_MUST_USE ndm_status ndm_json_get_double(const json_t *object, const char *key, bool required,
                                            double otherwise, double *value, const char *context);
NDM_MUST_USE ndm_status ndm_json_get_bool(const json_t *object, const char *key, bool required,
                                          bool otherwise, bool *value, const char *context);
NDM_MUST_USE ndm_status ndm_json_get_string(const json_t *object, const char *key, bool required,
                                            const char *otherwise, const char **value,
                                            const char *context);
NDM_MUST_USE ndm_status ndm_json_get_object(const json_t *object, const char *key, bool required,
                                            const json_t **value, const char *context);
NDM_MUST_USE ndm_status ndm_json_get_array(const json_t *object, const char *key, bool required,
                                           const json_t **value, const char *context);

#endif
