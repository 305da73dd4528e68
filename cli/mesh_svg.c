/* SPDX-License-Identifier: Apache-2.0 */
/* A mesh as a picture: a box a rank, coloured by its tp group, inside frames that nest as the axes
 * do. */
#include <inttypes.h>
#include <math.h>

#include "cli/mesh_view.h"

enum {
    BOX_WIDTH = 82,
    BOX_HEIGHT = 44,
    GAP = 6,
    TITLE = 20,
    MARGIN = 24,
    HEADER = 56,
    LEGEND_ROW = 24
};

/* One axis of more than one rank: its cells stand in a grid, each a frame, or a box at the
 * innermost level. */
typedef struct level {
    int axis;
    int64_t size, shown, columns;
    double cell_width, cell_height; /* without the gap */
} level;

typedef struct picture {
    const ndm_mesh_view *view;
    ndm_buffer *svg;
    level levels[NDM_AXIS_COUNT];
    int n_levels;
    double width, height; /* of the grid */
} picture;

static const struct {
    const char *fill, *stroke;
} frame_style[NDM_AXIS_COUNT] = {
    {"#eceff4", "#6b7a90"}, {"#dbe5f1", "#4f7cac"}, {"#f7f3e8", "#b08d3c"}, {"#ffffff", "#888888"}};

static int64_t columns_for(int64_t n, double width, double height, bool row)
{
    if (row && n <= 8)
        return n;
    int64_t best = 1;
    double best_cost = INFINITY;
    for (int64_t c = 1; c <= n; c++) {
        int64_t rows = (n + c - 1) / c;
        double cost = fabs(log((double)c * width / ((double)rows * height) / 1.6)) +
                      1.5 * (double)(rows * c - n) / (double)n;
        if (cost < best_cost) {
            best_cost = cost;
            best = c;
        }
    }
    return best;
}

/* Inner axes are shown whole first; the outer ones get what room is left. */
static void choose_levels(picture *p)
{
    int64_t shown = 1;
    for (int a = 0; a < NDM_AXIS_COUNT; a++) {
        int64_t size = ndm_mesh_axis_size(p->view->mesh, (ndm_axis)a);
        if (size > 1)
            p->levels[p->n_levels++] = (level){.axis = a, .size = size, .shown = size};
    }
    for (int l = p->n_levels - 1; l >= 0; l--) {
        int64_t room = NDM_MESH_SVG_RANKS / shown;
        if (p->levels[l].shown > room)
            p->levels[l].shown = room;
        shown *= p->levels[l].shown;
    }
}

static void measure(picture *p)
{
    double width = BOX_WIDTH, height = BOX_HEIGHT;
    for (int l = p->n_levels - 1; l >= 0; l--) {
        level *v = &p->levels[l];
        v->cell_width = width;
        v->cell_height = height;
        v->columns = columns_for(v->shown, width, height, l == p->n_levels - 1);
        int64_t rows = (v->shown + v->columns - 1) / v->columns;
        width = (double)v->columns * (width + GAP) + GAP;
        height = (double)rows * (height + GAP) + GAP + (l > 0 ? TITLE : 0);
        if (v->shown < v->size)
            height += TITLE;
    }
    p->width = width;
    p->height = height;
}

static void draw_box(picture *p, const int64_t *coords, double x, double y)
{
    const ndm_mesh *mesh = p->view->mesh;
    int64_t rank = ndm_mesh_rank(mesh, coords);
    int64_t tp_group = ndm_mesh_position(mesh, rank) / ndm_mesh_axis_size(mesh, NDM_TP);
    double hue = fmod((double)tp_group * 137.508, 360.0);
    ndm_buffer_printf(p->svg,
                      "<rect x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"%d\" rx=\"4\" "
                      "fill=\"hsl(%.0f,62%%,%d%%)\" stroke=\"hsl(%.0f,55%%,38%%)\"/>\n",
                      x, y, BOX_WIDTH, BOX_HEIGHT, hue, tp_group % 2 == 0 ? 80 : 72, hue);
    ndm_buffer_printf(p->svg, "<text class=\"rank\" x=\"%.0f\" y=\"%.0f\">%" PRId64,
                      x + BOX_WIDTH / 2, y + 19, rank);
    if (p->view->facts != NULL)
        ndm_buffer_printf(p->svg, "<tspan class=\"host\"> @%" PRId64 "</tspan>",
                          p->view->facts[rank].id[NDM_PLACE_HOST]);
    ndm_buffer_printf(p->svg, "</text>\n<text class=\"at\" x=\"%.0f\" y=\"%.0f\">",
                      x + BOX_WIDTH / 2, y + 35);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_buffer_printf(p->svg, "%s%" PRId64, a == 0 ? "" : ",", coords[a]);
    ndm_buffer_puts(p->svg, "</text>\n");
}

