/* SPDX-License-Identifier: Apache-2.0 */
/** @file
 * The mesh: arithmetic over dp_replicate x dp_shard x cp x tp. No communication, no MPI.
 *
 * A position is a point of the mesh, row-major with tp innermost: position = ((r * dp_shard + s) *
 * cp + c) * tp + t. A placement maps positions to world ranks; without one they are equal.
 */
#ifndef NDMESH_MESH_H
#define NDMESH_MESH_H

#include <ndmesh/config.h>
#include <ndmesh/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ndm_mesh ndm_mesh;

/** One row of the axis table: adding an axis is adding a row. */
typedef struct ndm_axis_info {
    const char *name;   /**< "dp_replicate" */
    bool splits_tokens; /**< true: ranks along it hold different tokens; false: the same tokens (tp)
                         */
    const char *summary; /**< one line for help and docs */
} ndm_axis_info;

/** The axis table, [NDM_AXIS_COUNT]. Static storage. */
NDM_API const ndm_axis_info *ndm_axis_table(void);

/** A group of ranks: all positions that agree on the axes outside a set, row-major over the axes
 * inside it. */
typedef struct ndm_group {
    ndm_axis_set axes; /**< the axes it spans */
    int64_t size;      /**< number of ranks */
    int64_t index;     /**< place of the asking rank in it, 0..size-1 */
} ndm_group;

/**
 * Builds a mesh over `world` ranks.
 *
 * @param config  sizes; one may be NDM_AUTO. order, if set, is copied. NULL = defaults
 * @param world   number of ranks, >= 1
 * @param mesh    receives the mesh; destroy with ndm_mesh_destroy()
 *
 * @retval NDM_ERR_CONFIG  a size is below 1, two are auto, or the product is not world: the message
 * names the rule, the numbers, and the nearest valid sizes
 * @retval NDM_ERR_MEMORY
 */
NDM_API NDM_MUST_USE ndm_status ndm_mesh_create(const ndm_parallelism_config *config, int64_t world,
                                                ndm_mesh **mesh);

/** Frees the mesh; NULL is fine. */
NDM_API void ndm_mesh_destroy(ndm_mesh *mesh);

/** Number of ranks, and the size of one axis or the product over an axis set. Of what is not there
 * (an axis, a rank, a position, a member), here and below: a size is 0, anything else -1. */
NDM_API int64_t ndm_mesh_world(const ndm_mesh *mesh);
NDM_API int64_t ndm_mesh_axis_size(const ndm_mesh *mesh, ndm_axis axis);
NDM_API int64_t ndm_mesh_size(const ndm_mesh *mesh, ndm_axis_set axes);

/** Mesh position of a world rank, and back. rank and position are in 0..world-1. */
NDM_API int64_t ndm_mesh_position(const ndm_mesh *mesh, int64_t rank);
NDM_API int64_t ndm_mesh_rank_at(const ndm_mesh *mesh, int64_t position);

/** Coordinate of a world rank along one axis. */
NDM_API int64_t ndm_mesh_coord(const ndm_mesh *mesh, int64_t rank, ndm_axis axis);

/** World rank at coordinates, [NDM_AXIS_COUNT]. */
NDM_API int64_t ndm_mesh_rank(const ndm_mesh *mesh, const int64_t *coords);

/** The group over `axes` that holds `rank`. An empty set gives the group of one. */
NDM_API ndm_group ndm_mesh_group(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank);

/** World rank of member i of the group over `axes` that holds `rank`; i in 0..group.size-1. */
NDM_API int64_t ndm_mesh_member(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank, int64_t i);

/** Writes the world ranks of the group over `axes` that holds `rank` to ranks, [ndm_mesh_size(mesh,
 * axes)]. */
NDM_API void ndm_mesh_members(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank,
                              int64_t *ranks);

/**
 * Parses an axis set: an axis name, an alias ("dp", "dp_shard_cp", "dp_cp", "world"), or names
 * joined by "x" or ",". Dash and underscore are equal.
 * @retval NDM_ERR_USAGE  unknown name; the message gives the nearest known one
 */
NDM_API NDM_MUST_USE ndm_status ndm_axis_set_parse(const char *text, ndm_axis_set *axes);

/** Writes the canonical name of an axis set ("dp_shard_cp", "tp", "dp_replicate_tp", "self") to
 * buffer; returns buffer. */
NDM_API const char *ndm_axis_set_name(ndm_axis_set axes, char *buffer, size_t buffer_bytes);

#ifdef __cplusplus
}
#endif
#endif
