/* SPDX-License-Identifier: Apache-2.0 */
/* Options from YAML. A key is an option's name or synonym, or falls under a rule for foreign keys;
 * anything else is an error. Inside a mapping m or m_config, keys may carry the prefix "m_config_"
 * or "m_", as Accelerate writes them. */
#include <core/file.h>
#include <core/log.h>
#include <core/option_internal.h>
#include <core/yaml_read.h>

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 256, NEAR_LIMIT = 512, PAIRS_LIMIT = 2048 };

/* What a file has said about an option. */
typedef struct mention {
    int line; /* 0 = nothing */
    char *key;
    char *text;
} mention;

typedef struct reader {
    ndm_options *options;
    const ndm_option_table *table;
    yaml_document_t *document;
    const char *file;
    mention *mentions;  /* [table->n_options] */
    ndm_buffer ignored; /* "a, b, c" */
} reader;

/* One key with its value. */
typedef struct entry {
    const char *key;    /* as written */
    const char *parent; /* path of the mapping it is in, "" at the top */
    char path[PATH_BYTES];
    int line;
    yaml_node_t *value;
} entry;

/* key without the prefix that the mapping `parent` gives its keys. */
static const char *without_prefix(const char *parent, const char *key)
{
    static const char suffix[] = "_config";
    char prefix[PATH_BYTES];
    size_t length = strlen(parent);
    size_t tail = sizeof suffix - 1;
    for (int shorten = 0; shorten < 2 && length > 0; shorten++) {
        snprintf(prefix, sizeof prefix, "%.*s_", (int)length, parent);
        size_t n = strlen(prefix);
        if (strlen(key) > n && ndm_text_starts_with(key, prefix))
            return key + n;
        if (length <= tail || !ndm_text_name_equal(parent + length - tail, suffix))
            break;
        length -= tail;
    }
    return key;
}

/* Index of the option that path names; *map = the synonym's meaning of values. */
static int find_option(const ndm_option_table *table, const char *path, const char **map)
{
    *map = NULL;
    for (size_t i = 0; i < table->n_options; i++) {
        const ndm_option *o = &table->options[i];
        if (ndm_text_name_equal(o->name, path))
            return (int)i;
        for (const ndm_option_synonym *s = o->synonyms; s && s->key; s++) {
            if (ndm_text_name_equal(s->key, path)) {
                *map = s->map;
                return (int)i;
            }
        }
    }
    return NDM_OPTION_NONE;
}

/* A key of the files that this command reads, and no option of its own. */
enum { ELSEWHERE = NDM_OPTION_NONE - 1 };

static int find_key(const ndm_option_table *table, const char *path, const char **map)
{
    int index = find_option(table, path, map);
    if (index != NDM_OPTION_NONE || !table->file)
        return index;
    index = find_option(table->file, path, map);
    if (index == NDM_OPTION_NONE)
        return NDM_OPTION_NONE;
    index = ndm_option_find(table, table->file->options[index].name);
    return index == NDM_OPTION_NONE ? ELSEWHERE : index;
}

/* Rest of key after "path.", NULL if it is no such key. */
static const char *child_of(const char *key, const char *path)
{
    size_t n = strlen(path);
    if (n == 0)
        return strchr(key, '.') ? NULL : key;
    return ndm_text_starts_with(key, path) && key[n] == '.' ? key + n + 1 : NULL;
}

/* Names that may stand in the mapping `path`, behind the n that are there; returns how many. */
static size_t known_names(const ndm_option_table *table, const char *path,
                          const char *names[NEAR_LIMIT], size_t n)
{
    for (size_t i = 0; i < table->n_options; i++) {
        const ndm_option *o = &table->options[i];
        if (!*path && n < NEAR_LIMIT)
            names[n++] = o->name;
        for (const ndm_option_synonym *s = o->synonyms; s && s->key && n < NEAR_LIMIT; s++) {
            const char *child = child_of(s->key, path);
            if (child)
                names[n++] = child;
        }
    }
    return n;
}

static bool has_children(const ndm_option_table *table, const char *path)
{
    const char *names[NEAR_LIMIT];
    if (known_names(table, path, names, 0) > 0)
        return true;
    for (size_t i = 0; i < table->n_rules; i++) {
        if (child_of(table->rules[i].key, path))
            return true;
    }
    return false;
}

