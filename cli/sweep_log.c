/* SPDX-License-Identifier: Apache-2.0 */
/* Runs of a sweep as JSON lines: a head {"sweep": {"key": ...}}, then a line {"run": {...}} each,
 * written in one piece and made durable before the next run starts. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/bench_facts.h"
#include "cli/sweep.h"
#include "core/file.h"
#include "core/json_read.h"

static ndm_status keep(ndm_sweep_log *log, const ndm_sweep_run *run)
{
    if (log->n == log->capacity) {
        int64_t capacity = log->capacity > 0 ? 2 * log->capacity : 64;
        ndm_sweep_run *runs = realloc(log->runs, (size_t)capacity * sizeof *runs);
        if (runs == NULL)
            NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " runs", capacity);
        log->runs = runs;
        log->capacity = capacity;
    }
    log->runs[log->n++] = *run;
    return NDM_OK;
}

/* ---- writing
 * ------------------------------------------------------------------------------------- */

static ndm_status put_line(ndm_sweep_log *log, ndm_buffer *line)
{
    NDM_TRY(ndm_file_put(log->fd, log->path, line->data, line->length));
    if (fsync(log->fd) != 0 && errno != EINVAL) /* a pipe has nothing to keep */
        NDM_FAIL(NDM_ERR_IO, "%s: cannot make it durable: %s", log->path, strerror(errno));
    return NDM_OK;
}

static void write_numbers(ndm_json *json, const char *key, const double *values, int64_t n)
{
    ndm_json_key(json, key);
    ndm_json_begin_array(json);
    for (int64_t i = 0; i < n; i++)
        ndm_json_double(json, values[i]);
    ndm_json_end_array(json);
}

static void write_run(ndm_json *json, const ndm_sweep_run *run)
{
    ndm_json_begin_object(json);
    ndm_json_key(json, "run");
    ndm_json_begin_object(json);
    ndm_json_key_string(json, "id", run->id);
    ndm_json_key_int(json, "round", run->round);
    ndm_json_key_string(json, "status", ndm_sweep_status_name(run->status));
    ndm_json_key_int(json, "exit_code", run->exit_code);
    ndm_json_key_string(json, "message", run->message);
    ndm_json_key_double(json, "seconds", run->seconds);
    ndm_json_key_double(json, "fma_peak_gflops", run->peak_gflops);
    ndm_json_key_int(json, "tokens", run->tokens);
    ndm_json_key_double(json, "flop_per_token", run->flop_per_token);
    ndm_json_key_int(json, "mem_peak_bytes", run->mem_peak_bytes);
    ndm_json_key_int(json, "pss_bytes", run->pss_bytes);
    write_numbers(json, "step_ms", run->step_ms, run->n_steps);
    write_numbers(json, "loss", run->loss, run->n_steps);
    write_numbers(json, "comm_exposed_ms", run->exposed_ms, run->n_steps);
    ndm_json_end_object(json);
    ndm_json_end_object(json);
}

ndm_status ndm_sweep_log_add(ndm_sweep_log *log, ndm_sweep_run *run)
{
    ndm_buffer line = {0};
    ndm_json json;

    ndm_json_init_buffer(&json, &line, false);
    write_run(&json, run);
    ndm_status status = ndm_json_finish(&json);
    if (status == NDM_OK)
        status = put_line(log, &line);
    ndm_buffer_finish(&line);
    if (status == NDM_OK)
        status = keep(log, run);
    if (status != NDM_OK)
        ndm_sweep_run_finish(run);
    *run = (ndm_sweep_run){0};
    return status;
}

static ndm_status write_head(ndm_sweep_log *log, const char *key)
{
    ndm_bench_facts facts = {.ranks = 1, .local_ranks = 1, .threads = 1};
    ndm_buffer line = {0};
    ndm_json json;

    ndm_json_init_buffer(&json, &line, false);
    ndm_json_begin_object(&json);
    ndm_json_key(&json, "sweep");
    ndm_json_begin_object(&json);
    ndm_json_key_string(&json, "key", key);
    ndm_json_key(&json, "context");
    ndm_json_begin_object(&json);
    ndm_bench_facts_json(&facts, &json);
    ndm_json_end_object(&json);
    ndm_json_end_object(&json);
    ndm_json_end_object(&json);
    ndm_status status = ndm_json_finish(&json);
    if (status == NDM_OK)
        status = put_line(log, &line);
    ndm_buffer_finish(&line);
    return status;
}

