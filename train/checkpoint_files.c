/* SPDX-License-Identifier: Apache-2.0 */
/* Folders of checkpoints. A folder that is being written or removed has a name that begins with a
 * dot, so whatever is called step-<number> was complete when it got that name. */
#include "train/checkpoint_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/file.h"
#include "core/log.h"

#define PREFIX "step-"
#define TEMPORARY_PREFIX ".step-"
#define TEMPORARY_SUFFIX ".tmp"

const ndm_checkpoint_stem ndm_checkpoint_stems[NDM_CHECKPOINT_STEMS] = {
    {"model", ""},
    {"optimizer-exp_avg", ".exp_avg"},
    {"optimizer-exp_avg_sq", ".exp_avg_sq"},
};

char *ndm_checkpoint_name(int64_t step, char text[NDM_CHECKPOINT_NAME_BYTES])
{
    snprintf(text, NDM_CHECKPOINT_NAME_BYTES, PREFIX "%08" PRId64, step);
    return text;
}

bool ndm_checkpoint_parse_name(const char *name, int64_t *step)
{
    const char *digits = name + sizeof PREFIX - 1;

    if (strncmp(name, PREFIX, sizeof PREFIX - 1) != 0 || strlen(name) >= NDM_CHECKPOINT_NAME_BYTES)
        return false;
    if (digits[0] == '\0' || digits[strspn(digits, "0123456789")] != '\0' || strlen(digits) > 18)
        return false;
    *step = strtoll(digits, NULL, 10);
    return true;
}

static ndm_status check_sizes(const char *path, const ndm_sums *sums)
{
    int64_t bytes;

    for (int64_t i = 0; i < sums->n_files; i++) {
        char *file = ndm_text_printf("%s/%s", path, sums->files[i].name);
        if (!file)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", path);
        ndm_status status = ndm_file_size(file, &bytes);
        free(file);
        NDM_TRY(status);
        if (bytes != sums->files[i].bytes)
            NDM_FAIL(NDM_ERR_CHECK, "%s/%s: has %" PRId64 " bytes, %" PRId64 " were saved", path,
                     sums->files[i].name, bytes, sums->files[i].bytes);
    }
    return NDM_OK;
}

ndm_status ndm_checkpoint_check_complete(const char *path)
{
    ndm_checkpoint_facts facts;
    ndm_sums sums;

    NDM_TRY(ndm_checkpoint_facts_read(path, &facts));
    NDM_TRY(ndm_checkpoint_sums_read(path, &facts, &sums));
    ndm_status status = check_sizes(path, &sums);
    ndm_sums_finish(&sums);
    return status;
}

/* ---- lists -------------------------------------------------------------------------------- */

typedef struct entry {
    int64_t step;
    char name[NDM_CHECKPOINT_NAME_BYTES];
} entry;

/* Highest step first; of one step under two names, the one that we would write. */
static int compare_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;

    if (x->step != y->step)
        return x->step > y->step ? -1 : 1;
    return strcmp(x->name, y->name);
}

static ndm_status read_entries(DIR *folder, const char *path, entry **entries, int64_t *n)
{
    struct dirent *e;
    int64_t step;

    while ((e = readdir(folder)) != NULL) {
        if (!ndm_checkpoint_parse_name(e->d_name, &step))
            continue;
        entry *more = realloc(*entries, (size_t)(*n + 1) * sizeof *more);
        if (!more)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for %lld names", path, (long long)*n + 1);
        *entries = more;
        more[*n].step = step;
        snprintf(more[(*n)++].name, NDM_CHECKPOINT_NAME_BYTES, "%.31s", e->d_name);
    }
    return NDM_OK;
}

/* Names of checkpoints, [*n], highest step first; free them. A folder that is not there has none.
 */
static ndm_status list(const char *path, entry **entries, int64_t *n)
{
    DIR *folder = opendir(path);

    *entries = NULL;
    *n = 0;
    if (!folder && errno == ENOENT)
        return NDM_OK;
    if (!folder)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    ndm_status status = read_entries(folder, path, entries, n);
    closedir(folder);
    if (status == NDM_OK && *n > 0)
        qsort(*entries, (size_t)*n, sizeof **entries, compare_entries);
    if (status != NDM_OK)
        free(*entries);
    return status;
}

static bool is_complete(const char *folder, const char *name)
{
    char *path = ndm_text_printf("%s/%s", folder, name);
    bool complete = path && ndm_checkpoint_check_complete(path) == NDM_OK;

    free(path);
    return complete;
}

ndm_status ndm_checkpoint_find_latest(const char *folder, int64_t *step,
                                      char name[NDM_CHECKPOINT_NAME_BYTES])
{
    entry *entries;
    int64_t n;

    *step = -1;
    NDM_TRY(list(folder, &entries, &n));
    for (int64_t i = 0; i < n && *step < 0; i++) {
        if (is_complete(folder, entries[i].name)) {
            *step = entries[i].step;
            memcpy(name, entries[i].name, NDM_CHECKPOINT_NAME_BYTES);
        } else {
            ndm_log(NDM_LOG_WARNING, "checkpoint", "%s/%s is passed over: %s", folder,
                    entries[i].name, ndm_error_message());
        }
    }
    free(entries);
    return NDM_OK;
}

/* ---- removing ----------------------------------------------------------------------------- */

