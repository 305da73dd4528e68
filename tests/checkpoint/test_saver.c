/* SPDX-License-Identifier: Apache-2.0 */
/* Saves behind the training, in one process: they hold the values of their moment, and one that
 * fails changes nothing. */
#include "../unit/scratch.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "core/file.h"
#include "core/hash.h"
#include "train/checkpoint_files.h"
#include "train/checkpoint_lock.h"
#include "train/trainer.h"
#include <ndmesh/checkpoint.h>

typedef struct world {
    ndm_context *context;
    ndm_model *model;
    ndm_trainer *trainer;
} world;

static void expect_ok(ndm_status status)
{
    if (status != NDM_OK)
        fail_msg("%s: %s", ndm_status_name(status), ndm_error_message());
}

static void open_world(world *w, uint64_t seed)
{
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context_options c = NDM_CONTEXT_OPTIONS_INIT;
    ndm_trainer_options t = NDM_TRAINER_OPTIONS_INIT;
    ndm_model_options m = NDM_MODEL_OPTIONS_INIT;

    c.threads = 1;
    m.seq_len = 8;
    expect_ok(ndm_context_create(&p, &c, &w->context));
    expect_ok(ndm_model_create(w->context, "llama-tiny", NULL, &m, &w->model));
    expect_ok(ndm_model_init(w->model, seed));
    expect_ok(ndm_trainer_create(w->model, &t, &w->trainer));
}

static void close_world(world *w)
{
    ndm_trainer_destroy(w->trainer);
    ndm_model_destroy(w->model);
    ndm_context_destroy(w->context);
}

static void step(world *w)
{
    int32_t inputs[8] = {1, 2, 3, 4, 5, 6, 7, 8}, targets[8] = {2, 3, 4, 5, 6, 7, 8, 9};
    ndm_batch batch = {1, inputs, targets, NULL, NULL};
    ndm_step_result result;

    expect_ok(ndm_trainer_step(w->trainer, &batch, &result));
}

static ndm_status add_hash(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                           float *values)
{
    uint64_t *sum = user;

    for (int64_t i = 0; i < count; i++) {
        struct {
            uint64_t name;
            int64_t i;
            double value;
        } key = {ndm_hash_64(spec->name, strlen(spec->name)), first + i, (double)values[i]};
        *sum += ndm_hash_64(&key, sizeof key);
    }
    return NDM_OK;
}

/* A number that stands for all weights and moments. */
static uint64_t fingerprint(const world *w)
{
    ndm_optimizer *o = ndm_trainer_optimizer(w->trainer);
    uint64_t sums[3] = {0};
    int64_t n;
    ndm_unit *const *units = ndm_model_units(w->model, &n);

    for (int64_t u = 0; u < n; u++) {
        expect_ok(ndm_unit_write(units[u], NDM_UNIT_WEIGHTS, add_hash, &sums[0]));
        expect_ok(ndm_optimizer_write(o, u, NDM_EXP_AVG, add_hash, &sums[1]));
        expect_ok(ndm_optimizer_write(o, u, NDM_EXP_AVG_SQ, add_hash, &sums[2]));
    }
    return ndm_hash_64(sums, sizeof sums);
}

static uint64_t fingerprint_of(const char *path, int64_t want_step)
{
    ndm_checkpoint_state state;
    world w;

    open_world(&w, 99);
    expect_ok(ndm_checkpoint_load(w.trainer, path, &state));
    assert_int_equal(state.step, want_step);
    uint64_t print = fingerprint(&w);
    close_world(&w);
    return print;
}

static void remove_all(const char *folder)
{
    char name[NDM_CHECKPOINT_NAME_BYTES];

    for (int64_t s = 0; s < 10; s++) {
        char *path = ndm_text_printf("%s/%s", folder, ndm_checkpoint_name(s, name));
        expect_ok(ndm_checkpoint_remove(path));
        free(path);
    }
    expect_ok(ndm_checkpoint_remove(folder));
}

