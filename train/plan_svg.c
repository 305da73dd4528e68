/* SPDX-License-Identifier: Apache-2.0 */
/* A plan as a picture: what a rank's memory holds against what there is, and the time line of a
 * step, a lane for each stream. */
#include <string.h>

#include "core/file.h"
#include "train/plan.h"

enum {
    WIDTH = 1120,
    LEFT = 130,
    PLOT = WIDTH - LEFT - 40,
    BAR_TOP = 64,
    BAR_HEIGHT = 34,
    LANES_TOP = 210,
    LANE_HEIGHT = 30,
    LANES_MAX = 8
};

static const double GIB = 1073741824.0;

static const char *const kind_colours[NDM_MEMORY_KIND_COUNT] = {
    "#1f6fb2", "#5aa9e6", "#e07a1f", "#7b5ea7", "#3a9d5d", "#a0a0a0", "#c94f4f"};

typedef struct picture {
    ndm_buffer *svg;
    const ndm_plan_request *request;
    const ndm_plan_result *result;
    const ndm_sim_span *spans;
    int64_t n;
    double from;
} picture;

static void text_at(ndm_buffer *svg, double x, double y, const char *anchor, const char *text)
{
    ndm_buffer_printf(svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
                      anchor, text);
}

static void box(ndm_buffer *svg, double x, double y, double width, double height,
                const char *colour)
{
    ndm_buffer_printf(svg,
                      "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"/>\n",
                      x, y, width, height, colour);
}

/* ---- memory ------------------------------------------------------------------------------- */

static void draw_limit(const picture *p, double scale)
{
    double x = LEFT + p->request->machine->memory_bytes * scale;
    char text[64];

    ndm_buffer_printf(p->svg,
                      "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#c00000\" "
                      "stroke-width=\"2\"/>\n",
                      x, BAR_TOP - 6, x, BAR_TOP + BAR_HEIGHT + 6);
    snprintf(text, sizeof text, "%.1f GiB there are", p->request->machine->memory_bytes / GIB);
    text_at(p->svg, x > WIDTH / 2 ? x - 4 : x + 4, BAR_TOP - 10, x > WIDTH / 2 ? "end" : "start",
            text);
}

static void draw_key(const picture *p, int i, double x, double y, const char *name, double bytes)
{
    char text[96];

    box(p->svg, x, y - 10, 12, 12, kind_colours[i]);
    snprintf(text, sizeof text, "%s %.2f", name, bytes / GIB);
    text_at(p->svg, x + 17, y, "start", text);
}

/* Peaks by kind, which need not come at one time, beside what is needed in all. */
static void draw_memory(const picture *p)
{
    const ndm_plan_result *r = p->result;
    double sum = 0.0, most = p->request->machine->memory_bytes, x = LEFT;

    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++)
        sum += (double)r->memory.peak_bytes[k];
    most = sum > most ? sum : most;
    most = (double)r->needed > most ? (double)r->needed : most;
    double scale = PLOT / most;
    text_at(p->svg, LEFT - 10, BAR_TOP + 12, "end", "peaks by kind");
    text_at(p->svg, LEFT - 10, BAR_TOP + 30, "end", "needed");
    for (int k = 0; k < NDM_MEMORY_KIND_COUNT; k++) {
        double bytes = (double)r->memory.peak_bytes[k];
        box(p->svg, x, BAR_TOP, bytes * scale, BAR_HEIGHT / 2.0 - 1, kind_colours[k]);
        draw_key(p, k, LEFT + (k % 4) * 230, BAR_TOP + BAR_HEIGHT + 26 + k / 4 * 20,
                 ndm_memory_kind_name((ndm_memory_kind)k), bytes);
        x += bytes * scale;
    }
    box(p->svg, LEFT, BAR_TOP + BAR_HEIGHT / 2.0 + 1, (double)r->needed * scale,
        BAR_HEIGHT / 2.0 - 1, r->fits ? "#444444" : "#c00000");
    draw_limit(p, scale);
}

/* ---- time line ---------------------------------------------------------------------------- */

static const char *colour_of(const ndm_sim_span *s)
{
    if (s->cause)
        return s->cause & NDM_AXIS_TP ? "#e07a1f" : s->cause & NDM_AXIS_CP ? "#7b5ea7" : "#c94f4f";
    if (strcmp(s->name, "gemm") == 0)
        return "#1f6fb2";
    return strncmp(s->name, "attention", 9) == 0 ? "#3a9d5d" : "#a9c4dc";
}

