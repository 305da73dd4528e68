/* SPDX-License-Identifier: Apache-2.0 */
/* A source for readers of many short runs, such as the columns of a matrix that tp cuts: what lies
 * between them is read along, a window at a time, instead of a system call for each. */
#include "model/safetensors_window.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { WINDOW_BYTES = 4 << 20, SHORT_BYTES = 64 << 10 };

void ndm_window_finish(ndm_window *w)
{
    free(w->data);
    *w = (ndm_window){0};
}

/* Bytes from `offset` on, as many as the window holds and the file has. */
static ndm_status fill(ndm_window *w, int fd, const char *path, int64_t offset)
{
    struct stat st;
    int64_t n = WINDOW_BYTES;

    if (!w->data)
        w->data = malloc(WINDOW_BYTES);
    if (!w->data)
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory for a window of %d bytes", path, WINDOW_BYTES);
    if (fstat(fd, &st) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: %s", path, strerror(errno));
    n = st.st_size - offset < n ? st.st_size - offset : n;
    w->begin = w->end = 0; /* until it is there */
    NDM_TRY(ndm_safetensors_pread(fd, path, w->data, n, offset));
    w->fd = fd, w->begin = offset, w->end = offset + n;
    return NDM_OK;
}

ndm_status ndm_window_read(void *user, int fd, const char *path, void *dst, int64_t n,
                           int64_t offset)
{
    ndm_window *w = user;

    if (n > SHORT_BYTES)
        return ndm_safetensors_pread(fd, path, dst, n, offset);
    if (fd != w->fd || offset < w->begin || offset + n > w->end)
        NDM_TRY(fill(w, fd, path, offset));
    if (offset + n > w->end)
        NDM_FAIL(NDM_ERR_FORMAT, "%s: ends within %lld bytes at %lld", path, (long long)n,
                 (long long)offset);
    memcpy(dst, w->data + (offset - w->begin), (size_t)n);
    return NDM_OK;
}