/* ---- reading
 * ------------------------------------------------------------------------------------- */

/* A missing array is an empty one. */
static ndm_status read_numbers(const json_t *run, const char *key, int64_t *n, double **values)
{
    const json_t *array = json_object_get(run, key);
    size_t count = json_array_size(array);

    *values = calloc(count + 1, sizeof **values);
    if (*values == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %zu numbers", count);
    for (size_t i = 0; i < count; i++)
        (*values)[i] = json_number_value(json_array_get(array, i));
    if (*n >= 0 && *n != (int64_t)count)
        NDM_FAIL(NDM_ERR_FORMAT, "%s has %zu numbers, other arrays of the line %" PRId64, key,
                 count, *n);
    *n = (int64_t)count;
    return NDM_OK;
}

static ndm_status read_status(const char *text, ndm_sweep_status *status, const char *where)
{
    for (int i = 0; i < NDM_SWEEP_STATUS_COUNT; i++) {
        *status = (ndm_sweep_status)i;
        if (strcmp(text, ndm_sweep_status_name(*status)) == 0)
            return NDM_OK;
    }
    NDM_FAIL(NDM_ERR_FORMAT, "%s: unknown status '%s'", where, text);
}

static ndm_status read_facts(const json_t *object, const char *where, ndm_sweep_run *run)
{
    const char *id, *status, *message;
    int64_t code;

    NDM_TRY(ndm_json_get_string(object, "id", true, NULL, &id, where));
    NDM_TRY(ndm_json_get_string(object, "status", true, NULL, &status, where));
    NDM_TRY(ndm_json_get_string(object, "message", false, "", &message, where));
    NDM_TRY(ndm_json_get_int64(object, "round", true, 0, &run->round, where));
    NDM_TRY(ndm_json_get_int64(object, "exit_code", false, 0, &code, where));
    NDM_TRY(ndm_json_get_double(object, "seconds", false, 0.0, &run->seconds, where));
    NDM_TRY(ndm_json_get_double(object, "fma_peak_gflops", false, 0.0, &run->peak_gflops, where));
    NDM_TRY(ndm_json_get_int64(object, "tokens", false, 0, &run->tokens, where));
    NDM_TRY(ndm_json_get_double(object, "flop_per_token", false, 0.0, &run->flop_per_token, where));
    NDM_TRY(ndm_json_get_int64(object, "mem_peak_bytes", false, 0, &run->mem_peak_bytes, where));
    NDM_TRY(ndm_json_get_int64(object, "pss_bytes", false, 0, &run->pss_bytes, where));
    run->exit_code = (int)code;
    snprintf(run->id, sizeof run->id, "%s", id);
    snprintf(run->message, sizeof run->message, "%s", message);
    return read_status(status, &run->status, where);
}

static ndm_status read_run(ndm_sweep_log *log, const json_t *object, const char *where, bool retry)
{
    ndm_sweep_run run = {.n_steps = -1};
    ndm_status status;

    NDM_TRY_OR(status, read_facts(object, where, &run), done);
    NDM_TRY_OR(status, read_numbers(object, "step_ms", &run.n_steps, &run.step_ms), done);
    NDM_TRY_OR(status, read_numbers(object, "loss", &run.n_steps, &run.loss), done);
    NDM_TRY_OR(status, read_numbers(object, "comm_exposed_ms", &run.n_steps, &run.exposed_ms),
               done);
    if (!retry || run.status == NDM_SWEEP_OK || run.status == NDM_SWEEP_INVALID)
        NDM_TRY_OR(status, keep(log, &run), done);
    else
        ndm_sweep_run_finish(&run);
    return NDM_OK;
done:
    ndm_sweep_run_finish(&run);
    return status;
}

static ndm_status check_key(const json_t *head, const char *where, const char *key)
{
    const char *theirs;

    NDM_TRY(ndm_json_get_string(head, "key", true, NULL, &theirs, where));
    if (strcmp(theirs, key) != 0)
        NDM_FAIL(NDM_ERR_CONFIG,
                 "%s is of another sweep, which cannot be gone on with: it has '%s', this is '%s'",
                 where, theirs, key);
    return NDM_OK;
}

static ndm_status read_line(ndm_sweep_log *log, const char *text, size_t bytes, int number,
                            const char *key, bool retry)
{
    char where[4200];
    json_t *line;

    snprintf(where, sizeof where, "%s:%d", log->path, number);
    NDM_TRY(ndm_json_load_text(text, bytes, where, &line));
    const json_t *head = json_object_get(line, "sweep"), *run = json_object_get(line, "run");
    ndm_status status = NDM_OK;
    if (number == 1)
        status = head != NULL ? check_key(head, where, key)
                              : ndm_error_set(NDM_ERR_FORMAT, __FILE__, __LINE__,
                                              "%s: is no head of a sweep", where);
    else if (run != NULL)
        status = read_run(log, run, where, retry);
    json_decref(line);
    return status;
}

/* What has no whole line is a head that was cut short, or another's file. */
static ndm_status check_torn_head(const char *text, size_t bytes, const char *path)
{
    static const char head[] = "{\"sweep\":";
    size_t n = bytes < sizeof head - 1 ? bytes : sizeof head - 1;

    if (memcmp(text, head, n) != 0)
        NDM_FAIL(NDM_ERR_FORMAT, "%s:1: is no head of a sweep", path);
    return NDM_OK;
}

/* Reads whole lines; `whole` is their length. */
static ndm_status read_all(ndm_sweep_log *log, const char *key, bool retry, off_t *whole)
{
    ndm_buffer text = {0};
    ndm_status status = ndm_file_read(log->path, &text);
    const char *start = ndm_buffer_text(&text), *at = start;

    for (int number = 1; status == NDM_OK && *at != '\0'; number++) {
        size_t n = strcspn(at, "\n");
        if (at[n] == '\0')
            break; /* the sweep was killed while it wrote */
        status = read_line(log, at, n, number, key, retry);
        at += n + 1;
    }
    *whole = at - start;
    if (status == NDM_OK && *whole == 0)
        status = check_torn_head(start, text.length, log->path);
    ndm_buffer_finish(&text);
    return status;
}

/* Two sweeps in one file would repeat each other's runs, and one would cut the other's line off. A
 * child of one that was just killed may have the file open until it is the launcher. */
static ndm_status lock_file(const ndm_sweep_log *log)
{
    enum { WAITS = 20, WAIT_US = 50000 };
    struct stat st;

    if (fstat(log->fd, &st) != 0 || !S_ISREG(st.st_mode))
        return NDM_OK;
    for (int i = 0; flock(log->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK; i++) {
        if (i == WAITS)
            NDM_FAIL(NDM_ERR_IO, "%s: another sweep writes it", log->path);
        usleep(WAIT_US);
    }
    return NDM_OK;
}

static ndm_status open_file(ndm_sweep_log *log, const char *key, bool resume, bool retry)
{
    bool there = ndm_file_exists(log->path);
    off_t whole = 0;

    if (there && !resume)
        NDM_FAIL(NDM_ERR_USAGE, "%s is there already; --resume goes on with it", log->path);
    log->fd = open(log->path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK, 0666);
    if (log->fd < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot open for writing: %s", log->path, strerror(errno));
    NDM_TRY(lock_file(log));
    if (there)
        NDM_TRY(read_all(log, key, retry, &whole));
    if (there && ftruncate(log->fd, whole) != 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot cut the torn last line off: %s", log->path,
                 strerror(errno));
    return whole > 0 ? NDM_OK : write_head(log, key);
}

ndm_status ndm_sweep_log_open(const char *path, const char *key, bool resume, bool retry,
                              ndm_sweep_log *log)
{
    *log = (ndm_sweep_log){.fd = -1, .path = ndm_text_duplicate(path)};
    if (log->path == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for the name of %s", path);
    ndm_status status = open_file(log, key, resume, retry);
    if (status != NDM_OK)
        ndm_sweep_log_close(log);
    return status;
}

void ndm_sweep_log_close(ndm_sweep_log *log)
{
    if (log->fd >= 0 && log->path != NULL)
        close(log->fd);
    for (int64_t i = 0; i < log->n; i++)
        ndm_sweep_run_finish(&log->runs[i]);
    free(log->runs);
    free(log->path);
    *log = (ndm_sweep_log){.fd = -1};
}

const ndm_sweep_run *ndm_sweep_log_find(const ndm_sweep_log *log, const char *id, int64_t round)
{
    for (int64_t i = log->n - 1; i >= 0; i--)
        if (log->runs[i].round == round && strcmp(log->runs[i].id, id) == 0)
            return &log->runs[i];
    return NULL;
}
