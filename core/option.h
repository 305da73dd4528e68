/* SPDX-License-Identifier: Apache-2.0 */
/* Options of a command: one constant table feeds the YAML reader, the environment, the flags, help,
 * markdown and man page.
 *
 * Precedence is defaults < YAML < environment < flags, whatever the order of loading. In names
 * dash, underscore and case do not count. A key without a value (null) says nothing. Every refusal
 * names the place (file:line, variable or flag), the value, and what is allowed or the nearest
 * known name. */
#ifndef NDM_CORE_OPTION_H
#define NDM_CORE_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <core/json.h>
#include <ndmesh/status.h>

typedef enum ndm_option_type {
    NDM_OPTION_INT,    /* also 1e8 where that is a whole number */
    NDM_OPTION_DOUBLE, /* finite */
    NDM_OPTION_BOOL,   /* true false yes no on off 1 0; flags --x and --no-x */
    NDM_OPTION_STRING,
    NDM_OPTION_ENUM, /* one of choices */
    NDM_OPTION_LIST, /* strings; a repeatable flag, a YAML list */
    NDM_OPTION_SIZE  /* bytes; K M G T (KiB, MB, ...) are powers of 1024 */
} ndm_option_type;

/* Another key of YAML files. */
typedef struct ndm_option_synonym {
    const char *key; /* "a.b" is key b inside mapping a */
    const char
        *map; /* NULL, or values that mean others here: "true=bf16 false=-"; "-" says nothing */
} ndm_option_synonym;

#define NDM_OPTION_SYNONYMS(...) \
    (const ndm_option_synonym[]) \
    {                            \
        __VA_ARGS__,             \
        {                        \
            NULL, NULL           \
        }                        \
    }

typedef struct ndm_option {
    const char *name; /* as the flag is shown, with dashes */
    ndm_option_type type;
    const char *initial;   /* default as text; NULL = none */
    const char *initially; /* how the default reads in help where the text alone misleads; NULL =
                              the text */
    const ndm_option_synonym *synonyms; /* NDM_OPTION_SYNONYMS(...), or NULL */
    const char *choices;                /* ENUM: "ring|ulysses" */
    const char *map;                    /* as in a synonym, for every source: "auto=-1" */
    double min, max; /* numbers: inclusive range; both 0 = any. Half-open ranges use INFINITY */
    bool below_max;  /* max itself is out */
    bool commas;     /* LIST: also split at commas */
    bool required;
    bool asks;               /* a question of this call: ndm_options_print_config() leaves it out */
    const char *needs;       /* NULL, or what this one says nothing without: an option with a value
                                that is not false, or with that value; "save-dir|export-hf",
                                "lr-schedule=linear|lr-schedule=cosine" */
    const char *list_key;    /* LIST: key of the string where a YAML list holds mappings */
    const char *list_suffix; /* and of a value that is added to that string behind a colon; NULL =
                                none */
    const char *unit;        /* "seconds", "tokens"; NULL = none */
    const char *value;       /* placeholder in help: "FILE"; NULL = by type */
    const char *help;        /* one line, no full stop */
    const char *group;       /* heading; options of a group are neighbours; NULL = "Options" */
    const char *(*check)(const char *text); /* NULL, or says what is allowed where text is not
                                               (STRING, INT, LIST item) */
} ndm_option;

/* Foreign keys of YAML files that are known and are no option. */
typedef struct ndm_option_rule {
    const char *key;      /* dotted; a last '*' matches any rest */
    const char *harmless; /* NULL = any value; or values "false|no" that change nothing here */
    const char *refusal;  /* NULL = ignored; or why another value than a harmless one is refused;
                             with harmless NULL all are */
} ndm_option_rule;

typedef struct ndm_option_table ndm_option_table;

struct ndm_option_table {
    const char *command; /* "train" */
    const char *usage;   /* "[RUN.yaml] [options]" */
    const char *summary; /* one line */
    const ndm_option *options;
    size_t n_options;
    const ndm_option_rule *rules;
    size_t n_rules;
    /* NULL: no file of options is taken. Else whose files are read: its keys mean the option of
     * that name here, and nothing where there is none. */
    const ndm_option_table *file;
};

