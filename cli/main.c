/* SPDX-License-Identifier: Apache-2.0 */
/* ndmesh: finds the verb and runs it. */
#include <errno.h>
#include <fcntl.h>
#include <mpi.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "cli/cli.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/text.h"

enum { MAX_VERBS = 32, SILENT_S = 3 };

const ndm_verb *const *ndm_verb_list(void)
{
    static const ndm_verb *const verbs[] = {
#define NDM_VERB(name) &ndm_verb_##name,
#include "cli/verbs.def"
#undef NDM_VERB
        NULL,
    };
    return verbs;
}

ndm_status ndm_verb_find(const char *name, const ndm_verb **verb)
{
    const char *names[MAX_VERBS];
    size_t n = 0;
    for (const ndm_verb *const *v = ndm_verb_list(); *v != NULL && n < MAX_VERBS; v++) {
        names[n++] = (*v)->table->command;
        if (strcmp(name, (*v)->table->command) != 0)
            continue;
        *verb = *v;
        return NDM_OK;
    }
    const char *nearest = ndm_text_nearest(name, names, n);
    if (nearest != NULL)
        NDM_FAIL(NDM_ERR_USAGE, "unknown command '%.64s'; did you mean '%s'?", name, nearest);
    NDM_FAIL(NDM_ERR_USAGE, "unknown command '%.64s'; 'ndmesh help' lists them", name);
}

static ndm_status refuse_positional(const ndm_option_table *table, const char *argument)
{
    NDM_FAIL(NDM_ERR_USAGE, "%s: unexpected argument '%.64s'; 'ndmesh help %s' lists the options",
             table->command, argument, table->command);
}

/* Arguments that are no flag are files of options, where the command takes any. */
static ndm_status load(ndm_options *options, int argc, const char *const *argv, bool files,
                       const char **positional, int *n_positional)
{
    ndm_options_set_silent(options, ndm_cli_launcher_rank() > 0);
    NDM_TRY(ndm_options_load_env(options));
    NDM_TRY(ndm_options_load_args(options, argc, argv, positional, n_positional));
    for (int i = 0; files && i < *n_positional; i++)
        NDM_TRY(ndm_options_load_yaml(options, positional[i]));
    return ndm_options_check(options);
}

ndm_status ndm_cli_options(const ndm_option_table *table, int argc, const char *const *argv,
                           const char **positional, int *n_positional, ndm_options **options)
{
    bool files = positional == NULL && table->file != NULL;
    const char **rest = calloc((size_t)argc + 1, sizeof *rest);
    int n_rest = 0;
    ndm_options *o = NULL;
    if (rest == NULL)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for %d arguments", argc);
    ndm_status status = ndm_options_create(table, &o);
    if (status == NDM_OK)
        status = load(o, argc, argv, files, rest, &n_rest);
    if (status == NDM_OK && positional == NULL && !files && n_rest > 0)
        status = refuse_positional(table, rest[0]);
    if (status == NDM_OK && positional != NULL) {
        memcpy(positional, rest, (size_t)n_rest * sizeof *rest);
        *n_positional = n_rest;
    }
    free(rest);
    if (status == NDM_OK)
        *options = o;
    else
        ndm_options_destroy(o);
    return status;
}

int ndm_cli_launcher_rank(void)
{
    static const char *const names[] = {"PMI_RANK", "PMIX_RANK"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const char *rank = getenv(names[i]);
        if (rank != NULL)
            return atoi(rank);
    }
    return -1;
}

/* Who speaks for all ranks. On this host the first rank that takes the name does, and others find
 * it taken: a wait alone tells nothing on a busy machine. It is held until the process ends. */
typedef struct word {
    int rank;                /* -1: there is no launcher */
    struct sockaddr_un name; /* a first byte of 0: no file */
} word;

static word make_word(void)
{
    word w = {.rank = ndm_cli_launcher_rank(), .name.sun_family = AF_UNIX};

    snprintf(w.name.sun_path + 1, sizeof w.name.sun_path - 1, "ndmesh-error-%ld", (long)getppid());
    return w;
}

/* The launcher ends all ranks when one has failed. So a rank gives those before it the time to
 * speak first: one message, by the lowest rank that has something to say. Calls only what a
 * signal's handler may. */
