/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a command's options: storage, precedence, access by name. */
#include <core/option_internal.h>

#include <assert.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include <core/log.h>

int ndm_option_find(const ndm_option_table *table, const char *name)
{
    for (size_t i = 0; i < table->n_options; i++) {
        if (ndm_text_name_equal(table->options[i].name, name))
            return (int)i;
    }
    return NDM_OPTION_NONE;
}

char *ndm_option_key(const char *name, char *buffer, size_t bytes)
{
    size_t i = 0;
    for (; name[i] && i + 1 < bytes; i++)
        buffer[i] = name[i] == '-' ? '_' : name[i];
    buffer[i] = '\0';
    return buffer;
}

static ndm_status set_default(ndm_options *options, size_t i)
{
    const ndm_option *o = &options->table->options[i];
    if (!o->initial)
        return NDM_OK;
    ndm_status status = ndm_option_parse(o, o->name, o->initial, &options->slots[i].data);
    assert(status == NDM_OK || status == NDM_ERR_MEMORY); /* the table's default breaks its rule */
    return status;
}

ndm_status ndm_options_create(const ndm_option_table *table, ndm_options **options)
{
    ndm_options *o = calloc(1, sizeof *o);
    if (o)
        o->slots = calloc(table->n_options, sizeof *o->slots);
    if (!o || !o->slots) {
        free(o);
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for %zu options", table->n_options);
    }
    o->table = table;
    for (size_t i = 0; i < table->n_options; i++) {
        ndm_status status = set_default(o, i);
        if (status != NDM_OK) {
            ndm_options_destroy(o);
            return status;
        }
    }
    *options = o;
    return NDM_OK;
}

void ndm_options_destroy(ndm_options *options)
{
    if (!options)
        return;
    for (size_t i = 0; i < options->table->n_options; i++) {
        ndm_option_data_finish(&options->slots[i].data);
        free(options->slots[i].origin);
    }
    free(options->slots);
    free(options);
}

void ndm_options_set_silent(ndm_options *options, bool silent)
{
    options->silent = silent;
}

const ndm_option_table *ndm_options_table(const ndm_options *options)
{
    return options->table;
}

ndm_status ndm_option_store(ndm_options *options, int index, const ndm_option_source *source,
                            ndm_option_data *data)
{
    ndm_option_slot *slot = &options->slots[index];
    if (source->kind < slot->kind) {
        ndm_option_data_finish(data);
        return NDM_OK;
    }
    char *origin = ndm_text_duplicate(source->origin);
    if (!origin) {
        ndm_option_data_finish(data);
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory", source->shown);
    }
    ndm_option_data_finish(&slot->data);
    free(slot->origin);
    *slot = (ndm_option_slot){.data = *data, .kind = source->kind, .origin = origin};
    *data = (ndm_option_data){0};
    return NDM_OK;
}

/* "model or base_model (YAML)": how else the option can be given. */
static void describe_keys(const ndm_option *o, ndm_buffer *out)
{
    char key[128];
    ndm_buffer_printf(out, "--%s, or in YAML %s", o->name,
                      ndm_option_key(o->name, key, sizeof key));
    for (const ndm_option_synonym *s = o->synonyms; s && s->key; s++)
        ndm_buffer_printf(out, " or %s", s->key);
}

static ndm_status check_required(const ndm_options *options, size_t i)
{
    const ndm_option *o = &options->table->options[i];
    if (!o->required || options->slots[i].data.text)
        return NDM_OK;
    ndm_buffer how = {0};
    describe_keys(o, &how);
    ndm_status status = ndm_error_set(NDM_ERR_USAGE, __FILE__, __LINE__, "%s is missing: give %s",
                                      o->name, ndm_buffer_text(&how));
    ndm_buffer_finish(&how);
    return status;
}

/* Whether the alternative at text, "name" or "name=value", holds; sets *end to where it ends. */
static bool alternative_holds(const ndm_options *options, const char *text, const char **end)
{
    size_t length = strcspn(text, "|"), name_length = strcspn(text, "=|");
    char name[128];

    snprintf(name, sizeof name, "%.*s", (int)name_length, text);
    int i = ndm_option_find(options->table, name);
    assert(i != NDM_OPTION_NONE); /* the table needs what it has not */
    const ndm_option_data *data = &options->slots[i].data;
    *end = text + length;
    if (!data->text)
        return false;
    if (name_length == length)
        return options->table->options[i].type != NDM_OPTION_BOOL || data->boolean;
    const char *value = text + name_length + 1;
    return strlen(data->text) == (size_t)(*end - value) &&
           strncmp(data->text, value, strlen(data->text)) == 0;
}

static bool any_holds(const ndm_options *options, const char *alternatives)
{
    for (const char *end, *a = alternatives;; a = end + 1) {
        if (alternative_holds(options, a, &end))
            return true;
        if (!*end)
            return false;
    }
}

