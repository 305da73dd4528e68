/* SPDX-License-Identifier: Apache-2.0 */
/* Norm, optimizer, schedule and first weights: the same on every mesh. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/dtype.h"
#include "session.h"
#include "train/trainer.h"

static bool first_rank(void)
{
    return ndm_world_rank(world) == 0;
}

/* ---- 12: the norm -----------------------------------------------------------------------------
 */

/* Sum of squares and largest element of what the rank writes. */
typedef struct extent {
    double squares, largest;
} extent;

static ndm_status add_sizes(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                            float *values)
{
    extent *s = user;

    (void)spec;
    (void)first;
    for (int64_t i = 0; i < count; i++) {
        s->squares += (double)values[i] * (double)values[i];
        s->largest = fmax(s->largest, fabs((double)values[i]));
    }
    return NDM_OK;
}

/* From every logical element once, as files are written. */
typedef struct gradients {
    ndm_model *model;
    double norm[2]; /* by ndm_grad_norm */
} gradients;

static ndm_status measure(void *user)
{
    gradients *g = user;
    extent mine = {0.0, 0.0};
    int64_t n_units;
    ndm_unit *const *units = ndm_model_units(g->model, &n_units);

    for (int64_t u = 0; u < n_units; u++)
        NDM_TRY(ndm_unit_write(units[u], NDM_UNIT_GRADS, add_sizes, &mine));
    MPI_Allreduce(&mine.squares, &g->norm[NDM_GRAD_NORM_2], 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    MPI_Allreduce(&mine.largest, &g->norm[NDM_GRAD_NORM_INF], 1, MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    g->norm[NDM_GRAD_NORM_2] = sqrt(g->norm[NDM_GRAD_NORM_2]);
    return NDM_OK;
}

static void check_norm(const task *t)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    ndm_step_result result = {0};
    session s;

    if (task_refused(t))
        return;
    ok_all(session_open(t, &all, &s));
    gradients g = {.model = s.model};
    ndm_trainer_before_update(s.trainer, measure, &g);
    ok_all(session_step(&s, 0, &result));
    double want = g.norm[t->trainer.optimizer.grad_norm];
    check_all(want > 0.0 && fabs(result.grad_norm - want) <= 1e-6 * want);
    session_close(&s);
}

static void case_12_the_norm_counts_every_parameter_once(void **state)
{
    task t = task_default();
    variant_list meshes;

    (void)state;
    t.trainer.optimizer.grad_clip = 0.05; /* is at work, so that weights would differ as well */
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        const int64_t *m = meshes.items[i].mesh;
        t.shape.tied = i % 2; /* a tied table counts once */
        t = task_on(t, m[0], m[1], m[2], m[3]);
        check_norm(&t);
        check_like_one_rank(&t);
    }
    free(meshes.items);
}

static void case_12_the_infinity_norm_is_the_largest_element(void **state)
{
    task t = task_default();
    variant_list meshes;

    (void)state;
    t.trainer.optimizer.grad_norm = NDM_GRAD_NORM_INF;
    t.trainer.optimizer.grad_clip = 0.005;
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        const int64_t *m = meshes.items[i].mesh;
        t.shape.tied = i % 2;
        t = task_on(t, m[0], m[1], m[2], m[3]);
        check_norm(&t);
        check_like_one_rank(&t);
    }
    free(meshes.items);
}

/* ---- 13: every parameter learns ----------------------------------------------------------------
 */

static void check_all_change(const task *t)
{
    record r;

    if (task_refused(t))
        return;
    ok_all(task_run(t, MPI_COMM_WORLD, &r));
    int64_t unchanged = 0;
    for (int64_t i = 0; first_rank() && i < r.total; i++)
        unchanged += r.start[i] == r.end[i];
    check_all(unchanged == 0);
    record_finish(&r);
}

static void case_13_every_parameter_changes(void **state)
{
    task t = task_default();
    variant_list meshes;

    (void)state;
    t.shape = (shape){.hidden = 16,
                      .layers = 1,
                      .heads = 8,
                      .kv_heads = 1,
                      .head_dim = 4,
                      .ffn = 20,
                      .vocab = 10,
                      .tied = true,
                      .pad_token = -1};
    t.trainer.optimizer.weight_decay = 0.0; /* gradients alone move weights */
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        const int64_t *m = meshes.items[i].mesh;
        t = task_on(t, m[0], m[1], m[2], m[3]);
        check_all_change(&t);
    }
    free(meshes.items);
}

/* ---- 14, 15: units by themselves ---------------------------------------------------------------
 */

