/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh train`: reads the options, starts mpiexec if asked to, and trains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/launch.h"
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

/* ---- the verb -------------------------------------------------------------------------------- */

static ndm_status train(int argc, const char *const *argv, ndm_run_outcome *outcome)
{
    static const char *const verb[] = {"train", NULL};
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
        status = ndm_cli_exec_ranks(ndm_option_int64(o, "ranks"), verb, argc, argv);
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

    if (status == NDM_ERR_INTERRUPTED)
        return ndm_cli_interrupted(outcome.signal);
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_train = {&ndm_train_option_table, run, false};
