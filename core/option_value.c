/* SPDX-License-Identifier: Apache-2.0 */
/* Values of options: from text to typed and checked, and back to one normal spelling. */
#include <core/option_internal.h>

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool same_value(const char *a, const char *b)
{
    bool x, y;
    if (ndm_text_name_equal(a, b))
        return true;
    return ndm_text_to_bool(a, &x) && ndm_text_to_bool(b, &y) && x == y;
}

/* Copies [from, from + length) into buffer, cut to fit. */
static const char *piece(const char *from, size_t length, char buffer[NDM_OPTION_MAP_BYTES])
{
    size_t n = length < NDM_OPTION_MAP_BYTES - 1 ? length : NDM_OPTION_MAP_BYTES - 1;
    memcpy(buffer, from, n);
    buffer[n] = '\0';
    return buffer;
}

const char *ndm_option_mapped(const char *map, const char *text, char buffer[NDM_OPTION_MAP_BYTES])
{
    for (const char *p = map; p && *p;) {
        size_t pair = strcspn(p, " ");
        size_t left = strcspn(p, "=");
        if (same_value(piece(p, left, buffer), text))
            return piece(p + left + 1, pair - left - 1, buffer);
        p += pair + strspn(p + pair, " ");
    }
    return text;
}

bool ndm_option_one_of(const char *list, const char *text)
{
    char name[NDM_OPTION_MAP_BYTES];
    for (const char *p = list; p && *p;) {
        size_t length = strcspn(p, "|");
        if (same_value(piece(p, length, name), text))
            return true;
        p += length + (p[length] == '|');
    }
    return false;
}

static ndm_status set_text(ndm_option_data *data, char *text)
{
    if (!text)
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for the value of an option");
    free(data->text);
    data->text = text;
    return NDM_OK;
}

static ndm_status check_range(const ndm_option *o, const char *shown, const char *text, double x)
{
    bool any = o->min == 0.0 && o->max == 0.0;
    if (any || (x >= o->min && (o->below_max ? x < o->max : x <= o->max)))
        return NDM_OK;
    char low[NDM_TEXT_DOUBLE_BYTES], high[NDM_TEXT_DOUBLE_BYTES];
    ndm_text_of_double(o->min, low);
    ndm_text_of_double(o->max, high);
    if (isinf(o->max))
        NDM_FAIL(NDM_ERR_USAGE, "%s: %s is below %s", shown, text, low);
    NDM_FAIL(NDM_ERR_USAGE, "%s: %s is outside [%s, %s%c", shown, text, low, high,
             o->below_max ? ')' : ']');
}

/* strtod without hexadecimal, infinity and NaN. *end is where the number stops. */
static bool read_double(const char *text, double *value, const char **end)
{
    size_t n = strspn(text, "0123456789+-.eE");
    char *stop;
    errno = 0;
    *value = ndm_text_to_double(text, &stop);
    *end = stop;
    return stop != text && stop <= text + n && isfinite(*value);
}

static bool read_int(const char *text, int64_t *value)
{
    char *stop;
    errno = 0;
    long long whole = strtoll(text, &stop, 10);
    if (stop != text && *stop == '\0' && errno == 0) {
        *value = whole;
        return true;
    }
    const char *end;
    double real;
    if (!read_double(text, &real, &end) || *end || real != floor(real) || fabs(real) > 0x1p53)
        return false;
    *value = (int64_t)real;
    return true;
}

static ndm_status parse_int(const ndm_option *o, const char *shown, const char *text,
                            ndm_option_data *data)
{
    if (isspace((unsigned char)*text) || !read_int(text, &data->integer))
        NDM_FAIL(NDM_ERR_USAGE, "%s: '%s' is not an integer", shown, text);
    NDM_TRY(check_range(o, shown, text, (double)data->integer));
    return set_text(data, ndm_text_printf("%" PRId64, data->integer));
}

static ndm_status parse_double(const ndm_option *o, const char *shown, const char *text,
                               ndm_option_data *data)
{
    const char *end;
    if (isspace((unsigned char)*text) || !read_double(text, &data->real, &end) || *end)
        NDM_FAIL(NDM_ERR_USAGE, "%s: '%s' is not a number", shown, text);
    NDM_TRY(check_range(o, shown, text, data->real));
    char normal[NDM_TEXT_DOUBLE_BYTES];
    return set_text(data, ndm_text_duplicate(ndm_text_of_double(data->real, normal)));
}

/* Powers of 1024 for K M G T, with or without "iB" or "B"; 0 if it is no suffix. */
static double size_factor(const char *suffix)
{
    static const char letters[] = "KMGT";
    double factor = 1;
    const char *place = *suffix ? strchr(letters, toupper((unsigned char)*suffix)) : NULL;
    if (place) {
        factor = pow(1024, (double)(place - letters + 1));
        suffix++;
        if (*suffix == 'i')
            suffix++;
    }
    if (*suffix == 'B' || *suffix == 'b')
        suffix++;
    return *suffix == '\0' ? factor : 0;
}

static ndm_status parse_size(const ndm_option *o, const char *shown, const char *text,
                             ndm_option_data *data)
{
    const char *end;
    double number = 0;
    double factor = read_double(text, &number, &end) ? size_factor(end) : 0;
    double bytes = number * factor;
    if (factor == 0 || bytes < 0 || bytes > 0x1p62 || bytes != floor(bytes))
        NDM_FAIL(NDM_ERR_USAGE, "%s: '%s' is not a size in bytes, such as 4096, 64K or 1.5GiB",
                 shown, text);
    NDM_TRY(check_range(o, shown, text, bytes));
    data->integer = (int64_t)bytes;
    return set_text(data, ndm_text_printf("%" PRId64, data->integer));
}

