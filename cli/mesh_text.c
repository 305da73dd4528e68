/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh as text: sizes, coordinates, groups, placement. */
#include <inttypes.h>

#include "cli/mesh_view.h"

enum { SHOWN_MEMBERS = 16, HEAD_MEMBERS = 4 };

const ndm_axis_set *ndm_mesh_view_sets(void)
{
    static const ndm_axis_set sets[] = {
        NDM_AXIS_DP_REPLICATE, NDM_AXIS_DP_SHARD, NDM_AXIS_CP,  NDM_AXIS_TP, NDM_AXES_DP,
        NDM_AXES_DP_SHARD_CP,  NDM_AXES_DP_CP,    NDM_AXES_ALL, 0,
    };
    return sets;
}

bool ndm_mesh_view_moved(const ndm_mesh_view *view)
{
    if (view->facts == NULL && !view->forced)
        return false;
    for (int64_t r = 0; r < ndm_mesh_world(view->mesh); r++)
        if (ndm_mesh_position(view->mesh, r) != r)
            return true;
    return false;
}

static void print_sizes(const ndm_mesh *mesh, FILE *out)
{
    const char *join = " = ";
    fprintf(out, "%" PRId64 " rank%s", ndm_mesh_world(mesh), ndm_mesh_world(mesh) == 1 ? "" : "s");
    for (int a = 0; a < NDM_AXIS_COUNT; a++, join = " x ")
        fprintf(out, "%s%s %" PRId64, join, ndm_axis_table()[a].name,
                ndm_mesh_axis_size(mesh, (ndm_axis)a));
    fprintf(out, "\n\n%-12s  %9s  %-6s  %s\n", "axis", "size", "tokens", "along it");
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        fprintf(out, "%-12s  %9" PRId64 "  %-6s  %s\n", ndm_axis_table()[a].name,
                ndm_mesh_axis_size(mesh, (ndm_axis)a),
                ndm_axis_table()[a].splits_tokens ? "split" : "same", ndm_axis_table()[a].summary);
}

static void print_rank(const ndm_mesh_view *view, int64_t rank, FILE *out)
{
    fprintf(out, "%9" PRId64, rank);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        fprintf(out, "  %*" PRId64, a == NDM_CP || a == NDM_TP ? 5 : 12,
                ndm_mesh_coord(view->mesh, rank, (ndm_axis)a));
    if (view->facts != NULL)
        fprintf(out, "  %5" PRId64, view->facts[rank].id[NDM_PLACE_HOST]);
    if (view->facts != NULL && view->cores)
        fprintf(out, "  %5" PRId64, view->facts[rank].id[NDM_PLACE_CORE]);
    fputc('\n', out);
}

/* In the order of positions, so that neighbours stand together whatever the placement. */
static void print_coordinates(const ndm_mesh_view *view, FILE *out)
{
    int64_t world = ndm_mesh_world(view->mesh);
    fprintf(out, "\n%9s  %12s  %12s  %5s  %5s", "rank", "dp_replicate", "dp_shard", "cp", "tp");
    if (view->facts != NULL)
        fprintf(out, "  %5s%s", "host", view->cores ? "   core" : "");
    fputc('\n', out);
    if (world <= NDM_MESH_TEXT_RANKS) {
        for (int64_t p = 0; p < world; p++)
            print_rank(view, ndm_mesh_rank_at(view->mesh, p), out);
        return;
    }
    for (int64_t p = 0; p < HEAD_MEMBERS; p++)
        print_rank(view, ndm_mesh_rank_at(view->mesh, p), out);
    fprintf(out, "%9s  (%" PRId64 " more)\n", "...", world - HEAD_MEMBERS - 1);
    print_rank(view, ndm_mesh_rank_at(view->mesh, world - 1), out);
}

static void print_members(const ndm_mesh *mesh, ndm_axis_set axes, int64_t rank, FILE *out)
{
    int64_t n = ndm_mesh_size(mesh, axes);
    bool all = n <= SHOWN_MEMBERS;
    int64_t head = all ? n : HEAD_MEMBERS;
    for (int64_t i = 0; i < head; i++)
        fprintf(out, "%s%" PRId64, i == 0 ? " {" : ",", ndm_mesh_member(mesh, axes, rank, i));
    if (!all)
        fprintf(out, ",...,%" PRId64, ndm_mesh_member(mesh, axes, rank, n - 1));
    fputc('}', out);
}

static void print_groups(const ndm_mesh *mesh, FILE *out)
{
    int64_t world = ndm_mesh_world(mesh);
    fprintf(out, "\n%-12s  %9s  %9s  %s\n", "group", "size", "count", "ranks");
    for (const ndm_axis_set *set = ndm_mesh_view_sets(); *set != 0; set++) {
        char name[64];
        int64_t size = ndm_mesh_size(mesh, *set);
        fprintf(out, "%-12s  %9" PRId64 "  %9" PRId64 " ",
                ndm_axis_set_name(*set, name, sizeof name), size, world / size);
        bool listed = world <= NDM_MESH_TEXT_RANKS;
        for (int64_t p = 0; p < (listed ? world : 1); p++) {
            int64_t rank = ndm_mesh_rank_at(mesh, p);
            if (ndm_mesh_group(mesh, *set, rank).index == 0)
                print_members(mesh, *set, rank, out);
        }
        fprintf(out, "%s\n", listed || size == world ? "" : " ...");
    }
}

static void print_placement(const ndm_mesh_view *view, FILE *out)
{
    fprintf(out, "\nplacement     %s\n",
            view->forced                ? "order as given"
            : ndm_mesh_view_moved(view) ? "ranks moved to keep inner axes near"
                                        : "ranks in order");
    if (view->facts == NULL)
        return;
    fprintf(out, "%-12s  %" PRId64 "\n", "hosts", view->hosts);
    for (const ndm_axis_set *set = ndm_mesh_view_sets(); *set != 0; set++) {
        char name[64], text[160];
        if (ndm_mesh_size(view->mesh, *set) > 1)
            fprintf(out, "%-12s  %s\n", ndm_axis_set_name(*set, name, sizeof name),
                    ndm_placement_describe(view->mesh, view->facts, *set, text, sizeof text));
    }
}

void ndm_mesh_view_text(const ndm_mesh_view *view, FILE *out)
{
    print_sizes(view->mesh, out);
    print_coordinates(view, out);
    print_groups(view->mesh, out);
    if (view->facts != NULL || view->forced)
        print_placement(view, out);
}