static ndm_status unknown_key(const reader *r, const entry *e)
{
    const char *names[NEAR_LIMIT];
    size_t n = known_names(r->table, e->parent, names, 0);
    if (r->table->file)
        n = known_names(r->table->file, e->parent, names, n);
    const char *near = ndm_text_nearest(without_prefix(e->parent, e->key), names, n);
    char shown[PATH_BYTES];
    const char *in = *e->parent ? " in " : "";
    if (near)
        NDM_FAIL(NDM_ERR_USAGE, "%s:%d: unknown key '%.100s'%s%s; did you mean '%s'?", r->file,
                 e->line, e->key, in, e->parent, ndm_option_key(near, shown, sizeof shown));
    NDM_FAIL(NDM_ERR_USAGE, "%s:%d: unknown key '%.100s'%s%s; see 'ndmesh help %s'", r->file,
             e->line, e->key, in, e->parent, r->table->command);
}

static const ndm_option_rule *find_rule(const ndm_option_table *table, const char *path)
{
    for (size_t i = 0; i < table->n_rules; i++) {
        const ndm_option_rule *rule = &table->rules[i];
        size_t n = strlen(rule->key);
        char head[PATH_BYTES];
        if (n > 0 && rule->key[n - 1] == '*') {
            snprintf(head, sizeof head, "%.*s", (int)(n - 1), rule->key);
            if (ndm_text_starts_with(path, head))
                return rule;
        } else if (ndm_text_name_equal(rule->key, path)) {
            return rule;
        }
    }
    return NULL;
}

/* Whether the value, or every item of a list, is among the rule's harmless ones. Nothing at all
 * always is. */
static bool is_harmless(const reader *r, const ndm_option_rule *rule, const yaml_node_t *value)
{
    if (ndm_yaml_is_null(value) || !rule->refusal)
        return true;
    if (value->type == YAML_MAPPING_NODE)
        return value->data.mapping.pairs.start == value->data.mapping.pairs.top;
    if (value->type == YAML_SCALAR_NODE) {
        const char *text = ndm_yaml_text(value);
        return text && ndm_option_one_of(rule->harmless, text);
    }
    for (const yaml_node_item_t *i = value->data.sequence.items.start;
         i < value->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(r->document, *i);
        const char *text = ndm_yaml_text(item);
        if (!text || !ndm_option_one_of(rule->harmless, text))
            return false;
    }
    return true;
}

static ndm_status apply_rule(reader *r, const entry *e, const ndm_option_rule *rule)
{
    const char *text = ndm_yaml_text(e->value);
    if (!is_harmless(r, rule, e->value))
        NDM_FAIL(NDM_ERR_CONFIG, "%s:%d: '%.100s%s%.100s' is refused: %s", r->file, e->line, e->key,
                 text ? ": " : "", text ? text : "", rule->refusal);
    if (!rule->refusal)
        ndm_buffer_printf(&r->ignored, "%s%.100s", r->ignored.length ? ", " : "", e->key);
    return NDM_OK;
}

/* Remembers what the file says; saying something else under another key is an error. */
static ndm_status mention_once(reader *r, const entry *e, int index, const char *text)
{
    mention *m = &r->mentions[index];
    if (m->line) {
        if (strcmp(m->text, text) != 0)
            NDM_FAIL(NDM_ERR_CONFIG, "%s:%d: %s: %s contradicts %s: %s at line %d", r->file,
                     e->line, e->key, text, m->key, m->text, m->line);
        return NDM_OK;
    }
    m->key = ndm_text_duplicate(e->key);
    m->text = ndm_text_duplicate(text);
    if (!m->key || !m->text)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory", r->file);
    m->line = e->line;
    return NDM_OK;
}

static ndm_status parse_scalar(const ndm_option *o, const char *map, const entry *e,
                               const char *shown, ndm_option_data *data)
{
    char mapped[NDM_OPTION_MAP_BYTES];
    const char *text = ndm_yaml_text(e->value);
    if (!text)
        NDM_FAIL(NDM_ERR_USAGE, "%s: the text holds a NUL", shown);
    text = ndm_option_mapped(map, text, mapped);
    if (strcmp(text, "-") == 0 && map)
        return NDM_OK;
    return ndm_option_parse(o, shown, text, data);
}

static ndm_status make_entry(const reader *r, const char *parent, const yaml_node_pair_t *pair,
                             entry *e)
{
    const yaml_node_t *key = yaml_document_get_node(r->document, pair->key);
    const char *text = ndm_yaml_text(key);
    if (!text || !*text)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a key is not a name", r->file, ndm_yaml_line(key));
    *e = (entry){.key = text,
                 .parent = parent,
                 .line = ndm_yaml_line(key),
                 .value = yaml_document_get_node(r->document, pair->value)};
    int length = snprintf(e->path, sizeof e->path, "%s%s%s", parent, *parent ? "." : "",
                          without_prefix(parent, text));
    /* A dot inside a key must not pass for nesting. */
    return length >= (int)sizeof e->path || strchr(text, '.') ? unknown_key(r, e) : NDM_OK;
}

