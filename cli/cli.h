/* SPDX-License-Identifier: Apache-2.0 */
/* Commands of the command line. Here alone results are printed and exit codes chosen. */
#ifndef NDM_CLI_CLI_H
#define NDM_CLI_CLI_H

#include "core/option.h"
#include <ndmesh/status.h>

typedef struct ndm_verb {
    const ndm_option_table *table; /* name, usage, summary and options: all that help knows */
    int (*run)(int argc,
               const char *const
                   *argv); /* argv[0]: the first argument after the verb; returns the exit code */
    bool alone; /* no work for several ranks: of those that a launcher started, the first does it */
} ndm_verb;

#define NDM_VERB(name) extern const ndm_verb ndm_verb_##name;
#include "cli/verbs.def"
#undef NDM_VERB

const ndm_verb *const *ndm_verb_list(void); /* NULL-terminated, from verbs.def */

/* The verb of that name. NDM_ERR_USAGE names the nearest one. */
NDM_MUST_USE ndm_status ndm_verb_find(const char *name, const ndm_verb **verb);

/* Options of a verb from the environment and its arguments, required ones checked. Without
 * `positional`, arguments that are no flag are files of options if the table takes these, and
 * refused if not; else it is [argc]. Destroy with
 * ndm_options_destroy(). */
NDM_MUST_USE ndm_status ndm_cli_options(const ndm_option_table *table, int argc,
                                        const char *const *argv, const char **positional,
                                        int *n_positional, ndm_options **options);

/* Prints "ndmesh: error: <message>" to stderr unless status is NDM_OK; returns the exit code. Under
 * a launcher a failure ends the process here: one rank speaks for all. */
int ndm_cli_report(ndm_status status);

/* From here on SIGINT and SIGTERM end the process, and its job, with 130 and 143, and say that a
 * signal stopped it: `when`, or "". */
void ndm_cli_watch_signals(const char *when);

/* Before the world is joined: MPI's own start waits for the ranks of the launcher without a
 * deadline, and would for one that stands still. This ends the job with 4. */
void ndm_cli_watch_start(double timeout_s);

/* Says that a signal has stopped the run after saving, and gives the exit code. */
int ndm_cli_interrupted(int signal_number);

/* Rank that the launcher gave this process, -1 without one. Known before MPI is. */
int ndm_cli_launcher_rank(void);

/* Lists the verbs. */
void ndm_cli_usage(FILE *out);

#endif
