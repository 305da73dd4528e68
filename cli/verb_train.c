/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh train`: reads the options, starts mpiexec if asked to, and trains. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/launch.h"
#include "train/auto_mesh.h"
#include "train/options.h"
#include "train/run.h"

/* ---- options --------------------------------------------------------------------------------- */

enum { KEPT_BYTES = 64 };

/* The arguments with the paths under which the ranks find what was read. */
typedef struct arguments {
    int argc;
    const char **argv;        /* [argc] */
    char (*kept)[KEPT_BYTES]; /* [argc] */
    const char **files;       /* [n_files], some of argv */
    int n_files;
} arguments;

static void finish_arguments(arguments *a)
{
    free(a->argv);
    free(a->kept);
    free(a->files);
}

static ndm_status init_arguments(arguments *a, int argc, const char *const *argv)
{
    size_t n = (size_t)argc + 1;

    *a = (arguments){.argc = argc,
                     .argv = calloc(n, sizeof *a->argv),
                     .kept = calloc(n, sizeof *a->kept),
                     .files = calloc(n, sizeof *a->files)};
    if (!a->argv || !a->kept || !a->files) {
        finish_arguments(a);
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    }
    memcpy(a->argv, argv, (size_t)argc * sizeof *argv);
    return NDM_OK;
}

static ndm_status load_file(ndm_options *o, arguments *a, int i)
{
    ndm_buffer text = {0};
    ndm_status status = ndm_cli_read_once(a->files[i], &text, a->kept[i], KEPT_BYTES);

    if (status == NDM_OK)
        status = ndm_options_load_yaml_text(o, text.data, text.length, a->files[i]);
    ndm_buffer_finish(&text);
    for (int j = 0; j < a->argc && a->kept[i][0]; j++)
        if (a->argv[j] == a->files[i])
            a->argv[j] = a->kept[i];
    return status;
}

/* Whether the ranks that it starts warn of what they read. */
static bool ranks_warn(const ndm_options *o)
{
    return ndm_cli_starts_ranks(ndm_option_int64(o, "ranks")) &&
           !ndm_option_bool(o, "print-config");
}

/* Files may come before or between flags: all positional arguments are YAML files, later ones win.
 */
static ndm_status read_options(arguments *a, ndm_options **options)
{
    ndm_options *o = NULL;
    ndm_status status;

    NDM_TRY(ndm_options_create(&ndm_train_option_table, &o));
    NDM_TRY_OR(status, ndm_options_load_args(o, a->argc, a->argv, a->files, &a->n_files), failed);
    NDM_TRY_OR(status, ndm_options_load_env(o), failed);
    ndm_options_set_silent(o, ndm_cli_launcher_rank() > 0 || ranks_warn(o));
    for (int i = 0; i < a->n_files; i++)
        NDM_TRY_OR(status, load_file(o, a, i), failed);
    *options = o;
    return NDM_OK;
failed:
    ndm_options_destroy(o);
    return status;
}

static ndm_status print_config(const ndm_options *o)
{
    ndm_json json;

    if (!ndm_option_bool(o, "json")) {
        ndm_options_print_config(o, stdout);
        return NDM_OK;
    }
    ndm_json_init_file(&json, stdout, true);
    ndm_options_write_config(o, &json);
    return ndm_json_finish(&json);
}

/* ---- the verb -------------------------------------------------------------------------------- */

static ndm_status start(const ndm_options *o, const arguments *a, ndm_run_outcome *outcome)
{
    static const char *const verb[] = {"train", NULL};
    int64_t ranks = ndm_option_int64(o, "ranks");

    if (ndm_option_bool(o, "print-config"))
        return ndm_cli_launcher_rank() <= 0 ? print_config(o) : NDM_OK;
    NDM_TRY(ndm_options_check(o));
    NDM_TRY(ndm_auto_mesh_refuse_idle(o, "cluster"));
    if (ndm_cli_starts_ranks(ranks))
        return ndm_cli_exec_ranks(ranks, verb, a->argc, a->argv);
    ndm_cli_watch_start(ndm_option_double(o, "timeout"));
    return ndm_train_run(o, stdout, outcome);
}

static ndm_status train(int argc, const char *const *argv, ndm_run_outcome *outcome)
{
    ndm_options *o = NULL;
    arguments a;

    NDM_TRY(init_arguments(&a, argc, argv));
    ndm_status status = read_options(&a, &o);
    if (status == NDM_OK)
        status = start(o, &a, outcome);
    ndm_options_destroy(o);
    finish_arguments(&a);
    return status;
}

static int run(int argc, const char *const *argv)
{
    ndm_run_outcome outcome = {0};

    ndm_cli_watch_signals(" while no step was running");
    ndm_status status = train(argc, argv, &outcome);

    if (status == NDM_ERR_INTERRUPTED)
        return ndm_cli_interrupted(outcome.signal);
    return ndm_cli_report(status);
}

const ndm_verb ndm_verb_train = {&ndm_train_option_table, run, false};
