/* SPDX-License-Identifier: Apache-2.0 */
/* Writes JSON as a stream of calls, onto a FILE or a growing buffer. Wrong nesting is a defect of
 * the caller (assert). */
#ifndef NDM_CORE_JSON_H
#define NDM_CORE_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <core/text.h>
#include <ndmesh/status.h>

enum { NDM_JSON_DEPTH = 32 };

typedef struct ndm_json {
    FILE *file; /* one of the two is set; neither is owned */
    ndm_buffer *buffer;
    bool pretty;  /* two spaces a level; otherwise one line without spaces at its end */
    bool has_key; /* a key waits for its value */
    bool done;    /* the top-level value is complete */
    int depth;
    char kind[NDM_JSON_DEPTH]; /* '{' or '[' */
    bool any[NDM_JSON_DEPTH];  /* the container has a member */
} ndm_json;

void ndm_json_init_file(ndm_json *json, FILE *file, bool pretty);
void ndm_json_init_buffer(ndm_json *json, ndm_buffer *buffer, bool pretty);

void ndm_json_begin_object(ndm_json *json);
void ndm_json_end_object(ndm_json *json);
void ndm_json_begin_array(ndm_json *json);
void ndm_json_end_array(ndm_json *json);
void ndm_json_key(ndm_json *json, const char *key);

void ndm_json_string(ndm_json *json,
                     const char *text); /* NULL = null; bytes that are not UTF-8 become U+FFFD */
void ndm_json_int(ndm_json *json, int64_t value);
void ndm_json_double(ndm_json *json,
                     double value); /* reads back equal; NaN and infinities = null */
void ndm_json_bool(ndm_json *json, bool value);
void ndm_json_null(ndm_json *json);

/* Key and value in one call. */
void ndm_json_key_string(ndm_json *json, const char *key, const char *text);
void ndm_json_key_int(ndm_json *json, const char *key, int64_t value);
void ndm_json_key_double(ndm_json *json, const char *key, double value);
void ndm_json_key_bool(ndm_json *json, const char *key, bool value);

/* Ends the line; says NDM_ERR_IO or NDM_ERR_MEMORY if anything was not written. */
NDM_MUST_USE ndm_status ndm_json_finish(ndm_json *json);

#endif
