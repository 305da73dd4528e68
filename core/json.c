/* SPDX-License-Identifier: Apache-2.0 */
/* Streaming JSON writer (RFC 8259). */
#include <core/json.h>

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

void ndm_json_init_file(ndm_json *json, FILE *file, bool pretty)
{
    *json = (ndm_json){.file = file, .pretty = pretty};
}

void ndm_json_init_buffer(ndm_json *json, ndm_buffer *buffer, bool pretty)
{
    *json = (ndm_json){.buffer = buffer, .pretty = pretty};
}

static void put(ndm_json *json, const char *text, size_t bytes)
{
    if (json->file)
        fwrite(text, 1, bytes, json->file);
    else
        ndm_buffer_append(json->buffer, text, bytes);
}

static void puts_text(ndm_json *json, const char *text)
{
    put(json, text, strlen(text));
}

static void new_line(ndm_json *json)
{
    if (!json->pretty)
        return;
    put(json, "\n", 1);
    for (int i = 0; i < json->depth; i++)
        put(json, "  ", 2);
}

/* Comma and line break before a key or an array's element. */
static void next_member(ndm_json *json)
{
    bool *any = &json->any[json->depth - 1];
    if (*any)
        put(json, ",", 1);
    *any = true;
    new_line(json);
}

static void before_value(ndm_json *json)
{
    if (json->depth == 0) {
        assert(!json->done);
        return;
    }
    if (json->kind[json->depth - 1] == '[') {
        next_member(json);
        return;
    }
    assert(json->has_key);
    json->has_key = false;
}

static void after_value(ndm_json *json)
{
    json->done = json->depth == 0;
}

static void scalar(ndm_json *json, const char *text)
{
    before_value(json);
    puts_text(json, text);
    after_value(json);
}

static void begin(ndm_json *json, char kind)
{
    before_value(json);
    assert(json->depth < NDM_JSON_DEPTH);
    json->kind[json->depth] = kind;
    json->any[json->depth] = false;
    json->depth++;
    put(json, &kind, 1);
}

static void end(ndm_json *json, char kind, const char *bracket)
{
    assert(json->depth > 0 && json->kind[json->depth - 1] == kind && !json->has_key);
    json->depth--;
    if (json->any[json->depth])
        new_line(json);
    puts_text(json, bracket);
    after_value(json);
}

void ndm_json_begin_object(ndm_json *json)
{
    begin(json, '{');
}

void ndm_json_end_object(ndm_json *json)
{
    end(json, '{', "}");
}

void ndm_json_begin_array(ndm_json *json)
{
    begin(json, '[');
}

void ndm_json_end_array(ndm_json *json)
{
    end(json, '[', "]");
}

/* Length of the UTF-8 sequence at s, 0 if it is not one: overlong forms and surrogates are none. */
static size_t utf8_length(const unsigned char *s)
{
    size_t n = s[0] < 0x80                    ? 1
               : s[0] >= 0xc2 && s[0] <= 0xdf ? 2
               : (s[0] & 0xf0) == 0xe0        ? 3
               : s[0] >= 0xf0 && s[0] <= 0xf4 ? 4
                                              : 0;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xc0) != 0x80) /* the NUL stops here as well */
            return 0;
    }
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
        return 0;
    return n;
}

static void put_ascii(ndm_json *json, unsigned char c)
{
    static const char escaped[] = "\"\\\b\f\n\r\t";
    static const char letters[] = "\"\\bfnrt";
    const char *place = strchr(escaped, c);
    char text[8];
    if (place)
        snprintf(text, sizeof text, "\\%c", letters[place - escaped]);
    else if (c < 0x20 || c == 0x7f)
        snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, "%c", c);
    puts_text(json, text);
}

static void put_quoted(ndm_json *json, const char *text)
{
    const unsigned char *s = (const unsigned char *)text;
    put(json, "\"", 1);
    while (*s) {
        size_t n = utf8_length(s);
        if (n == 1)
            put_ascii(json, *s);
        else if (n > 1)
            put(json, (const char *)s, n);
        else
            puts_text(json, "\\ufffd");
        s += n ? n : 1;
    }
    put(json, "\"", 1);
}

void ndm_json_key(ndm_json *json, const char *key)
{
    assert(json->depth > 0 && json->kind[json->depth - 1] == '{' && !json->has_key);
    next_member(json);
    put_quoted(json, key);
    puts_text(json, json->pretty ? ": " : ":");
    json->has_key = true;
}

void ndm_json_string(ndm_json *json, const char *text)
{
    if (!text) {
        ndm_json_null(json);
        return;
    }
    before_value(json);
    put_quoted(json, text);
    after_value(json);
}

void ndm_json_int(ndm_json *json, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%" PRId64, value);
    scalar(json, text);
}

void ndm_json_double(ndm_json *json, double value)
{
    char text[NDM_TEXT_DOUBLE_BYTES];
    scalar(json, isfinite(value) ? ndm_text_of_double(value, text) : "null");
}

void ndm_json_bool(ndm_json *json, bool value)
{
    scalar(json, value ? "true" : "false");
}

void ndm_json_null(ndm_json *json)
{
    scalar(json, "null");
}

void ndm_json_key_string(ndm_json *json, const char *key, const char *text)
{
    ndm_json_key(json, key);
    ndm_json_string(json, text);
}

void ndm_json_key_int(ndm_json *json, const char *key, int64_t value)
{
    ndm_json_key(json, key);
    ndm_json_int(json, value);
}

void ndm_json_key_double(ndm_json *json, const char *key, double value)
{
    ndm_json_key(json, key);
    ndm_json_double(json, value);
}

void ndm_json_key_bool(ndm_json *json, const char *key, bool value)
{
    ndm_json_key(json, key);
    ndm_json_bool(json, value);
}

ndm_status ndm_json_finish(ndm_json *json)
{
    assert(json->depth == 0 && json->done);
    put(json, "\n", 1);
    if (json->buffer)
        return ndm_buffer_status(json->buffer);
    if (fflush(json->file) != 0 || ferror(json->file))
        NDM_FAIL(NDM_ERR_IO, "cannot write JSON: %s", strerror(errno));
    return NDM_OK;
}
