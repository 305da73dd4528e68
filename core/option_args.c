/* SPDX-License-Identifier: Apache-2.0 */
/* Options from flags and from the environment. */
#include <core/log.h>
#include <core/option_internal.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <unistd.h>

enum { NAME_BYTES = 128 };

/* Canonical name of the option that has this YAML key, NULL if none: people type those as flags. */
static const char *flag_of_key(const ndm_option_table *table, const char *key)
{
    for (size_t i = 0; i < table->n_options; i++) {
        for (const ndm_option_synonym *s = table->options[i].synonyms; s && s->key; s++) {
            if (ndm_text_name_equal(s->key, key))
                return table->options[i].name;
        }
    }
    return NULL;
}

static ndm_status unknown_flag(const ndm_option_table *table, const char *name)
{
    const char *near = flag_of_key(table, name);
    const char **names = near ? NULL : calloc(table->n_options, sizeof *names);
    for (size_t i = 0; names && i < table->n_options; i++)
        names[i] = table->options[i].name;
    if (names)
        near = ndm_text_nearest(name, names, table->n_options);
    free(names);
    if (near)
        NDM_FAIL(NDM_ERR_USAGE, "unknown option '--%s'; did you mean '--%s'?", name, near);
    NDM_FAIL(NDM_ERR_USAGE, "unknown option '--%s'; see 'ndmesh help %s'", name, table->command);
}

/* Gives a flag its text. Lists grow by each flag; anything else is replaced. */
static ndm_status set_flag(ndm_options *options, int index, const char *shown, const char *text)
{
    const ndm_option *o = &options->table->options[index];
    ndm_option_slot *slot = &options->slots[index];
    if (o->type == NDM_OPTION_LIST && slot->kind == ORIGIN_FLAG)
        return ndm_option_parse_item(o, shown, text, false, &slot->data);
    ndm_option_source source = {.kind = ORIGIN_FLAG, .origin = shown, .shown = shown};
    ndm_option_data data = {0};
    ndm_status status = ndm_option_parse(o, shown, text, &data);
    if (status != NDM_OK) {
        ndm_option_data_finish(&data);
        return status;
    }
    return ndm_option_store(options, index, &source, &data);
}

ndm_status ndm_options_set(ndm_options *options, const char *name, const char *text)
{
    int index = ndm_option_find(options->table, name);
    if (index == NDM_OPTION_NONE)
        return unknown_flag(options->table, name);
    char shown[NAME_BYTES];
    snprintf(shown, sizeof shown, "--%s", options->table->options[index].name);
    return set_flag(options, index, shown, text);
}

/* A flag as it was typed: its option, and the value if that came with it. */
typedef struct flag {
    int index;
    const char *value; /* after '=', or "true" / "false" of a bool; NULL = the next argument */
    bool bare;         /* a bool without '=': a following true or false belongs to it */
    char shown[NAME_BYTES];
} flag;

static ndm_status read_flag(const ndm_option_table *table, const char *arg, flag *f)
{
    char name[NAME_BYTES];
    size_t length = strcspn(arg + 2, "=");
    if (length >= sizeof name)
        NDM_FAIL(NDM_ERR_USAGE, "unknown option '%.40s...'", arg);
    memcpy(name, arg + 2, length);
    name[length] = '\0';
    const char *equals = arg[2 + length] == '=' ? arg + 2 + length + 1 : NULL;
    *f = (flag){.index = ndm_option_find(table, name), .value = equals};
    bool negated = f->index == NDM_OPTION_NONE && !equals && ndm_text_starts_with(name, "no-");
    if (negated)
        f->index = ndm_option_find(table, name + 3);
    if (f->index == NDM_OPTION_NONE)
        return unknown_flag(table, name);
    const ndm_option *o = &table->options[f->index];
    if (negated && o->type != NDM_OPTION_BOOL)
        NDM_FAIL(NDM_ERR_USAGE, "'--%s': --%s takes a value, so it cannot be negated", name,
                 o->name);
    snprintf(f->shown, sizeof f->shown, "--%s%s", negated ? "no-" : "", o->name);
    if (!equals && o->type == NDM_OPTION_BOOL) {
        f->value = negated ? "false" : "true";
        f->bare = !negated;
    }
    return NDM_OK;
}

