/* SPDX-License-Identifier: Apache-2.0 */
/* Writing files: whole ones that appear at once under their name, and what has no such moment,
 * pipes and devices, in place and within a deadline. */
#include <core/file.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- pipes and devices --------------------------------------------------------------------- */

enum { WRITE_WAIT_MS = 10 * 1000 };

/* write(), but a pipe whose reader has gone is an error and not the signal that ends the process.
 */
static ssize_t write_quietly(int fd, const char *bytes, size_t n)
{
    const struct timespec at_once = {0};
    sigset_t broken, before, pending;

    sigemptyset(&broken);
    sigaddset(&broken, SIGPIPE);
    sigpending(&pending);
    pthread_sigmask(SIG_BLOCK, &broken, &before);
    ssize_t done = write(fd, bytes, n);
    int error = errno;
    if (done < 0 && error == EPIPE && !sigismember(&pending, SIGPIPE))
        while (sigtimedwait(&broken, NULL, &at_once) < 0 && errno == EINTR)
            ;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return done;
}

/* What is left of n after an error, with errno: ETIMEDOUT of a pipe that is full for too long. */
static size_t put_all(int fd, const char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t done = write_quietly(fd, bytes, n);
        struct pollfd p = {.fd = fd, .events = POLLOUT};

        if (done > 0) {
            bytes += done;
            n -= (size_t)done;
        } else if (done == 0) {
            errno = EIO;
            return n;
        } else if (errno == EAGAIN && poll(&p, 1, WRITE_WAIT_MS) == 0) {
            errno = ETIMEDOUT;
            return n;
        } else if (errno != EAGAIN && errno != EINTR) {
            return n;
        }
    }
    return 0;
}

const char *ndm_file_write_error(int error)
{
    if (error == ENXIO || error == EPIPE)
        return "nobody reads this pipe";
    if (error == ETIMEDOUT)
        return "nothing was read from this pipe for 10 s";
    return strerror(error);
}

ndm_status ndm_file_put(int fd, const char *path, const void *data, size_t bytes)
{
    size_t left = put_all(fd, data, bytes);

    if (left > 0)
        NDM_FAIL(NDM_ERR_IO, "cannot write %s, the last %zu bytes of %zu: %s", path, left, bytes,
                 ndm_file_write_error(errno));
    return NDM_OK;
}

/* A stream's way to a descriptor that may have to be waited for. */
typedef struct outlet {
    int fd;
    int error; /* the first one: nothing is tried after it */
} outlet;

static ssize_t write_outlet(void *cookie, const char *bytes, size_t n)
{
    outlet *o = cookie;

    if (!o->error && put_all(o->fd, bytes, n) > 0)
        o->error = errno;
    errno = o->error;
    return o->error ? 0 : (ssize_t)n;
}

static int close_outlet(void *cookie)
{
    outlet *o = cookie;
    int failed = close(o->fd);

    free(o);
    return failed;
}

static FILE *open_outlet(int fd)
{
    const cookie_io_functions_t functions = {.write = write_outlet, .close = close_outlet};
    outlet *o = malloc(sizeof *o);
    FILE *file = NULL;

    if (o) {
        *o = (outlet){.fd = fd};
        file = fopencookie(o, "wb", functions);
    }
    if (!file)
        free(o);
    return file;
}

FILE *ndm_file_open_to_write(const char *path, bool anew)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | (anew ? O_CREAT | O_TRUNC : 0), 0666);
    if (fd < 0)
        return NULL;
    FILE *file = lseek(fd, 0, SEEK_CUR) < 0 ? open_outlet(fd) : fdopen(fd, "wb");
    if (!file)
        close(fd);
    return file;
}

/* ---- the file that a name stands for ------------------------------------------------------- */

enum { LINKS_MAX = 40 };

/* A link of /proc is a descriptor of a process, whatever name it shows. */
static bool is_descriptor(const struct stat *link)
{
    struct stat proc;

    return stat("/proc", &proc) == 0 && proc.st_dev == link->st_dev;
}

