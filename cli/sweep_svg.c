/* SPDX-License-Identifier: Apache-2.0 */
/* Pictures of a sweep: speed over the shape of the mesh, speed over ranks beside the ideal line,
 * and bars of what a step consists of. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_facts.h"
#include "cli/sweep.h"
#include "core/file.h"

enum { CELL_WIDTH = 118, CELL_HEIGHT = 46, LEFT = 210, TOP = 76, SHAPES = 256 };

static void begin(ndm_buffer *svg, double width, double height, const char *title)
{
    ndm_buffer_printf(svg,
                      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
                      "viewBox=\"0 0 %.0f %.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
                      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                      "<text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"bold\">%s</text>\n",
                      width, height, width, height, title);
}

static void text_at(ndm_buffer *svg, double x, double y, const char *anchor, const char *text)
{
    ndm_buffer_printf(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
                      anchor, text);
}

static ndm_status save(ndm_buffer *svg, const char *folder, const char *name)
{
    ndm_buffer_puts(svg, "</svg>\n");
    ndm_status status = ndm_buffer_status(svg);
    char *path = ndm_text_printf("%s/%s", folder, name);
    if (status == NDM_OK && path == NULL)
        status = ndm_error_set(NDM_ERR_MEMORY, __FILE__, __LINE__, "no memory for a path");
    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, svg->data, svg->length);
    free(path);
    ndm_buffer_finish(svg);
    return status;
}

static bool good(const ndm_sweep_row *row)
{
    return row->status == NDM_SWEEP_OK && isfinite(row->tokens_per_s);
}

/* ---- heat map: rows are data parallel shapes, columns cp and tp
 * ------------------------------------ */

typedef struct shape {
    int64_t outer, inner;
} shape;

typedef struct shapes {
    shape at[SHAPES];
    int n;
} shapes;

/* Little splitting first. */
static int by_size(const void *a, const void *b)
{
    const shape *x = a, *y = b;
    int64_t m = x->outer * x->inner, n = y->outer * y->inner;

    return m != n ? (m > n) - (m < n) : (x->outer > y->outer) - (x->outer < y->outer);
}

static int shape_index(shapes *s, int64_t outer, int64_t inner)
{
    for (int i = 0; i < s->n; i++)
        if (s->at[i].outer == outer && s->at[i].inner == inner)
            return i;
    if (s->n == SHAPES)
        return SHAPES - 1;
    s->at[s->n] = (shape){outer, inner};
    return s->n++;
}

/* The best row of a shape, NULL without one that ended well. */
static const ndm_sweep_row *best_of(const ndm_sweep_result *result, int64_t ranks,
                                    const int64_t sizes[NDM_AXIS_COUNT])
{
    for (int64_t i = 0; i < result->n; i++) { /* they are sorted */
        const ndm_sweep_point *p = result->rows[i].point;
        if (!p->reference && p->ranks == ranks && good(&result->rows[i]) &&
            memcmp(p->sizes, sizes, sizeof p->sizes) == 0)
            return &result->rows[i];
    }
    return NULL;
}

static void draw_cell(ndm_buffer *svg, const ndm_sweep_row *row, double best, double x, double y)
{
    double part = row != NULL ? row->tokens_per_s / best : 0.0;
    char text[64];

    ndm_buffer_printf(svg, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"%d\" fill=\"%s", x, y,
                      CELL_WIDTH - 3, CELL_HEIGHT - 3, row == NULL ? "#eeeeee" : "hsl(");
    if (row != NULL) /* from red to green */
        ndm_buffer_printf(svg, "%.0f,70%%,72%%)", 120.0 * part);
    ndm_buffer_puts(svg, "\"/>\n");
    if (row == NULL) {
        text_at(svg, x + CELL_WIDTH / 2.0, y + 26, "middle", "-");
        return;
    }
    snprintf(text, sizeof text, "%.0f tokens/s", row->tokens_per_s);
    text_at(svg, x + CELL_WIDTH / 2.0, y + 19, "middle", text);
    snprintf(text, sizeof text, "%.0f %% of best", 100.0 * part);
    text_at(svg, x + CELL_WIDTH / 2.0, y + 35, "middle", text);
}

static void draw_heads(ndm_buffer *svg, const shapes *rows, const shapes *columns)
{
    char text[96];

    for (int i = 0; i < columns->n; i++) {
        snprintf(text, sizeof text, "cp %" PRId64 " x tp %" PRId64, columns->at[i].outer,
                 columns->at[i].inner);
        text_at(svg, LEFT + (i + 0.5) * CELL_WIDTH, TOP - 10, "middle", text);
    }
    for (int i = 0; i < rows->n; i++) {
        snprintf(text, sizeof text, "dp_replicate %" PRId64 " x dp_shard %" PRId64,
                 rows->at[i].outer, rows->at[i].inner);
        text_at(svg, LEFT - 10, TOP + (i + 0.6) * CELL_HEIGHT, "end", text);
    }
}