static ndm_status parse_bool(const char *shown, const char *text, ndm_option_data *data)
{
    if (!ndm_text_to_bool(text, &data->boolean))
        NDM_FAIL(NDM_ERR_USAGE, "%s: '%s' is neither true nor false", shown, text);
    return set_text(data, ndm_text_duplicate(data->boolean ? "true" : "false"));
}

/* The message of a value that is none of the choices. */
static ndm_status no_such_choice(const ndm_option *o, const char *shown, const char *text)
{
    enum { LIMIT = 32 };
    char names[LIMIT][NDM_OPTION_MAP_BYTES];
    const char *list[LIMIT];
    size_t n = 0;
    ndm_buffer all = {0};
    for (const char *p = o->choices; *p && n < LIMIT; n++) {
        size_t length = strcspn(p, "|");
        list[n] = piece(p, length, names[n]);
        ndm_buffer_printf(&all, "%s%s", n ? ", " : "", list[n]);
        p += length + (p[length] == '|');
    }
    const char *near = ndm_text_nearest(text, list, n);
    ndm_status status = ndm_error_set(
        NDM_ERR_USAGE, __FILE__, __LINE__, "%s: '%s' is not one of %s%s%s%s", shown, text,
        ndm_buffer_text(&all), near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
    ndm_buffer_finish(&all);
    return status;
}

static ndm_status parse_enum(const ndm_option *o, const char *shown, const char *text,
                             ndm_option_data *data)
{
    char name[NDM_OPTION_MAP_BYTES];
    data->choice = 0;
    for (const char *p = o->choices; *p; data->choice++) {
        size_t length = strcspn(p, "|");
        if (ndm_text_name_equal(piece(p, length, name), text))
            return set_text(data, ndm_text_duplicate(name));
        p += length + (p[length] == '|');
    }
    return no_such_choice(o, shown, text);
}

static ndm_status run_check(const ndm_option *o, const char *shown, const char *text)
{
    const char *allowed = o->check ? o->check(text) : NULL;
    if (allowed)
        NDM_FAIL(NDM_ERR_USAGE, "%s: '%s' is not %s", shown, text, allowed);
    return NDM_OK;
}

static ndm_status add_item(const ndm_option *o, const char *shown, const char *item,
                           ndm_option_data *data)
{
    if (!*item)
        NDM_FAIL(NDM_ERR_USAGE, "%s: an empty text in the list", shown);
    NDM_TRY(run_check(o, shown, item));
    char **items = realloc(data->items, (data->n_items + 1) * sizeof *items);
    if (!items)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory for %zu texts", shown, data->n_items + 1);
    data->items = items;
    items[data->n_items] = ndm_text_duplicate(item);
    if (!items[data->n_items])
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory for %zu texts", shown, data->n_items + 1);
    data->n_items++;
    return set_text(data, ndm_text_join((const char *const *)data->items, data->n_items, ", "));
}

ndm_status ndm_option_parse_item(const ndm_option *o, const char *shown, const char *text,
                                 bool split, ndm_option_data *data)
{
    if (!split && !o->commas)
        return add_item(o, shown, text, data);
    ndm_status status = NDM_OK;
    for (const char *p = text; status == NDM_OK;) {
        p += strspn(p, " ");
        size_t length = strcspn(p, ",");
        size_t trimmed = length;
        while (trimmed > 0 && p[trimmed - 1] == ' ')
            trimmed--;
        char *item = ndm_text_printf("%.*s", (int)trimmed, p);
        if (!item)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory", shown);
        status = add_item(o, shown, item, data);
        free(item);
        p += length;
        if (*p++ == '\0')
            break;
    }
    return status;
}

ndm_status ndm_option_parse(const ndm_option *o, const char *shown, const char *text,
                            ndm_option_data *data)
{
    char buffer[NDM_OPTION_MAP_BYTES];
    text = ndm_option_mapped(o->map, text, buffer);
    if (o->type == NDM_OPTION_STRING)
        NDM_TRY(run_check(o, shown, text));
    switch (o->type) {
    case NDM_OPTION_INT:
        NDM_TRY(parse_int(o, shown, text, data));
        return run_check(o, shown, data->text); /* 0.0 is 0 */
    case NDM_OPTION_DOUBLE:
        return parse_double(o, shown, text, data);
    case NDM_OPTION_SIZE:
        return parse_size(o, shown, text, data);
    case NDM_OPTION_BOOL:
        return parse_bool(shown, text, data);
    case NDM_OPTION_ENUM:
        return parse_enum(o, shown, text, data);
    case NDM_OPTION_LIST:
        return ndm_option_parse_item(o, shown, text, false, data);
    case NDM_OPTION_STRING:
        break;
    }
    if (!*text)
        NDM_FAIL(NDM_ERR_USAGE, "%s: the text is empty", shown);
    return set_text(data, ndm_text_duplicate(text));
}

void ndm_option_data_finish(ndm_option_data *data)
{
    for (size_t i = 0; i < data->n_items; i++)
        free(data->items[i]);
    free(data->items);
    free(data->text);
    *data = (ndm_option_data){0};
}