typedef struct solo {
    session session;
    ndm_unit *unit;
    ndm_optimizer *optimizer;
} solo;

static void open_solo(int64_t numel, ndm_dtype dtype, solo *s)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    ndm_param_spec spec = {.name = "p", .ndim = 1, .shape = {numel}, .init_mean = 1.0f};
    task t = task_on(task_default(), 1, ndm_world_size(world), 1, 1);

    t.fsdp.param_dtype = dtype;
    ok_all(session_open(&t, &all, &s->session));
    ok_all(ndm_unit_create(s->session.context, "u", &spec, 1, &t.fsdp, &s->unit));
    ok_all(ndm_unit_init(s->unit, 1));
    ok_all(ndm_optimizer_create(s->session.context, &s->unit, 1, &s->optimizer));
}

static void close_solo(solo *s)
{
    ndm_optimizer_destroy(s->optimizer);
    ndm_unit_destroy(s->unit);
    session_close(&s->session);
}

/* A step with a gradient of 1 in every element, from one rank of all. */
static void step_solo(solo *s, int64_t numel, double lr)
{
    ndm_step_options options = NDM_STEP_OPTIONS_INIT;
    ndm_stream *stream = s->unit->context->compute;
    float *ones = calloc((size_t)numel, sizeof *ones);
    double norm;

    if (!ones)
        die("no memory for a gradient");
    for (int64_t i = 0; first_rank() && i < numel; i++)
        ones[i] = 1.0f;
    options.lr = lr;
    options.weight_decay = 0.0;
    options.grad_clip = 0.0;
    must(ndm_unit_grads_begin(s->unit, stream));
    must(ndm_copy(stream, ndm_unit_grad(s->unit, 0), ones, numel * (int64_t)sizeof *ones,
                  NDM_HOST_TO_DEVICE));
    must(ndm_unit_reduce_grads(s->unit, stream));
    must(ndm_optimizer_step(s->optimizer, &options, NULL, 0, &norm));
    if (fabs(norm - sqrt((double)numel)) > 1e-6)
        die("the norm of %lld ones is %g", (long long)numel, norm);
    free(ones);
}

/* The gathered parameter, as the models read it, from bf16 or fp32. */
static void read_solo(solo *s, int64_t numel, float *values)
{
    ndm_stream *stream = s->unit->context->compute;
    ndm_dtype dtype = s->unit->fsdp.param_dtype;
    unsigned char raw[256 * sizeof(float)];

    must(ndm_unit_unshard(s->unit, stream));
    must(ndm_copy(stream, raw, ndm_unit_weight(s->unit, 0), numel * (int64_t)ndm_dtype_bytes(dtype),
                  NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(stream));
    must(ndm_unit_reshard(s->unit, stream));
    ndm_convert(raw, dtype, values, NDM_F32, numel);
}

/* 1,000 steps of 1e-5 from 1: bf16, whose numbers below 1 are 2^-8 apart, would not move. */
static void case_14_master_weights_are_fp32(void **state)
{
    float values[130];
    solo s;

    (void)state;
    open_solo(130, NDM_BF16, &s);
    for (int i = 0; i < 1000; i++)
        step_solo(&s, 130, 1e-5);
    read_solo(&s, 130, values);
    for (int i = 0; i < 130; i++)
        values[0] = fmaxf(values[0], fabsf(values[i] - 0.99f) < 0.004f ? 0.0f : 2.0f);
    check_all(values[0] < 1.0f);
    close_solo(&s);
}

static void case_15_fewer_elements_than_ranks(void **state)
{
    const int64_t sizes[] = {1, 2, 3, 65};

    (void)state;
    for (int i = 0; i < 4; i++) {
        float values[65];
        bool right = true;
        solo s;
        open_solo(sizes[i], NDM_F32, &s);
        step_solo(&s, sizes[i], 0.125);
        read_solo(&s, sizes[i], values);
        for (int64_t j = 0; j < sizes[i]; j++)
            right = right && fabsf(values[j] - 0.875f) < 1e-6f;
        check_all(right);
        close_solo(&s);
    }
}

/* ---- 16: the schedule ---------------------------------------------------------------------------
 */

static void check_schedule(const task *t)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    const double want[] = {0.005, 0.01, 0.01 * 5 / 8, 0.01 / 4};
    ndm_step_result result = {0};
    session s;

    ok_all(session_open(t, &all, &s));
    for (int64_t step = 0; step < 4; step++) {
        ok_all(session_step(&s, step, &result));
        check_all(result.step == step + 1 && fabs(result.lr - want[step]) < 1e-12);
        check_all(result.tokens_total == (step + 1) * t->batch * t->seq_len);
    }
    session_close(&s);
}

