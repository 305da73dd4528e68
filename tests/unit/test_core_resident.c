/* SPDX-License-Identifier: Apache-2.0 */
/* Resident memory: it grows with what is touched, and a process that is not there has none. */
#include "scratch.h"

#include <sys/stat.h>

#include <core/host_memory.h>
#include <core/resident.h>
#include <core/text.h>

enum { BYTES = 16 * 1024 * 1024 };

static void grows_with_what_is_touched(void **state)
{
    int64_t before = ndm_resident_bytes(0);
    char *memory = malloc(BYTES);

    (void)state;
    assert_non_null(memory);
    memset(memory, 1, BYTES);
    int64_t after = ndm_resident_bytes(0);
    assert_true(before > 0);
    assert_in_range(after - before, BYTES / 10 * 9, BYTES / 10 * 11);
    assert_true(llabs(ndm_resident_bytes(getpid()) - after) < BYTES / 10);
    free(memory);
}

static void nobody_has_none(void **state)
{
    (void)state;
    assert_int_equal(ndm_resident_bytes((int64_t)1 << 40), -1);
}

static void limit(const char *group, const char *name, const char *text)
{
    char *path = ndm_text_printf("%s%s/%s", scratch_folder, group, name);
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    free(path);
}

/* The smallest of the machine's memory and the limits from the root of the groups down to ours. */
static void groups_limit_what_the_machine_has(void **state)
{
    static const char *const folders[] = {"/a", "/a/b", "/memory", "/memory/c"};
    enum { MACHINE = 1 << 30 };

    (void)state;
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char *path = ndm_text_printf("%s%s", scratch_folder, folders[i]);
        assert_int_equal(mkdir(path, 0700), 0);
        free(path);
    }
    const char *second = scratch_write("second", "0::/a/b\n", 8);
    const char *first = scratch_write("first", "9:cpu,memory:/c\n0::/\n", 21);
    assert_int_equal(ndm_host_memory_of(second, scratch_folder, MACHINE), MACHINE);
    limit("/a/b", "memory.max", "max\n");
    assert_int_equal(ndm_host_memory_of(second, scratch_folder, MACHINE), MACHINE);
    limit("/a", "memory.max", "5000000\n");
    assert_int_equal(ndm_host_memory_of(second, scratch_folder, MACHINE), 5000000);
    limit("/a/b", "memory.max", "7000000\n");
    assert_int_equal(ndm_host_memory_of(second, scratch_folder, MACHINE), 5000000);
    limit("/memory/c", "memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(ndm_host_memory_of(first, scratch_folder, MACHINE), MACHINE);
    limit("/memory", "memory.limit_in_bytes", "3000000\n");
    assert_int_equal(ndm_host_memory_of(first, scratch_folder, MACHINE), 3000000);
    assert_int_equal(ndm_host_memory_of("/proc/none", scratch_folder, MACHINE), MACHINE);
    assert_true(ndm_host_memory_bytes() > 0);
    char *remove = ndm_text_printf("rm -r '%s/a' '%s/memory'", scratch_folder, scratch_folder);
    assert_int_equal(system(remove), 0);
    free(remove);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grows_with_what_is_touched),
        cmocka_unit_test(nobody_has_none),
        cmocka_unit_test(groups_limit_what_the_machine_has),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
