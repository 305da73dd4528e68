/* SPDX-License-Identifier: Apache-2.0 */
/* What `ndmesh mesh` shows, and its three forms: text, JSON, SVG. */
#ifndef NDM_CLI_MESH_VIEW_H
#define NDM_CLI_MESH_VIEW_H

#include <stdio.h>

#include "core/json.h"
#include "mesh/placement.h"
#include <ndmesh/mesh.h>

typedef struct ndm_mesh_view {
    ndm_mesh *mesh;
    ndm_place_facts *facts; /* [world] by rank, or NULL: hosts unknown */
    int64_t hosts;          /* with facts */
    bool cores;             /* facts know cores */
    bool forced;            /* the order was given */
} ndm_mesh_view;

/* Axis sets worth a line, in order: the axes, then the aliases; 0 ends the list. */
const ndm_axis_set *ndm_mesh_view_sets(void);

/* Whether the placement moved any rank from the position of its number. */
bool ndm_mesh_view_moved(const ndm_mesh_view *view);

enum {
    NDM_MESH_TEXT_RANKS = 64,   /* worlds above are summarised in text */
    NDM_MESH_JSON_RANKS = 4096, /* and in JSON */
    NDM_MESH_SVG_RANKS = 512    /* pictures show at most so many */
};

void ndm_mesh_view_text(const ndm_mesh_view *view, FILE *out);
void ndm_mesh_view_json(const ndm_mesh_view *view, ndm_json *json);

/* Appends an SVG document. Outer axes of large meshes are cut short, and the picture says so. */
void ndm_mesh_view_svg(const ndm_mesh_view *view, ndm_buffer *svg);

#endif
