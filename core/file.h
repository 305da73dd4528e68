/* SPDX-License-Identifier: Apache-2.0 */
/* Files: whole reads, writes that appear complete or not at all, folders. Failures are NDM_ERR_IO
 * with path and reason. */
#ifndef NDM_CORE_FILE_H
#define NDM_CORE_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <core/text.h>
#include <ndmesh/status.h>

bool ndm_file_exists(const char *path); /* anything of that name */
bool ndm_file_is_dir(const char *path);
NDM_MUST_USE ndm_status ndm_file_size(const char *path, int64_t *bytes);

/* Whole contents into *out, which was all-zero; finish it with ndm_buffer_finish(). Folders are
 * refused, what has more than 512 MiB, and pipes from which nothing comes for 10 seconds. */
NDM_MUST_USE ndm_status ndm_file_read(const char *path, ndm_buffer *out);
/* The same with another patience. */
NDM_MUST_USE ndm_status ndm_file_read_within(const char *path, int wait_ms, ndm_buffer *out);

/* Folder and its parents; fine if there already. */
NDM_MUST_USE ndm_status ndm_file_make_dirs(const char *path);

/* The same, and files can be made in it. */
NDM_MUST_USE ndm_status ndm_file_make_writable(const char *path);

/* Makes the entries of a folder durable. */
NDM_MUST_USE ndm_status ndm_file_sync_dir(const char *path);

/* The name at the end of a path's links, which a regular file has or could get: it may be replaced
 * there. NULL where there is something else, a pipe or a device (or a process's descriptor), which
 * has to be written in place. Free it. */
NDM_MUST_USE ndm_status ndm_file_target(const char *path, char **target);

/* Path that is being written under a temporary name next to its target, or in place. */
typedef struct ndm_atomic_file {
    FILE *stream; /* write here */
    char *path;
    char *target;    /* NULL: in place */
    char *temporary; /* likewise */
} ndm_atomic_file;

/* Either commit (fsync, rename, fsync of the folder) or abort (remove) ends what begin started;
 * both free. Links stay, and so do pipes and devices: these get the bytes as they come. */
NDM_MUST_USE ndm_status ndm_atomic_file_begin(const char *path, ndm_atomic_file *file);
NDM_MUST_USE ndm_status ndm_atomic_file_commit(ndm_atomic_file *file);
void ndm_atomic_file_abort(ndm_atomic_file *file);

NDM_MUST_USE ndm_status ndm_file_write_atomic(const char *path, const void *data, size_t bytes);

/* All bytes to a descriptor. Of one that does not block, a pipe that is full is waited for, for 10
 * s; a reader that has gone is an error and no signal. */
NDM_MUST_USE ndm_status ndm_file_put(int fd, const char *path, const void *data, size_t bytes);

/* strerror(), but of pipes it says who is missing. */
const char *ndm_file_write_error(int error);

/* fopen(), but a pipe that nobody reads is an error (ENXIO) and not waited for, and one that is
 * full only for 10 s (ETIMEDOUT). anew: made if it is not there, else emptied; otherwise it has to
 * be there. NULL with errno set on failure. */
FILE *ndm_file_open_to_write(const char *path, bool anew);

/* For files that do not outlive the process: neither atomic nor durable. */
NDM_MUST_USE ndm_status ndm_file_write(const char *path, const void *data, size_t bytes);

#endif
