/* SPDX-License-Identifier: Apache-2.0 */
/* What the option table prints: help, markdown, man page, and the values in force. */
#include <core/option_internal.h>

#include <assert.h>
#include <ctype.h>
#include <math.h>
#include <string.h>

enum { HELP_INDENT = 30, HELP_WIDTH = 100 };

static const char *placeholder(const ndm_option *o)
{
    static const char *const names[] = {
        [NDM_OPTION_INT] = "N",       [NDM_OPTION_DOUBLE] = "X",  [NDM_OPTION_BOOL] = "",
        [NDM_OPTION_STRING] = "TEXT", [NDM_OPTION_ENUM] = "WORD", [NDM_OPTION_LIST] = "TEXT",
        [NDM_OPTION_SIZE] = "BYTES"};
    return o->value ? o->value : names[o->type];
}

static const char *type_name(const ndm_option *o)
{
    static const char *const names[] = {
        [NDM_OPTION_INT] = "integer",       [NDM_OPTION_DOUBLE] = "number",
        [NDM_OPTION_BOOL] = "true / false", [NDM_OPTION_STRING] = "text",
        [NDM_OPTION_ENUM] = "word",         [NDM_OPTION_LIST] = "list",
        [NDM_OPTION_SIZE] = "bytes"};
    return names[o->type];
}

static const char *default_text(const ndm_option *o)
{
    if (o->required)
        return "required";
    if (o->initially)
        return o->initially;
    return o->initial ? o->initial : "none";
}

/* What is allowed: choices, or the range; "" where anything is. */
static void describe_allowed(const ndm_option *o, ndm_buffer *out)
{
    char low[NDM_TEXT_DOUBLE_BYTES], high[NDM_TEXT_DOUBLE_BYTES];
    if (o->type == NDM_OPTION_ENUM) {
        for (const char *c = o->choices; *c; c++)
            ndm_buffer_append(out, *c == '|' ? ", " : c, *c == '|' ? 2 : 1);
    } else if (o->min != 0.0 || o->max != 0.0) {
        ndm_text_of_double(o->min, low);
        if (isinf(o->max))
            ndm_buffer_printf(out, "at least %s", low);
        else
            ndm_buffer_printf(out, "%s to %s%s", low, o->below_max ? "below " : "",
                              ndm_text_of_double(o->max, high));
    }
}

static void describe_synonyms(const ndm_option *o, const char *quote, ndm_buffer *out)
{
    for (const ndm_option_synonym *s = o->synonyms; s && s->key; s++)
        ndm_buffer_printf(out, "%s%s%s%s", out->length ? ", " : "", quote, s->key, quote);
}

static const char *group_of(const ndm_option *o)
{
    return o->group ? o->group : "Options";
}

static bool starts_group(const ndm_option_table *table, size_t i)
{
    const ndm_option *o = table->options;
    return i == 0 || strcmp(group_of(&o[i]), group_of(&o[i - 1])) != 0;
}

/* Prints text broken at spaces, continued at the help column. */
static void print_wrapped(FILE *out, const char *text)
{
    size_t room = HELP_WIDTH - HELP_INDENT;
    while (strlen(text) > room) {
        size_t cut = room;
        while (cut > 0 && text[cut] != ' ')
            cut--;
        if (cut == 0)
            cut = room;
        fprintf(out, "%.*s\n%*s", (int)cut, text, HELP_INDENT, "");
        text += cut;
        text += strspn(text, " ");
    }
    fprintf(out, "%s\n", text);
}

static void print_help_option(const ndm_option *o, FILE *out)
{
    ndm_buffer left = {0}, right = {0}, allowed = {0};
    ndm_buffer_printf(&left, "  --%s%s %s", o->type == NDM_OPTION_BOOL ? "[no-]" : "", o->name,
                      placeholder(o));
    describe_allowed(o, &allowed);
    ndm_buffer_puts(&right, o->help);
    if (o->unit)
        ndm_buffer_printf(&right, ", in %s", o->unit);
    if (allowed.length)
        ndm_buffer_printf(&right, ": %s", allowed.data);
    ndm_buffer_printf(&right, " (%s%s)", o->required ? "" : "default ", default_text(o));
    fputs(ndm_buffer_text(&left), out);
    if (left.length + 2 > HELP_INDENT)
        fprintf(out, "\n%*s", HELP_INDENT, "");
    else
        fprintf(out, "%*s", (int)(HELP_INDENT - left.length), "");
    print_wrapped(out, ndm_buffer_text(&right));
    ndm_buffer_finish(&left);
    ndm_buffer_finish(&right);
    ndm_buffer_finish(&allowed);
}