/* The rule of a key inside an item; the rules know the list by any of the option's keys. */
static const ndm_option_rule *item_rule(const reader *r, const ndm_option *o, const entry *member)
{
    const ndm_option_rule *rule = find_rule(r->table, member->path);
    for (const ndm_option_synonym *s = o->synonyms; !rule && s && s->key; s++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s.%.100s", s->key, member->key);
        rule = find_rule(r->table, path);
    }
    return rule;
}

static ndm_status check_repeats(const reader *r, const yaml_node_t *mapping)
{
    const yaml_node_pair_t *start = mapping->data.mapping.pairs.start;
    const yaml_node_pair_t *top = mapping->data.mapping.pairs.top;
    if (top - start > PAIRS_LIMIT)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: a mapping of %td keys; at most %d are read", r->file,
                 ndm_yaml_line(mapping), top - start, (int)PAIRS_LIMIT);
    for (const yaml_node_pair_t *p = start; p < top; p++) {
        const yaml_node_t *key = yaml_document_get_node(r->document, p->key);
        const char *text = ndm_yaml_text(key);
        for (const yaml_node_pair_t *q = start; q < p && text; q++) {
            const yaml_node_t *other = yaml_document_get_node(r->document, q->key);
            const char *earlier = ndm_yaml_text(other);
            if (earlier && ndm_text_name_equal(earlier, text))
                NDM_FAIL(NDM_ERR_CONFIG, "%s:%d: key '%.100s' is already given at line %d", r->file,
                         ndm_yaml_line(key), text, ndm_yaml_line(other));
        }
    }
    return NDM_OK;
}

/* An item's texts: of its list_key, and of its list_suffix. NULL = not given. */
typedef struct item_texts {
    const char *text, *suffix;
} item_texts;

static ndm_status take_member(reader *r, const ndm_option *o, const entry *member, item_texts *item)
{
    const ndm_option_rule *rule = item_rule(r, o, member);
    const char *text = ndm_yaml_text(member->value);

    if (text && ndm_text_name_equal(member->key, o->list_key))
        item->text = text;
    else if (text && o->list_suffix && ndm_text_name_equal(member->key, o->list_suffix))
        item->suffix = ndm_yaml_is_null(member->value) ? NULL : text;
    else
        return rule ? apply_rule(r, member, rule) : unknown_key(r, member);
    return NDM_OK;
}

/* An item that is a mapping: its list_key is the text, and its other keys fall under rules. */
static ndm_status parse_mapping_item(reader *r, const ndm_option *o, const entry *e,
                                     const yaml_node_t *item, const char *shown,
                                     ndm_option_data *data)
{
    item_texts texts = {NULL, NULL};
    NDM_TRY(check_repeats(r, item));
    for (const yaml_node_pair_t *p = item->data.mapping.pairs.start;
         p < item->data.mapping.pairs.top; p++) {
        entry member;
        NDM_TRY(make_entry(r, e->path, p, &member));
        NDM_TRY(take_member(r, o, &member, &texts));
    }
    if (!texts.text)
        NDM_FAIL(NDM_ERR_USAGE, "%s: an item has no key '%s' (line %d)", shown, o->list_key,
                 ndm_yaml_line(item));
    char *text = ndm_text_printf("%s%s%s", texts.text, texts.suffix ? ":" : "",
                                 texts.suffix ? texts.suffix : "");
    if (!text)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory", shown);
    ndm_status status = ndm_option_parse_item(o, shown, text, false, data);
    free(text);
    return status;
}

static ndm_status parse_sequence(reader *r, const ndm_option *o, const entry *e, const char *shown,
                                 ndm_option_data *data)
{
    for (const yaml_node_item_t *i = e->value->data.sequence.items.start;
         i < e->value->data.sequence.items.top; i++) {
        const yaml_node_t *item = yaml_document_get_node(r->document, *i);
        const char *text = ndm_yaml_text(item);
        if (item->type == YAML_MAPPING_NODE && o->list_key)
            NDM_TRY(parse_mapping_item(r, o, e, item, shown, data));
        else if (text && !ndm_yaml_is_null(item))
            NDM_TRY(ndm_option_parse_item(o, shown, text, false, data));
        else
            NDM_FAIL(NDM_ERR_USAGE, "%s: an item is not a text (line %d)", shown,
                     ndm_yaml_line(item));
    }
    return NDM_OK;
}

