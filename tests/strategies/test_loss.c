/* SPDX-License-Identifier: Apache-2.0 */
/* Loss, token counts and gradients: one sum over one count, wherever the tokens lie. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

static bool near(double x, double want)
{
    return fabs(x - want) <= 1e-5 * fabs(want);
}

static bool first_rank(void)
{
    return ndm_world_rank(world) == 0;
}

static void ignore_from(const task *t, sequence *s, int64_t first)
{
    for (int64_t i = first; i < t->seq_len; i++)
        s->targets[i] = -100;
}

/* ---- 1: unlike numbers of labels ----------------------------------------------------------- */

/* One label in each of the first four, then all, then none: ranks and micro-batches differ. */
static void uneven(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)step;
    ignore_from(t, s, index < 4 ? 1 : index < 8 ? t->seq_len : 0);
}

/* What a step must report, from one sequence at a time on this rank alone; and what a mean of means
 * would be. */
static double one_sum(const task *t, double *mean_of_means)
{
    const MPI_Comm self = MPI_COMM_SELF;
    task single = task_on(*t, 1, 1, 1, 1);
    double sum = 0.0, means = 0.0;
    int64_t count = 0, filled = 0;
    session s;

    single.batch = 1; /* step i of it is sequence i of the whole batch */
    must(session_open(&single, &self, &s));
    for (int64_t i = 0; i < t->batch; i++) {
        double part;
        int64_t tokens;
        must(session_evaluate(&s, i, &part, &tokens));
        sum += part;
        count += tokens;
        filled += tokens > 0;
        means += tokens > 0 ? part / (double)tokens : 0.0;
    }
    session_close(&s);
    *mean_of_means = means / (double)filled;
    return sum / (double)count;
}

static void uneven_single(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)index;
    uneven(t, step, step, s);
}

static double expected_loss(const task *t)
{
    task single = *t;
    double wrong;

    single.fill = uneven_single;
    double right = one_sum(&single, &wrong);
    assert_false(near(wrong, right)); /* the data can tell them apart */
    return right;
}

static void check_one_sum(const task *t, double want)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    ndm_step_result result = {0};
    double sum = 0.0;
    int64_t tokens = 0;
    session s;

    if (task_refused(t))
        return;
    ok_all(session_open(t, &all, &s));
    if (t->accum == 1) {
        ok_all(session_evaluate(&s, 0, &sum, &tokens));
        check_all(tokens == 4 * (1 + t->seq_len));
        check_all(!first_rank() || near(sum / (double)tokens, want));
    }
    ok_all(session_step(&s, 0, &result));
    check_all(result.tokens == 4 * (1 + t->seq_len));
    check_all(!first_rank() || near(result.loss, want));
    session_close(&s);
}

static void case_01_one_sum_over_one_count(void **state)
{
    task t = task_default();
    variant_list meshes;
    double want = 0.0;

    (void)state;
    t.fill = uneven;
    if (first_rank())
        want = expected_loss(&t);
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++)
        for (t.accum = 1; t.accum <= 3; t.accum += 2) {
            const int64_t *m = meshes.items[i].mesh;
            t = task_on(t, m[0], m[1], m[2], m[3]);
            check_one_sum(&t, want);
        }
    free(meshes.items);
}

/* ---- 2: a cp rank without labels ------------------------------------------------------------ */

static int64_t masked_rank; /* of cp, and how the sequence is cut */
static bool masked_zigzag;

static int64_t owner(const task *t, int64_t token)
{
    int64_t cp = t->mesh[NDM_CP], chunks = masked_zigzag ? 2 * cp : cp;
    int64_t chunk = token / ((t->seq_len + chunks - 1) / chunks);

    return chunk < cp ? chunk : 2 * cp - 1 - chunk;
}

static int64_t masked_cp;

static void without_a_rank(const task *t, int64_t step, int64_t index, sequence *s)
{
    task cut = task_on(*t, 1, 1, masked_cp, 1); /* the reference has no cp of its own */

    (void)step;
    (void)index;
    for (int64_t i = 0; i < t->seq_len; i++)
        if (masked_rank < 0 || owner(&cut, i) == masked_rank)
            s->targets[i] = -100;
}

static void case_02_masked_rank_contributes_zero(void **state)
{
    task t = task_default();

    (void)state;
    t.fill = without_a_rank;
    masked_cp = ndm_world_size(world);
    t = task_on(t, 1, 1, masked_cp, 1);
    for (int m = NDM_CP_METHOD_RING; m <= NDM_CP_METHOD_ULYSSES; m++) {
        t.cp_method = (ndm_cp_method)m;
        masked_zigzag = m != NDM_CP_METHOD_ULYSSES;
        for (masked_rank = 0; masked_rank < 2; masked_rank++)
            check_like_one_rank(&t);
    }
}