/* What a link says, seen from the link's folder. Frees `link`; NULL with errno set on failure. */
static char *follow(char *link, int links)
{
    char to[PATH_MAX], *next = NULL;
    ssize_t n = links < LINKS_MAX ? readlink(link, to, sizeof to - 1) : -1;
    const char *slash = strrchr(link, '/');
    int error = links < LINKS_MAX ? errno : ELOOP;

    to[n > 0 ? n : 0] = '\0';
    if (n > 0)
        next = to[0] == '/' || !slash
                   ? ndm_text_duplicate(to)
                   : ndm_text_printf("%.*s%s", (int)(slash + 1 - link), link, to);
    free(link);
    errno = n > 0 ? ENOMEM : error;
    return next;
}

ndm_status ndm_file_target(const char *path, char **target)
{
    struct stat s;
    bool in_place = stat(path, &s) == 0 && !S_ISREG(s.st_mode);
    char *at = ndm_text_duplicate(path);
    int links = 0;

    while (at && !in_place && lstat(at, &s) == 0 && S_ISLNK(s.st_mode)) {
        in_place = is_descriptor(&s);
        if (!in_place)
            at = follow(at, links++);
    }
    if (!at)
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", path, strerror(errno));
    if (in_place)
        free(at);
    *target = in_place ? NULL : at;
    return NDM_OK;
}

/* ---- files that appear whole --------------------------------------------------------------- */

static void release(ndm_atomic_file *file)
{
    if (file->stream)
        fclose(file->stream);
    free(file->path);
    free(file->target);
    free(file->temporary);
    *file = (ndm_atomic_file){0};
}

/* The file that is replaced leaves its permissions to the new one. */
static void take_mode(const ndm_atomic_file *f)
{
    struct stat s;

    if (stat(f->target, &s) == 0)
        (void)!fchmod(fileno(f->stream), s.st_mode & 07777);
}

static ndm_status open_stream(ndm_atomic_file *f)
{
    if (f->target && !(f->temporary = ndm_text_printf("%s.tmp-%ld", f->target, (long)getpid())))
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for the path %s", f->path);
    f->stream = f->target ? fopen(f->temporary, "wbe") : ndm_file_open_to_write(f->path, true);
    if (!f->stream)
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", f->path, ndm_file_write_error(errno));
    if (f->target)
        take_mode(f);
    return NDM_OK;
}

ndm_status ndm_atomic_file_begin(const char *path, ndm_atomic_file *file)
{
    ndm_atomic_file f = {.path = ndm_text_duplicate(path)};
    if (!f.path)
        NDM_FAIL(NDM_ERR_MEMORY, "out of memory for the path %s", path);
    ndm_status status = ndm_file_target(path, &f.target);
    if (status == NDM_OK)
        status = open_stream(&f);
    if (status != NDM_OK)
        release(&f);
    else
        *file = f;
    return status;
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

/* What is written in place may be no file that could be synced. */
static ndm_status finish_stream(ndm_atomic_file *file)
{
    int failed = fflush(file->stream) != 0 || ferror(file->stream);
    failed = failed || (file->temporary && fsync(fileno(file->stream)) != 0);
    int error = errno;
    if (fclose(file->stream) != 0 && !failed) {
        failed = 1;
        error = errno;
    }
    file->stream = NULL;
    if (!failed && file->temporary && rename(file->temporary, file->target) != 0) {
        failed = 1;
        error = errno;
    }
    if (failed)
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", file->path, ndm_file_write_error(error));
    return NDM_OK;
}

ndm_status ndm_atomic_file_commit(ndm_atomic_file *file)
{
    ndm_status status = finish_stream(file);
    if (status != NDM_OK && file->temporary)
        unlink(file->temporary);
    else if (status == NDM_OK && file->target)
        status = sync_parent(file->target);
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
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", path, ndm_file_write_error(error));
    }
    return ndm_atomic_file_commit(&file);
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
        NDM_FAIL(NDM_ERR_IO, "cannot write %s: %s", path, ndm_file_write_error(error));
    return NDM_OK;
}