static void a_save_holds_the_values_of_its_moment(void **state)
{
    const char *folder = scratch_path("moment");
    const ndm_save_result *finished;
    ndm_saver *saver;
    world w;

    (void)state;
    open_world(&w, 1);
    step(&w);
    step(&w);
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &saver));
    uint64_t then = fingerprint(&w);
    expect_ok(ndm_saver_begin(saver, 2));
    for (int i = 0; i < 3; i++)
        step(&w); /* no poll: not even the first file is there for certain */
    assert_int_not_equal(fingerprint(&w), then);
    assert_true(ndm_saver_busy(saver));
    expect_ok(ndm_saver_wait(saver, &finished));
    assert_non_null(finished);
    assert_int_equal(finished->status, NDM_OK);
    assert_int_equal(finished->step, 2);
    assert_int_equal(fingerprint_of(finished->path, 2), then);
    ndm_saver_destroy(saver);
    close_world(&w);
    remove_all(folder);
}

static void a_save_is_polled_to_its_end(void **state)
{
    const char *folder = scratch_path("poll");
    const ndm_save_result *finished = NULL;
    ndm_saver *saver;
    world w;

    (void)state;
    open_world(&w, 1);
    step(&w);
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &saver));
    expect_ok(ndm_saver_poll(saver, &finished));
    assert_null(finished);
    expect_ok(ndm_saver_begin(saver, 1));
    assert_int_equal(ndm_saver_begin(saver, 1), NDM_ERR_STATE);
    while (!finished) {
        expect_ok(ndm_saver_poll(saver, &finished));
        usleep(1000);
    }
    assert_int_equal(finished->status, NDM_OK);
    assert_false(ndm_saver_busy(saver));
    assert_int_equal(fingerprint_of(finished->path, 1), fingerprint(&w));
    ndm_saver_destroy(saver);
    close_world(&w);
    remove_all(folder);
}

static void a_step_can_be_saved_again_and_old_ones_go(void **state)
{
    const char *folder = scratch_path("again");
    ndm_checkpoint_options o = NDM_CHECKPOINT_OPTIONS_INIT;
    char path[4096];
    world w;

    (void)state;
    o.keep = 2;
    open_world(&w, 1);
    for (int i = 1; i <= 4; i++) {
        step(&w);
        expect_ok(ndm_checkpoint_save(w.trainer, folder, &o, i));
    }
    expect_ok(ndm_model_init(w.model, 5)); /* other weights, the same step */
    expect_ok(ndm_checkpoint_save(w.trainer, folder, &o, 4));
    expect_ok(ndm_checkpoint_latest(w.context, folder, path, sizeof path));
    assert_non_null(strstr(path, "/step-00000004"));
    assert_int_equal(fingerprint_of(path, 4), fingerprint(&w));
    char *two = ndm_text_printf("%s/step-00000002", folder);
    char *three = ndm_text_printf("%s/step-00000003", folder);
    assert_false(ndm_file_exists(two));
    assert_true(ndm_file_exists(three));
    free(two);
    free(three);
    close_world(&w);
    remove_all(folder);
}

/* ---- failures ---- */

static void set_file_limit(rlim_t bytes)
{
    struct rlimit limit;

    getrlimit(RLIMIT_FSIZE, &limit);
    limit.rlim_cur = bytes == RLIM_INFINITY ? limit.rlim_max : bytes;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

/* At every size at which a file may stop growing: told, nothing new is there, the last one is, and
 * training and the next save go on. */
static void a_full_disk_leaves_the_last_one(void **state)
{
    static const rlim_t limits[] = {0, 100, 4096, 100000, 503200};
    const char *folder = scratch_path("full");
    const ndm_save_result *finished;
    char path[4096];
    ndm_saver *saver;
    world w;

    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    open_world(&w, 1);
    step(&w);
    expect_ok(ndm_checkpoint_save(w.trainer, folder, NULL, 1));
    uint64_t first = fingerprint(&w);
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &saver));
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        step(&w);
        set_file_limit(limits[i]);
        expect_ok(ndm_saver_begin(saver, 2));
        expect_ok(ndm_saver_wait(saver, &finished));
        set_file_limit(RLIM_INFINITY);
        assert_int_equal(finished->status, NDM_ERR_IO);
        assert_non_null(strstr(finished->message, "File too large"));
        expect_ok(ndm_checkpoint_latest(w.context, folder, path, sizeof path));
        assert_int_equal(fingerprint_of(path, 1), first);
    }
    step(&w);
    expect_ok(ndm_saver_begin(saver, 7));
    expect_ok(ndm_saver_wait(saver, &finished));
    assert_int_equal(finished->status, NDM_OK);
    assert_int_equal(fingerprint_of(finished->path, 7), fingerprint(&w));
    ndm_saver_destroy(saver);
    close_world(&w);
    remove_all(folder); /* fails if a failed save left anything */
}