static void case_02_a_step_without_labels_is_zero(void **state)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    task t = task_default();
    ndm_step_result result = {0};
    session s;

    (void)state;
    masked_rank = -1;
    masked_cp = ndm_world_size(world);
    t.fill = without_a_rank;
    t = task_on(t, 1, 1, masked_cp, 1);
    ok_all(session_open(&t, &all, &s));
    ok_all(session_step(&s, 0, &result));
    check_all(result.loss == 0.0 && result.grad_norm == 0.0 && result.tokens == 0);
    session_close(&s);
}

/* ---- 3, 4: counts, and labels at the edges of chunks ---------------------------------------- */

static void case_03_loss_and_tokens_are_those_of_one_rank(void **state)
{
    task t = task_default();

    (void)state;
    t.fill = uneven;
    t.steps = 2;
    check_every_mesh(t);
}

static int64_t only_label;

static void one_label(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)step;
    (void)index;
    for (int64_t i = 0; i < t->seq_len; i++)
        if (i != only_label)
            s->targets[i] = -100;
}

/* The loss of each label alone: none is lost where chunks meet. */
static void label_losses(const task *t, MPI_Comm comm, double *losses)
{
    session s;

    must(session_open(t, &comm, &s));
    for (only_label = 0; only_label < t->seq_len; only_label++) {
        int64_t tokens;
        must(session_evaluate(&s, 0, &losses[only_label], &tokens));
        if (tokens != t->batch)
            die("label %lld is counted %lld times", (long long)only_label, (long long)tokens);
    }
    session_close(&s);
}

static void case_04_no_label_is_lost_between_chunks(void **state)
{
    task t = task_default();
    double alone[MAX_SEQ] = {0}, cut[MAX_SEQ];

    (void)state;
    t.fill = one_label;
    t.batch = 1;
    if (first_rank())
        label_losses(&t, MPI_COMM_SELF, alone);
    t = task_on(t, 1, 1, ndm_world_size(world), 1);
    for (int m = NDM_CP_METHOD_RING; m <= NDM_CP_METHOD_ULYSSES; m++) {
        t.cp_method = (ndm_cp_method)m;
        if (task_refused(&t))
            continue;
        label_losses(&t, MPI_COMM_WORLD, cut);
        bool same = true;
        for (int64_t i = 0; first_rank() && i < t.seq_len; i++)
            same = same && alone[i] > 0.0 && near(cut[i], alone[i]);
        check_all(same);
    }
}

/* ---- 5, 6, 7: windows of accumulation, and who reduces what ---------------------------------- */

static void first_eight(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)step;
    ignore_from(t, s, index < 8 ? t->seq_len : 0);
}

/* Two micro-batches, and a window of three of which the last has no tokens. */
static void case_05_a_short_window_divides_by_its_own_tokens(void **state)
{
    int64_t n = ndm_world_size(world);
    task full = task_on(task_default(), 1, n, 1, 1), cut = full;
    record a, b;

    (void)state;
    if (4 % n)
        return;
    full.accum = 3;
    full.fill = first_eight;
    cut.accum = 2;
    cut.batch = 8;
    ok_all(task_run(&full, MPI_COMM_WORLD, &a));
    ok_all(task_run(&cut, MPI_COMM_WORLD, &b));
    check_all(!first_rank() || alike(&a, &b));
    record_finish(&a);
    record_finish(&b);
}

static void check_shardings(task t)
{
    const int64_t reshards[] = {NDM_RESHARD_ALWAYS, NDM_RESHARD_NEVER};

    for (t.accum = 1; t.accum <= 3; t.accum += 2)
        for (t.fsdp.zero = 1; t.fsdp.zero <= 3; t.fsdp.zero++)
            for (int r = 0; r <= (t.fsdp.zero == 3); r++) {
                t.fsdp.reshard_after_forward = reshards[r];
                t.fsdp.defer_sync = t.fsdp.zero == 2;
                check_like_one_rank(&t);
            }
}

static void case_06_gradients_do_not_depend_on_sharding(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_default();

    (void)state;
    check_shardings(task_on(t, n, 1, 1, 1));
    check_shardings(task_on(t, 1, n, 1, 1));
    if (n % 2 == 0 && n > 2)
        check_shardings(task_on(t, 2, n / 2, 1, 1));
    t.fsdp.wrap = NDM_WRAP_SIZE; /* units of other sizes */
    t.fsdp.min_num_params = 2000;
    t = task_on(t, 1, n, 1, 1);
    check_like_one_rank(&t);
}

