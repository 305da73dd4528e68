/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh train`: reads the options, starts mpiexec if asked to, and trains. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "train/options.h"
#include "train/run.h"

/* Files may come before or between flags: all positional arguments are YAML files, later ones win.
 */
static ndm_status read_options(int argc, const char *const *argv, ndm_options **options)
{
    const char **files = calloc((size_t)argc + 1, sizeof *files);
    int n_files = 0;
    ndm_options *o = NULL;
    ndm_status status;

    if (!files)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    NDM_TRY_OR(status, ndm_options_create(&ndm_train_option_table, &o), done);
    ndm_options_set_silent(o, ndm_cli_launcher_rank() > 0);
    NDM_TRY_OR(status, ndm_options_load_args(o, argc, argv, files, &n_files), done);
    for (int i = 0; i < n_files; i++)
        NDM_TRY_OR(status, ndm_options_load_yaml(o, files[i]), done);
    status = ndm_options_load_env(o);
done:
    free(files);
    if (status != NDM_OK)
        ndm_options_destroy(o);
    else
        *options = o;
    return status;
}

/* ---- --ranks: become mpiexec
 * ------------------------------------------------------------------------- */

/* The flag and its value, which the ranks must not see again. */
static int skip_ranks(const char *const *argv, int i, int argc)
{
    if (strcmp(argv[i], "--ranks") == 0)
        return i + 1 < argc ? 2 : 1;
    return strncmp(argv[i], "--ranks=", 8) == 0 ? 1 : 0;
}

static ndm_status exec_mpiexec(int64_t ranks, int argc, const char *const *argv)
{
    static const char *const launchers[] = {"mpiexec.mpich",
                                            "mpiexec.hydra"}; /* never another MPI's mpiexec */
    const char **command = calloc((size_t)argc + 8, sizeof *command);
    char count[24], self[4096];
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    int n = 0;

    if (!command || length < 0) {
        free(command);
        NDM_FAIL(NDM_ERR_MEMORY, "cannot start %lld ranks: %s", (long long)ranks, strerror(errno));
    }
    self[length] = 0;
    snprintf(count, sizeof count, "%lld", (long long)ranks);
    n = 1;
    command[n++] = "-n";
    command[n++] = count;
    command[n++] = self;
    command[n++] = "train";
    for (int i = 0; i < argc;) {
        int skip = skip_ranks(argv, i, argc);
        if (skip == 0)
            command[n++] = argv[i++];
        i += skip;
    }
    unsetenv("NDM_RANKS");
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        command[0] = launchers[i];
        execvp(launchers[i], (char *const *)command);
    }
    free(command);
    NDM_FAIL(NDM_ERR_COMM,
             "cannot start %lld ranks: neither mpiexec.mpich nor mpiexec.hydra is there (%s)",
             (long long)ranks, strerror(errno));
}

/* ---- the verb
 * ------------------------------------------------------------------------------------------ */

static ndm_status train(int argc, const char *const *argv, ndm_run_outcome *outcome)
{
    ndm_options *o = NULL;
    ndm_status status;

    NDM_TRY(read_options(argc, argv, &o));
    if (ndm_option_bool(o, "print-config")) {
        if (ndm_cli_launcher_rank() <= 0)
            ndm_options_print_config(o, stdout);
        ndm_options_destroy(o);
        return NDM_OK;
    }
    NDM_TRY_OR(status, ndm_options_check_required(o), done);
    if (ndm_option_int64(o, "ranks") > 0 && ndm_cli_launcher_rank() < 0)
        status = exec_mpiexec(ndm_option_int64(o, "ranks"), argc, argv);
    else
        status = ndm_train_run(o, stdout, outcome);
done:
    ndm_options_destroy(o);
    return status;
}

static int run(int argc, const char *const *argv)
{
    ndm_run_outcome outcome = {0};
    ndm_status status = train(argc, argv, &outcome);

    if (status == NDM_ERR_INTERRUPTED) {
        if (outcome.rank == 0)
            ndm_cli_report(status);
        return 128 + outcome.signal;
    }
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_train = {&ndm_train_option_table, run};