/* A process that holds a saver of the folder; says so on `ready`, and never ends by itself. */
static pid_t start_other_run(const char *folder, int ready[2])
{
    ndm_checkpoint_lock lock;
    pid_t child = fork();

    if (child != 0)
        return child;
    bool taken = ndm_checkpoint_lock_take(folder, &lock) == NDM_OK && lock.path;
    if (write(ready[1], taken ? "y" : "n", 1) == 1)
        pause();
    _exit(1);
}

static void one_run_writes_into_a_folder(void **state)
{
    const char *folder = scratch_path("locked");
    char *lock = ndm_text_printf("%s/.lock", folder), who[64], answer = 0;
    ndm_saver *first, *second;
    int ready[2];
    world w;

    (void)state;
    open_world(&w, 1);
    assert_int_equal(pipe(ready), 0);
    pid_t other = start_other_run(folder, ready);
    assert_int_equal(read(ready[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    assert_int_equal(ndm_saver_create(w.trainer, folder, NULL, &first), NDM_ERR_IO);
    snprintf(who, sizeof who, "another run writes its checkpoints there: process %d on", other);
    assert_non_null(strstr(ndm_error_message(), who));
    kill(other, SIGKILL); /* its lock goes with it, its file does not */
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &first));
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &second)); /* the same run */
    ndm_saver_destroy(second);
    assert_true(ndm_file_exists(lock));
    ndm_saver_destroy(first);
    assert_false(ndm_file_exists(lock));
    waitpid(other, NULL, 0);
    close(ready[0]);
    close(ready[1]);
    free(lock);
    close_world(&w);
    remove_all(folder);
}

/* Starts it, and waits until it has the lock. */
static pid_t hold_in_other_run(const char *folder)
{
    char answer = 0;
    int ready[2];

    assert_int_equal(pipe(ready), 0);
    pid_t other = start_other_run(folder, ready);
    assert_int_equal(read(ready[0], &answer, 1), 1);
    assert_int_equal(answer, 'y');
    close(ready[0]);
    close(ready[1]);
    return other;
}

static void end_other_run(pid_t other)
{
    kill(other, SIGKILL);
    waitpid(other, NULL, 0);
}

/* In two containers, two runs may be process 7 on a host of one name. */
static void the_number_of_a_process_is_not_its_lock(void **state)
{
    const char *folder = scratch_path("same-number");
    char *lock = ndm_text_printf("%s/.lock", folder), host[64] = "";
    ndm_saver *saver;
    world w;

    (void)state;
    open_world(&w, 1);
    pid_t other = hold_in_other_run(folder);
    FILE *file = fopen(lock, "we");
    assert_non_null(file);
    gethostname(host, sizeof host - 1);
    fprintf(file, "process %d on %s", getpid(), host);
    fclose(file);
    assert_int_equal(ndm_saver_create(w.trainer, folder, NULL, &saver), NDM_ERR_IO);
    end_other_run(other);
    free(lock);
    close_world(&w);
    remove_all(folder);
}

