/* SPDX-License-Identifier: Apache-2.0 */
/* YAML by libyaml: a pass over the events refuses what is no plain data, a second builds the
 * document. */
#include <core/yaml_read.h>

#include <string.h>

/* A file of options is small; this bounds what a hostile one can cost. */
enum { LIMIT_BYTES = 1 << 20, LIMIT_DEPTH = 32 };

/* State of the pass over the events. */
typedef struct scan {
    int documents;
    int depth;
} scan;

static ndm_status syntax_error(const yaml_parser_t *parser, const char *name)
{
    const char *problem = parser->problem ? parser->problem : "not YAML";
    if (parser->error == YAML_MEMORY_ERROR)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory", name);
    if (parser->error == YAML_READER_ERROR)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: byte %zu: %s", name, parser->problem_offset, problem);
    NDM_FAIL(NDM_ERR_FORMAT, "%s:%zu: %s%s%s", name, parser->problem_mark.line + 1, problem,
             parser->context ? ", " : "", parser->context ? parser->context : "");
}

static const char *tag_of(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return (const char *)event->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return (const char *)event->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return (const char *)event->data.mapping_start.tag;
    default:
        return NULL;
    }
}

static bool is_plain_tag(const char *tag)
{
    static const char prefix[] = "tag:yaml.org,2002:";
    static const char *const plain[] = {"str", "int", "float", "bool", "null", "seq", "map"};
    if (strncmp(tag, prefix, sizeof prefix - 1) != 0)
        return false;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        if (strcmp(tag + sizeof prefix - 1, plain[i]) == 0)
            return true;
    }
    return false;
}

static ndm_status check_event(const yaml_event_t *event, const char *name, scan *seen)
{
    size_t line = event->start_mark.line + 1;
    const char *tag = tag_of(event);
    if (event->type == YAML_ALIAS_EVENT)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%zu: alias '*%s': write the value out instead", name, line,
                 (const char *)event->data.alias.anchor);
    if (event->type == YAML_DOCUMENT_START_EVENT && ++seen->documents > 1)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%zu: a second document; one is read", name, line);
    if (event->type == YAML_SEQUENCE_START_EVENT || event->type == YAML_MAPPING_START_EVENT)
        seen->depth++;
    if (event->type == YAML_SEQUENCE_END_EVENT || event->type == YAML_MAPPING_END_EVENT)
        seen->depth--;
    if (seen->depth > LIMIT_DEPTH) /* libyaml's time grows with the square of it */
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%zu: nested deeper than %d levels", name, line,
                 (int)LIMIT_DEPTH);
    if (tag && !is_plain_tag(tag))
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%zu: tag '%s': only plain values are read", name, line, tag);
    return NDM_OK;
}

static ndm_status check_events(yaml_parser_t *parser, const char *name)
{
    scan seen = {0};
    for (bool end = false; !end;) {
        yaml_event_t event;
        if (!yaml_parser_parse(parser, &event))
            return syntax_error(parser, name);
        ndm_status status = check_event(&event, name, &seen);
        end = event.type == YAML_STREAM_END_EVENT;
        yaml_event_delete(&event);
        NDM_TRY(status);
    }
    return NDM_OK;
}

static ndm_status open_parser(const char *text, size_t bytes, const char *name,
                              yaml_parser_t *parser)
{
    if (!yaml_parser_initialize(parser))
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory", name);
    yaml_parser_set_input_string(parser, (const unsigned char *)text, bytes);
    return NDM_OK;
}

ndm_status ndm_yaml_load(const char *text, size_t bytes, const char *name,
                         yaml_document_t *document)
{
    yaml_parser_t parser;
    if (bytes > LIMIT_BYTES)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: %zu bytes; a configuration has at most %d", name, bytes,
                 (int)LIMIT_BYTES);
    NDM_TRY(open_parser(text, bytes, name, &parser));
    ndm_status status = check_events(&parser, name);
    yaml_parser_delete(&parser);
    NDM_TRY(status);
    NDM_TRY(open_parser(text, bytes, name, &parser));
    if (!yaml_parser_load(&parser, document))
        status = syntax_error(&parser, name);
    yaml_parser_delete(&parser);
    return status;
}

int ndm_yaml_line(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

const char *ndm_yaml_text(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

bool ndm_yaml_is_null(const yaml_node_t *node)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL"};
    const char *text = ndm_yaml_text(node);
    if (!text || node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE)
        return false;
    for (size_t i = 0; i < sizeof nulls / sizeof *nulls; i++) {
        if (strcmp(text, nulls[i]) == 0)
            return true;
    }
    return false;
}
