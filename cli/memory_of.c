/* SPDX-License-Identifier: Apache-2.0 */
/* Processes and their resident memory, from /proc. */
#include "cli/memory_of.h"

#include <ctype.h>
#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/resident.h"

enum { MAX_PROCESSES = 4096, MAX_RANKS = 512 };

/* Parent of a process, -1 if it is gone. The name in brackets may hold anything. */
static int64_t parent_of(int64_t pid)
{
    char path[64], text[512];
    long long parent = -1;

    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')');
    if (name_end == NULL || sscanf(name_end + 1, " %*c %lld", &parent) != 1)
        return -1;
    return parent;
}

typedef struct process {
    int64_t pid, parent;
} process;

static int64_t list_processes(process *all)
{
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int64_t n = 0;

    while (proc != NULL && n < MAX_PROCESSES && (entry = readdir(proc)) != NULL) {
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        int64_t pid = strtoll(entry->d_name, NULL, 10);
        all[n++] = (process){pid, parent_of(pid)};
    }
    if (proc != NULL)
        closedir(proc);
    return n;
}

int64_t ndm_memory_descendants(int64_t pid, int64_t *pids, int64_t most)
{
    process *all = malloc(MAX_PROCESSES * sizeof *all);
    int64_t n = all != NULL ? list_processes(all) : 0, found = 0;

    for (int64_t at = -1; at < found; at++) /* breadth first: pids is the queue */
        for (int64_t i = 0; i < n && found < most; i++)
            if (all[i].parent == (at < 0 ? pid : pids[at]))
                pids[found++] = all[i].pid;
    free(all);
    return found;
}

static bool runs_this_program(int64_t pid)
{
    char path[64], own[4096], other[4096];

    snprintf(path, sizeof path, "/proc/%" PRId64 "/exe", pid);
    ssize_t n = readlink("/proc/self/exe", own, sizeof own);
    ssize_t m = readlink(path, other, sizeof other);
    return n > 0 && n == m && memcmp(own, other, (size_t)n) == 0;
}

int64_t ndm_memory_tree_pss_bytes(int64_t pid, int64_t *n)
{
    int64_t pids[MAX_RANKS], found = ndm_memory_descendants(pid, pids, MAX_RANKS - 1), sum = 0;

    pids[found++] = pid;
    *n = 0;
    for (int64_t i = 0; i < found; i++) {
        if (!runs_this_program(pids[i]))
            continue;
        int64_t bytes = ndm_resident_bytes(pids[i]);
        sum += bytes > 0 ? bytes : 0;
        *n += bytes > 0;
    }
    return sum;
}
