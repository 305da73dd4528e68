/* SPDX-License-Identifier: Apache-2.0 */
/* `ndmesh help`: the commands, or the options of one as text, markdown or man page. */
#include <stdio.h>

#include "cli/cli.h"

static const ndm_option options[] = {
    {.name = "markdown",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .group = "output",
     .help = "print the table of options as markdown"},
    {.name = "man",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .group = "output",
     .help = "print a man page (roff)"},
};

static const ndm_option_table table = {
    .command = "help",
    .usage = "[COMMAND] [options]",
    .summary = "what the commands are, and the options of one",
    .options = options,
    .n_options = sizeof options / sizeof options[0],
};

enum { MAX_ARGUMENTS = 64 };

static ndm_status print(const ndm_options *o, const char *name)
{
    const ndm_verb *verb = NULL;
    NDM_TRY(ndm_verb_find(name, &verb));
    if (ndm_option_bool(o, "markdown"))
        ndm_options_print_markdown(verb->table, stdout);
    else if (ndm_option_bool(o, "man"))
        ndm_options_print_man(verb->table, stdout);
    else
        ndm_options_print_help(verb->table, stdout);
    return NDM_OK;
}

static ndm_status help(int argc, const char *const *argv)
{
    const char *names[MAX_ARGUMENTS];
    int n = 0;
    ndm_options *o = NULL;
    if (argc > MAX_ARGUMENTS)
        NDM_FAIL(NDM_ERR_USAGE, "help: %d arguments; it takes one command", argc);
    NDM_TRY(ndm_cli_options(&table, argc, argv, names, &n, &o));
    ndm_status status = NDM_OK;
    bool markdown = ndm_option_bool(o, "markdown"), man = ndm_option_bool(o, "man");
    if (markdown && man)
        status = ndm_error_set(NDM_ERR_USAGE, __FILE__, __LINE__,
                               "help: --markdown and --man exclude each other");
    else if (n == 0 && (ndm_option_is_flag(o, "markdown") || ndm_option_is_flag(o, "man")))
        status = ndm_error_set(NDM_ERR_USAGE, __FILE__, __LINE__, "help: --%s takes a command",
                               markdown ? "markdown" : "man");
    else if (n == 0)
        ndm_cli_usage(stdout);
    else if (n == 1)
        status = print(o, names[0]);
    else
        status = ndm_error_set(NDM_ERR_USAGE, __FILE__, __LINE__,
                               "help: takes one command, not '%s' and '%s'", names[0], names[1]);
    ndm_options_destroy(o);
    return status;
}

static int run(int argc, const char *const *argv)
{
    return ndm_cli_report(help(argc, argv));
}

const ndm_verb ndm_verb_help = {&table, run, true};
