/* SPDX-License-Identifier: Apache-2.0 */
/* What a measurement depends on besides the code under test: build, libraries, machine, load. */
#ifndef NDM_CLI_BENCH_FACTS_H
#define NDM_CLI_BENCH_FACTS_H

#include <stdio.h>

#include "core/json.h"

/* What of it a caller knows. */
typedef struct ndm_bench_facts {
    int64_t ranks, local_ranks; /* of the world, and of this host */
    int threads;                /* of a rank */
    const char *kernels;        /* what runs the matrix products, or NULL */
    const char *collectives;    /* the backend, or NULL */
} ndm_bench_facts;

/* Members of one object: version, git, compiler, mpi, hwloc, cpu, machine, cores, load_1m, ... */
void ndm_bench_facts_json(const ndm_bench_facts *facts, ndm_json *json);

/* The same as lines of "# key value". */
void ndm_bench_facts_text(const ndm_bench_facts *facts, FILE *out);

/* Processors that this process may use, and whether ranks * threads of this host are more. */
int64_t ndm_bench_cores(void);
bool ndm_bench_oversubscribed(const ndm_bench_facts *facts);

const char *ndm_bench_git(void); /* commit of the sources at build, "-dirty" with changes */

#endif