/* Two steps of warm-up, then linear to a quarter over two more. */
static void case_16_a_schedule_counts_optimizer_steps(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_default();

    (void)state;
    t.steps = 4;
    t.trainer.lr_schedule = NDM_LR_LINEAR;
    t.trainer.warmup = 2;
    t.trainer.min_lr_ratio = 0.25;
    for (t.accum = 1; t.accum <= 3; t.accum += 2) {
        t = task_on(t, 1, n, 1, 1);
        check_schedule(&t);
        t = task_on(t, 1, 1, n, 1);
        check_schedule(&t);
    }
}

/* A program's own rates give the bits that the schedule's do; NAN gives the schedule back. */
static void a_program_may_have_a_schedule_of_its_own(void **state)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    task scheduled = task_on(task_default(), 1, ndm_world_size(world), 1, 1), own = scheduled;
    ndm_step_result want = {0}, got = {0};
    session s, t;

    (void)state;
    scheduled.steps = own.steps = 5; /* the last rate is 0 */
    scheduled.trainer.lr_schedule = own.trainer.lr_schedule = NDM_LR_COSINE;
    ok_all(session_open(&scheduled, &all, &s));
    own.trainer.optimizer.lr = 5e-3;
    ok_all(session_open(&own, &all, &t));
    check_all(ndm_trainer_set_lr(t.trainer, -1e-3) == NDM_ERR_CONFIG);
    check_all(ndm_trainer_set_lr(t.trainer, INFINITY) == NDM_ERR_CONFIG);
    check_all(ndm_trainer_set_lr(NULL, 1e-3) == NDM_ERR_USAGE);
    for (int64_t step = 0; step < 3; step++) {
        ok_all(session_step(&s, step, &want));
        ok_all(ndm_trainer_set_lr(t.trainer, want.lr));
        ok_all(session_step(&t, step, &got));
        check_all(got.lr == want.lr && got.loss == want.loss && got.grad_norm == want.grad_norm);
    }
    ok_all(ndm_trainer_set_lr(t.trainer, NAN));
    ok_all(session_step(&s, 3, &want));
    ok_all(session_step(&t, 3, &got));
    check_all(want.lr > 0 && fabs(got.lr - want.lr / 2) < 1e-12 && got.loss == want.loss);
    session_close(&t);
    session_close(&s);
}

/* Replicas would part without a word. */
static void unlike_rates_are_told(void **state)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    int64_t n = ndm_world_size(world);
    static const double rates[] = {0.0, NAN, 0.25};
    static const char *const told[] = {"unlike learning rates, 0 and 0.25",
                                       "unlike learning rates, the schedule's and 0.25"};
    task t = task_on(task_default(), n, 1, 1, 1);
    ndm_step_result result = {0};
    session s;

    (void)state;
    t.steps = 4;
    ok_all(session_open(&t, &all, &s));
    ok_all(ndm_trainer_set_lr(s.trainer, 1e-3));
    ok_all(session_step(&s, 0, &result));
    for (int64_t i = 0; i < 3; i++) {
        ok_all(ndm_trainer_set_lr(s.trainer, ndm_world_rank(world) == n - 1 ? rates[i] : 0.25));
        ndm_status status = session_step(&s, 1 + i, &result);
        check_all(status == (i < 2 ? NDM_ERR_MISMATCH : NDM_OK));
        check_all(i == 2 || strstr(ndm_error_message(), told[i]) != NULL);
    }
    session_close(&s);
}

/* ---- 41: first weights
 * --------------------------------------------------------------------------- */

static void case_41_initial_weights_are_the_same_bits(void **state)
{
    task t = task_default();

    (void)state;
    t.steps = 0;
    check_every_mesh(t);
    t.shape.tied = true;
    t.shape.vocab = 10;
    check_every_mesh(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_12_the_norm_counts_every_parameter_once),
        cmocka_unit_test(case_12_the_infinity_norm_is_the_largest_element),
        cmocka_unit_test(case_13_every_parameter_changes),
        cmocka_unit_test(case_14_master_weights_are_fp32),
        cmocka_unit_test(case_15_fewer_elements_than_ranks),
        cmocka_unit_test(case_16_a_schedule_counts_optimizer_steps),
        cmocka_unit_test(a_program_may_have_a_schedule_of_its_own),
        cmocka_unit_test(unlike_rates_are_told),
        cmocka_unit_test(case_41_initial_weights_are_the_same_bits),
    };

    return harness_run("optimizer", tests);
}
