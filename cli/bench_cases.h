/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel calls of a training step, as cases: the shapes of a model's layers. */
#ifndef NDM_CLI_BENCH_CASES_H
#define NDM_CLI_BENCH_CASES_H

#include "kernels/cases.h"

typedef struct ndm_bench_shape {
    int64_t tokens; /* rows; one sequence */
    int64_t width, heads, kv_heads, head_dim, ffn, vocab;
} ndm_bench_shape;

/* Case i in the order of the ops; false when i is past the end. */
bool ndm_bench_case_get(const ndm_bench_shape *shape, int64_t i, ndm_case *c);

/* Bytes that must be moved: inputs read, outputs written, and read as well where an op adds to them
 * or works in place. */
double ndm_bench_case_traffic(const ndm_case *c);

#endif
