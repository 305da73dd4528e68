/* SPDX-License-Identifier: Apache-2.0 */
/* Names and growing strings. Distance: optimal string alignment (Damerau, 1964, with one swap a
 * place). */
#include <core/text.h>

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_LIMIT = 127 };

/* What is read and written here has points and plain letters, whatever locale the program that uses
 * the library has chosen. */
static locale_t enter_plain_locale(void)
{
    return uselocale(newlocale(LC_ALL_MASK, "C", (locale_t)0)); /* static: nothing to free */
}

static int fold(char c)
{
    return c == '-' ? '_' : c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

bool ndm_text_name_equal(const char *a, const char *b)
{
    while (*a && fold(*a) == fold(*b))
        a++, b++;
    return *a == *b;
}

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

int ndm_text_distance(const char *a, const char *b)
{
    size_t na = strlen(a), nb = strlen(b);
    if (na > NAME_LIMIT || nb > NAME_LIMIT)
        return (int)(na > nb ? na : nb);
    int rows[3][NAME_LIMIT + 1]; /* rows i-2, i-1 and i of the table, [nb + 1] */
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= nb; j++) {
            int change = last[j - 1] + (fold(a[i - 1]) != fold(b[j - 1]));
            now[j] = min_int(change, 1 + min_int(last[j], now[j - 1]));
            if (i > 1 && j > 1 && fold(a[i - 1]) == fold(b[j - 2]) &&
                fold(a[i - 2]) == fold(b[j - 1]))
                now[j] = min_int(now[j], before[j - 2] + 1);
        }
        int *spare = before;
        before = last, last = now, now = spare;
    }
    return last[nb];
}

bool ndm_text_starts_with(const char *text, const char *prefix)
{
    while (*prefix && fold(*text) == fold(*prefix))
        text++, prefix++;
    return *prefix == '\0';
}

/* The shortest name that starts with what was typed. */
static const char *completion(const char *name, const char *const *names, size_t n)
{
    const char *best = NULL;
    for (size_t i = 0; i < n && strlen(name) >= 3; i++) {
        if (names[i] && ndm_text_starts_with(names[i], name) &&
            (!best || strlen(names[i]) < strlen(best)))
            best = names[i];
    }
    return best;
}

const char *ndm_text_nearest(const char *name, const char *const *names, size_t n)
{
    size_t length = strlen(name);
    int limit = length < 6 ? 1 : (int)length / 3;
    const char *best = NULL;
    for (size_t i = 0; i < n; i++) {
        if (!names[i])
            continue;
        int distance = ndm_text_distance(name, names[i]);
        if (distance <= limit && distance < (int)strlen(names[i])) {
            limit = distance - 1;
            best = names[i];
        }
    }
    return best ? best : completion(name, names, n);
}

char *ndm_text_duplicate(const char *text)
{
    size_t bytes = strlen(text) + 1;
    char *copy = malloc(bytes);
    if (copy)
        memcpy(copy, text, bytes);
    return copy;
}

static char *vprintf_to_heap(const char *format, va_list args)
{
    locale_t before = enter_plain_locale();
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = length < 0 ? NULL : malloc((size_t)length + 1);
    if (text)
        vsnprintf(text, (size_t)length + 1, format, args);
    uselocale(before);
    return text;
}

char *ndm_text_printf(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = vprintf_to_heap(format, args);
    va_end(args);
    return text;
}

char *ndm_text_join(const char *const *parts, size_t n, const char *separator)
{
    ndm_buffer buffer = {0};
    ndm_buffer_puts(&buffer, "");
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            ndm_buffer_puts(&buffer, separator);
        ndm_buffer_puts(&buffer, parts[i]);
    }
    if (buffer.failed)
        ndm_buffer_finish(&buffer);
    return buffer.data;
}

bool ndm_text_to_bool(const char *text, bool *value)
{
    static const char *const words[] = {"false", "true", "no", "yes", "off", "on", "0", "1"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (ndm_text_name_equal(text, words[i])) {
            *value = i % 2 == 1;
            return true;
        }
    }
    return false;
}

char *ndm_text_of_bytes(int64_t bytes, char buffer[NDM_TEXT_BYTES_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    locale_t before = enter_plain_locale();
    double value = (double)bytes;
    int unit = 0;

    while (value >= 1024 && unit < 4)
        value /= 1024, unit++;
    snprintf(buffer, NDM_TEXT_BYTES_BYTES, unit ? "%.2f %s" : "%.0f %s", value, units[unit]);
    uselocale(before);
    return buffer;
}

double ndm_text_unsigned_nan(double value)
{
    return isnan(value) ? (double)NAN : value;
}

char *ndm_text_of_double(double value, char buffer[NDM_TEXT_DOUBLE_BYTES])
{
    static const int precisions[] = {6, 9, 15, 16, 17};
    const double largest = 1e15; /* that %.15g writes without an exponent */
    if (fabs(value) < largest && value == floor(value)) {
        snprintf(buffer, NDM_TEXT_DOUBLE_BYTES, "%.0f", value); /* 4404760, not 4.40476e+06 */
        return buffer;
    }
    locale_t before = enter_plain_locale();
    for (size_t i = 0; i < sizeof precisions / sizeof *precisions; i++) {
        snprintf(buffer, NDM_TEXT_DOUBLE_BYTES, "%.*g", precisions[i], value);
        if (strtod(buffer, NULL) == value)
            break;
    }
    uselocale(before);
    return buffer;
}

double ndm_text_to_double(const char *text, char **end)
{
    locale_t before = enter_plain_locale();
    double value = strtod(text, end);
    uselocale(before);
    return value;
}

/* Room for `bytes` more and the terminator. */
static bool reserve(ndm_buffer *buffer, size_t bytes)
{
    if (buffer->failed)
        return false;
    size_t need = buffer->length + bytes + 1;
    if (need <= buffer->capacity)
        return true;
    size_t capacity = buffer->capacity ? buffer->capacity : 64;
    while (capacity < need)
        capacity *= 2;
    char *data = realloc(buffer->data, capacity);
    if (!data) {
        buffer->failed = true;
        return false;
    }
    buffer->data = data;
    buffer->capacity = capacity;
    return true;
}

void ndm_buffer_append(ndm_buffer *buffer, const void *data, size_t bytes)
{
    if (!reserve(buffer, bytes))
        return;
    if (bytes > 0)
        memcpy(buffer->data + buffer->length, data, bytes);
    buffer->length += bytes;
    buffer->data[buffer->length] = '\0';
}

void ndm_buffer_puts(ndm_buffer *buffer, const char *text)
{
    ndm_buffer_append(buffer, text, strlen(text));
}

void ndm_buffer_printf(ndm_buffer *buffer, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = vprintf_to_heap(format, args);
    va_end(args);
    if (text)
        ndm_buffer_puts(buffer, text);
    else
        buffer->failed = true;
    free(text);
}

const char *ndm_buffer_text(const ndm_buffer *buffer)
{
    return buffer->data ? buffer->data : "";
}

ndm_status ndm_buffer_status(const ndm_buffer *buffer)
{
    if (buffer->failed)
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for a text of more than %zu bytes", buffer->length);
    return NDM_OK;
}

void ndm_buffer_finish(ndm_buffer *buffer)
{
    free(buffer->data);
    *buffer = (ndm_buffer){0};
}