static void case_07_replicas_alone_and_cp_alone_synchronise(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_default();

    (void)state;
    t.steps = 3;
    t = task_on(t, n, 1, 1, 1);
    check_like_one_rank(&t);
    t = task_on(t, 1, 1, n, 1);
    check_like_one_rank(&t);
}

/* ---- 8: partial sums ------------------------------------------------------------------------- */

enum { NUMEL = 70 };

static void add(ndm_unit *unit, float value)
{
    ndm_stream *stream = unit->context->compute;
    float host[NUMEL];
    int64_t bytes = NUMEL * (int64_t)sizeof(float);

    must(ndm_unit_grads_begin(unit, stream));
    must(ndm_copy(stream, host, ndm_unit_grad(unit, 0), bytes, NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(stream));
    for (int i = 0; i < NUMEL; i++)
        host[i] += value;
    must(ndm_copy(stream, ndm_unit_grad(unit, 0), host, bytes, NDM_HOST_TO_DEVICE));
    must(ndm_unit_reduce_grads(unit, stream));
}

static ndm_status check_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                              float *values)
{
    float *wanted = user; /* [0]: the sum; [1]: whether all were so */

    (void)spec;
    (void)first;
    for (int64_t i = 0; i < count; i++)
        if (values[i] != wanted[0])
            wanted[1] = 0.0f;
    return NDM_OK;
}

/* One rank gives 1, the others, and the next micro-batch, 2^-10 each: bf16 would lose them all. */
static void check_sum(const task *t)
{
    const float small = 0x1p-10f;
    int64_t n = ndm_world_size(world);
    float wanted[2] = {1.0f + (float)n * small, 1.0f};
    ndm_param_spec spec = {.name = "p", .ndim = 1, .shape = {NUMEL}};
    const MPI_Comm all = MPI_COMM_WORLD;
    ndm_unit *unit;
    session s;

    ok_all(session_open(t, &all, &s));
    ok_all(ndm_unit_create(s.context, "u", &spec, 1, &t->fsdp, &unit));
    ndm_context_micro_batch(s.context, 0, 2);
    add(unit, first_rank() ? 1.0f : small);
    ndm_context_micro_batch(s.context, 1, 2);
    add(unit, first_rank() ? small : 0.0f);
    ok_all(ndm_unit_write(unit, NDM_UNIT_GRADS, check_range, wanted));
    check_all(wanted[1] == 1.0f);
    ndm_unit_destroy(unit);
    session_close(&s);
}

static void case_08_partial_sums_stay_fp32(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_default();

    (void)state;
    t.fsdp.param_dtype = NDM_BF16;
    for (int axis = 0; axis < NDM_AXIS_COUNT; axis++) {
        int64_t mesh[NDM_AXIS_COUNT] = {1, 1, 1, 1};
        mesh[axis] = n;
        t = task_on(t, mesh[0], mesh[1], mesh[2], mesh[3]);
        if (!task_refused(&t))
            check_sum(&t);
    }
    t.fsdp.reduce_dtype = NDM_BF16; /* on the wire alone */
    t = task_on(t, 1, n, 1, 1);
    check_sum(&t);
}

/* ---- 10: a label that does not exist --------------------------------------------------------- */

static void one_bad_label(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)step;
    if (index == t->batch - 1)
        s->targets[3] = 4711;
}

static void case_10_a_label_out_of_range_is_named(void **state)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    task t = task_default();
    ndm_step_result result = {0};
    session s;

    (void)state;
    t.fill = one_bad_label;
    t = task_on(t, 1, ndm_world_size(world), 1, 1);
    ok_all(session_open(&t, &all, &s));
    check_all(session_step(&s, 0, &result) == NDM_ERR_CONFIG);
    check_all(strstr(ndm_error_message(), "4711") && strstr(ndm_error_message(), "37"));
    session_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_01_one_sum_over_one_count),
        cmocka_unit_test(case_02_masked_rank_contributes_zero),
        cmocka_unit_test(case_02_a_step_without_labels_is_zero),
        cmocka_unit_test(case_03_loss_and_tokens_are_those_of_one_rank),
        cmocka_unit_test(case_04_no_label_is_lost_between_chunks),
        cmocka_unit_test(case_05_a_short_window_divides_by_its_own_tokens),
        cmocka_unit_test(case_06_gradients_do_not_depend_on_sharding),
        cmocka_unit_test(case_07_replicas_alone_and_cp_alone_synchronise),
        cmocka_unit_test(case_08_partial_sums_stay_fp32),
        cmocka_unit_test(case_10_a_label_out_of_range_is_named),
    };

    return harness_run("loss", tests);
}
