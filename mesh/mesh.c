/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: mixed-radix arithmetic over the sizes of its axes. Nothing is tabulated but a forced
 * order. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/given.h"
#include "core/sized.h"
#include "mesh/shape.h"
#include <ndmesh/mesh.h>

struct ndm_mesh {
    int64_t world;
    int64_t size[NDM_AXIS_COUNT];
    int64_t stride[NDM_AXIS_COUNT]; /* of a position, per step along the axis */
    int32_t *rank_at;               /* [world] by position, or NULL: rank == position */
    int32_t *position_of;           /* [world] by rank, with rank_at */
};

/* Marks what the rest of the order holds, so that the ranks still unmarked are the missing ones. */
static ndm_status refuse_duplicate(int32_t *position_of, int64_t world, int64_t position,
                                   const int64_t *order)
{
    int64_t twice = order[position];
    for (int64_t p = position + 1; p < world; p++)
        if (order[p] >= 0 && order[p] < world && position_of[order[p]] < 0)
            position_of[order[p]] = (int32_t)p;
    int64_t missing = 0;
    while (position_of[missing] >= 0)
        missing++;
    NDM_FAIL(NDM_ERR_CONFIG,
             "mesh: order: rank %" PRId64 " stands at positions %d and %" PRId64 "; rank %" PRId64
             " is missing",
             twice, position_of[twice], position, missing);
}

/* Fills both tables, [world] each, from a permutation. */
static ndm_status fill_order(const int64_t *order, int64_t world, int32_t *rank_at,
                             int32_t *position_of)
{
    memset(position_of, -1, (size_t)world * sizeof *position_of);
    for (int64_t p = 0; p < world; p++) {
        int64_t rank = order[p];
        if (rank < 0 || rank >= world)
            NDM_FAIL(NDM_ERR_CONFIG,
                     "mesh: order: position %" PRId64 " has rank %" PRId64 ", outside 0..%" PRId64,
                     p, rank, world - 1);
        if (position_of[rank] >= 0)
            return refuse_duplicate(position_of, world, p, order);
        position_of[rank] = (int32_t)p;
        rank_at[p] = (int32_t)rank;
    }
    return NDM_OK;
}

