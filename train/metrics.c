/* SPDX-License-Identifier: Apache-2.0 */
/* Metrics of a run as JSON lines. Each line is one write() to a descriptor opened for appending,
 * unless a pipe takes less at a time. */
#include "train/metrics.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "core/file.h"

struct ndm_metrics {
    int fd;
    char *path;
    ndm_buffer line;
    ndm_json json;
};

/* A run that a full disk or a crash ended may have left half a line, which would spoil the next one
 * as well: it goes, if it can be one of ours. */
static void end_last_line(const char *path, int fd)
{
    char tail[1 << 16];
    int in = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    off_t size = in < 0 ? 0 : lseek(in, 0, SEEK_END); /* -1: a pipe */
    off_t from = size > (off_t)sizeof tail ? size - (off_t)sizeof tail : 0;
    ssize_t n = size > 0 ? pread(in, tail, sizeof tail, from) : 0, line = n;

    if (in >= 0)
        close(in);
    while (line > 0 && tail[line - 1] != '\n')
        line--;
    if (line >= n)
        return;
    bool ours = tail[line] == '{' && (line > 0 || from == 0);
    if ((!ours || ftruncate(fd, from + line) != 0) && write(fd, "\n", 1) < 0)
        return; /* the next line tells */
}

ndm_status ndm_metrics_open(const char *path, bool append, ndm_metrics **metrics)
{
    ndm_metrics *m = calloc(1, sizeof *m);

    if (m == NULL || (m->path = ndm_text_duplicate(path)) == NULL) {
        free(m);
        NDM_FAIL(NDM_ERR_MEMORY, "%s: no memory to open it", path);
    }
    m->fd = open(path,
                 O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NONBLOCK | (append ? 0 : O_TRUNC),
                 0666);
    if (m->fd < 0) {
        int error = errno;

        free(m->path);
        free(m);
        NDM_FAIL(NDM_ERR_IO, "%s: cannot open for writing: %s", path, ndm_file_write_error(error));
    }
    if (append)
        end_last_line(path, m->fd);
    *metrics = m;
    return NDM_OK;
}

void ndm_metrics_close(ndm_metrics *m)
{
    if (m == NULL)
        return;
    close(m->fd);
    ndm_buffer_finish(&m->line);
    free(m->path);
    free(m);
}

static void begin_line(ndm_metrics *m)
{
    m->line.length = 0;
    ndm_json_init_buffer(&m->json, &m->line, false);
    ndm_json_begin_object(&m->json);
}

static ndm_status end_line(ndm_metrics *m)
{
    ndm_json_end_object(&m->json);
    NDM_TRY(ndm_json_finish(&m->json));
    return ndm_file_put(m->fd, m->path, m->line.data, m->line.length);
}

ndm_json *ndm_metrics_begin(ndm_metrics *m, const char *name)
{
    begin_line(m);
    ndm_json_key(&m->json, name);
    ndm_json_begin_object(&m->json);
    return &m->json;
}

ndm_status ndm_metrics_end(ndm_metrics *m)
{
    ndm_json_end_object(&m->json);
    return end_line(m);
}

ndm_status ndm_metrics_step(ndm_metrics *m, const ndm_step_metrics *s)
{
    ndm_json *json = &m->json;

    begin_line(m);
    ndm_json_key_int(json, "step", s->step);
    ndm_json_key_double(json, "loss", s->loss);
    ndm_json_key_double(json, "grad_norm", s->grad_norm);
    ndm_json_key_double(json, "lr", s->lr);
    ndm_json_key_int(json, "tokens", s->tokens);
    ndm_json_key_int(json, "tokens_total", s->tokens_total);
    ndm_json_key_double(json, "step_ms", s->step_ms);
    ndm_json_key_double(json, "tokens_per_s", s->tokens_per_s);
    ndm_json_key_double(json, "tflops", s->tflops);
    ndm_json_key_double(json, "mfu", s->mfu);
    ndm_json_key_double(json, "comm_exposed_ms", s->comm_exposed_ms);
    ndm_json_key_int(json, "mem_peak_bytes", s->mem_peak_bytes);
    return end_line(m);
}

/* Value of a "key : value" line of /proc/cpuinfo, "" if there is none. */
static void cpu_model(char *out, size_t bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "re");
    char line[512];

    out[0] = '\0';
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *colon = strchr(line, ':');

        if (colon == NULL || strncmp(line, "model name", 10) != 0)
            continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(out, bytes, "%s", colon + 1 + strspn(colon + 1, " "));
        break;
    }
    if (file != NULL)
        fclose(file);
}

void ndm_metrics_add_host(ndm_json *json)
{
    struct utsname uts;
    char cpu[256];

    memset(&uts, 0, sizeof uts);
    uname(&uts);
    cpu_model(cpu, sizeof cpu);
    ndm_json_key_string(json, "version", NDM_VERSION);
    ndm_json_key(json, "host");
    ndm_json_begin_object(json);
    ndm_json_key_string(json, "name", uts.nodename);
    ndm_json_key_string(json, "kernel", uts.release);
    ndm_json_key_string(json, "cpu", cpu[0] != '\0' ? cpu : uts.machine);
    ndm_json_key_int(json, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    ndm_json_key_int(json, "memory_bytes", sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE));
    ndm_json_end_object(json);
}
