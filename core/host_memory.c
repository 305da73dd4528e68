/* SPDX-License-Identifier: Apache-2.0 */
/* Limits on memory, from the machine and from control groups, of which each holds for all below. */
#include <core/host_memory.h>

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* A file with one number; anything else, "max" too, is no limit. */
static int64_t read_limit(const char *mount, const char *hierarchy, const char *group,
                          const char *name)
{
    char path[PATH_MAX];
    int64_t bytes = 0;
    int n = snprintf(path, sizeof path, "%s%s%s/%s", mount, hierarchy, group, name);
    FILE *file = n > 0 && n < (int)sizeof path ? fopen(path, "re") : NULL;

    if (!file)
        return INT64_MAX;
    if (fscanf(file, "%" SCNd64, &bytes) != 1 || bytes <= 0)
        bytes = INT64_MAX;
    fclose(file);
    return bytes;
}

/* The smallest limit of a group and those that it is in. */
static int64_t limit_of(const char *mount, const char *hierarchy, char *group, const char *name)
{
    int64_t least = read_limit(mount, hierarchy, "", name);

    for (char *slash; (slash = strrchr(group, '/')) != NULL; *slash = '\0') {
        int64_t bytes = read_limit(mount, hierarchy, group, name);
        least = bytes < least ? bytes : least;
    }
    return least;
}

/* A line is "0::GROUP", or "N:CONTROLLER,...:GROUP" of the first version. */
static int64_t limit_of_line(const char *mount, char *line)
{
    char *controllers = strchr(line, ':'), *group;

    line[strcspn(line, "\n")] = '\0';
    if (!controllers || !(group = strchr(controllers + 1, ':')))
        return INT64_MAX;
    *controllers++ = *group++ = '\0';
    if (controllers[0] == '\0')
        return limit_of(mount, "", group, "memory.max");
    for (char *rest, *c = strtok_r(controllers, ",", &rest); c; c = strtok_r(NULL, ",", &rest))
        if (strcmp(c, "memory") == 0)
            return limit_of(mount, "/memory", group, "memory.limit_in_bytes");
    return INT64_MAX;
}

int64_t ndm_host_memory_of(const char *proc_cgroup, const char *mount, int64_t machine_bytes)
{
    int64_t least = machine_bytes > 0 ? machine_bytes : INT64_MAX;
    FILE *file = fopen(proc_cgroup, "re");
    char line[PATH_MAX];

    while (file && fgets(line, sizeof line, file)) {
        int64_t bytes = limit_of_line(mount, line);
        least = bytes < least ? bytes : least;
    }
    if (file)
        fclose(file);
    return least == INT64_MAX ? 0 : least;
}

int64_t ndm_host_memory_bytes(void)
{
    return ndm_host_memory_of("/proc/self/cgroup", "/sys/fs/cgroup",
                              (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE));
}