static void collect_shapes(const ndm_sweep_plan *plan, int64_t ranks, shapes *rows, shapes *columns)
{
    for (int64_t i = 0; i < plan->n; i++) {
        const ndm_sweep_point *p = &plan->points[i];
        if (p->ranks != ranks || p->reference)
            continue;
        shape_index(rows, p->sizes[NDM_DP_REPLICATE], p->sizes[NDM_DP_SHARD]);
        shape_index(columns, p->sizes[NDM_CP], p->sizes[NDM_TP]);
    }
    qsort(rows->at, (size_t)rows->n, sizeof rows->at[0], by_size);
    qsort(columns->at, (size_t)columns->n, sizeof columns->at[0], by_size);
}

/* A cell for each shape of the plan; grey where the run was invalid or was lost. */
static ndm_status draw_heatmap(const ndm_sweep_result *result, const ndm_sweep_plan *plan,
                               int64_t ranks, const char *folder)
{
    shapes rows = {.n = 0}, columns = {.n = 0};
    ndm_buffer svg = {0};
    char text[96];
    double best = 0.0;

    collect_shapes(plan, ranks, &rows, &columns);
    for (int64_t i = 0; i < result->n; i++)
        if (result->rows[i].point->ranks == ranks && good(&result->rows[i]))
            best = fmax(best, result->rows[i].tokens_per_s);
    snprintf(text, sizeof text, "tokens/s of %" PRId64 " ranks by mesh, best variant of each",
             ranks);
    begin(&svg, LEFT + columns.n * CELL_WIDTH + 20, TOP + rows.n * CELL_HEIGHT + 20, text);
    draw_heads(&svg, &rows, &columns);
    for (int64_t i = 0; i < plan->n; i++) {
        const ndm_sweep_point *p = &plan->points[i];
        if (p->ranks != ranks || p->reference)
            continue;
        int r = shape_index(&rows, p->sizes[NDM_DP_REPLICATE], p->sizes[NDM_DP_SHARD]);
        int c = shape_index(&columns, p->sizes[NDM_CP], p->sizes[NDM_TP]);
        draw_cell(&svg, best_of(result, ranks, p->sizes), best, LEFT + c * CELL_WIDTH,
                  TOP + r * CELL_HEIGHT);
    }
    snprintf(text, sizeof text, "heatmap-%" PRId64 ".svg", ranks);
    return save(&svg, folder, text);
}

/* ---- scaling
 * --------------------------------------------------------------------------------------- */

enum { PLOT_WIDTH = 560, PLOT_HEIGHT = 320, PLOT_LEFT = 90, PLOT_TOP = 60, MARKS = 64 };

typedef struct mark {
    int64_t ranks;
    double speed, ideal;
} mark;

/* Cores that n ranks keep busy: all of them, unless the threads of a rank are fixed. */
static double cores_used(int64_t ranks, int64_t threads)
{
    double cores = (double)ndm_bench_cores();

    return threads > 0 ? fmin(cores, (double)(ranks * threads)) : cores;
}

static int collect_marks(const ndm_sweep_result *result, int64_t threads, mark *marks)
{
    const ndm_sweep_row *one = NULL;
    int n = 0;

    for (int64_t i = 0; i < result->n; i++) {
        const ndm_sweep_row *row = &result->rows[i];
        int at = 0;
        if (!good(row))
            continue;
        if (row->point->reference)
            one = row;
        while (at < n && marks[at].ranks != row->point->ranks)
            at++;
        if (at == MARKS)
            continue;
        if (at == n)
            marks[n++] = (mark){row->point->ranks, 0.0, NAN};
        marks[at].speed = fmax(marks[at].speed, row->tokens_per_s);
    }
    for (int i = 0; i < n && one != NULL; i++)
        marks[i].ideal = one->tokens_per_s * cores_used(marks[i].ranks, threads) /
                         cores_used(1, threads);
    return n;
}

static int by_ranks(const void *a, const void *b)
{
    const mark *x = a, *y = b;

    return (x->ranks > y->ranks) - (x->ranks < y->ranks);
}

static double x_of(int i, int n)
{
    return PLOT_LEFT + (n > 1 ? (double)i / (n - 1) : 0.5) * PLOT_WIDTH;
}

static void draw_line(ndm_buffer *svg, const mark *marks, int n, double top, bool ideal)
{
    ndm_buffer_puts(svg, "<polyline fill=\"none\" points=\"");
    for (int i = 0; i < n; i++) {
        double v = ideal ? marks[i].ideal : marks[i].speed;
        if (isfinite(v))
            ndm_buffer_printf(svg, "%.1f,%.1f ", x_of(i, n),
                              PLOT_TOP + PLOT_HEIGHT * (1.0 - v / top));
    }
    ndm_buffer_printf(svg, "\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
                      ideal ? "#888888" : "#1f6fb2", ideal ? " stroke-dasharray=\"6 4\"" : "");
}

