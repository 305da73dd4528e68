/* SPDX-License-Identifier: Apache-2.0 */
/* Progress for people. */
#include "train/progress.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

void ndm_progress_init(ndm_progress *p, FILE *stream, int64_t steps, int64_t log_every)
{
    memset(p, 0, sizeof *p);
    p->stream = stream;
    p->terminal = stream != NULL && isatty(fileno(stream)) == 1;
    p->steps = steps;
    p->log_every = log_every > 0 ? log_every : 1;
}

const char *ndm_progress_time(double seconds, char *buffer, size_t bytes)
{
    long long s = seconds > 0 && seconds < 1e9 ? llround(seconds) : 0;

    if (s >= 3600)
        snprintf(buffer, bytes, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buffer, bytes, "%lld:%02lld", s / 60, s % 60);
    return buffer;
}

/* 1234567 as "1.23M". */
static const char *short_number(double value, char *buffer, size_t bytes)
{
    static const char units[] = " kMGT";
    int unit = 0;

    while (value >= 1000 && unit < 4)
        value /= 1000, unit++;
    snprintf(buffer, bytes, unit ? "%.3g%c" : "%.0f", value, units[unit]);
    return buffer;
}

static void print_line(const ndm_progress *p, const ndm_step_metrics *s)
{
    char rate[32], eta[32];

    fprintf(p->stream, "step %lld/%lld  loss %.4f  grad_norm %.3f  lr %.3g  %s tokens/s  %.0f ms",
            (long long)s->step, (long long)p->steps, ndm_text_unsigned_nan(s->loss),
            ndm_text_unsigned_nan(s->grad_norm), s->lr,
            short_number(s->tokens_per_s, rate, sizeof rate), s->step_ms);
    if (s->mem_peak_bytes > 0)
        fprintf(p->stream, "  mem %.0f MiB", (double)s->mem_peak_bytes / (1 << 20));
    if (s->step < p->steps)
        fprintf(
            p->stream, "  ETA %s",
            ndm_progress_time((double)(p->steps - s->step) * p->mean_ms / 1000, eta, sizeof eta));
}

void ndm_progress_step(ndm_progress *p, const ndm_step_metrics *s)
{
    p->mean_ms = p->mean_ms > 0 ? 0.9 * p->mean_ms + 0.1 * s->step_ms : s->step_ms;
    if (p->stream == NULL)
        return;
    if (p->terminal) {
        fputs("\r\033[K", p->stream);
        print_line(p, s);
        p->open = true;
    } else if (s->step == 1 || s->step == p->steps || s->step % p->log_every == 0) {
        print_line(p, s);
        fputc('\n', p->stream);
    }
    fflush(p->stream);
}

void ndm_progress_finish(ndm_progress *p)
{
    if (p->open)
        fputc('\n', p->stream);
    p->open = false;
}