/* Nothing is held then, nobody's file is written to, and nothing is waited for. */
static void what_is_no_file_is_no_lock(void **state)
{
    const char *folder = scratch_path("odd-lock"), *other = scratch_write("notes", "mine", 4);
    char *path = ndm_text_printf("%s/.lock", folder);
    ndm_checkpoint_lock lock;
    struct stat st;

    (void)state;
    expect_ok(ndm_file_make_dirs(folder));
    assert_int_equal(symlink(other, path), 0);
    expect_ok(ndm_checkpoint_lock_take(folder, &lock));
    assert_null(lock.path);
    assert_int_equal(stat(other, &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_ok(ndm_checkpoint_lock_take(folder, &lock));
    assert_null(lock.path);
    assert_int_equal(unlink(path), 0);
    free(path);
    remove_all(folder);
}

/* A run whose folder was removed, and made anew by another, neither saves there nor takes the
 * other's lock away. */
static void a_folder_that_was_removed_is_locked_again(void **state)
{
    const char *folder = scratch_path("removed");
    char *lock = ndm_text_printf("%s/.lock", folder);
    ndm_checkpoint_options o = NDM_CHECKPOINT_OPTIONS_INIT;
    const ndm_save_result *finished;
    ndm_checkpoint_lock old;
    ndm_saver *saver;
    world w;

    (void)state;
    open_world(&w, 1);
    step(&w);
    o.background = true;
    expect_ok(ndm_checkpoint_lock_take(folder, &old));
    remove_all(folder);
    expect_ok(ndm_saver_create(w.trainer, folder, &o, &saver));
    remove_all(folder);
    pid_t other = hold_in_other_run(folder);
    ndm_checkpoint_lock_give(&old);
    assert_true(ndm_file_exists(lock));
    expect_ok(ndm_saver_begin(saver, 1));
    assert_false(ndm_saver_give_lock(saver)); /* its thread waits for the other */
    expect_ok(ndm_saver_wait(saver, &finished));
    assert_int_equal(finished->status, NDM_ERR_IO);
    assert_non_null(strstr(finished->message, "another run writes its checkpoints there"));
    end_other_run(other);
    expect_ok(ndm_saver_begin(saver, 1));
    expect_ok(ndm_saver_wait(saver, &finished));
    assert_int_equal(finished->status, NDM_OK);
    assert_true(ndm_file_exists(lock));
    ndm_saver_destroy(saver);
    assert_false(ndm_file_exists(lock));
    free(lock);
    close_world(&w);
    remove_all(folder);
}

static void a_second_saver_leaves_what_the_first_writes(void **state)
{
    const char *folder = scratch_path("two-savers");
    char *unfinished = ndm_text_printf("%s/.step-00000009.tmp", folder);
    const ndm_save_result *finished;
    ndm_saver *first, *second;
    world w;

    (void)state;
    open_world(&w, 1);
    step(&w);
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &first));
    expect_ok(ndm_file_make_dirs(unfinished));
    expect_ok(ndm_saver_create(w.trainer, folder, NULL, &second));
    assert_true(ndm_file_exists(unfinished));
    ndm_saver_destroy(first);
    expect_ok(ndm_saver_begin(second, 1)); /* the lock is its own now */
    expect_ok(ndm_saver_wait(second, &finished));
    assert_int_equal(finished->status, NDM_OK);
    assert_true(ndm_saver_give_lock(second));
    expect_ok(ndm_checkpoint_sweep(folder));
    ndm_saver_destroy(second);
    free(unfinished);
    close_world(&w);
    remove_all(folder);
}

static void a_folder_that_cannot_be_is_told(void **state)
{
    const char *file = scratch_write("file", "x", 1);
    world w;

    (void)state;
    open_world(&w, 1);
    char *folder = ndm_text_printf("%s/below", file);
    assert_int_equal(ndm_checkpoint_save(w.trainer, folder, NULL, 0), NDM_ERR_IO);
    assert_non_null(strstr(ndm_error_message(), file));
    free(folder);
    close_world(&w);
}

static void wrong_options_are_refused(void **state)
{
    ndm_checkpoint_options o = NDM_CHECKPOINT_OPTIONS_INIT;
    world w;

    (void)state;
    open_world(&w, 1);
    o.block_bytes = 100;
    assert_int_equal(ndm_checkpoint_save(w.trainer, scratch_path("no"), &o, 0), NDM_ERR_CONFIG);
    assert_non_null(strstr(ndm_error_message(), "block_bytes=100"));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_save_holds_the_values_of_its_moment),
        cmocka_unit_test(a_save_is_polled_to_its_end),
        cmocka_unit_test(a_step_can_be_saved_again_and_old_ones_go),
        cmocka_unit_test(a_full_disk_leaves_the_last_one),
        cmocka_unit_test(one_run_writes_into_a_folder),
        cmocka_unit_test(the_number_of_a_process_is_not_its_lock),
        cmocka_unit_test(what_is_no_file_is_no_lock),
        cmocka_unit_test(a_folder_that_was_removed_is_locked_again),
        cmocka_unit_test(a_second_saver_leaves_what_the_first_writes),
        cmocka_unit_test(a_folder_that_cannot_be_is_told),
        cmocka_unit_test(wrong_options_are_refused),
    };

    return cmocka_run_group_tests(tests, scratch_setup, scratch_teardown);
}