static void draw_axes(ndm_buffer *svg, const mark *marks, int n, double top)
{
    char text[64];

    ndm_buffer_printf(svg, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"black\"/>\n", PLOT_LEFT,
                      PLOT_TOP, PLOT_TOP + PLOT_HEIGHT, PLOT_LEFT + PLOT_WIDTH);
    for (int i = 0; i <= 4; i++) {
        snprintf(text, sizeof text, "%.0f", top * i / 4);
        text_at(svg, PLOT_LEFT - 8, PLOT_TOP + PLOT_HEIGHT * (1.0 - i / 4.0) + 4, "end", text);
    }
    for (int i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%" PRId64, marks[i].ranks);
        text_at(svg, x_of(i, n), PLOT_TOP + PLOT_HEIGHT + 18, "middle", text);
        ndm_buffer_printf(svg, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#1f6fb2\"/>\n",
                          x_of(i, n), PLOT_TOP + PLOT_HEIGHT * (1.0 - marks[i].speed / top));
    }
    text_at(svg, PLOT_LEFT + PLOT_WIDTH / 2.0, PLOT_TOP + PLOT_HEIGHT + 38, "middle", "ranks");
}

static ndm_status draw_scaling(const ndm_sweep_result *result, int64_t threads, const char *folder)
{
    mark marks[MARKS];
    int n = collect_marks(result, threads, marks);
    ndm_buffer svg = {0};
    double top = 1.0;

    qsort(marks, (size_t)n, sizeof *marks, by_ranks);
    for (int i = 0; i < n; i++)
        top = fmax(top, 1.1 * fmax(marks[i].speed, isfinite(marks[i].ideal) ? marks[i].ideal : 0));
    begin(&svg, PLOT_LEFT + PLOT_WIDTH + 40, PLOT_TOP + PLOT_HEIGHT + 60,
          "tokens/s of the best mesh by ranks; dashed: one rank's, times the cores in use");
    draw_axes(&svg, marks, n, top);
    draw_line(&svg, marks, n, top, true);
    draw_line(&svg, marks, n, top, false);
    return save(&svg, folder, "scaling.svg");
}

/* ---- bars
 * ------------------------------------------------------------------------------------------ */

enum { BAR_HEIGHT = 20, BAR_LEFT = 480, BAR_WIDTH = 420 };

static void draw_bar(ndm_buffer *svg, const ndm_sweep_row *row, double most, double y)
{
    double rest = BAR_WIDTH * fmax(0.0, row->p50_ms - row->exposed_ms) / most;
    double exposed = BAR_WIDTH * fmin(row->exposed_ms, row->p50_ms) / most;
    char text[64];

    text_at(svg, BAR_LEFT - 8, y + 14, "end", row->point->id);
    ndm_buffer_printf(
        svg,
        "<rect x=\"%d\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" fill=\"#1f6fb2\"/>\n"
        "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" fill=\"#e07b39\"/>\n",
        BAR_LEFT, y, rest, BAR_HEIGHT - 4, BAR_LEFT + rest, y, exposed, BAR_HEIGHT - 4);
    snprintf(text, sizeof text, "%.1f ms, %.1f exposed", row->p50_ms, row->exposed_ms);
    text_at(svg, BAR_LEFT + rest + exposed + 6, y + 13, "start", text);
}

static ndm_status draw_bars(const ndm_sweep_result *result, const char *folder)
{
    ndm_buffer svg = {0};
    double most = 1e-9, y = 64;
    int64_t n = 0;

    for (int64_t i = 0; i < result->n; i++)
        if (good(&result->rows[i]))
            most = fmax(most, result->rows[i].p50_ms), n++;
    begin(&svg, BAR_LEFT + BAR_WIDTH + 190, 64 + (double)n * BAR_HEIGHT + 20,
          "median step: compute and the rest (blue), exposed communication (orange)");
    for (int64_t i = 0; i < result->n; i++) {
        if (!good(&result->rows[i]))
            continue;
        draw_bar(&svg, &result->rows[i], most, y);
        y += BAR_HEIGHT;
    }
    return save(&svg, folder, "time.svg");
}

/* ---- all
 * ------------------------------------------------------------------------------------------- */

ndm_status ndm_sweep_draw(const ndm_sweep_result *result, const ndm_sweep_plan *plan,
                          const ndm_options *options, const char *folder)
{
    NDM_TRY(ndm_file_make_dirs(folder));
    for (size_t i = 0; i < ndm_option_count(options, "ranks"); i++) {
        int64_t ranks = strtoll(ndm_option_item(options, "ranks", i), NULL, 10);
        NDM_TRY(draw_heatmap(result, plan, ranks, folder));
    }
    NDM_TRY(draw_scaling(result, ndm_option_int64(options, "threads"), folder));
    return draw_bars(result, folder);
}
