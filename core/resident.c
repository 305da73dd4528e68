/* SPDX-License-Identifier: Apache-2.0 */
/* The proportional set size of a process, from /proc. */
#include "core/resident.h"

#include <inttypes.h>
#include <stdio.h>

int64_t ndm_resident_bytes(int64_t pid)
{
    char path[64], line[256];
    long long kib = -1;

    if (pid == 0)
        snprintf(path, sizeof path, "/proc/self/smaps_rollup");
    else
        snprintf(path, sizeof path, "/proc/%" PRId64 "/smaps_rollup", pid);
    FILE *file = fopen(path, "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL)
        if (sscanf(line, "Pss: %lld kB", &kib) == 1)
            break;
    if (file != NULL)
        fclose(file);
    return kib < 0 ? -1 : (int64_t)kib * 1024;
}
