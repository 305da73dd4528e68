/* SPDX-License-Identifier: Apache-2.0 */
/* `--ranks N`: the process becomes mpiexec, which starts N of this program. */
#include "cli/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/cli.h"
#include "core/file.h"

ndm_status ndm_cli_self(char *path, size_t path_bytes)
{
    ssize_t length = readlink("/proc/self/exe", path, path_bytes - 1);

    if (length < 0)
        NDM_FAIL(NDM_ERR_IO, "cannot find the path of this program: %s", strerror(errno));
    path[length] = '\0';
    return NDM_OK;
}

const char *const *ndm_cli_launchers(void)
{
    static const char *const names[] = {"mpiexec.mpich", "mpiexec.hydra", NULL};

    return names;
}

bool ndm_cli_starts_ranks(int64_t ranks)
{
    return ranks > 1 && ndm_cli_launcher_rank() < 0;
}

ndm_status ndm_cli_check_ranks(int64_t ranks)
{
    enum { RANKS_PER_CORE = 128 };
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (cores > 0 && ranks > cores * RANKS_PER_CORE)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "ranks: %" PRId64 " would be started on this machine's %ld core(s); at most %d a "
                 "core are. Runs on other machines are planned by 'ndmesh plan', and started by "
                 "mpiexec with their names",
                 ranks, cores, RANKS_PER_CORE);
    return NDM_OK;
}

/* Others open it by way of this process, which keeps its number when it becomes the launcher. */
static ndm_status keep_text(const ndm_buffer *text, const char *path, char *kept, size_t kept_bytes)
{
    int fd = memfd_create("ndmesh", 0);

    if (fd < 0 || write(fd, text->data, text->length) != (ssize_t)text->length)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot keep its %zu bytes for the ranks: %s", path, text->length,
                 strerror(errno));
    snprintf(kept, kept_bytes, "/proc/%ld/fd/%d", (long)getpid(), fd);
    return NDM_OK;
}

ndm_status ndm_cli_read_once(const char *path, ndm_buffer *text, char *kept, size_t kept_bytes)
{
    struct stat s;

    kept[0] = '\0';
    NDM_TRY(ndm_file_read(path, text));
    if (ndm_cli_launcher_rank() >= 0 || stat(path, &s) != 0 || S_ISREG(s.st_mode))
        return NDM_OK;
    return keep_text(text, path, kept, kept_bytes);
}

/* The flag and its value, which stand in front once more. */
static int skip_ranks(const char *const *argv, int i, int argc)
{
    if (strcmp(argv[i], "--ranks") == 0)
        return i + 1 < argc ? 2 : 1;
    return strncmp(argv[i], "--ranks=", 8) == 0 ? 1 : 0;
}

static void add_arguments(const char **command, int n, int argc, const char *const *argv)
{
    for (int i = 0; i < argc;) {
        int skip = skip_ranks(argv, i, argc);
        if (skip == 0)
            command[n++] = argv[i++];
        i += skip;
    }
}

ndm_status ndm_cli_exec_ranks(int64_t ranks, const char *const *verb, int argc,
                              const char *const *argv)
{
    enum { WORDS = 12 };
    char count[24], self[4096];

    NDM_TRY(ndm_cli_check_ranks(ranks));
    NDM_TRY(ndm_cli_self(self, sizeof self));
    const char **command = calloc((size_t)argc + WORDS, sizeof *command);
    if (command == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    snprintf(count, sizeof count, "%" PRId64, ranks);
    int n = 1;
    command[n++] = "-n";
    command[n++] = count;
    command[n++] = self;
    for (; *verb != NULL && n < WORDS - 3; verb++)
        command[n++] = *verb;
    command[n++] = "--ranks"; /* a file may say another number */
    command[n++] = count;
    add_arguments(command, n, argc, argv);
    for (const char *const *name = ndm_cli_launchers(); *name != NULL; name++) {
        command[0] = *name;
        execvp(*name, (char *const *)command);
    }
    free(command);
    NDM_FAIL(NDM_ERR_COMM,
             "cannot start %" PRId64
             " ranks: neither mpiexec.mpich nor mpiexec.hydra is there (%s)",
             ranks, strerror(errno));
}
