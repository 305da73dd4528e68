/* SPDX-License-Identifier: Apache-2.0 */
/* JSON: what is written reads back; what is read is checked and errors say where. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <core/json.h>
#include <core/json_read.h>

static void objects_and_arrays_nest(void **state)
{
    (void)state;
    ndm_buffer out = {0};
    ndm_json j;
    ndm_json_init_buffer(&j, &out, false);
    ndm_json_begin_object(&j);
    ndm_json_key_int(&j, "step", 1);
    ndm_json_key_double(&j, "loss", 0.1);
    ndm_json_key(&j, "list");
    ndm_json_begin_array(&j);
    ndm_json_begin_object(&j);
    ndm_json_end_object(&j);
    ndm_json_begin_array(&j);
    ndm_json_end_array(&j);
    ndm_json_int(&j, INT64_MIN);
    ndm_json_null(&j);
    ndm_json_end_array(&j);
    ndm_json_key_bool(&j, "ok", true);
    ndm_json_key_string(&j, "none", NULL);
    ndm_json_end_object(&j);
    assert_int_equal(ndm_json_finish(&j), NDM_OK);
    assert_string_equal(out.data,
                        "{\"step\":1,\"loss\":0.1,\"list\":[{},[],-9223372036854775808,null"
                        "],\"ok\":true,\"none\":null}\n");
    ndm_buffer_finish(&out);
}

static void pretty_output_breaks_lines(void **state)
{
    (void)state;
    ndm_buffer out = {0};
    ndm_json j;
    ndm_json_init_buffer(&j, &out, true);
    ndm_json_begin_object(&j);
    ndm_json_key(&j, "a");
    ndm_json_begin_array(&j);
    ndm_json_int(&j, 1);
    ndm_json_int(&j, 2);
    ndm_json_end_array(&j);
    ndm_json_end_object(&j);
    assert_int_equal(ndm_json_finish(&j), NDM_OK);
    assert_string_equal(out.data, "{\n  \"a\": [\n    1,\n    2\n  ]\n}\n");
    ndm_buffer_finish(&out);
}

static void write_string(const char *text, ndm_buffer *out)
{
    ndm_json j;
    ndm_json_init_buffer(&j, out, false);
    ndm_json_string(&j, text);
    assert_int_equal(ndm_json_finish(&j), NDM_OK);
}

static void strings_are_escaped(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"plain", "\"plain\"\n"},
        {"a\"b\\c/d", "\"a\\\"b\\\\c/d\"\n"},
        {"\b\f\n\r\t\x01\x1f\x7f", "\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u007f\"\n"},
        {"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80", "\"\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80\"\n"},
        {"\xff|\xc3|\xc0\xaf|\xed\xa0\x80",
         "\"\\ufffd|\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd\"\n"},
        {"\xe2\x82", "\"\\ufffd\\ufffd\"\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ndm_buffer out = {0};
        write_string(cases[i][0], &out);
        assert_string_equal(out.data, cases[i][1]);
        ndm_buffer_finish(&out);
    }
}

static void every_byte_gives_valid_json(void **state)
{
    (void)state;
    for (int a = 1; a < 256; a++) {
        for (int b = 1; b < 256; b += 3) {
            const char text[] = {(char)a, (char)b, 'x', 0};
            ndm_buffer out = {0};
            json_error_t error;
            write_string(text, &out);
            json_t *read = json_loadb(out.data, out.length, JSON_DECODE_ANY, &error);
            assert_non_null(read);
            if (a < 128 && b < 128)
                assert_string_equal(json_string_value(read), text);
            json_decref(read);
            ndm_buffer_finish(&out);
        }
    }
}

static void doubles_round_trip_and_nan_is_null(void **state)
{
    (void)state;
    static const double values[] = {1.0 / 3, 1e-8, 5e-324, 1.7976931348623157e308, -2.5, 10, NAN};
    ndm_buffer out = {0};
    ndm_json j;
    ndm_json_init_buffer(&j, &out, false);
    ndm_json_begin_array(&j);
    for (size_t i = 0; i < 7; i++)
        ndm_json_double(&j, values[i]);
    ndm_json_double(&j, -INFINITY);
    ndm_json_end_array(&j);
    assert_int_equal(ndm_json_finish(&j), NDM_OK);
    json_t *root;
    assert_int_equal(ndm_json_load_text(out.data, out.length, "t", &root), NDM_OK);
    for (size_t i = 0; i < 6; i++)
        assert_true(json_number_value(json_array_get(root, i)) == values[i]);
    assert_true(json_is_null(json_array_get(root, 6)) && json_is_null(json_array_get(root, 7)));
    json_decref(root);
    ndm_buffer_finish(&out);
}

static void a_full_disk_is_an_error(void **state)
{
    (void)state;
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        skip();
    ndm_json j;
    ndm_json_init_file(&j, full, false);
    ndm_json_null(&j);
    assert_int_equal(ndm_json_finish(&j), NDM_ERR_IO);
    fclose(full);
}

static void check_refused(const char *text, const char *want)
{
    json_t *root = NULL;
    assert_int_equal(ndm_json_load_text(text, strlen(text), "c.json", &root), NDM_ERR_FORMAT);
    assert_null(root);
    if (!strstr(ndm_error_message(), want))
        fail_msg("'%s' is not in '%s'", want, ndm_error_message());
}

static void bad_documents_are_refused_with_their_line(void **state)
{
    (void)state;
    check_refused("{\n\"a\": 1,\n\"a\": 2}", "c.json:3:");
    check_refused("{\"a\": }", "c.json:1:");
    check_refused("", "c.json:1:0:");
    check_refused("{\"a\": 1} x", "c.json:1:");
    check_refused("{\"a\": \"\xff\"}", "c.json:1:");
    check_refused("{\"a\": 1e999}", "c.json:1:");
    char deep[10001];
    memset(deep, '[', sizeof deep - 1);
    deep[sizeof deep - 1] = '\0';
    check_refused(deep, "c.json:");
}

static void members_are_typed(void **state)
{
    (void)state;
    static const char text[] = "{\"i\": 5, \"d\": 1.5, \"b\": true, \"s\": \"x\", \"n\": null, "
                               "\"o\": {}, \"a\": []}";
    json_t *root;
    int64_t i = 0;
    double d = 0;
    bool b = false;
    const char *s = NULL;
    const json_t *member = NULL;
    assert_int_equal(ndm_json_load_text(text, strlen(text), "c.json", &root), NDM_OK);
    assert_int_equal(ndm_json_get_int64(root, "i", true, 0, &i, "c.json"), NDM_OK);
    assert_int_equal(i, 5);
    assert_int_equal(ndm_json_get_int64(root, "n", false, 9, &i, "c.json"), NDM_OK);
    assert_int_equal(i, 9);
    assert_int_equal(ndm_json_get_double(root, "d", true, 0, &d, "c.json"), NDM_OK);
    assert_true(d == 1.5);
    assert_int_equal(ndm_json_get_double(root, "i", true, 0, &d, "c.json"), NDM_OK);
    assert_true(d == 5);
    assert_int_equal(ndm_json_get_bool(root, "b", true, false, &b, "c.json"), NDM_OK);
    assert_true(b);
    assert_int_equal(ndm_json_get_string(root, "s", true, NULL, &s, "c.json"), NDM_OK);
    assert_string_equal(s, "x");
    assert_int_equal(ndm_json_get_object(root, "o", true, &member, "c.json"), NDM_OK);
    assert_true(json_is_object(member));
    assert_int_equal(ndm_json_get_array(root, "a", true, &member, "c.json"), NDM_OK);
    assert_true(json_is_array(member));

    assert_int_equal(ndm_json_get_int64(root, "d", false, 0, &i, "c.json"), NDM_ERR_FORMAT);
    assert_string_equal(ndm_error_message(), "c.json: key 'd' is a real number, not an integer");
    assert_int_equal(i, 9);
    assert_int_equal(ndm_json_get_string(root, "n", true, NULL, &s, "c.json"), NDM_ERR_FORMAT);
    assert_string_equal(ndm_error_message(), "c.json: key 'n' is missing");
    assert_int_equal(ndm_json_get_bool(root, "i", false, false, &b, "c.json"), NDM_ERR_FORMAT);
    assert_int_equal(ndm_json_get_array(root, "o", false, &member, "c.json"), NDM_ERR_FORMAT);
    assert_int_equal(ndm_json_get_object(root, "a", false, &member, "c.json"), NDM_ERR_FORMAT);
    json_decref(root);
    assert_int_equal(ndm_json_load_file("no-such.json", &root), NDM_ERR_IO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objects_and_arrays_nest),
        cmocka_unit_test(pretty_output_breaks_lines),
        cmocka_unit_test(strings_are_escaped),
        cmocka_unit_test(every_byte_gives_valid_json),
        cmocka_unit_test(doubles_round_trip_and_nan_is_null),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(bad_documents_are_refused_with_their_line),
        cmocka_unit_test(members_are_typed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