void ndm_options_print_help(const ndm_option_table *table, FILE *out)
{
    fprintf(out, "usage: ndmesh %s %s\n\n%s.\n", table->command, table->usage, table->summary);
    for (size_t i = 0; i < table->n_options; i++) {
        if (starts_group(table, i))
            fprintf(out, "\n%s:\n", group_of(&table->options[i]));
        print_help_option(&table->options[i], out);
    }
    fprintf(out,
            "\nEvery option is also %sa variable NDM_<OPTION>; flags win, then "
            "the\nenvironment%s. Dash and underscore are equal.\n",
            table->file ? "a key of RUN.yaml and " : "", table->file ? ", then the file" : "");
}

/* A cell of a table: bars would end it. */
static void print_cell(FILE *out, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '|')
            fputc('\\', out);
        fputc(*c, out);
    }
    fputs(" | ", out);
}

static void print_markdown_option(const ndm_option *o, FILE *out)
{
    ndm_buffer allowed = {0}, keys = {0};
    describe_allowed(o, &allowed);
    describe_synonyms(o, "`", &keys);
    fprintf(out, "| `--%s` | ", o->name);
    print_cell(out, type_name(o));
    print_cell(out, default_text(o));
    print_cell(out, ndm_buffer_text(&allowed));
    print_cell(out, o->unit ? o->unit : "");
    print_cell(out, ndm_buffer_text(&keys));
    fprintf(out, "%s |\n", o->help);
    ndm_buffer_finish(&allowed);
    ndm_buffer_finish(&keys);
}

static void print_markdown_rules(const ndm_option_table *table, FILE *out)
{
    fprintf(out, "\n## Keys of other tools' files\n\n"
                 "Known, and no option here: they are ignored with one warning where they change "
                 "nothing, and\nrefused where they would change the result. A key without a value "
                 "says nothing.\n\n| key | accepted values | otherwise |\n|---|---|---|\n");
    for (size_t i = 0; i < table->n_rules; i++) {
        const ndm_option_rule *rule = &table->rules[i];
        fprintf(out, "| `%s` | ", rule->key);
        print_cell(out, rule->harmless ? rule->harmless : rule->refusal ? "none" : "any");
        fprintf(out, "%s |\n", rule->refusal ? rule->refusal : "ignored");
    }
}

void ndm_options_print_markdown(const ndm_option_table *table, FILE *out)
{
    fprintf(out,
            "# Options of `ndmesh %s`\n\n%s.\nGenerated by `ndmesh help %s --markdown`; do not "
            "edit.\n\n"
            "Each option is a flag%s and a variable `NDM_<OPTION>`. Precedence: "
            "defaults <%s\nenvironment < flags. Dash and underscore are equal.\n",
            table->command, table->summary, table->command,
            table->file ? ", a key of RUN.yaml" : "", table->file ? " YAML file <" : "");
    for (size_t i = 0; i < table->n_options; i++) {
        if (starts_group(table, i))
            fprintf(
                out,
                "\n## %s\n\n| option | type | default | allowed | unit | also in YAML | meaning "
                "|\n|---|---|---|---|---|---|---|\n",
                group_of(&table->options[i]));
        print_markdown_option(&table->options[i], out);
    }
    if (table->n_rules > 0)
        print_markdown_rules(table, out);
}

/* Text for roff: dashes are minus signs, backslashes and leading dots do not command. */
static void print_roff(FILE *out, const char *text)
{
    if (*text == '.' || *text == '\'')
        fputs("\\&", out);
    for (const char *c = text; *c; c++) {
        if (*c == '-' || *c == '\\')
            fputs(*c == '-' ? "\\-" : "\\e", out);
        else
            fputc(*c, out);
    }
}

static void print_man_option(const ndm_option *o, FILE *out)
{
    ndm_buffer flag = {0}, text = {0}, allowed = {0}, keys = {0};
    ndm_buffer_printf(&flag, "--%s", o->name);
    describe_allowed(o, &allowed);
    describe_synonyms(o, "", &keys);
    ndm_buffer_puts(&text, o->help);
    if (o->unit)
        ndm_buffer_printf(&text, ", in %s", o->unit);
    if (allowed.length)
        ndm_buffer_printf(&text, ": %s", allowed.data);
    ndm_buffer_printf(&text, ". %s%s.",
                      o->required ? "" : "Default: ", o->required ? "Required" : default_text(o));
    if (keys.length)
        ndm_buffer_printf(&text, " Also in YAML: %s.", keys.data);
    fputs(".TP\n.B ", out);
    print_roff(out, ndm_buffer_text(&flag));
    fprintf(out, " \\fI%s\\fR\n", placeholder(o));
    print_roff(out, ndm_buffer_text(&text));
    fputc('\n', out);
    ndm_buffer_finish(&flag);
    ndm_buffer_finish(&text);
    ndm_buffer_finish(&allowed);
    ndm_buffer_finish(&keys);
}