/* Takes the flag at argv[*at] and its value; leaves *at on the last argument used. */
static ndm_status take_flag(ndm_options *options, int argc, const char *const *argv, int *at)
{
    flag f;
    bool ignored;
    NDM_TRY(read_flag(options->table, argv[*at], &f));
    const char *next = *at + 1 < argc ? argv[*at + 1] : NULL;
    const ndm_option *o = &options->table->options[f.index];
    if (!f.value) {
        if (!next || strncmp(next, "--", 2) == 0)
            NDM_FAIL(NDM_ERR_USAGE, "%s needs a value%s%s", f.shown, o->value ? ": " : "",
                     o->value ? o->value : "");
        f.value = next;
        ++*at;
    } else if (f.bare && next && strlen(next) > 1 && ndm_text_to_bool(next, &ignored)) {
        f.value = next;
        ++*at;
    }
    return set_flag(options, f.index, f.shown, f.value);
}

ndm_status ndm_options_load_args(ndm_options *options, int argc, const char *const *argv,
                                 const char **positional, int *n_positional)
{
    bool flags_end = false;
    int n = 0;
    for (int i = 0; i < argc; i++) {
        const char *arg = argv[i];
        if (!flags_end && strcmp(arg, "--") == 0) {
            flags_end = true;
        } else if (!flags_end && strncmp(arg, "--", 2) == 0) {
            NDM_TRY(take_flag(options, argc, argv, &i));
        } else if (!flags_end && arg[0] == '-' && arg[1]) {
            NDM_FAIL(NDM_ERR_USAGE, "unknown option '%s'; options start with two dashes", arg);
        } else {
            positional[n++] = arg;
        }
    }
    *n_positional = n;
    return NDM_OK;
}

static void variable_name(const char *option, char name[NAME_BYTES])
{
    snprintf(name, NAME_BYTES, "NDM_%s", option);
    for (char *c = name; *c; c++)
        *c = (char)(*c == '-' ? '_' : toupper((unsigned char)*c));
}

static ndm_status load_variable(ndm_options *options, int index)
{
    const ndm_option *o = &options->table->options[index];
    char name[NAME_BYTES];
    variable_name(o->name, name);
    const char *text = getenv(name);
    if (!text || !*text)
        return NDM_OK;
    ndm_option_source source = {.kind = ORIGIN_ENV, .origin = name, .shown = name};
    ndm_option_data data = {0};
    ndm_status status = o->type == NDM_OPTION_LIST
                            ? ndm_option_parse_item(o, name, text, true, &data)
                            : ndm_option_parse(o, name, text, &data);
    if (status != NDM_OK) {
        ndm_option_data_finish(&data);
        return status;
    }
    return ndm_option_store(options, index, &source, &data);
}

/* Other parts read NDM_ variables too, so only what looks like a misspelt option is worth a word.
 */
static void warn_if_misspelt(const ndm_option_table *table, const char *entry)
{
    char name[NAME_BYTES];
    size_t length = strcspn(entry, "=");
    if (strncmp(entry, "NDM_", 4) != 0 || length >= sizeof name)
        return;
    memcpy(name, entry, length);
    name[length] = '\0';
    int limit = length - 4 < 8 ? 1 : 2;
    if (length - 4 < 4 || ndm_option_find(table, name + 4) != NDM_OPTION_NONE)
        return;
    for (size_t i = 0; i < table->n_options; i++) {
        char near[NAME_BYTES];
        variable_name(table->options[i].name, near);
        if (ndm_text_distance(name, near) <= limit) {
            ndm_log(NDM_LOG_WARNING, "config", "no option reads %s; did you mean %s?", name, near);
            return;
        }
    }
}

ndm_status ndm_options_load_env(ndm_options *options)
{
    for (size_t i = 0; i < options->table->n_options; i++)
        NDM_TRY(load_variable(options, (int)i));
    for (char **entry = environ; !options->silent && entry && *entry; entry++)
        warn_if_misspelt(options->table, *entry);
    return NDM_OK;
}
