/* SPDX-License-Identifier: Apache-2.0 */
/* Strings: names compared as people type them, the nearest of several, heap strings, a growing
 * buffer. */
#ifndef NDM_CORE_TEXT_H
#define NDM_CORE_TEXT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ndmesh/status.h>

/* Equal, where dash is underscore and case does not count. */
bool ndm_text_name_equal(const char *a, const char *b);
bool ndm_text_starts_with(const char *text, const char *prefix);

/* Edits (insert, delete, replace, swap of neighbours) between two names; the same equalities. Names
 * above 127 characters are as far as they are long. */
int ndm_text_distance(const char *a, const char *b);

/* The nearest of n names (entries may be NULL), or NULL if none is near enough to be what was
 * meant. */
const char *ndm_text_nearest(const char *name, const char *const *names, size_t n);

/* Heap copies, freed with free(); NULL if memory is out. */
char *ndm_text_duplicate(const char *text);
char *ndm_text_printf(const char *format, ...) NDM_PRINTF(1, 2);
char *ndm_text_join(const char *const *parts, size_t n, const char *separator);

/* true, yes, on, 1 and their opposites; false if text is none of them. */
bool ndm_text_to_bool(const char *text, bool *value);

/* "1.50 GiB"; returns buffer. */
#define NDM_TEXT_BYTES_BYTES 32
char *ndm_text_of_bytes(int64_t bytes, char buffer[NDM_TEXT_BYTES_BYTES]);

/* For printf, which calls some of the numbers that are none "-nan": here, that has no sign. */
double ndm_text_unsigned_nan(double value);

/* Shortest of a few precisions that reads back equal; returns buffer. */
#define NDM_TEXT_DOUBLE_BYTES 32
char *ndm_text_of_double(double value, char buffer[NDM_TEXT_DOUBLE_BYTES]);

/* strtod, with a point in every locale. */
double ndm_text_to_double(const char *text, char **end);

/* A string that grows. All-zero is empty; data is NULL until the first append, then NUL-terminated.
 * After an allocation failed `failed` stays set, appends do nothing, and ndm_buffer_status says
 * NDM_ERR_MEMORY. */
typedef struct ndm_buffer {
    char *data;
    size_t length;
    size_t capacity;
    bool failed;
} ndm_buffer;

void ndm_buffer_append(ndm_buffer *buffer, const void *data, size_t bytes);
void ndm_buffer_puts(ndm_buffer *buffer, const char *text);
void ndm_buffer_printf(ndm_buffer *buffer, const char *format, ...) NDM_PRINTF(2, 3);
const char *ndm_buffer_text(const ndm_buffer *buffer); /* "" when empty */
NDM_MUST_USE ndm_status ndm_buffer_status(const ndm_buffer *buffer);
void ndm_buffer_finish(ndm_buffer *buffer);

#endif
