/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into ndmesh: a file system that claims to have room and cannot reserve any, so that
 * a full one shows only when it is written to. */
#include <errno.h>
#include <fcntl.h>
#include <sys/statvfs.h>
#include <sys/types.h>

int statvfs(const char *path, struct statvfs *s)
{
    (void)path;
    *s = (struct statvfs){
        .f_bsize = 4096, .f_frsize = 4096, .f_blocks = 1u << 30, .f_bavail = 1u << 30};
    return 0;
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    (void)fd, (void)mode, (void)offset, (void)bytes;
    errno = EOPNOTSUPP;
    return -1;
}
