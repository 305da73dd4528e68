/* SPDX-License-Identifier: Apache-2.0 */
/* The lock is flock()'s, on a file of the folder: it ends with the process that holds it, however
 * that ends. The file says who, for others' messages. */
#include "train/checkpoint_lock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"
#include "core/text.h"

enum { HOLDER_BYTES = 128, WAIT_US = 50 * 1000, WAITS = 60 };

typedef enum outcome { TAKEN, BUSY, GONE, NONE } outcome;

static void holder_of_this_process(char text[HOLDER_BYTES])
{
    char host[64] = "";

    gethostname(host, sizeof host - 1);
    snprintf(text, HOLDER_BYTES, "process %ld on %s", (long)getpid(), host);
}

static void write_holder(int fd)
{
    char text[HOLDER_BYTES];

    holder_of_this_process(text);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, strlen(text), 0) < 0)
        return; /* a lock without a name is a lock */
}

static void read_holder(const char *path, char text[HOLDER_BYTES])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    ssize_t got = fd >= 0 ? read(fd, text, HOLDER_BYTES - 1) : 0;

    text[got > 0 ? got : 0] = '\0';
    if (fd >= 0)
        close(fd);
}

/* What else has the name is not ours to write to: a link leads to somebody's file. */
static int open_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    struct stat st;

    if (fd < 0 || (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)))
        return fd;
    close(fd);
    return -1;
}

/* Who held the lock before removes the file: what was locked may no longer be the one that others
 * find. */
static bool is_at(int fd, const char *path)
{
    struct stat mine, found;

    return fstat(fd, &mine) == 0 && stat(path, &found) == 0 && mine.st_dev == found.st_dev &&
           mine.st_ino == found.st_ino;
}

/* Processes of two containers may have one number and one host name: the file that a saver of this
 * process has locked is open here. */
static bool is_open_here(const char *path)
{
    DIR *open_files = opendir("/proc/self/fd");
    bool found = !open_files; /* nobody can say */
    struct dirent *e;

    while (!found && (e = readdir(open_files)) != NULL)
        found = e->d_name[0] != '.' && is_at(atoi(e->d_name), path);
    if (open_files)
        closedir(open_files);
    return found;
}

static outcome try_to_take(const char *path, int *fd)
{
    outcome result = NONE;

    *fd = open_file(path);
    if (*fd < 0)
        return NONE;
    if (flock(*fd, LOCK_EX | LOCK_NB) == 0)
        result = is_at(*fd, path) ? TAKEN : GONE;
    else if (errno == EWOULDBLOCK)
        result = BUSY;
    else
        unlink(path); /* there are no locks here: nobody holds it */
    if (result != TAKEN)
        close(*fd);
    return result;
}

static ndm_status take(const char *folder, ndm_checkpoint_lock *lock)
{
    char holder[HOLDER_BYTES] = "", mine[HOLDER_BYTES];
    outcome result = GONE;

    holder_of_this_process(mine);
    for (int i = 0; i < WAITS && (result == BUSY || result == GONE); i++) {
        if (i > 0)
            usleep(WAIT_US);
        result = try_to_take(lock->path, &lock->fd);
        read_holder(lock->path, holder);
        lock->shared = result == BUSY && strcmp(holder, mine) == 0 && is_open_here(lock->path);
        if (lock->shared)
            result = NONE;
    }
    if (result == BUSY || result == GONE)
        NDM_FAIL(NDM_ERR_IO, "%s: another run writes its checkpoints there: %s", folder,
                 holder[0] ? holder : "it has not said which");
    if (result == TAKEN) {
        write_holder(lock->fd);
        return NDM_OK;
    }
    free(lock->path);
    lock->path = NULL;
    return NDM_OK;
}

ndm_status ndm_checkpoint_lock_take(const char *folder, ndm_checkpoint_lock *lock)
{
    *lock = (ndm_checkpoint_lock){0};
    NDM_TRY(ndm_file_make_dirs(folder));
    lock->path = ndm_text_printf("%s/.lock", folder);
    if (!lock->path)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a path", folder);
    ndm_status status = take(folder, lock);
    if (status != NDM_OK) {
        free(lock->path);
        lock->path = NULL;
    }
    return status;
}

ndm_status ndm_checkpoint_lock_keep(const char *folder, ndm_checkpoint_lock *lock)
{
    if (lock->path && is_at(lock->fd, lock->path))
        return NDM_OK;
    ndm_checkpoint_lock_give(lock);
    return ndm_checkpoint_lock_take(folder, lock);
}

/* Where the folder was removed, another run may have made it anew: its file stays. */
void ndm_checkpoint_lock_give(ndm_checkpoint_lock *lock)
{
    if (!lock->path)
        return;
    if (is_at(lock->fd, lock->path))
        unlink(lock->path);
    flock(lock->fd, LOCK_UN); /* a child may have the file open, too */
    close(lock->fd);
    free(lock->path);
    *lock = (ndm_checkpoint_lock){0};
}
