/* SPDX-License-Identifier: Apache-2.0 */
/* Placement: which process takes which position, so that inner axes share what is near. */
#ifndef NDM_MESH_PLACEMENT_H
#define NDM_MESH_PLACEMENT_H

#include <stdint.h>

#include <ndmesh/mesh.h>

/* What processes can share, outermost first. */
typedef enum ndm_place_level {
    NDM_PLACE_HOST,
    NDM_PLACE_ISLAND, /* devices of one host with a fast link between them; NONE on cpu */
    NDM_PLACE_PACKAGE,
    NDM_PLACE_NUMA,
    NDM_PLACE_L3,
    NDM_PLACE_CORE,
    NDM_PLACE_LEVELS
} ndm_place_level;

#define NDM_PLACE_UNKNOWN (-1) /* may be in several places, or nobody said */
#define NDM_PLACE_NONE (-2)    /* the machine has no such level: it separates nothing */

/* One process: its object at each level. Ids of an inner level need only differ within one object
 * of the outer ones. */
typedef struct ndm_place_facts {
    int64_t id[NDM_PLACE_LEVELS];
} ndm_place_facts;

const char *ndm_place_level_name(ndm_place_level level); /* "host", ... */

/* Below an unknown level nothing is known: makes the facts say so. */
void ndm_place_facts_settle(ndm_place_facts *facts);

/* Writes order, [world], for ndm_parallelism_config.order: order[p] = rank that takes position p.
 * facts: [world] by rank. A forced config->order is copied. Every rank computes the same answer
 * from the same facts. */
NDM_MUST_USE ndm_status ndm_placement_order(const ndm_parallelism_config *config, int64_t world,
                                            const ndm_place_facts *facts, int64_t *order);

/* Groups over an axis set, by the innermost level that holds all their members. */
typedef struct ndm_place_span {
    int64_t groups;
    int64_t inside[NDM_PLACE_LEVELS]; /* groups whose nearest common level this is */
    int64_t across;                   /* groups that span hosts */
} ndm_place_span;

ndm_place_span ndm_placement_span(const ndm_mesh *mesh, const ndm_place_facts *facts,
                                  ndm_axis_set axes);

/* One line a group kind, for logs and the command line: "8 groups of 2: 8 inside one L3". Returns
 * text. */
const char *ndm_placement_describe(const ndm_mesh *mesh, const ndm_place_facts *facts,
                                   ndm_axis_set axes, char *text, size_t text_bytes);

#endif
