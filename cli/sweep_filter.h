/* SPDX-License-Identifier: Apache-2.0 */
/* Conditions on meshes as people type them: "tp<=2 && dp_shard*cp>1". */
#ifndef NDM_CLI_SWEEP_FILTER_H
#define NDM_CLI_SWEEP_FILTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <ndmesh/status.h>

typedef struct ndm_filter_name {
    const char *name;
    int64_t value;
} ndm_filter_name;

/* Whether the expression holds for these values. Whole numbers, names, ( ), ! - * / % + -,
 * < <= > >= == = !=, not, && and, || or. NDM_ERR_USAGE says at which place it is none. */
NDM_MUST_USE ndm_status ndm_filter_holds(const char *expression, const ndm_filter_name *names,
                                         size_t n_names, bool *holds);

#endif
