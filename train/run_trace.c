/* SPDX-License-Identifier: Apache-2.0 */
/* --trace: the time line of a run as Chrome's trace events, all ranks in one file: a process for a
 * rank, with lines for steps, for the compute stream and what it waits for, and for kernels that
 * run while it waits. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/text.h"
#include "strategies/internal.h"
#include "train/run_internal.h"
#include "train/trainer.h"

enum { SPANS_MAX = 1 << 20, SPANS_FIRST = 4096, NAME_BYTES = 20 };

typedef enum line { STEPS, COMPUTE, COMMUNICATION } line;
static const char *const line_names[] = {"steps", "compute", "communication"};

typedef struct span {
    int64_t begin_ns, end_ns;
    char name[NAME_BYTES];
    line line;
} span;

struct ndm_run_trace {
    span *spans;
    int64_t n, capacity, lost;  /* lost: those for which there was no room */
    int64_t start_ns;           /* all ranks leave a rendezvous then */
    int64_t waited_ns, done_ns; /* of the compute stream: waits so far, end of its last kernel */
    int64_t step_ns;
    FILE *pipe;   /* held open from the start: a pipe ends for its reader when it is closed */
    bool written; /* whole */
};

/* Room is doubled as long as there is memory: a run does not fail for its trace. */
static bool make_room(ndm_run_trace *t)
{
    if (t->n < t->capacity)
        return true;
    int64_t capacity = t->capacity ? 2 * t->capacity : SPANS_FIRST;
    span *spans = capacity <= SPANS_MAX ? realloc(t->spans, (size_t)capacity * sizeof *spans)
                                        : NULL;
    if (!spans)
        return false;
    t->spans = spans;
    t->capacity = capacity;
    return true;
}

static void add(ndm_run_trace *t, line on, const char *name, int64_t begin_ns, int64_t end_ns)
{
    if (!make_room(t)) {
        t->lost++;
        return;
    }
    span *s = &t->spans[t->n++];
    *s = (span){.begin_ns = begin_ns, .end_ns = end_ns, .line = on};
    snprintf(s->name, sizeof s->name, "%s", name);
}

/* A wait is told by the kernel after it: it lies somewhere between the two. */
static void on_kernel(void *user, const ndm_stream *stream, const char *name, int op,
                      int64_t begin_ns, int64_t end_ns)
{
    ndm_run_trace *t = user;

    (void)op;
    if (stream->kind != NDM_STREAM_COMPUTE) {
        add(t, COMMUNICATION, name, begin_ns, end_ns);
        return;
    }
    int64_t waited = stream->waited_ns - t->waited_ns;
    if (waited > 0 && waited <= begin_ns - t->done_ns)
        add(t, COMPUTE, "wait", begin_ns - waited, begin_ns);
    add(t, COMPUTE, name, begin_ns, end_ns);
    t->waited_ns = stream->waited_ns;
    t->done_ns = end_ns;
}

