/* SPDX-License-Identifier: Apache-2.0 */
/* Shared memory without names: a memfd, which others open through /proc. It is bounded by no
 * /dev/shm, and goes away with the last process, however that ends. */
#include "collectives/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

ndm_shm_handle ndm_shm_create(int64_t bytes)
{
    ndm_shm_handle handle = {.pid = getpid(), .fd = memfd_create("ndmesh", MFD_CLOEXEC)};

    if (handle.fd < 0) {
        handle.failed = errno;
    } else if (ftruncate((int)handle.fd, bytes) != 0) {
        handle.failed = errno;
        close((int)handle.fd);
    }
    return handle;
}

static int open_handle(const ndm_shm_handle *handle)
{
    char path[64];

    if (handle->pid == getpid())
        return dup((int)handle->fd);
    snprintf(path, sizeof path, "/proc/%lld/fd/%lld", (long long)handle->pid,
             (long long)handle->fd);
    return open(path, O_RDWR | O_CLOEXEC);
}

ndm_status ndm_shm_attach(const ndm_shm_handle *handle, int64_t bytes, ndm_shm_map *map)
{
    void *base = MAP_FAILED;
    int fd;

    if (handle->failed)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "comm: process %lld cannot make %lld bytes of shared memory: "
                 "%s",
                 (long long)handle->pid, (long long)bytes, strerror((int)handle->failed));
    fd = open_handle(handle);
    if (fd >= 0)
        base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
    if (base == MAP_FAILED) {
        int reason = errno;
        if (fd >= 0)
            close(fd);
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "comm: %lld bytes of shared memory of process %lld cannot be mapped: %s",
                 (long long)bytes, (long long)handle->pid, strerror(reason));
    }
    close(fd);
    *map = (ndm_shm_map){base, bytes};
    return NDM_OK;
}

void ndm_shm_close_handle(const ndm_shm_handle *handle)
{
    if (!handle->failed && handle->pid == getpid())
        close((int)handle->fd);
}

void ndm_shm_detach(ndm_shm_map *map)
{
    if (map->base)
        munmap(map->base, (size_t)map->bytes);
    *map = (ndm_shm_map){0};
}