static bool take_the_word(const word *w)
{
    enum { FIRST_MS = 250, EACH_MS = 50, MOST = 16 };

    if (w->rank < 0)
        return true;
    if (w->rank > 0)
        (void)poll(NULL, 0, FIRST_MS + EACH_MS * (w->rank < MOST ? w->rank : MOST));
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    return fd < 0 || bind(fd, (const struct sockaddr *)&w->name, sizeof w->name) == 0 ||
           connect(fd, (const struct sockaddr *)&w->name, sizeof w->name) != 0; /* not taken */
}

/* All ranks failed alike and have left MPI: the launcher lets each end with its code. */
static bool ranks_left_together(void)
{
    int finalised = 0;

    MPI_Finalized(&finalised);
    return finalised;
}

/* Ends the job with this code: a rank that the launcher kills would count as 9. PMI-1, which
 * MPICH's launcher speaks on this descriptor, has a message for it; MPI_Abort sends it too, behind
 * a banner. */
typedef struct ending {
    int code;
    int fd; /* -1: there is no such launcher */
    char text[48];
    size_t bytes;
} ending;

static ending make_ending(int code)
{
    const char *descriptor = getenv("PMI_FD");
    ending e = {.code = code, .fd = descriptor ? atoi(descriptor) : -1};

    e.bytes = (size_t)snprintf(e.text, sizeof e.text, "cmd=abort exitcode=%d\n", code);
    return e;
}

/* Calls only what a signal's handler may. */
static void end_job(const ending *e)
{
    enum { PASS_ON_MS = 300 }; /* the launcher drops output that it has not passed on by then */

    if (e->fd < 0)
        return;
    (void)poll(NULL, 0, PASS_ON_MS);
    if (write(e->fd, e->text, e->bytes) == (ssize_t)e->bytes)
        sleep(2); /* the launcher ends us */
}

_Noreturn static void end_alone(const ending *e, bool speaks)
{
    if (speaks)
        end_job(e);
    else
        sleep(SILENT_S); /* the rank that spoke ends the job */
    _exit(e->code);
}

/* Hydra asks for the codes of ended ranks between two events of their outputs, and forgets those
 * that are left when the last outputs close in one event (0 instead, in one of ten jobs on a busy
 * machine). So a child holds them open until this process has ended, and closes them one after the
 * other. */
static void outlive_by_a_moment(void)
{
    enum { POLL_US = 2 * 1000, MOMENT_US = 400 * 1000 };
    pid_t parent = getpid();

    if (ndm_cli_launcher_rank() < 0 || fork() != 0)
        return;
    while (getppid() == parent)
        usleep(POLL_US);
    close(STDOUT_FILENO);
    close_range(STDERR_FILENO + 1, ~0U, 0); /* copies of it, too */
    usleep(MOMENT_US);
    _exit(0);
}

int ndm_cli_interrupted(int signal_number)
{
    if (ndm_cli_launcher_rank() <= 0)
        fprintf(stderr, "ndmesh: error: %s\n", ndm_error_message());
    fflush(NULL);
    outlive_by_a_moment();
    return 128 + signal_number;
}

int ndm_cli_report(ndm_status status)
{
    int code = ndm_status_exit_code(status);

    if (status == NDM_OK)
        return code;
    if (ranks_left_together()) {
        if (ndm_cli_launcher_rank() <= 0)
            fprintf(stderr, "ndmesh: error: %s\n", ndm_error_message());
        fflush(NULL);
        outlive_by_a_moment();
        return code;
    }
    word w = make_word();
    bool speaks = take_the_word(&w);
    if (speaks)
        fprintf(stderr, "ndmesh: error: %s\n", ndm_error_message());
    if (w.rank < 0)
        return code;
    fflush(NULL);
    ending end = make_ending(code);
    end_alone(&end, speaks); /* without MPI_Finalize, which would wait for the others */
}

/* ---- while no step runs -------------------------------------------------------------------- */

/* Made before they are needed: a signal's handler may not. */
static struct {
    ending on_interrupt, on_terminate, on_timeout;
    word word;
    double timeout_s;
    char text[80];
} early;