void ndm_options_print_man(const ndm_option_table *table, FILE *out)
{
    fprintf(out, ".TH NDMESH\\-%s 1 \"\" \"ndmesh %s\"\n.SH NAME\nndmesh\\-%s \\- ", table->command,
            NDM_VERSION, table->command);
    print_roff(out, table->summary);
    fprintf(out, "\n.SH SYNOPSIS\n.B ndmesh %s\n", table->command);
    print_roff(out, table->usage);
    fprintf(out,
            "\n.SH OPTIONS\nEach option is also %sa variable NDM_<OPTION>; flags "
            "win, then the environment%s.\n",
            table->file ? "a key of RUN.yaml and " : "", table->file ? ", then the file" : "");
    for (size_t i = 0; i < table->n_options; i++) {
        if (starts_group(table, i))
            fprintf(out, ".SS %s\n", group_of(&table->options[i]));
        print_man_option(&table->options[i], out);
    }
}

/* A double-quoted YAML scalar is a JSON string. */
static void put_yaml_text(ndm_buffer *line, const char *text)
{
    ndm_buffer quoted = {0};
    ndm_json json;
    ndm_json_init_buffer(&json, &quoted, false);
    ndm_json_string(&json, text);
    ndm_buffer_puts(line, ndm_buffer_text(&quoted));
    ndm_buffer_finish(&quoted);
}

static void put_yaml_value(const ndm_option *o, const ndm_option_data *data, ndm_buffer *line)
{
    if (!data->text) {
        ndm_buffer_puts(line, "null");
    } else if (o->type == NDM_OPTION_LIST) {
        ndm_buffer_puts(line, "[");
        for (size_t i = 0; i < data->n_items; i++) {
            ndm_buffer_puts(line, i ? ", " : "");
            put_yaml_text(line, data->items[i]);
        }
        ndm_buffer_puts(line, "]");
    } else if (o->type == NDM_OPTION_STRING) {
        put_yaml_text(line, data->text);
    } else {
        ndm_buffer_puts(line, data->text);
    }
}

void ndm_options_print_config(const ndm_options *options, FILE *out)
{
    for (size_t i = 0; i < options->table->n_options; i++) {
        const ndm_option *o = &options->table->options[i];
        char key[128];
        ndm_buffer line = {0};
        if (o->asks)
            continue;
        ndm_buffer_printf(&line, "%s: ", ndm_option_key(o->name, key, sizeof key));
        put_yaml_value(o, &options->slots[i].data, &line);
        const char *origin = options->slots[i].origin ? options->slots[i].origin : "default";
        fprintf(out, "%-40s # %s\n", ndm_buffer_text(&line), origin);
        ndm_buffer_finish(&line);
    }
}

static void write_value(const ndm_option *o, const ndm_option_data *data, ndm_json *json)
{
    switch (o->type) {
    case NDM_OPTION_INT:
    case NDM_OPTION_SIZE:
        ndm_json_int(json, data->integer);
        return;
    case NDM_OPTION_DOUBLE:
        ndm_json_double(json, data->real);
        return;
    case NDM_OPTION_BOOL:
        ndm_json_bool(json, data->boolean);
        return;
    case NDM_OPTION_LIST:
        ndm_json_begin_array(json);
        for (size_t i = 0; i < data->n_items; i++)
            ndm_json_string(json, data->items[i]);
        ndm_json_end_array(json);
        return;
    case NDM_OPTION_STRING:
    case NDM_OPTION_ENUM:
        ndm_json_string(json, data->text);
        return;
    }
}

/* Key and value, null where there is none; with `key`, under that one. */
static void write_option(const ndm_options *options, size_t i, const char *key, ndm_json *json)
{
    const ndm_option *o = &options->table->options[i];
    char name[128];

    ndm_json_key(json, key ? key : ndm_option_key(o->name, name, sizeof name));
    if (options->slots[i].data.text)
        write_value(o, &options->slots[i].data, json);
    else
        ndm_json_null(json);
}

void ndm_options_write_json(const ndm_options *options, ndm_json *json)
{
    ndm_json_begin_object(json);
    for (size_t i = 0; i < options->table->n_options; i++)
        write_option(options, i, NULL, json);
    ndm_json_end_object(json);
}

void ndm_options_write_config(const ndm_options *options, ndm_json *json)
{
    ndm_json_begin_object(json);
    for (size_t i = 0; i < options->table->n_options; i++) {
        const char *origin = options->slots[i].origin;
        char name[128];

        ndm_json_key(json, ndm_option_key(options->table->options[i].name, name, sizeof name));
        ndm_json_begin_object(json);
        write_option(options, i, "value", json);
        ndm_json_key_string(json, "origin", origin ? origin : "default");
        ndm_json_end_object(json);
    }
    ndm_json_end_object(json);
}
