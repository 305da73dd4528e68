/* SPDX-License-Identifier: Apache-2.0 */
/* JSON documents and typed members of their objects. */
#include <core/file.h>
#include <core/json_read.h>

ndm_status ndm_json_load_text(const char *text, size_t bytes, const char *name, json_t **root)
{
    json_error_t error;
    json_t *document = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!document && json_error_code(&error) == json_error_out_of_memory)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: out of memory for a JSON document of %zu bytes", name, bytes);
    if (!document)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:%d:%d: %s", name, error.line, error.column, error.text);
    *root = document;
    return NDM_OK;
}

ndm_status ndm_json_load_file(const char *path, json_t **root)
{
    ndm_buffer text = {0};
    NDM_TRY(ndm_file_read(path, &text));
    ndm_status status = ndm_json_load_text(text.data, text.length, path, root);
    ndm_buffer_finish(&text);
    return status;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array",     [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a real number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

/* *member = the value, or NULL where the default holds. */
static ndm_status find(const json_t *object, const char *key, bool required, const char *context,
                       const json_t **member)
{
    const json_t *value = NULL;
    if (!json_is_object(object))
        NDM_FAIL(NDM_ERR_FORMAT, "%s: no object around key '%s'", context, key);
    value = json_object_get(object, key);
    if (json_is_null(value))
        value = NULL;
    if (!value && required)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: key '%s' is missing", context, key);
    *member = value;
    return NDM_OK;
}

static ndm_status wrong_type(const json_t *value, const char *key, const char *want,
                             const char *context)
{
    NDM_FAIL(NDM_ERR_FORMAT, "%s: key '%s' is %s, not %s", context, key, type_name(value), want);
}

ndm_status ndm_json_get_int64(const json_t *object, const char *key, bool required,
                              int64_t otherwise, int64_t *value, const char *context)
{
    const json_t *member;
    NDM_TRY(find(object, key, required, context, &member));
    if (member && !json_is_integer(member))
        return wrong_type(member, key, "an integer", context);
    *value = member ? (int64_t)json_integer_value(member) : otherwise;
    return NDM_OK;
}

ndm_status ndm_json_get_double(const json_t *object, const char *key, bool required,
                               double otherwise, double *value, const char *context)
{
    const json_t *member;
    NDM_TRY(find(object, key, required, context, &member));
    if (member && !json_is_number(member))
        return wrong_type(member, key, "a number", context);
    *value = member ? json_number_value(member) : otherwise;
    return NDM_OK;
}

ndm_status ndm_json_get_bool(const json_t *object, const char *key, bool required, bool otherwise,
                             bool *value, const char *context)
{
    const json_t *member;
    NDM_TRY(find(object, key, required, context, &member));
    if (member && !json_is_boolean(member))
        return wrong_type(member, key, "true or false", context);
    *value = member ? json_is_true(member) : otherwise;
    return NDM_OK;
}

ndm_status ndm_json_get_string(const json_t *object, const char *key, bool required,
                               const char *otherwise, const char **value, const char *context)
{
    const json_t *member;
    NDM_TRY(find(object, key, required, context, &member));
    if (member && !json_is_string(member))
        return wrong_type(member, key, "a string", context);
    *value = member ? json_string_value(member) : otherwise;
    return NDM_OK;
}

ndm_status ndm_json_get_object(const json_t *object, const char *key, bool required,
                               const json_t **value, const char *context)
{
    const json_t *member;
    NDM_TRY(find(object, key, required, context, &member));
    if (member && !json_is_object(member))
        return wrong_type(member, key, "an object", context);
    *value = member;
    return NDM_OK;
}

ndm_status ndm_json_get_array(const json_t *object, const char *key, bool required,
                              const json_t **value, const char *context)
{
    const json_t *member;
    NDM_TRY(find(object, key, required, context, &member));
    if (member && !json_is_array(member))
        return wrong_type(member, key, "an array", context);
    *value = member;
    return NDM_OK;
}
