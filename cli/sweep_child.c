/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a sweep: `mpiexec -n N ndmesh train ...` as a child, watched until it ends, its time
 * is up, or a signal comes; then what its metrics say. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/launch.h"
#include "cli/memory_of.h"
#include "cli/sweep.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/json_read.h"

enum { ARGUMENTS = 64, POLL_US = 20000, WATCH_US = 100000, GRACE_US = 2000000, PIDS = 512 };

void ndm_sweep_run_finish(ndm_sweep_run *run)
{
    free(run->step_ms);
    free(run->loss);
    free(run->exposed_ms);
    *run = (ndm_sweep_run){0};
}

/* ---- signals
 * ------------------------------------------------------------------------------------- */

static volatile sig_atomic_t caught;

static void on_signal(int number)
{
    caught = number;
}

void ndm_sweep_watch_signals(void)
{
    struct sigaction action = {.sa_handler = on_signal};

    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* ranks that lose their launcher become ours, to be ended */
}

int ndm_sweep_signal(void)
{
    return caught;
}

/* ---- the command
 * --------------------------------------------------------------------------------- */

typedef struct command {
    const char *argv[ARGUMENTS];
    int n;
    char text[ARGUMENTS][32]; /* numbers of argv */
    char metrics[4096], output[4096];
} command;

static void add(command *c, const char *flag, const char *value)
{
    c->argv[c->n++] = flag;
    if (value != NULL)
        c->argv[c->n++] = value;
}

static void add_int(command *c, const char *flag, int64_t value)
{
    char *text = c->text[c->n];

    snprintf(text, sizeof c->text[0], "%" PRId64, value);
    add(c, flag, text);
}

/* The launcher is put in front by the child; one rank needs none. */
static ndm_status make_command(const ndm_sweep_setting *s, const ndm_sweep_point *p, command *c)
{
    enum { OWN = 40 };

    if (s->n_extra > ARGUMENTS - OWN)
        NDM_FAIL(NDM_ERR_USAGE, "sweep: %d more flags for train; at most %d are taken", s->n_extra,
                 ARGUMENTS - OWN);
    snprintf(c->metrics, sizeof c->metrics, "%s/metrics.jsonl", s->folder);
    snprintf(c->output, sizeof c->output, "%s/output.txt", s->folder);
    c->n = 0;
    if (p->ranks > 1) {
        add(c, ndm_cli_launchers()[0], NULL);
        add_int(c, "-n", p->ranks);
    }
    add(c, s->program, "train");
    add_int(c, "--ranks", p->ranks);
    add(c, "--model", s->model);
    add(c, "--data", s->data);
    add_int(c, "--seq-len", s->seq_len);
    add_int(c, "--steps", s->steps);
    add_int(c, "--seed", s->seed);
    add_int(c, "--dp-replicate", p->sizes[NDM_DP_REPLICATE]);
    add_int(c, "--dp-shard", p->sizes[NDM_DP_SHARD]);
    add_int(c, "--cp", p->sizes[NDM_CP]);
    add_int(c, "--tp", p->sizes[NDM_TP]);
    add_int(c, "--micro-batch", p->micro_batch);
    add_int(c, "--grad-accum", p->grad_accum);
    add(c, "--recompute", p->recompute);
    add(c, "--metrics", c->metrics);
    add(c, "--quiet", NULL);
    for (int i = 0; i < s->n_extra; i++)
        add(c, s->extra[i], NULL);
    c->argv[c->n] = NULL;
    return NDM_OK;
}

/* In the child: its own process group, the launcher by each of its names, no way back. */
static void become(command *c, bool launched, int output, pid_t parent)
{
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent)
        _exit(127);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    int null = open("/dev/null", O_RDONLY);
    if (null >= 0)
        dup2(null, STDIN_FILENO);
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    for (const char *const *name = ndm_cli_launchers(); *name != NULL; name++) {
        if (launched)
            c->argv[0] = *name;
        execvp(c->argv[0], (char *const *)c->argv);
    }
    dprintf(STDERR_FILENO, "ndmesh: error: cannot start %s: %s\n", c->argv[0], strerror(errno));
    _exit(127);
}