/* Lanes in the order in which streams first do something. */
static int find_lanes(const picture *p, const ndm_stream **lanes)
{
    int n = 0;

    for (int64_t i = 0; i < p->n; i++) {
        int at = 0;
        while (at < n && lanes[at] != p->spans[i].stream)
            at++;
        if (at == n && n < LANES_MAX)
            lanes[n++] = p->spans[i].stream;
    }
    return n;
}

/* Neighbours of one colour are one box where less than half a pixel is between them. */
static void draw_lane(const picture *p, const ndm_stream *stream, double y)
{
    double scale = PLOT / p->result->step_ns, begin = 0.0, end = -1.0;
    const char *colour = NULL;

    for (int64_t i = 0; i <= p->n; i++) {
        const ndm_sim_span *s = i < p->n ? &p->spans[i] : NULL;
        if (s && s->stream != stream)
            continue;
        double x = s ? (s->begin - p->from) * scale : 0.0;
        bool goes_on = s && colour == colour_of(s) && x - end < 0.5;
        if (!goes_on && colour)
            box(p->svg, LEFT + begin, y, end - begin > 0.3 ? end - begin : 0.3, LANE_HEIGHT - 8,
                colour);
        if (!s)
            break;
        begin = goes_on ? begin : x;
        end = (s->end - p->from) * scale;
        colour = colour_of(s);
    }
}

static void draw_scale(const picture *p, double y)
{
    char text[48];

    for (int i = 0; i <= 4; i++) {
        snprintf(text, sizeof text, "%.4g ms", p->result->step_ns * 1e-6 * i / 4);
        text_at(p->svg, LEFT + PLOT * i / 4.0, y, "middle", text);
    }
}

static void draw_colours(const picture *p, double y)
{
    static const char *const keys[][2] = {
        {"#1f6fb2", "matrix products"},     {"#3a9d5d", "attention"},
        {"#a9c4dc", "other kernels"},       {"#c94f4f", "collectives over dp"},
        {"#7b5ea7", "over cp, or with it"}, {"#e07a1f", "over tp, or with it"},
    };
    int n = sizeof keys / sizeof *keys;

    for (int i = 0; i < n; i++) {
        box(p->svg, LEFT + i * 160, y - 10, 12, 12, keys[i][0]);
        text_at(p->svg, LEFT + i * 160 + 17, y, "start", keys[i][1]);
    }
}

static void draw_lanes(const picture *p, const ndm_stream **lanes, int n)
{
    double y = LANES_TOP;

    text_at(p->svg, 16, y - 14, "start", "one step, a lane for each stream");
    for (int i = 0; i < n; i++, y += LANE_HEIGHT) {
        text_at(p->svg, LEFT - 10, y + 15, "end", lanes[i]->name);
        box(p->svg, LEFT, y, PLOT, LANE_HEIGHT - 8, "#f2f2f2");
        draw_lane(p, lanes[i], y);
    }
    draw_scale(p, y + 10);
    draw_colours(p, y + 36);
}

static void draw_head(const picture *p, double height)
{
    const ndm_plan_request *q = p->request;
    const ndm_plan_result *r = p->result;

    ndm_buffer_printf(
        p->svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%.0f\" "
        "viewBox=\"0 0 %d %.0f\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
        "<text x=\"16\" y=\"24\" font-size=\"15\" font-weight=\"bold\">%lld x %s: dp_replicate "
        "%lld x dp_shard %lld x cp %lld x tp %lld, micro-batch %lld: %.5g tokens/s a %s, MFU %.1f "
        "%%</text>\n",
        WIDTH, height, WIDTH, height, (long long)q->ranks, q->machine->name, (long long)r->mesh[0],
        (long long)r->mesh[1], (long long)r->mesh[2], (long long)r->mesh[3],
        (long long)q->options.micro_batch, r->tokens_per_s / (double)q->ranks, q->machine->unit,
        r->mfu * 100.0);
}

ndm_status ndm_plan_write_svg(const ndm_plan_request *request, const ndm_plan_result *result,
                              const ndm_sim_span *spans, int64_t n, double from, const char *path)
{
    ndm_buffer svg = {0};
    picture p = {&svg, request, result, spans, n, from};
    const ndm_stream *lanes[LANES_MAX];
    int n_lanes = find_lanes(&p, lanes);

    draw_head(&p, LANES_TOP + n_lanes * LANE_HEIGHT + 60);
    draw_memory(&p);
    draw_lanes(&p, lanes, n_lanes);
    ndm_buffer_puts(&svg, "</svg>\n");
    ndm_status status = ndm_buffer_status(&svg);
    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, svg.data, svg.length);
    ndm_buffer_finish(&svg);
    return status;
}
