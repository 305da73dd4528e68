/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: what is said of one that is not there, or is not a module. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/module.h"

static void a_module_that_is_not_there_is_named_with_its_folder(void **state)
{
    char why[256] = "";

    (void)state;
    setenv("NDM_MODULE_PATH", "/nowhere", 1);
    assert_null(ndm_module_symbol("absent", "ndm_symbol", why, sizeof why));
    assert_string_equal(why, "there is no /nowhere/libndm_absent.so (NDM_MODULE_PATH)");
}

static void without_a_folder_it_was_not_built(void **state)
{
    char why[256] = "";

    (void)state;
    unsetenv("NDM_MODULE_PATH");
    assert_null(ndm_module_symbol("unbuilt", "ndm_symbol", why, sizeof why));
    assert_string_equal(why, "not built");
}

static void what_is_no_module_does_not_load(void **state)
{
    char folder[] = "/tmp/ndm-module-XXXXXX", path[64], why[256] = "";

    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/libndm_text.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("not a shared object\n", file);
    fclose(file);
    setenv("NDM_MODULE_PATH", folder, 1);
    assert_null(ndm_module_symbol("text", "ndm_symbol", why, sizeof why));
    assert_non_null(strstr(why, "does not load: "));
    remove(path);
    remove(folder);
}

/* Nobody has asked for it, and nothing says that there is a device. */
static void an_offer_loads_nothing_unasked(void **state)
{
    char why[256] = "";

    (void)state;
    setenv("NDM_MODULE_PATH", "/nowhere", 1);
    assert_null(ndm_module_offer("offered", "ndm_symbol"));
    assert_null(ndm_module_symbol("offered", "ndm_symbol", why, sizeof why));
    assert_non_null(strstr(why, "/nowhere/libndm_offered.so"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_module_that_is_not_there_is_named_with_its_folder),
        cmocka_unit_test(without_a_folder_it_was_not_built),
        cmocka_unit_test(what_is_no_module_does_not_load),
        cmocka_unit_test(an_offer_loads_nothing_unasked),
    };

    return cmocka_run_group_tests_name("core module", tests, NULL, NULL);
}