static void on_early_signal(int signal_number)
{
    bool speaks = take_the_word(&early.word);

    if (speaks && write(STDERR_FILENO, early.text, strlen(early.text)) < 0)
        _exit(128 + signal_number);
    end_alone(signal_number == SIGINT ? &early.on_interrupt : &early.on_terminate, speaks);
}

void ndm_cli_watch_signals(const char *when)
{
    snprintf(early.text, sizeof early.text, "ndmesh: error: stopped by a signal%s\n", when);
    early.word = make_word();
    early.on_interrupt = make_ending(128 + SIGINT);
    early.on_terminate = make_ending(128 + SIGTERM);
    signal(SIGINT, on_early_signal);
    signal(SIGTERM, on_early_signal);
}

static void *watch_start(void *unused)
{
    enum { LOOK_US = 20 * 1000 };
    double start_s = ndm_clock_s();
    int initialised = 0;

    (void)unused;
    while (MPI_Initialized(&initialised) == MPI_SUCCESS && !initialised) {
        usleep(LOOK_US);
        if (ndm_clock_s() - start_s <= early.timeout_s)
            continue;
        bool speaks = take_the_word(&early.word);
        if (speaks)
            fprintf(stderr,
                    "ndmesh: error: comm: not all ranks have come to the start of MPI within %.3g "
                    "s\n",
                    early.timeout_s);
        end_alone(&early.on_timeout, speaks);
    }
    return NULL;
}

void ndm_cli_watch_start(double timeout_s)
{
    sigset_t all, before;
    pthread_t thread;

    if (ndm_cli_launcher_rank() < 0)
        return;
    early.word = make_word();
    early.on_timeout = make_ending(ndm_status_exit_code(NDM_ERR_TIMEOUT));
    early.timeout_s = timeout_s;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, NULL, watch_start, NULL) == 0)
        pthread_detach(thread);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

void ndm_cli_usage(FILE *out)
{
    fprintf(out, "usage: ndmesh COMMAND [options]\n\n");
    for (const ndm_verb *const *v = ndm_verb_list(); *v != NULL; v++)
        fprintf(out, "  %-12s  %s\n", (*v)->table->command, (*v)->table->summary);
    fprintf(out, "\n'ndmesh help COMMAND' lists a command's options; 'ndmesh --version' says what "
                 "this is.\n");
}

static bool asks_for_help(int argc, const char *const *argv)
{
    for (int i = 0; i < argc && strcmp(argv[i], "--") != 0; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return true;
    return false;
}

static int dispatch(int argc, const char *const *argv)
{
    if (argc < 1) {
        ndm_cli_usage(stderr);
        return ndm_status_exit_code(NDM_ERR_USAGE);
    }
    bool first = ndm_cli_launcher_rank() <= 0;
    if (strcmp(argv[0], "--version") == 0) {
        if (first)
            printf("ndmesh %s\n", NDM_VERSION);
        return 0;
    }
    if (asks_for_help(1, argv)) {
        if (first)
            ndm_cli_usage(stdout);
        return 0;
    }
    const ndm_verb *verb = NULL;
    ndm_status status = ndm_verb_find(argv[0], &verb);
    if (status != NDM_OK)
        return ndm_cli_report(status);
    bool help = asks_for_help(argc - 1, argv + 1);
    if (!first && (verb->alone || help))
        return 0;
    if (help) {
        ndm_options_print_help(verb->table, stdout);
        return 0;
    }
    status = ndm_log_check_environment();
    return status == NDM_OK ? verb->run(argc - 1, argv + 1) : ndm_cli_report(status);
}

/* A file that is opened later would take the place of a closed one of these, and what is printed
 * would land in it. To write here fails as it does where nothing is open. */
static void fill_standard_streams(void)
{
    int fd;

    do
        fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        close(fd);
}

int main(int argc, char **argv)
{
    fill_standard_streams();
    int code = dispatch(argc - 1, (const char *const *)argv + 1);
    if ((fflush(stdout) != 0 || ferror(stdout)) && code == 0) {
        fprintf(stderr, "ndmesh: error: stdout: %s\n", strerror(errno));
        code = ndm_status_exit_code(NDM_ERR_IO);
    }
    return code;
}