static ndm_status set_order(ndm_mesh *mesh, const int64_t *order)
{
    mesh->rank_at = malloc((size_t)mesh->world * sizeof *mesh->rank_at);
    mesh->position_of = malloc((size_t)mesh->world * sizeof *mesh->position_of);
    if (mesh->rank_at == NULL || mesh->position_of == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory for the order of %" PRId64 " ranks", mesh->world);
    return fill_order(order, mesh->world, mesh->rank_at, mesh->position_of);
}

ndm_status ndm_mesh_create(const ndm_parallelism_config *config, int64_t world, ndm_mesh **mesh)
{
    int64_t size[NDM_AXIS_COUNT];
    ndm_parallelism_config mine;
    NDM_NEED(mesh);
    NDM_TRY(NDM_SIZED_TAKE(ndm_parallelism_config, &mine, NDM_PARALLELISM_CONFIG_INIT, config));
    NDM_TRY(ndm_shape_resolve(&mine, world, size));
    if (mine.order != NULL && mine.n_order != 0 && mine.n_order != world)
        NDM_FAIL(NDM_ERR_CONFIG, "mesh: an order of %" PRId64 " ranks for a world of %" PRId64,
                 mine.n_order, world);
    ndm_mesh *m = calloc(1, sizeof *m);
    if (m == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "mesh: no memory for a mesh of %" PRId64 " ranks", world);
    m->world = world;
    memcpy(m->size, size, sizeof size);
    int64_t stride = 1;
    for (int a = NDM_AXIS_COUNT - 1; a >= 0; a--) {
        m->stride[a] = stride;
        stride *= size[a];
    }
    ndm_status status = mine.order != NULL ? set_order(m, mine.order) : NDM_OK;
    if (status != NDM_OK) {
        ndm_mesh_destroy(m);
        return status;
    }
    *mesh = m;
    return NDM_OK;
}

void ndm_mesh_destroy(ndm_mesh *mesh)
{
    if (mesh == NULL)
        return;
    free(mesh->rank_at);
    free(mesh->position_of);
    free(mesh);
}

static bool is_axis(ndm_axis axis)
{
    return (unsigned)axis < NDM_AXIS_COUNT;
}

/* Ranks and positions are both 0..world-1. */
static bool is_place(const ndm_mesh *mesh, int64_t place)
{
    return mesh != NULL && place >= 0 && place < mesh->world;
}

int64_t ndm_mesh_world(const ndm_mesh *mesh)
{
    return mesh != NULL ? mesh->world : 0;
}

int64_t ndm_mesh_axis_size(const ndm_mesh *mesh, ndm_axis axis)
{
    return mesh != NULL && is_axis(axis) ? mesh->size[axis] : 0;
}

int64_t ndm_mesh_size(const ndm_mesh *mesh, ndm_axis_set axes)
{
    int64_t n = mesh != NULL;
    for (int a = 0; mesh != NULL && a < NDM_AXIS_COUNT; a++)
        if ((axes & (1u << a)) != 0)
            n *= mesh->size[a];
    return n;
}

int64_t ndm_mesh_position(const ndm_mesh *mesh, int64_t rank)
{
    if (!is_place(mesh, rank))
        return -1;
    return mesh->position_of != NULL ? mesh->position_of[rank] : rank;
}

int64_t ndm_mesh_rank_at(const ndm_mesh *mesh, int64_t position)
{
    if (!is_place(mesh, position))
        return -1;
    return mesh->rank_at != NULL ? mesh->rank_at[position] : position;
}

static int64_t coord_at(const ndm_mesh *mesh, int64_t position, int axis)
{
    return position / mesh->stride[axis] % mesh->size[axis];
}

int64_t ndm_mesh_coord(const ndm_mesh *mesh, int64_t rank, ndm_axis axis)
{
    if (!is_place(mesh, rank) || !is_axis(axis))
        return -1;
    return coord_at(mesh, ndm_mesh_position(mesh, rank), (int)axis);
}

int64_t ndm_mesh_rank(const ndm_mesh *mesh, const int64_t *coords)
{
    int64_t position = 0;
    if (mesh == NULL || coords == NULL)
        return -1;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        if (coords[a] < 0 || coords[a] >= mesh->size[a])
            return -1;
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        position += coords[a] * mesh->stride[a];
    return ndm_mesh_rank_at(mesh, position);
}

ndm_group ndm_mesh_group(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank)
{
    int64_t position = ndm_mesh_position(mesh, rank);
    ndm_group group = {axes, 1, 0};
    if (position < 0)
        return (ndm_group){axes, 0, 0};
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        if ((axes & (1u << a)) == 0)
            continue;
        group.size *= mesh->size[a];
        group.index = group.index * mesh->size[a] + coord_at(mesh, position, a);
    }
    return group;
}

/* Position of member i: `position` with its coordinates along `axes` replaced by the digits of i.
 */
static int64_t member_position(const ndm_mesh *mesh, ndm_axis_set axes, int64_t position, int64_t i)
{
    for (int a = NDM_AXIS_COUNT - 1; a >= 0; a--) {
        if ((axes & (1u << a)) == 0)
            continue;
        position += (i % mesh->size[a] - coord_at(mesh, position, a)) * mesh->stride[a];
        i /= mesh->size[a];
    }
    return position;
}

int64_t ndm_mesh_member(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank, int64_t i)
{
    int64_t position = ndm_mesh_position(mesh, rank);
    if (position < 0 || i < 0 || i >= ndm_mesh_size(mesh, axes))
        return -1;
    return ndm_mesh_rank_at(mesh, member_position(mesh, axes, position, i));
}

void ndm_mesh_members(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank, int64_t *ranks)
{
    int64_t n = ndm_mesh_size(mesh, axes);
    int64_t position = ndm_mesh_position(mesh, rank);
    if (position < 0 || ranks == NULL)
        return;
    for (int64_t i = 0; i < n; i++)
        ranks[i] = ndm_mesh_rank_at(mesh, member_position(mesh, axes, position, i));
}