static void draw_frame(picture *p, const level *v, int64_t i, double x, double y)
{
    ndm_buffer_printf(
        p->svg,
        "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%.0f\" rx=\"6\" "
        "fill=\"%s\" stroke=\"%s\"/>\n"
        "<text class=\"frame\" x=\"%.0f\" y=\"%.0f\" fill=\"%s\">%s %" PRId64 "</text>\n",
        x, y, v->cell_width, v->cell_height, frame_style[v->axis].fill, frame_style[v->axis].stroke,
        x + 8, y + 15, frame_style[v->axis].stroke, ndm_axis_table()[v->axis].name, i);
}

static void draw_level(picture *p, int l, int64_t *coords, double x, double y)
{
    if (l >= p->n_levels || l == NDM_AXIS_COUNT) {
        draw_box(p, coords, x, y);
        return;
    }
    const level *v = &p->levels[l];
    double top = y + GAP + (l > 0 ? TITLE : 0);
    for (int64_t i = 0; i < v->shown; i++) {
        double cx = x + GAP + (double)(i % v->columns) * (v->cell_width + GAP);
        double cy = top + (double)(i / v->columns) * (v->cell_height + GAP);
        coords[v->axis] = i;
        if (l + 1 < p->n_levels)
            draw_frame(p, v, i, cx, cy);
        draw_level(p, l + 1, coords, cx, cy);
    }
    coords[v->axis] = 0;
    if (v->shown < v->size) {
        int64_t rows = (v->shown + v->columns - 1) / v->columns;
        ndm_buffer_printf(p->svg,
                          "<text class=\"frame\" x=\"%.0f\" y=\"%.0f\">... and %" PRId64
                          " more along %s</text>\n",
                          x + 8, top + (double)rows * (v->cell_height + GAP) + 13,
                          v->size - v->shown, ndm_axis_table()[v->axis].name);
    }
}

static void draw_header(picture *p, double width, double height)
{
    const ndm_mesh *mesh = p->view->mesh;
    ndm_buffer_printf(p->svg,
                      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                      "viewBox=\"0 0 %.0f %.0f\">\n"
                      "<style>text{font-family:DejaVu Sans,Helvetica,Arial,sans-serif;fill:#222}"
                      ".rank{font-size:16px;font-weight:bold;text-anchor:middle}"
                      ".host{font-size:11px;font-weight:normal}"
                      ".at{font-size:11px;text-anchor:middle}.frame{font-size:12px}"
                      ".title{font-size:18px;font-weight:bold}.note{font-size:12px}</style>\n"
                      "<rect width=\"%.0f\" height=\"%.0f\" fill=\"#ffffff\"/>\n"
                      "<text class=\"title\" x=\"%d\" y=\"28\">%" PRId64 " ranks</text>\n"
                      "<text class=\"note\" x=\"%d\" y=\"46\">",
                      width, height, width, height, width, height, MARGIN, ndm_mesh_world(mesh),
                      MARGIN);
    for (int a = 0; a < NDM_AXIS_COUNT; a++)
        ndm_buffer_printf(p->svg, "%s%s %" PRId64, a == 0 ? "" : " x ", ndm_axis_table()[a].name,
                          ndm_mesh_axis_size(mesh, (ndm_axis)a));
    ndm_buffer_puts(p->svg, "</text>\n");
}

static void legend_row(picture *p, double y, const char *fill, const char *stroke, const char *text)
{
    ndm_buffer_printf(p->svg,
                      "<rect x=\"%d\" y=\"%.0f\" width=\"26\" height=\"16\" rx=\"4\" fill=\"%s\" "
                      "stroke=\"%s\"/>\n<text class=\"note\" x=\"%d\" y=\"%.0f\">%s</text>\n",
                      MARGIN, y, fill, stroke, MARGIN + 36, y + 12, text);
}

static void draw_legend(picture *p, double y)
{
    char text[160];
    legend_row(p, y, "hsl(138,62%,72%)", "hsl(138,55%,38%)",
               p->view->facts != NULL
                   ? "rank @host, and dp_replicate,dp_shard,cp,tp; one colour is one tp group"
                   : "rank, and dp_replicate,dp_shard,cp,tp; one colour is one tp group");
    for (int l = 0; l + 1 < p->n_levels; l++) {
        int a = p->levels[l].axis;
        snprintf(text, sizeof text, "%s: %s", ndm_axis_table()[a].name,
                 ndm_axis_table()[a].summary);
        y += LEGEND_ROW;
        legend_row(p, y, frame_style[a].fill, frame_style[a].stroke, text);
    }
}

void ndm_mesh_view_svg(const ndm_mesh_view *view, ndm_buffer *svg)
{
    picture p = {.view = view, .svg = svg};
    choose_levels(&p);
    measure(&p);
    double legend = LEGEND_ROW * (p.n_levels > 1 ? p.n_levels : 1);
    double width = fmax(p.width, 520) + 2 * MARGIN;
    draw_header(&p, width, p.height + HEADER + legend + 2 * MARGIN);
    int64_t coords[NDM_AXIS_COUNT] = {0};
    draw_level(&p, 0, coords, MARGIN - GAP, HEADER);
    draw_legend(&p, HEADER + p.height + MARGIN / 2);
    ndm_buffer_puts(svg, "</svg>\n");
}