static const char head[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                           "{\"name\":\"process_labels\",\"ph\":\"M\",\"pid\":0,"
                           "\"args\":{\"labels\":\"ndmesh train\"}}";

/* Closes the file. */
static ndm_status put(FILE *f, const char *path, int64_t offset, const char *data, size_t bytes)
{
    bool good = (offset == 0 || fseeko(f, offset, SEEK_SET) == 0) &&
                fwrite(data, 1, bytes, f) == bytes;

    good = fclose(f) == 0 && good;
    if (!good)
        NDM_FAIL(NDM_ERR_IO, "%s: could not be written: %s", path, ndm_file_write_error(errno));
    return NDM_OK;
}

static ndm_status open_at(const char *path, int64_t offset, FILE **file)
{
    *file = ndm_file_open_to_write(path, offset == 0);
    if (!*file)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot be written: %s", path, ndm_file_write_error(errno));
    return NDM_OK;
}

static ndm_status write_at(ndm_training *r, int64_t offset, const ndm_buffer *text)
{
    const char *path = ndm_option_string(r->options, "trace");
    FILE *f = r->trace->pipe;

    r->trace->pipe = NULL;
    if (!f)
        NDM_TRY(open_at(path, offset, &f));
    return put(f, path, offset, text->data, text->length);
}

/* Until there is a time line, a file has one without events: whatever ends the run, it is JSON. */
static ndm_status begin_file(ndm_training *r, const char *path)
{
    ndm_buffer text = {0};
    FILE *f;

    NDM_TRY(open_at(path, 0, &f));
    if (lseek(fileno(f), 0, SEEK_CUR) < 0) {
        r->trace->pipe = f;
        if (ndm_context_size(r->context) > 1)
            NDM_FAIL(NDM_ERR_UNSUPPORTED,
                     "--trace %s: a pipe takes the time line of one rank, not of %" PRId64, path,
                     ndm_context_size(r->context));
        return NDM_OK;
    }
    ndm_buffer_printf(&text, "%s\n]}\n", head);
    ndm_status status = ndm_buffer_status(&text);
    if (status == NDM_OK)
        status = put(f, path, 0, text.data, text.length);
    else
        fclose(f);
    ndm_buffer_finish(&text);
    return status;
}

ndm_status ndm_training_open_trace(ndm_training *r)
{
    const ndm_device *device = ndm_context_device(r->context);
    const char *path = ndm_option_string(r->options, "trace");

    if (!path)
        return NDM_OK;
    if (!device->ops->host_accessible)
        NDM_FAIL(NDM_ERR_UNSUPPORTED,
                 "--trace: the host does not see when kernels of device %s run; a profiler does",
                 ndm_device_name(device));
    r->trace = calloc(1, sizeof *r->trace);
    if (!r->trace)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for a trace");
    return ndm_context_rank(r->context) == 0 ? begin_file(r, path) : NDM_OK;
}

void ndm_training_trace_start(ndm_training *r)
{
    if (!r->trace)
        return;
    r->trace->start_ns = r->trace->step_ns = r->trace->done_ns = ndm_clock_ns();
    r->trace->waited_ns = ndm_stream_waited_ns(ndm_context_stream(r->context));
    ndm_device_observe(ndm_context_device(r->context), on_kernel, r->trace);
}

void ndm_training_trace_step(ndm_training *r)
{
    ndm_run_trace *t = r->trace;
    char name[NAME_BYTES];
    int64_t now = ndm_clock_ns();

    if (!t)
        return;
    snprintf(name, sizeof name, "step %" PRId64, r->last.step);
    add(t, STEPS, name, t->step_ns, now);
    t->step_ns = now;
}

/* ---- the file ------------------------------------------------------------------------------- */

static void write_meta(int64_t rank, line on, ndm_buffer *out)
{
    ndm_buffer_printf(out,
                      ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%" PRId64
                      ",\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                      rank, (int)on, line_names[on]);
}

/* Each event after a comma. Names are of ops and steps: nothing in them needs to be escaped. */
static void write_rank(const ndm_run_trace *t, int64_t rank, ndm_buffer *out)
{
    ndm_buffer_printf(out,
                      ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%" PRId64
                      ",\"args\":{\"name\":\"rank %" PRId64 "\",\"lost\":%" PRId64 "}}",
                      rank, rank, t->lost);
    for (line on = STEPS; on <= COMMUNICATION; on++)
        write_meta(rank, on, out);
    for (int64_t i = 0; i < t->n; i++) {
        const span *s = &t->spans[i];
        ndm_buffer_printf(out,
                          ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%" PRId64
                          ",\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f}",
                          s->name, rank, (int)s->line, (double)(s->begin_ns - t->start_ns) * 1e-3,
                          (double)(s->end_ns - s->begin_ns) * 1e-3);
    }
}

/* Each rank writes its part behind those of lower ranks, when the first has made the file. */
static ndm_status write_parts(ndm_training *r, const ndm_buffer *text)
{
    int64_t rank = ndm_context_rank(r->context), n = ndm_context_size(r->context), offset = 0;
    int64_t mine = (int64_t)text->length, *all = calloc((size_t)n, sizeof *all);

    if (!all)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the sizes of %" PRId64 " ranks", n);
    ndm_status status = ndm_world_exchange(r->context->world, &mine, sizeof mine, all);
    for (int64_t i = 0; i < rank; i++)
        offset += all[i];
    free(all);
    NDM_TRY(status);
    NDM_TRY(ndm_context_agree(r->context, rank == 0 ? write_at(r, 0, text) : NDM_OK));
    return ndm_context_agree(r->context, rank > 0 ? write_at(r, offset, text) : NDM_OK);
}

ndm_status ndm_training_write_trace(ndm_training *r)
{
    int64_t rank = ndm_context_rank(r->context), n = ndm_context_size(r->context);
    ndm_buffer text = {0};

    if (!r->trace)
        return NDM_OK;
    ndm_device_observe(ndm_context_device(r->context), NULL, NULL);
    if (rank == 0)
        ndm_buffer_puts(&text, head);
    write_rank(r->trace, rank, &text);
    if (rank == n - 1)
        ndm_buffer_puts(&text, "\n]}\n");
    ndm_status status = ndm_context_agree(r->context, ndm_buffer_status(&text));
    if (status == NDM_OK)
        status = write_parts(r, &text);
    r->trace->written = status == NDM_OK;
    ndm_buffer_finish(&text);
    return status;
}

/* The time line of rank 0 up to here: the others may not answer any more. */
ndm_status ndm_training_fail_trace(ndm_training *r, ndm_status failure, const char *reason)
{
    ndm_buffer text = {0};
    ndm_json json;

    if (!r->trace || r->trace->written || ndm_context_rank(r->context) != 0)
        return NDM_OK;
    ndm_device_observe(ndm_context_device(r->context), NULL, NULL);
    ndm_buffer_puts(&text, head);
    write_rank(r->trace, 0, &text);
    ndm_buffer_puts(&text, "\n],\"otherData\":");
    ndm_json_init_buffer(&json, &text, false);
    ndm_json_begin_object(&json);
    ndm_training_report_failure(&json, failure, reason);
    ndm_json_end_object(&json);
    ndm_status status = ndm_json_finish(&json);
    ndm_buffer_puts(&text, "}\n");
    if (status == NDM_OK)
        status = ndm_buffer_status(&text);
    if (status == NDM_OK)
        status = write_at(r, 0, &text);
    ndm_buffer_finish(&text);
    return status;
}

void ndm_training_close_trace(ndm_training *r)
{
    if (r->trace && r->trace->pipe)
        fclose(r->trace->pipe);
    if (r->trace)
        free(r->trace->spans);
    free(r->trace);
}
