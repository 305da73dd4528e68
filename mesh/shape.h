/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes of the axes: resolves `auto` and refuses what cannot be, before anything else exists. */
#ifndef NDM_MESH_SHAPE_H
#define NDM_MESH_SHAPE_H

#include <ndmesh/config.h>
#include <ndmesh/status.h>

enum { NDM_MESH_MAX_WORLD = 2147483647 }; /* a rank is an int to MPI */

/* Writes the sizes, [NDM_AXIS_COUNT], whose product is world. NDM_ERR_CONFIG names the rule that
 * failed, the numbers, and the nearest valid sizes; NDM_ERR_USAGE when config was not initialised.
 */
NDM_MUST_USE ndm_status ndm_shape_resolve(const ndm_parallelism_config *config, int64_t world,
                                          int64_t *sizes);

/* Writes "1, 2, 4, 8": the divisors of n, at most 8 of them, nearest to `wanted`, ascending.
 * Returns text. */
const char *ndm_shape_divisors(int64_t n, int64_t wanted, char *text, size_t text_bytes);

#endif
