/* SPDX-License-Identifier: Apache-2.0 */
/* A folder for a test's files, and writing them. A test includes this once. */
#ifndef NDM_TESTS_UNIT_SCRATCH_H
#define NDM_TESTS_UNIT_SCRATCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char scratch_folder[4096];

/* Group setup: makes the folder. */
static inline int scratch_setup(void **state)
{
    const char *base = getenv("TMPDIR");

    (void)state;
    snprintf(scratch_folder, sizeof scratch_folder, "%s/ndm-test-XXXXXX", base ? base : "/tmp");
    return mkdtemp(scratch_folder) == NULL;
}

/* Group teardown: removes the folder and its files (no folders inside). */
static inline int scratch_teardown(void **state)
{
    DIR *folder = opendir(scratch_folder);
    struct dirent *entry;

    (void)state;
    while (folder != NULL && (entry = readdir(folder)) != NULL)
        unlinkat(dirfd(folder), entry->d_name, 0);
    if (folder != NULL)
        closedir(folder);
    return rmdir(scratch_folder);
}

/* Path of a file in the folder; the 32 latest stay valid. */
static inline const char *scratch_path(const char *name)
{
    static char paths[32][8192];
    static int next;
    char *path = paths[next++ % 32];

    snprintf(path, sizeof paths[0], "%s/%s", scratch_folder, name);
    return path;
}

static inline const char *scratch_write(const char *name, const void *data, size_t bytes)
{
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");

    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
    return path;
}

#endif