/* The default in other words: 5120M for 5G. */
static bool same_as_default(const ndm_option *o, const ndm_option_data *data)
{
    ndm_option_data initial = {0};

    if (!o->initial)
        return false;
    bool same = ndm_option_parse(o, o->name, o->initial, &initial) == NDM_OK &&
                (o->type == NDM_OPTION_SIZE ? initial.integer == data->integer
                                            : strcmp(initial.text, data->text) == 0);
    ndm_option_data_finish(&initial);
    return same;
}

ndm_status ndm_options_refuse_idle(const ndm_options *options, const char *name,
                                   const char *without)
{
    if (ndm_option_is_flag(options, name))
        NDM_FAIL(NDM_ERR_USAGE, "%s says nothing without %s", ndm_option_origin(options, name),
                 without);
    if (!options->silent && ndm_option_is_set(options, name))
        ndm_log(NDM_LOG_WARNING, "config", "%s: %s says nothing without %s",
                ndm_option_origin(options, name), name, without);
    return NDM_OK;
}

/* A default that is given says nothing either, and harms nobody. */
static ndm_status check_needs(const ndm_options *options, size_t i)
{
    const ndm_option *o = &options->table->options[i];
    const ndm_option_slot *slot = &options->slots[i];
    ndm_buffer without = {0};

    if (!o->needs || slot->kind == ORIGIN_DEFAULT || !slot->data.text ||
        any_holds(options, o->needs) || same_as_default(o, &slot->data))
        return NDM_OK;
    const char *dashes = slot->kind == ORIGIN_FLAG ? "--" : "";
    ndm_buffer_puts(&without, dashes);
    for (const char *c = o->needs; *c; c++)
        if (*c == '|')
            ndm_buffer_printf(&without, " or %s", dashes);
        else
            ndm_buffer_append(&without, c, 1);
    ndm_status status = ndm_options_refuse_idle(options, o->name, ndm_buffer_text(&without));
    ndm_buffer_finish(&without);
    return status;
}

ndm_status ndm_options_check(const ndm_options *options)
{
    for (size_t i = 0; i < options->table->n_options; i++) {
        NDM_TRY(check_required(options, i));
        NDM_TRY(check_needs(options, i));
    }
    return NDM_OK;
}

static const ndm_option_slot *slot_of(const ndm_options *options, const char *name)
{
    int i = ndm_option_find(options->table, name);
    assert(i != NDM_OPTION_NONE);
    return &options->slots[i];
}

/* The slot of an option that has one of two types. */
static const ndm_option_slot *typed(const ndm_options *options, const char *name,
                                    ndm_option_type type, ndm_option_type other)
{
    int i = ndm_option_find(options->table, name);
    assert(i != NDM_OPTION_NONE);
    ndm_option_type actual = options->table->options[i].type;
    assert(actual == type || actual == other);
    (void)actual;
    return &options->slots[i];
}

int64_t ndm_option_int64(const ndm_options *options, const char *name)
{
    return typed(options, name, NDM_OPTION_INT, NDM_OPTION_SIZE)->data.integer;
}

double ndm_option_double(const ndm_options *options, const char *name)
{
    return typed(options, name, NDM_OPTION_DOUBLE, NDM_OPTION_DOUBLE)->data.real;
}

bool ndm_option_bool(const ndm_options *options, const char *name)
{
    return typed(options, name, NDM_OPTION_BOOL, NDM_OPTION_BOOL)->data.boolean;
}

int ndm_option_enum(const ndm_options *options, const char *name)
{
    const ndm_option_slot *slot = typed(options, name, NDM_OPTION_ENUM, NDM_OPTION_ENUM);
    return slot->data.text ? slot->data.choice : -1;
}

const char *ndm_option_string(const ndm_options *options, const char *name)
{
    return slot_of(options, name)->data.text;
}

size_t ndm_option_count(const ndm_options *options, const char *name)
{
    return typed(options, name, NDM_OPTION_LIST, NDM_OPTION_LIST)->data.n_items;
}

const char *ndm_option_item(const ndm_options *options, const char *name, size_t i)
{
    const ndm_option_slot *slot = typed(options, name, NDM_OPTION_LIST, NDM_OPTION_LIST);
    assert(i < slot->data.n_items);
    return slot->data.items[i];
}

bool ndm_option_is_set(const ndm_options *options, const char *name)
{
    return slot_of(options, name)->kind != ORIGIN_DEFAULT;
}

bool ndm_option_is_flag(const ndm_options *options, const char *name)
{
    return slot_of(options, name)->kind == ORIGIN_FLAG;
}

bool ndm_option_has_value(const ndm_options *options, const char *name)
{
    return slot_of(options, name)->data.text != NULL;
}

const char *ndm_option_origin(const ndm_options *options, const char *name)
{
    const ndm_option_slot *slot = slot_of(options, name);
    return slot->origin ? slot->origin : "default";
}