static ndm_status start(command *c, bool launched, pid_t *pid)
{
    pid_t parent = getpid();

    unlink(c->metrics);
    int output = open(c->output, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (output < 0)
        NDM_FAIL(NDM_ERR_IO, "%s: cannot open for writing: %s", c->output, strerror(errno));
    fflush(NULL);
    *pid = fork();
    if (*pid == 0)
        become(c, launched, output, parent);
    int error = errno;
    close(output);
    if (*pid < 0)
        NDM_FAIL(NDM_ERR_MEMORY, "cannot start a run: %s", strerror(error));
    setpgid(*pid, *pid);
    return NDM_OK;
}

/* ---- waiting
 * ------------------------------------------------------------------------------------- */

/* Whatever came of the child: ranks whose launcher has gone are ours by now. */
static void end_descendants(void)
{
    int64_t pids[PIDS], n = ndm_memory_descendants(getpid(), pids, PIDS);

    for (int64_t i = 0; i < n; i++)
        kill((pid_t)pids[i], SIGKILL);
    while (waitpid(-1, NULL, n > 0 ? 0 : WNOHANG) > 0)
        ;
}

/* The launcher first, which ends its ranks; the rest by force. */
static void end_child(pid_t pid, int *wait_status)
{
    kill(pid, SIGTERM);
    for (int waited = 0; waited < GRACE_US; waited += POLL_US) {
        usleep(POLL_US);
        if (waitpid(pid, wait_status, WNOHANG) == pid)
            return;
    }
    kill(pid, SIGKILL);
    waitpid(pid, wait_status, 0);
}

static void watch_memory(pid_t pid, ndm_sweep_run *run)
{
    int64_t n, bytes = ndm_memory_tree_pss_bytes(pid, &n);

    if (bytes > run->pss_bytes)
        run->pss_bytes = bytes;
}

/* Until the child ends. */
static void wait_for(const ndm_sweep_setting *s, pid_t pid, ndm_sweep_run *run)
{
    int64_t start = ndm_clock_ns(), watched = start;
    int wait_status = 0;

    run->status = NDM_SWEEP_OK;
    while (waitpid(pid, &wait_status, WNOHANG) == 0) {
        int64_t now = ndm_clock_ns();
        bool late = (double)(now - start) * 1e-9 > s->timeout_s;
        if (late || caught != 0) {
            run->status = caught != 0 ? NDM_SWEEP_STOPPED : NDM_SWEEP_TIMEOUT;
            end_child(pid, &wait_status);
            break;
        }
        if (s->watch_memory && now - watched > (int64_t)WATCH_US * 1000) {
            watch_memory(pid, run);
            watched = ndm_clock_ns();
        }
        usleep(POLL_US);
    }
    end_descendants();
    run->seconds = (double)(ndm_clock_ns() - start) * 1e-9;
    run->exit_code = WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status)
                                              : WEXITSTATUS(wait_status);
}

/* ---- what is left
 * -------------------------------------------------------------------------------- */

/* The last error line; else the last line. */
static void read_message(const char *path, ndm_sweep_run *run)
{
    static const char mark[] = "ndmesh: error: ";
    char line[2048];
    bool error = false;
    FILE *file = fopen(path, "re");

    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        char *found = strstr(line, mark);
        line[strcspn(line, "\n")] = '\0';
        if (found != NULL && !error)
            snprintf(run->message, sizeof run->message, "%.500s", found + strlen(mark));
        else if (!error && line[0] != '\0')
            snprintf(run->message, sizeof run->message, "%.500s", line);
        error = error || found != NULL;
    }
    if (file != NULL)
        fclose(file);
}

static double number(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return json_is_number(value) ? json_number_value(value) : 0.0;
}

