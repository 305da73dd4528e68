/* SPDX-License-Identifier: Apache-2.0 */
/* Options of `ndmesh bench step`: those of train and a few of its own. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench.h"
#include "cli/bench_only.h"
#include "train/options.h"

static const ndm_option own_options[] = {
    {.name = "csv", .type = NDM_OPTION_BOOL, .initial = "false", .help = "print rows as CSV"},
    {.name = "check",
     .type = NDM_OPTION_BOOL,
     .initial = "true",
     .help = "make the first step again with a new model: loss and gradient have the same bits"},
    {.name = "spoil",
     .type = NDM_OPTION_BOOL,
     .initial = "false",
     .help = "change its loss before it is checked, to see that the check sees it: exit 6"},
#include "cli/bench_step_options.def"
};
enum { N_OWN = sizeof own_options / sizeof own_options[0] };

/* Options of train that a benchmark would ignore. */
static const char *const foreign[] = {"data",
                                      "labels",
                                      "documents",
                                      "shuffle",
                                      "eval-data",
                                      "eval-labels",
                                      "eval-documents",
                                      "eval-every",
                                      "metrics",
                                      "log-every",
                                      "save-dir",
                                      "save-every",
                                      "save-total-limit",
                                      "save-async",
                                      "save-local",
                                      "save-strict",
                                      "resume",
                                      "export-hf",
                                      "export-dtype",
                                      "export-shard-size",
                                      "dump-grads",
                                      "dump-logits",
                                      "trace",
                                      "dry-run",
                                      "print-config"};
enum { N_FOREIGN = sizeof foreign / sizeof foreign[0] };

static bool is_foreign(const char *name)
{
    for (size_t i = 0; i < N_FOREIGN; i++)
        if (strcmp(foreign[i], name) == 0)
            return true;
    return false;
}

/* The table lives as long as the options do; freed with free(). */
ndm_status ndm_bench_step_table(ndm_option_table **table)
{
    const ndm_option_table *train = &ndm_train_option_table;
    size_t n = train->n_options + N_OWN;
    ndm_option_table *t = calloc(1, sizeof *t + n * sizeof(ndm_option));

    if (t == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %zu options", n);
    ndm_option *options = (ndm_option *)(void *)(t + 1);
    memcpy(options, train->options, train->n_options * sizeof *options);
    memcpy(options + train->n_options, own_options, sizeof own_options);
    for (size_t i = 0; i < train->n_options; i++) {
        if (is_foreign(options[i].name)) /* refused, whatever else is given */
            options[i].required = false, options[i].needs = NULL;
        if (strcmp(options[i].name, "steps") == 0)
            options[i].required = false, options[i].initial = "10";
    }
    *t = *train;
    t->command = "bench";
    t->options = options;
    t->n_options = n;
    *table = t;
    return NDM_OK;
}

ndm_status ndm_bench_step_check(const ndm_options *o)
{
    for (size_t i = 0; i < N_FOREIGN; i++)
        if (ndm_option_is_flag(o, foreign[i]))
            NDM_FAIL(NDM_ERR_USAGE,
                     "bench step draws its tokens and writes no files; --%s has no meaning here",
                     foreign[i]);
    if (ndm_option_int64(o, "steps") < 1)
        NDM_FAIL(NDM_ERR_USAGE, "bench step: --steps is 0; one is needed");
    if (ndm_option_enum(o, "only") != NDM_ONLY_ALL && ndm_option_int64(o, "warmup-steps") < 1)
        NDM_FAIL(NDM_ERR_USAGE,
                 "bench step: --only %s needs --warmup-steps 1: the first step is whole",
                 ndm_option_string(o, "only"));
    if (ndm_option_bool(o, "json") && ndm_option_bool(o, "csv"))
        NDM_FAIL(NDM_ERR_USAGE, "bench step: --json and --csv exclude each other");
    return NDM_OK;
}
