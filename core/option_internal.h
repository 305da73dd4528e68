/* SPDX-License-Identifier: Apache-2.0 */
/* What the option_*.c files share. */
#ifndef NDM_CORE_OPTION_INTERNAL_H
#define NDM_CORE_OPTION_INTERNAL_H

#include <core/option.h>
#include <core/text.h>

typedef enum origin_kind { ORIGIN_DEFAULT, ORIGIN_YAML, ORIGIN_ENV, ORIGIN_FLAG } origin_kind;

typedef struct ndm_option_data {
    char *text; /* normalised; NULL = no value; lists joined by ", " */
    int64_t integer;
    double real;
    bool boolean;
    int choice;
    char **items; /* LIST, [n_items] */
    size_t n_items;
} ndm_option_data;

typedef struct ndm_option_slot {
    ndm_option_data data;
    origin_kind kind;
    char *origin; /* NULL = default */
} ndm_option_slot;

struct ndm_options {
    const ndm_option_table *table;
    ndm_option_slot *slots; /* [table->n_options] */
    bool silent;
};

/* Where a value comes from. `shown` starts messages: "run.yaml:4: tp_size", "NDM_TP", "--tp". */
typedef struct ndm_option_source {
    origin_kind kind;
    const char *origin;
    const char *shown;
} ndm_option_source;

enum { NDM_OPTION_NONE = -1 };

/* Place of an option by its canonical name, NDM_OPTION_NONE if there is none. */
int ndm_option_find(const ndm_option_table *table, const char *name);

/* Parses and checks. data was all-zero and is finished by the caller. */
NDM_MUST_USE ndm_status ndm_option_parse(const ndm_option *option, const char *shown,
                                         const char *text, ndm_option_data *data);
/* LIST: adds one string, or several where commas split (always with `split`). */
NDM_MUST_USE ndm_status ndm_option_parse_item(const ndm_option *option, const char *shown,
                                              const char *text, bool split, ndm_option_data *data);
void ndm_option_data_finish(ndm_option_data *data);

/* Text that `map` ("a=b c=d") gives for text, in buffer; text itself if it gives none. */
enum { NDM_OPTION_MAP_BYTES = 64 };
const char *ndm_option_mapped(const char *map, const char *text, char buffer[NDM_OPTION_MAP_BYTES]);

/* Whether text is one of "a|b|c"; true, yes and on are one. */
bool ndm_option_one_of(const char *list, const char *text);

/* Stores the value unless a stronger source has spoken; takes data over in any case. */
NDM_MUST_USE ndm_status ndm_option_store(ndm_options *options, int index,
                                         const ndm_option_source *source, ndm_option_data *data);

/* Name without its dashes' kind: "dp_shard". Writes at most bytes; returns buffer. */
char *ndm_option_key(const char *name, char *buffer, size_t bytes);

#endif