typedef struct ndm_options ndm_options;

/* Values at their defaults. The table must outlive them. */
NDM_MUST_USE ndm_status ndm_options_create(const ndm_option_table *table, ndm_options **options);
void ndm_options_destroy(ndm_options *options);

/* Ranks other than the first read the same files: silent ones do not repeat the warnings. */
void ndm_options_set_silent(ndm_options *options, bool silent);

/* NDM_ERR_IO, NDM_ERR_FORMAT (not YAML, file:line), NDM_ERR_USAGE (unknown key, wrong value),
 * NDM_ERR_CONFIG (a key that would change the result, or keys that contradict each other). Warns
 * once about the keys it ignores. */
NDM_MUST_USE ndm_status ndm_options_load_yaml(ndm_options *options, const char *path);
NDM_MUST_USE ndm_status ndm_options_load_yaml_text(ndm_options *options, const char *text,
                                                   size_t bytes, const char *name);

/* NDM_<OPTION>, upper case with underscores; lists are split at commas. An empty variable says
 * nothing. */
NDM_MUST_USE ndm_status ndm_options_load_env(ndm_options *options);

/* argv[0..argc-1], without the program's and the verb's name. `--x v`, `--x=v`; the last of several
 * wins, lists grow. What is no flag, and all after `--`, goes to positional, [argc], borrowed from
 * argv. */
NDM_MUST_USE ndm_status ndm_options_load_args(ndm_options *options, int argc,
                                              const char *const *argv, const char **positional,
                                              int *n_positional);

/* As if the flag were given. */
NDM_MUST_USE ndm_status ndm_options_set(ndm_options *options, const char *name, const char *text);

/* After all sources. NDM_ERR_USAGE that names the first required option without a value, or flag
 * that says nothing without what it needs; where it comes from elsewhere, a warning: files and
 * variables are shared between runs. */
NDM_MUST_USE ndm_status ndm_options_check(const ndm_options *options);

/* The same for one option that has no effect for a reason that the table cannot say. */
NDM_MUST_USE ndm_status ndm_options_refuse_idle(const ndm_options *options, const char *name,
                                                const char *without);

/* Values by name; an unknown name or another type is a defect (assert). Without a value: 0, false,
 * NULL, an empty list. */
int64_t ndm_option_int64(const ndm_options *options, const char *name); /* INT, SIZE */
double ndm_option_double(const ndm_options *options, const char *name);
bool ndm_option_bool(const ndm_options *options, const char *name);
int ndm_option_enum(const ndm_options *options,
                    const char *name); /* place among choices, -1 without a value */
const char *ndm_option_string(const ndm_options *options,
                              const char *name); /* any type: the value as text */
size_t ndm_option_count(const ndm_options *options, const char *name); /* LIST */
const char *ndm_option_item(const ndm_options *options, const char *name, size_t i);

bool ndm_option_is_set(const ndm_options *options,
                       const char *name); /* given by someone, not the default */
bool ndm_option_is_flag(const ndm_options *options, const char *name); /* given as a flag */
bool ndm_option_has_value(const ndm_options *options, const char *name);
const char *ndm_option_origin(const ndm_options *options,
                              const char *name); /* "default", "run.yaml:4", "NDM_TP", "--tp" */

const ndm_option_table *ndm_options_table(const ndm_options *options);

/* From the table alone. */
void ndm_options_print_help(const ndm_option_table *table, FILE *out);
void ndm_options_print_markdown(const ndm_option_table *table, FILE *out);
void ndm_options_print_man(const ndm_option_table *table, FILE *out);

/* Each value and where it came from, as YAML that can be read back; as an object {"tp": {"value":
 * 2, "origin": "--tp"}, ...}. */
void ndm_options_print_config(const ndm_options *options, FILE *out);
void ndm_options_write_config(const ndm_options *options, ndm_json *json);

/* One object {"tp": 2, ...} of typed values. */
void ndm_options_write_json(const ndm_options *options, ndm_json *json);

#endif
