/* SPDX-License-Identifier: Apache-2.0 */
/* How fast the matrix product that runs by default is on this machine, beside what the machine can
 * do. */
#ifndef NDM_CLI_INFO_SPEED_H
#define NDM_CLI_INFO_SPEED_H

#include <stdint.h>

#include <ndmesh/status.h>

typedef struct ndm_speed {
    const char *table;   /* that the product runs from: "onednn", ...; static storage */
    int threads;         /* that both use */
    int64_t size;        /* the product is size x size x size, fp32 */
    double gflops, peak; /* the best of some rounds; fused multiply-adds in registers */
} ndm_speed;

/* Takes about a quarter of a second. NDM_ERR_MEMORY, NDM_ERR_UNSUPPORTED of the cpu world. */
NDM_MUST_USE ndm_status ndm_speed_measure(ndm_speed *speed);

#endif