static ndm_status empty_folder(DIR *folder, const char *path)
{
    struct dirent *e;

    while ((e = readdir(folder)) != NULL) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (unlinkat(dirfd(folder), e->d_name, 0) != 0 && errno != ENOENT)
            NDM_FAIL(NDM_ERR_IO, "%s/%s: cannot remove: %s", path, e->d_name, strerror(errno));
    }
    return NDM_OK;
}

/* A link goes, and what it leads to stays. */
ndm_status ndm_checkpoint_remove(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (fd < 0 && (errno == ENOENT || ((errno == ENOTDIR || errno == ELOOP) && unlink(path) == 0)))
        return NDM_OK;
    DIR *folder = fd < 0 ? NULL : fdopendir(fd);
    if (!folder) {
        int error = errno;
        if (fd >= 0)
            close(fd);
        NDM_FAIL(NDM_ERR_IO, "%s: cannot remove: %s", path, strerror(error));
    }
    ndm_status status = empty_folder(folder, path);
    closedir(folder);
    NDM_TRY(status);
    if (rmdir(path) != 0 && errno != ENOENT)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    return NDM_OK;
}

/* Under a name that says that it goes, then its files: a half-removed one is never taken for
 * complete. */
static ndm_status retire(const char *folder, const char *name)
{
    char *path = ndm_text_printf("%s/%s", folder, name);
    char *gone = ndm_text_printf("%s/.%s.old" TEMPORARY_SUFFIX, folder, name);
    ndm_status status = NDM_ERR_MEMORY;

    if (!path || !gone)
        (void)ndm_error_set(status, __FILE__, __LINE__, "%s: no memory for a path", folder);
    else if ((status = ndm_checkpoint_remove(gone)) == NDM_OK && rename(path, gone) != 0)
        status = ndm_error_set(NDM_ERR_IO, __FILE__, __LINE__, "%s: cannot remove: %s", path,
                               strerror(errno));
    if (status == NDM_OK)
        status = ndm_checkpoint_remove(gone);
    free(path);
    free(gone);
    return status;
}

ndm_status ndm_checkpoint_retain(const char *folder, int64_t keep, int64_t written)
{
    entry *entries;
    int64_t n, kept = 1; /* `written` is one of them */

    if (keep <= 0)
        return NDM_OK;
    NDM_TRY(list(folder, &entries, &n));
    for (int64_t i = 0; i < n; i++) {
        if (entries[i].step == written || !is_complete(folder, entries[i].name))
            continue;
        if (kept++ >= keep && retire(folder, entries[i].name) != NDM_OK)
            ndm_log(NDM_LOG_WARNING, "checkpoint", "%s", ndm_error_message());
    }
    free(entries);
    return NDM_OK;
}

static bool is_temporary(const char *name)
{
    size_t n = strlen(name), m = sizeof TEMPORARY_SUFFIX - 1;

    return strncmp(name, TEMPORARY_PREFIX, sizeof TEMPORARY_PREFIX - 1) == 0 && n > m &&
           strcmp(name + n - m, TEMPORARY_SUFFIX) == 0;
}

static ndm_status sweep(DIR *folder, const char *path)
{
    struct dirent *e;

    while ((e = readdir(folder)) != NULL) {
        if (!is_temporary(e->d_name))
            continue;
        char *old = ndm_text_printf("%s/%s", path, e->d_name);
        if (!old)
            NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", path);
        if (ndm_checkpoint_remove(old) != NDM_OK)
            ndm_log(NDM_LOG_WARNING, "checkpoint", "%s", ndm_error_message());
        free(old);
    }
    return NDM_OK;
}

ndm_status ndm_checkpoint_sweep(const char *path)
{
    DIR *folder = opendir(path);

    if (!folder && errno == ENOENT)
        return NDM_OK;
    if (!folder)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    ndm_status status = sweep(folder, path);
    closedir(folder);
    return status;
}

/* ---- appearing ---------------------------------------------------------------------------- */

/* Where the two names cannot be exchanged, the old one goes first: for that moment, the one before
 * it is the newest. */
static ndm_status replace(const char *temporary, const char *path)
{
    if (rename(temporary, path) == 0)
        return NDM_OK;
    if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot be renamed to %s: %s", temporary, path, strerror(errno));
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return ndm_checkpoint_remove(temporary);
    NDM_TRY(ndm_checkpoint_remove(path));
    if (rename(temporary, path) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot be renamed to %s: %s", temporary, path, strerror(errno));
    return NDM_OK;
}

ndm_status ndm_checkpoint_publish(const char *folder, const char *temporary, const char *path)
{
    NDM_TRY(ndm_file_sync_dir(temporary));
    NDM_TRY(replace(temporary, path));
    return ndm_file_sync_dir(folder);
}

ndm_status ndm_checkpoint_check_space(const char *folder, int64_t bytes)
{
    struct statvfs s;

    if (statvfs(folder, &s) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", folder, strerror(errno));
    if ((double)s.f_bavail * (double)s.f_frsize < (double)bytes)
        NDM_FAIL(NDM_ERR_IO,
                 "%s: a checkpoint of %" PRId64 " bytes does not fit: %" PRId64 " bytes are free",
                 folder, bytes, (int64_t)((double)s.f_bavail * (double)s.f_frsize));
    return NDM_OK;
}
