/* SPDX-License-Identifier: Apache-2.0 */
/* The time line of a planned step as Chrome's trace events: a line for each stream. */
#include "core/file.h"
#include "core/json.h"
#include "train/plan.h"

static void write_event(ndm_json *json, const ndm_sim_span *s, double from)
{
    char axes[48];

    ndm_json_begin_object(json);
    ndm_json_key_string(json, "name", s->name);
    ndm_json_key_string(json, "cat", s->cause ? "collective" : "kernel");
    ndm_json_key_string(json, "ph", "X");
    ndm_json_key_int(json, "pid", 0);
    ndm_json_key_string(json, "tid", s->stream->name);
    ndm_json_key_double(json, "ts", (s->begin - from) * 1e-3);
    ndm_json_key_double(json, "dur", (s->end - s->begin) * 1e-3);
    if (s->cause) {
        ndm_json_key(json, "args");
        ndm_json_begin_object(json);
        ndm_json_key_string(json, "axes", ndm_axis_set_name(s->cause, axes, sizeof axes));
        ndm_json_end_object(json);
    }
    ndm_json_end_object(json);
}

ndm_status ndm_plan_write_trace(const ndm_sim_span *spans, int64_t n, double from, const char *path)
{
    ndm_buffer text = {0};
    ndm_json json;

    ndm_json_init_buffer(&json, &text, false);
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "displayTimeUnit", "ms");
    ndm_json_key(&json, "traceEvents");
    ndm_json_begin_array(&json);
    for (int64_t i = 0; i < n; i++)
        write_event(&json, &spans[i], from);
    ndm_json_end_array(&json);
    ndm_json_end_object(&json);
    ndm_status status = ndm_json_finish(&json);
    if (status == NDM_OK)
        status = ndm_file_write_atomic(path, text.data, text.length);
    ndm_buffer_finish(&text);
    return status;
}