static ndm_status parse_value(reader *r, const ndm_option *o, const char *map, const entry *e,
                              const char *shown, ndm_option_data *data)
{
    if (e->value->type == YAML_SCALAR_NODE)
        return parse_scalar(o, map, e, shown, data);
    if (e->value->type == YAML_SEQUENCE_NODE && o->type == NDM_OPTION_LIST)
        return parse_sequence(r, o, e, shown, data);
    NDM_FAIL(NDM_ERR_USAGE, "%s: one value is expected, not a %s", shown,
             e->value->type == YAML_SEQUENCE_NODE ? "list" : "mapping");
}

static ndm_status set_option(reader *r, const entry *e, int index, const char *map)
{
    const ndm_option *o = &r->table->options[index];
    char origin[PATH_BYTES + 32], shown[2 * PATH_BYTES + 32];
    snprintf(origin, sizeof origin, "%.255s:%d", r->file, e->line);
    snprintf(shown, sizeof shown, "%s: %.100s", origin, e->key);
    ndm_option_source source = {.kind = ORIGIN_YAML, .origin = origin, .shown = shown};
    ndm_option_data data = {0};
    ndm_status status = NDM_OK;
    if (!ndm_yaml_is_null(e->value))
        status = parse_value(r, o, map, e, shown, &data);
    if (status == NDM_OK && data.text)
        status = mention_once(r, e, index, data.text);
    if (status == NDM_OK && data.text)
        return ndm_option_store(r->options, index, &source, &data);
    ndm_option_data_finish(&data);
    return status;
}

/* Recursion ends where the table's dotted keys end. */
static ndm_status read_mapping(reader *r, const yaml_node_t *mapping, const char *path)
{
    NDM_TRY(check_repeats(r, mapping));
    for (const yaml_node_pair_t *p = mapping->data.mapping.pairs.start;
         p < mapping->data.mapping.pairs.top; p++) {
        entry e;
        const char *map;
        NDM_TRY(make_entry(r, path, p, &e));
        int index = find_key(r->table, e.path, &map);
        const ndm_option_rule *rule = find_rule(r->table, e.path);
        if (!rule && r->table->file)
            rule = find_rule(r->table->file, e.path);
        if (index == ELSEWHERE)
            continue;
        if (index != NDM_OPTION_NONE)
            NDM_TRY(set_option(r, &e, index, map));
        else if (rule)
            NDM_TRY(apply_rule(r, &e, rule));
        else if (!has_children(r->table, e.path) &&
                 !(r->table->file && has_children(r->table->file, e.path)))
            return unknown_key(r, &e);
        else if (e.value->type == YAML_MAPPING_NODE)
            NDM_TRY(read_mapping(r, e.value, e.path));
        else if (!ndm_yaml_is_null(e.value))
            NDM_FAIL(NDM_ERR_USAGE, "%s:%d: %s: a mapping is expected", r->file, e.line, e.key);
    }
    return NDM_OK;
}

static ndm_status read_document(reader *r)
{
    const yaml_node_t *root = yaml_document_get_root_node(r->document);
    if (!root || ndm_yaml_is_null(root))
        return NDM_OK;
    if (root->type != YAML_MAPPING_NODE)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d: 'key: value' lines are expected", r->file,
                 ndm_yaml_line(root));
    return read_mapping(r, root, "");
}

static void finish_reader(reader *r)
{
    for (size_t i = 0; r->mentions && i < r->table->n_options; i++) {
        free(r->mentions[i].key);
        free(r->mentions[i].text);
    }
    free(r->mentions);
    ndm_buffer_finish(&r->ignored);
}

ndm_status ndm_options_load_yaml_text(ndm_options *options, const char *text, size_t bytes,
                                      const char *name)
{
    yaml_document_t document;
    NDM_TRY(ndm_yaml_load(text, bytes, name, &document));
    reader r = {.options = options, .table = options->table, .document = &document, .file = name};
    r.mentions = calloc(r.table->n_options, sizeof *r.mentions);
    ndm_status status = r.mentions ? read_document(&r)
                                   : ndm_error_set(NDM_ERR_MEMORY, __FILE__, __LINE__,
                                                   "%s: out of memory", name);
    if (status == NDM_OK && r.ignored.length && !options->silent)
        ndm_log(NDM_LOG_WARNING, "config", "%s: these keys change nothing here: %s", name,
                ndm_buffer_text(&r.ignored));
    finish_reader(&r);
    yaml_document_delete(&document);
    return status;
}

ndm_status ndm_options_load_yaml(ndm_options *options, const char *path)
{
    ndm_buffer text = {0};
    NDM_TRY(ndm_file_read(path, &text));
    ndm_status status = ndm_options_load_yaml_text(options, text.data, text.length, path);
    ndm_buffer_finish(&text);
    return status;
}
