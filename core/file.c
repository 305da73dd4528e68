/* SPDX-License-Identifier: Apache-2.0 */
/* Whole-file reads, atomic writes and folders over POSIX. */
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

static void release(ndm_atomic_file *file)
{
    if (file->stream)
        fclose(file->stream);
    free(file->path);
    free(file->temporary);
    *file = (ndm_atomic_file){0};
}

ndm_status ndm_atomic_file_begin(const char *path, ndm_atomic_file *file)
{
    ndm_atomic_file f = {.path = ndm_text_duplicate(path),
                         .temporary = ndm_text_printf("%s.tmp-%ld", path, (long)getpid())};
    if (!f.path || !f.temporary) {
        release(&f);
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for the path %s", path);
    }
    f.stream = fopen(f.temporary, "wb");
    if (!f.stream) {
        int error = errno;
        release(&f);
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", path, strerror(error));
    }
    *file = f;
    return NDM_OK;
}

static ndm_status sync_parent(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return ndm_file_sync_dir(".");
    if (slash == path)
        return ndm_file_sync_dir("/");
    char *parent = ndm_text_printf("%.*s", (int)(slash - path), path);
    if (!parent)
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for the path %s", path);
    ndm_status status = ndm_file_sync_dir(parent);
    free(parent);
    return status;
}

static ndm_status finish_stream(ndm_atomic_file *file)
{
    int failed = ferror(file->stream) || fflush(file->stream) != 0;
    failed = failed || fsync(fileno(file->stream)) != 0;
    int error = errno;
    if (fclose(file->stream) != 0 && !failed) {
        failed = 1;
        error = errno;
    }
    file->stream = NULL;
    if (!failed && rename(file->temporary, file->path) != 0) {
        failed = 1;
        error = errno;
    }
    if (failed)
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", file->path, strerror(error));
    return NDM_OK;
}

ndm_status ndm_atomic_file_commit(ndm_atomic_file *file)
{
    ndm_status status = finish_stream(file);
    if (status != NDM_OK)
        unlink(file->temporary);
    else
        status = sync_parent(file->path);
    release(file);
    return status;
}

void ndm_atomic_file_abort(ndm_atomic_file *file)
{
    if (file->temporary)
        unlink(file->temporary);
    release(file);
}

ndm_status ndm_file_write_atomic(const char *path, const void *data, size_t bytes)
{
    ndm_atomic_file file;
    NDM_TRY(ndm_atomic_file_begin(path, &file));
    if (bytes > 0 && fwrite(data, 1, bytes, file.stream) != bytes) {
        int error = errno;
        ndm_atomic_file_abort(&file);
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", path, strerror(error));
    }
    return ndm_atomic_file_commit(&file);
}

FILE *ndm_file_open_to_write(const char *path, bool anew)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | (anew ? O_CREAT | O_TRUNC : 0), 0666);
    FILE *file = fd >= 0 ? fdopen(fd, "wb") : NULL;

    if (fd >= 0 && !file)
        close(fd);
    return file;
}

ndm_status ndm_file_write(const char *path, const void *data, size_t bytes)
{
    FILE *file = ndm_file_open_to_write(path, true);
    bool written = file && fwrite(data, 1, bytes, file) == bytes;
    int error = errno;

    if (file && fclose(file) != 0 && written) {
        written = false;
        error = errno;
    }
    if (!written)
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", path, strerror(error));
    return NDM_OK;
}
