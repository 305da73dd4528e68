/* SPDX-License-Identifier: Apache-2.0 */
/* Recursive descent, one function a level of precedence: or, and, comparison, sum, product, unary.
 */
#include "cli/sweep_filter.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"

enum { DEPTH_MOST = 64, NAMES_MOST = 32, NAME_BYTES = 64 };

typedef struct parser {
    const char *text, *at;
    const ndm_filter_name *names;
    size_t n_names;
    int depth;
} parser;

static ndm_status parse_or(parser *p, int64_t *value);

static void skip_space(parser *p)
{
    while (isspace((unsigned char)*p->at))
        p->at++;
}

/* Takes a sign if it comes next. Words end where letters do. */
static bool take(parser *p, const char *sign)
{
    size_t n = strlen(sign);

    skip_space(p);
    if (strncmp(p->at, sign, n) != 0)
        return false;
    if (isalpha((unsigned char)sign[0]) && (isalnum((unsigned char)p->at[n]) || p->at[n] == '_'))
        return false;
    p->at += n;
    return true;
}

static ndm_status refuse(const parser *p, const char *wanted)
{
    NDM_FAIL(NDM_ERR_USAGE, "filter '%.128s': %s is wanted at '%.32s' (character %d)", p->text,
             wanted, *p->at != '\0' ? p->at : "the end", (int)(p->at - p->text) + 1);
}

static ndm_status parse_name(parser *p, int64_t *value)
{
    const char *known[NAMES_MOST];
    char name[NAME_BYTES];
    size_t n = 0;

    while (isalnum((unsigned char)p->at[n]) || p->at[n] == '_')
        n++;
    if (n >= sizeof name)
        return refuse(p, "a shorter name");
    memcpy(name, p->at, n);
    name[n] = '\0';
    for (size_t i = 0; i < p->n_names && i < NAMES_MOST; i++) {
        known[i] = p->names[i].name;
        if (!ndm_text_name_equal(name, known[i]))
            continue;
        p->at += n;
        *value = p->names[i].value;
        return NDM_OK;
    }
    const char *nearest = ndm_text_nearest(name, known,
                                           p->n_names < NAMES_MOST ? p->n_names : NAMES_MOST);
    NDM_FAIL(NDM_ERR_USAGE, "filter '%.128s': unknown name '%s'%s%s", p->text, name,
             nearest != NULL ? "; did you mean " : "", nearest != NULL ? nearest : "");
}

static ndm_status parse_number(parser *p, int64_t *value)
{
    char *end;

    errno = 0;
    *value = strtoll(p->at, &end, 10);
    if (errno != 0)
        return refuse(p, "a smaller number");
    p->at = end;
    return NDM_OK;
}

static ndm_status parse_operand(parser *p, int64_t *value)
{
    if (take(p, "(")) {
        NDM_TRY(parse_or(p, value));
        return take(p, ")") ? NDM_OK : refuse(p, "')'");
    }
    if (isdigit((unsigned char)*p->at))
        return parse_number(p, value);
    if (isalpha((unsigned char)*p->at))
        return parse_name(p, value);
    return refuse(p, "a name or a number");
}

static ndm_status parse_unary(parser *p, int64_t *value)
{
    bool negative, inverted;

    if (++p->depth > DEPTH_MOST)
        return refuse(p, "less nesting");
    *value = 0;
    skip_space(p);
    inverted = p->at[0] == '!' && p->at[1] != '=';
    p->at += inverted;
    negative = !inverted && take(p, "-");
    NDM_TRY(negative || inverted ? parse_unary(p, value) : parse_operand(p, value));
    p->depth--;
    if (inverted)
        *value = *value == 0;
    if (negative)
        *value = -*value;
    return NDM_OK;
}

static ndm_status parse_product(parser *p, int64_t *value)
{
    int64_t right;

    NDM_TRY(parse_unary(p, value));
    for (;;) {
        char sign = take(p, "*") ? '*' : take(p, "/") ? '/' : take(p, "%") ? '%' : '\0';
        if (sign == '\0')
            return NDM_OK;
        NDM_TRY(parse_unary(p, &right));
        if (sign != '*' && right == 0)
            return refuse(p, "a divisor that is not 0");
        if (sign == '*' && __builtin_mul_overflow(*value, right, value))
            return refuse(p, "a smaller product");
        if (sign != '*')
            *value = sign == '/' ? *value / right : *value % right;
    }
}

static ndm_status parse_sum(parser *p, int64_t *value)
{
    int64_t right;

    NDM_TRY(parse_product(p, value));
    for (;;) {
        bool plus = take(p, "+"), minus = !plus && take(p, "-");
        if (!plus && !minus)
            return NDM_OK;
        NDM_TRY(parse_product(p, &right));
        if (plus ? __builtin_add_overflow(*value, right, value)
                 : __builtin_sub_overflow(*value, right, value))
            return refuse(p, "a smaller sum");
    }
}

static ndm_status parse_comparison(parser *p, int64_t *value)
{
    static const char *const signs[] = {"<=", ">=", "==", "!=", "<", ">", "="};
    enum { LESS_EQUAL, MORE_EQUAL, EQUAL, UNEQUAL, LESS, MORE, EQUAL_TOO, NONE };
    int sign = 0;
    int64_t right;

    NDM_TRY(parse_sum(p, value));
    while (sign < NONE && !take(p, signs[sign]))
        sign++;
    if (sign == NONE)
        return NDM_OK;
    NDM_TRY(parse_sum(p, &right));
    int64_t left = *value;
    *value = sign == LESS_EQUAL   ? left <= right
             : sign == MORE_EQUAL ? left >= right
             : sign == LESS       ? left < right
             : sign == MORE       ? left > right
             : sign == UNEQUAL    ? left != right
                                  : left == right;
    return NDM_OK;
}

static ndm_status parse_not(parser *p, int64_t *value)
{
    bool inverted = false;

    while (take(p, "not"))
        inverted = !inverted;
    NDM_TRY(parse_comparison(p, value));
    *value = inverted ? *value == 0 : *value;
    return NDM_OK;
}

static ndm_status parse_and(parser *p, int64_t *value)
{
    int64_t right;

    NDM_TRY(parse_not(p, value));
    while (take(p, "&&") || take(p, "and")) {
        NDM_TRY(parse_not(p, &right));
        *value = *value != 0 && right != 0;
    }
    return NDM_OK;
}

static ndm_status parse_or(parser *p, int64_t *value)
{
    int64_t right;

    NDM_TRY(parse_and(p, value));
    while (take(p, "||") || take(p, "or")) {
        NDM_TRY(parse_and(p, &right));
        *value = *value != 0 || right != 0;
    }
    return NDM_OK;
}

ndm_status ndm_filter_holds(const char *expression, const ndm_filter_name *names, size_t n_names,
                            bool *holds)
{
    parser p = {.text = expression, .at = expression, .names = names, .n_names = n_names};
    int64_t value;

    NDM_TRY(parse_or(&p, &value));
    skip_space(&p);
    if (*p.at != '\0')
        return refuse(&p, "the end");
    *holds = value != 0;
    return NDM_OK;
}
