/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh as JSON. Above NDM_MESH_JSON_RANKS ranks the listings are left out and "summarized" is
 * true. */
#include "cli/mesh_view.h"

static void write_axes(const ndm_mesh *mesh, ndm_json *json)
{
    ndm_json_key(json, "axes");
    ndm_json_begin_array(json);
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "name", ndm_axis_table()[a].name);
        ndm_json_key_int(json, "size", ndm_mesh_axis_size(mesh, (ndm_axis)a));
        ndm_json_key_bool(json, "splits_tokens", ndm_axis_table()[a].splits_tokens);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

static void write_coordinates(const ndm_mesh_view *view, ndm_json *json)
{
    ndm_json_key(json, "coordinates");
    ndm_json_begin_array(json);
    for (int64_t r = 0; r < ndm_mesh_world(view->mesh); r++) {
        ndm_json_begin_object(json);
        ndm_json_key_int(json, "rank", r);
        ndm_json_key_int(json, "position", ndm_mesh_position(view->mesh, r));
        for (int a = 0; a < NDM_AXIS_COUNT; a++)
            ndm_json_key_int(json, ndm_axis_table()[a].name,
                             ndm_mesh_coord(view->mesh, r, (ndm_axis)a));
        if (view->facts != NULL)
            ndm_json_key_int(json, "host", view->facts[r].id[NDM_PLACE_HOST]);
        if (view->facts != NULL && view->cores)
            ndm_json_key_int(json, "core", view->facts[r].id[NDM_PLACE_CORE]);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

static void write_members(const ndm_mesh *mesh, ndm_axis_set axes, ndm_json *json)
{
    ndm_json_key(json, "ranks");
    ndm_json_begin_array(json);
    for (int64_t p = 0; p < ndm_mesh_world(mesh); p++) {
        int64_t rank = ndm_mesh_rank_at(mesh, p);
        ndm_group group = ndm_mesh_group(mesh, axes, rank);
        if (group.index != 0)
            continue;
        ndm_json_begin_array(json);
        for (int64_t i = 0; i < group.size; i++)
            ndm_json_int(json, ndm_mesh_member(mesh, axes, rank, i));
        ndm_json_end_array(json);
    }
    ndm_json_end_array(json);
}

static void write_groups(const ndm_mesh *mesh, bool listed, ndm_json *json)
{
    ndm_json_key(json, "groups");
    ndm_json_begin_array(json);
    for (const ndm_axis_set *set = ndm_mesh_view_sets(); *set != 0; set++) {
        char name[64];
        int64_t size = ndm_mesh_size(mesh, *set);
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "name", ndm_axis_set_name(*set, name, sizeof name));
        ndm_json_key(json, "axes");
        ndm_json_begin_array(json);
        for (int a = 0; a < NDM_AXIS_COUNT; a++)
            if ((*set & (1u << a)) != 0)
                ndm_json_string(json, ndm_axis_table()[a].name);
        ndm_json_end_array(json);
        ndm_json_key_int(json, "size", size);
        ndm_json_key_int(json, "count", ndm_mesh_world(mesh) / size);
        if (listed)
            write_members(mesh, *set, json);
        ndm_json_end_object(json);
    }
    ndm_json_end_array(json);
}

static void write_spans(const ndm_mesh_view *view, ndm_json *json)
{
    ndm_json_key_int(json, "hosts", view->hosts);
    ndm_json_key(json, "groups");
    ndm_json_begin_object(json);
    for (const ndm_axis_set *set = ndm_mesh_view_sets(); *set != 0; set++) {
        char name[64];
        ndm_place_span span = ndm_placement_span(view->mesh, view->facts, *set);
        ndm_json_key(json, ndm_axis_set_name(*set, name, sizeof name));
        ndm_json_begin_object(json);
        for (int l = NDM_PLACE_LEVELS - 1; l >= 0; l--)
            if (span.inside[l] > 0)
                ndm_json_key_int(json, ndm_place_level_name((ndm_place_level)l), span.inside[l]);
        if (span.across > 0)
            ndm_json_key_int(json, "across_hosts", span.across);
        ndm_json_end_object(json);
    }
    ndm_json_end_object(json);
}

static void write_placement(const ndm_mesh_view *view, bool listed, ndm_json *json)
{
    ndm_json_key(json, "placement");
    ndm_json_begin_object(json);
    ndm_json_key_bool(json, "forced", view->forced);
    ndm_json_key_bool(json, "moved", ndm_mesh_view_moved(view));
    if (listed) {
        ndm_json_key(json, "order");
        ndm_json_begin_array(json);
        for (int64_t p = 0; p < ndm_mesh_world(view->mesh); p++)
            ndm_json_int(json, ndm_mesh_rank_at(view->mesh, p));
        ndm_json_end_array(json);
    }
    if (view->facts != NULL)
        write_spans(view, json);
    ndm_json_end_object(json);
}

void ndm_mesh_view_json(const ndm_mesh_view *view, ndm_json *json)
{
    bool listed = ndm_mesh_world(view->mesh) <= NDM_MESH_JSON_RANKS;
    ndm_json_begin_object(json);
    ndm_json_key_int(json, "ranks", ndm_mesh_world(view->mesh));
    ndm_json_key_bool(json, "summarized", !listed);
    write_axes(view->mesh, json);
    if (listed)
        write_coordinates(view, json);
    write_groups(view->mesh, listed, json);
    write_placement(view, listed, json);
    ndm_json_end_object(json);
}
