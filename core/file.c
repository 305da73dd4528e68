/* SPDX-License-Identifier: Apache-2.0 */
/* Whole-file reads and folders over POSIX. */
#include <core/file.h>

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool ndm_file_exists(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0;
}

bool ndm_file_is_dir(const char *path)
{
    struct stat s;
    return stat(path, &s) == 0 && S_ISDIR(s.st_mode);
}

ndm_status ndm_file_size(const char *path, int64_t *bytes)
{
    struct stat s;
    if (stat(path, &s) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(s.st_mode))
        NDM_FAIL(NDM_ERR_IO, "%s: is a folder, not a file", path);
    *bytes = (int64_t)s.st_size;
    return NDM_OK;
}

/* More than the checksums of a thousand billion parameters; a device may never end. */
enum { READ_BYTES_MAX = 1 << 29 };

enum { READ_WAIT_MS = 10 * 1000 };

/* A pipe that nobody writes to would be waited for without end, even to open it. */
static ndm_status wait_for_bytes(int fd, const char *path, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    int ready;

    do
        ready = poll(&p, 1, wait_ms);
    while (ready < 0 && errno == EINTR);
    if (ready < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    if (ready == 0)
        NDM_FAIL(NDM_ERR_IO, "%s: nothing came from this pipe for %d ms", path, wait_ms);
    return NDM_OK;
}

static ndm_status read_descriptor(int fd, const char *path, int wait_ms, ndm_buffer *out)
{
    char chunk[16384];
    ssize_t got = 1;

    ndm_buffer_puts(out, "");
    while (got != 0 && out->length <= READ_BYTES_MAX) {
        NDM_TRY(wait_for_bytes(fd, path, wait_ms));
        got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
        if (got > 0)
            ndm_buffer_append(out, chunk, (size_t)got);
    }
    if (out->length > READ_BYTES_MAX)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: has more than %d bytes, too many for its kind of file", path,
                 READ_BYTES_MAX);
    return ndm_buffer_status(out);
}

ndm_status ndm_file_read_within(const char *path, int wait_ms, ndm_buffer *out)
{
    if (ndm_file_is_dir(path))
        NDM_FAIL(NDM_ERR_IO, "%s: is a folder, not a file", path);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    ndm_status status = read_descriptor(fd, path, wait_ms, out);
    close(fd);
    if (status != NDM_OK)
        ndm_buffer_finish(out);
    return status;
}

ndm_status ndm_file_read(const char *path, ndm_buffer *out)
{
    return ndm_file_read_within(path, READ_WAIT_MS, out);
}

static ndm_status make_dir(const char *path)
{
    if (mkdir(path, 0777) == 0 || (errno == EEXIST && ndm_file_is_dir(path)))
        return NDM_OK;
    NDM_FAIL(NDM_ERR_IO, "cannot make folder %s: %s", path, strerror(errno));
}

ndm_status ndm_file_make_dirs(const char *path)
{
    char *copy = ndm_text_duplicate(path);
    if (!copy)
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for the path %s", path);
    ndm_status status = NDM_OK;
    for (char *c = copy + 1; copy[0] && *c && status == NDM_OK; c++) {
        if (*c != '/')
            continue;
        *c = '\0';
        status = make_dir(copy);
        *c = '/';
    }
    if (status == NDM_OK)
        status = make_dir(copy);
    free(copy);
    return status;
}

ndm_status ndm_file_make_writable(const char *path)
{
    NDM_TRY(ndm_file_make_dirs(path));
    if (access(path, W_OK | X_OK) != 0)
        NDM_FAIL(NDM_ERR_IO, "cannot write in folder %s: %s", path, strerror(errno));
    return NDM_OK;
}

ndm_status ndm_file_sync_dir(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    int failed = fsync(fd);
    int error = errno;
    close(fd);
    if (failed && error != EINVAL) /* some file systems have nothing to sync */
        NDM_FAIL(NDM_ERR_IO, "cannot sync folder %s: %s", path, strerror(error));
    return NDM_OK;
}