static ndm_status take_step(const json_t *line, int64_t capacity, ndm_sweep_run *run)
{
    if (run->n_steps >= capacity)
        NDM_FAIL(NDM_ERR_FORMAT, "more steps than were asked for");
    run->step_ms[run->n_steps] = number(line, "step_ms");
    run->loss[run->n_steps] = number(line, "loss");
    run->exposed_ms[run->n_steps] = number(line, "comm_exposed_ms");
    run->n_steps++;
    run->tokens = (int64_t)number(line, "tokens");
    if (number(line, "tokens") > 0.0)
        run->flop_per_token = number(line, "tflops") * 1e9 * number(line, "step_ms") /
                              number(line, "tokens");
    int64_t peak = (int64_t)number(line, "mem_peak_bytes");
    run->mem_peak_bytes = peak > run->mem_peak_bytes ? peak : run->mem_peak_bytes;
    return NDM_OK;
}

/* `done` tells whether the run said so at its end. */
static ndm_status take_line(const char *text, size_t bytes, int64_t capacity, ndm_sweep_run *run,
                            bool *done)
{
    json_t *line;

    NDM_TRY(ndm_json_load_text(text, bytes, "metrics", &line));
    const json_t *end = json_object_get(line, "end");
    const char *status = json_string_value(json_object_get(end, "status"));
    ndm_status result = NDM_OK;
    if (status != NULL)
        *done = strcmp(status, "done") == 0;
    else if (json_object_get(line, "step") != NULL)
        result = take_step(line, capacity, run);
    json_decref(line);
    return result;
}

static ndm_status read_metrics(const char *path, int64_t steps, ndm_sweep_run *run, bool *done)
{
    ndm_buffer text = {0};
    ndm_status status = NDM_OK;

    *done = false;
    run->step_ms = calloc((size_t)steps + 1, sizeof *run->step_ms);
    run->loss = calloc((size_t)steps + 1, sizeof *run->loss);
    run->exposed_ms = calloc((size_t)steps + 1, sizeof *run->exposed_ms);
    if (run->step_ms == NULL || run->loss == NULL || run->exposed_ms == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %" PRId64 " steps", steps);
    if (!ndm_file_exists(path))
        return NDM_OK;
    NDM_TRY(ndm_file_read(path, &text));
    for (const char *at = ndm_buffer_text(&text); *at != '\0' && status == NDM_OK;) {
        size_t n = strcspn(at, "\n");
        if (at[n] == '\0')
            break; /* torn: the run died in it */
        status = take_line(at, n, steps, run, done);
        at += n + 1;
    }
    ndm_buffer_finish(&text);
    return status;
}

static ndm_sweep_status status_of_exit(int code, bool done)
{
    switch (code) {
    case 0:
        return done ? NDM_SWEEP_OK : NDM_SWEEP_CRASHED; /* a lost rank can look like success */
    case 1:
    case 2:
    case 6:
        return NDM_SWEEP_FAILED;
    case 3:
        return NDM_SWEEP_INVALID;
    case 4:
        return NDM_SWEEP_COMM;
    case 5:
        return NDM_SWEEP_MEMORY;
    default:
        return NDM_SWEEP_CRASHED;
    }
}

static ndm_status judge(const command *c, const ndm_sweep_setting *s, ndm_sweep_run *run)
{
    bool done;

    NDM_TRY(read_metrics(c->metrics, s->steps, run, &done));
    if (run->status == NDM_SWEEP_OK)
        run->status = status_of_exit(run->exit_code, done);
    if (run->status == NDM_SWEEP_OK)
        return NDM_OK;
    read_message(c->output, run);
    if (run->status == NDM_SWEEP_TIMEOUT)
        snprintf(run->message, sizeof run->message, "not done after %g s", s->timeout_s);
    if (run->exit_code == 2)
        NDM_FAIL(NDM_ERR_USAGE, "sweep: train does not take its flags: %s", run->message);
    return NDM_OK;
}

ndm_status ndm_sweep_child_run(const ndm_sweep_setting *setting, const ndm_sweep_point *point,
                               ndm_sweep_run *run)
{
    command c;
    pid_t pid;

    NDM_TRY(make_command(setting, point, &c));
    NDM_TRY(start(&c, point->ranks > 1, &pid));
    wait_for(setting, pid, run);
    if (run->status == NDM_SWEEP_STOPPED)
        NDM_FAIL(NDM_ERR_INTERRUPTED, "sweep: stopped by signal %d; --resume goes on", (int)caught);
    return judge(&c, setting, run);
}
