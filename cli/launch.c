/* SPDX-License-Identifier: Apache-2.0 */
/* `--ranks N`: the process becomes mpiexec, which starts N of this program. */
#include "cli/launch.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* The flag and its value, which the ranks must not see again. */
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

    NDM_TRY(ndm_cli_self(self, sizeof self));
    const char **command = calloc((size_t)argc + WORDS, sizeof *command);
    if (command == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    snprintf(count, sizeof count, "%" PRId64, ranks);
    int n = 1;
    command[n++] = "-n";
    command[n++] = count;
    command[n++] = self;
    for (; *verb != NULL && n < WORDS - 1; verb++)
        command[n++] = *verb;
    add_arguments(command, n, argc, argv);
    unsetenv("NDM_RANKS");
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
