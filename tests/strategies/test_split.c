/* SPDX-License-Identifier: Apache-2.0 */
/* Heads, vocabularies and sequences that are cut: tensor and context parallelism, and the meshes
 * they make. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "session.h"

static bool first_rank(void)
{
    return ndm_world_rank(world) == 0;
}

/* With and without sequence parallelism, all ranks on tp. */
static void check_tp(task t)
{
    t = task_on(t, 1, 1, 1, ndm_world_size(world));
    check_like_one_rank(&t);
    t.no_sequence_parallel = true;
    check_like_one_rank(&t);
}

/* Every method, all ranks on cp. */
static void check_cp(task t)
{
    t = task_on(t, 1, 1, ndm_world_size(world), 1);
    for (int m = NDM_CP_METHOD_RING; m <= NDM_CP_METHOD_ULYSSES; m++) {
        t.cp_method = (ndm_cp_method)m;
        check_like_one_rank(&t);
    }
}

static void check_refused(const task *t, const char *words)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    session s;

    check_all(session_open(t, &all, &s) == NDM_ERR_CONFIG);
    check_all(strstr(ndm_error_message(), words) != NULL);
}

/* ---- 9, 17, 18, 19, 20: tensor parallelism ------------------------------------------------------
 */

/* Norm weights see other rows on every rank of tp; replicas are compared after each step. */
static void case_09_replicated_weights_sum_over_tp(void **state)
{
    task t = task_default();

    (void)state;
    t.steps = 3;
    check_tp(t);
}

static void case_17_kv_heads_replicate(void **state)
{
    task t = task_default();

    (void)state;
    t.shape.heads = 8;
    t.shape.kv_heads = 1;
    check_every_mesh(t);
    check_tp(t);
}

static void case_17_kv_heads_that_do_not_fit_are_refused(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_on(task_default(), 1, 1, 1, n);

    (void)state;
    t.shape.heads = 12;
    t.shape.kv_heads = n == 3 ? 4 : 3;
    t.shape.hidden = 48;
    check_refused(&t, "kv");
}

static void check_same_bits(const task *t)
{
    record first, second;

    ok_all(task_run(t, MPI_COMM_WORLD, &first));
    ok_all(task_run(t, MPI_COMM_WORLD, &second));
    check_all(same_bits(&first, &second));
    record_finish(&first);
    record_finish(&second);
}

/* In 2, 3 and 5 parts, by messages and in shared memory, with whatever is made again. */
static void rows_in_parts_change_nothing(void **state)
{
    static const int64_t parts[] = {2, 3, 5};
    task t = task_default();
    variant_list meshes;
    int64_t k = 0;

    (void)state;
    t.steps = 2;
    list_meshes(ndm_world_size(world), &meshes);
    for (int64_t i = 0; i < meshes.n; i++) {
        const int64_t *m = meshes.items[i].mesh;
        t = task_on(t, m[0], m[1], m[2], m[3]);
        if (m[NDM_TP] == 1 || task_refused(&t))
            continue;
        for (int recompute = 0; recompute <= NDM_RECOMPUTE_SELECTIVE; recompute++, k++) {
            t.tp_overlap_chunks = parts[k % 3];
            t.recompute = (ndm_recompute)recompute;
            t.collectives = k % 4 == 3 ? "auto" : "mpi";
            t.no_sequence_parallel = k % 5 == 4;
            check_like_one_rank(&t);
        }
        check_same_bits(&t);
    }
    free(meshes.items);
}

static void case_18_odd_vocabulary_and_ffn_are_padded(void **state)
{
    const MPI_Comm all = MPI_COMM_WORLD, self = MPI_COMM_SELF;
    task t = task_default(), alone = t;
    session s, one;

    (void)state;
    t.shape.vocab = alone.shape.vocab = 43;
    t.shape.ffn = alone.shape.ffn = 23;
    check_tp(t);
    t.no_sequence_parallel = false;
    t = task_on(t, 1, ndm_world_size(world), 1, 1);
    ok_all(session_open(&t, &all, &s));
    ok_all(session_open(&alone, &self, &one));
    check_all(ndm_model_parameters(s.model) == ndm_model_parameters(one.model));
    session_close(&one);
    session_close(&s);
}

static void case_19_label_smoothing_over_vocabulary_slices(void **state)
{
    task t = task_default();

    (void)state;
    t.label_smoothing = 0.1;
    t.steps = 2;
    check_tp(t);
}

/* The last token of the vocabulary, so the last rank's row, and token 5, both in every sequence. */
static void with_padding(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)step;
    (void)index;
    s->inputs[2] = (int32_t)t->shape.vocab - 1;
    s->inputs[3] = 5;
}

static bool row_changed(const record *r, const char *name, int64_t row, int64_t width)
{
    for (int64_t i = 0; i < r->n_tensors; i++) {
        const tensor *t = &r->tensors[i];
        if (strcmp(t->name, name) == 0)
            return memcmp(r->start + t->first + row * width, r->end + t->first + row * width,
                          (size_t)width * sizeof *r->start) != 0;
    }
    die("no tensor %s", name);
}

static void case_20_the_padding_row_learns_nothing(void **state)
{
    task t = task_default();
    record r;

    (void)state;
    t.shape.pad_token = t.shape.vocab - 1;
    t.fill = with_padding;
    t.trainer.optimizer.weight_decay = 0.0;
    check_tp(t);
    t = task_on(t, 1, 1, 1, ndm_world_size(world));
    if (task_refused(&t))
        return;
    ok_all(task_run(&t, MPI_COMM_WORLD, &r));
    check_all(!first_rank() ||
              !row_changed(&r, "model.embed_tokens.weight", t.shape.vocab - 1, t.shape.hidden));
    check_all(!first_rank() || row_changed(&r, "model.embed_tokens.weight", 5, t.shape.hidden));
    record_finish(&r);
}

/* ---- 21, 23, 24: context parallelism ------------------------------------------------------------
 */

static int32_t first_word; /* of every sequence's first document */

/* Documents [0, 4, 8]; only the last has labels. */
static void three_documents(const task *t, int64_t step, int64_t index, sequence *s)
{
    (void)step;
    (void)index;
    for (int64_t i = 0; i < t->seq_len; i++) {
        s->first[i] = (int32_t)(i / 4 * 4);
        s->positions[i] = (int32_t)(i % 4);
        if (i < 8)
            s->targets[i] = -100;
    }
    s->inputs[1] = first_word;
}

static double loss_of_last_document(session *s, int32_t word)
{
    double sum;
    int64_t tokens;

    first_word = word;
    must(session_evaluate(s, 0, &sum, &tokens));
    return sum;
}

static void case_21_packed_documents_stay_apart(void **state)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    task t = task_default();
    session s;

    (void)state;
    t.fill = three_documents;
    check_cp(t);
    t = task_on(t, 1, 1, ndm_world_size(world), 1);
    for (int m = NDM_CP_METHOD_RING; m <= NDM_CP_METHOD_ULYSSES; m++) {
        t.cp_method = (ndm_cp_method)m;
        if (task_refused(&t))
            continue;
        ok_all(session_open(&t, &all, &s));
        double a = loss_of_last_document(&s, 1), b = loss_of_last_document(&s, 30);
        check_all(a > 0.0 && a == b);
        session_close(&s);
    }
}

static void case_23_sequences_that_do_not_divide_are_padded(void **state)
{
    const int64_t lengths[] = {3, 5, 7, 11};
    task t = task_default();

    (void)state;
    for (int i = 0; i < 4; i++) {
        t.seq_len = lengths[i];
        check_cp(t);
    }
}

static void case_24_sliding_windows_are_honoured(void **state)
{
    task t = task_default();
    record wide, narrow;

    (void)state;
    t.shape.window = 3;
    check_cp(t);
    t = task_on(t, 1, 1, ndm_world_size(world), 1);
    ok_all(task_run(&t, MPI_COMM_WORLD, &narrow));
    t.shape.window = 0;
    ok_all(task_run(&t, MPI_COMM_WORLD, &wide));
    check_all(fabs(wide.loss[0] - narrow.loss[0]) > 1e-4); /* the window can be told from none */
    record_finish(&wide);
    record_finish(&narrow);
}

/* ---- 27, 30: meshes
 * ------------------------------------------------------------------------------
 */

static void check_mismatch(const ndm_parallelism_config *p, const ndm_named_value *fact,
                           const char *field)
{
    const MPI_Comm all = MPI_COMM_WORLD;
    ndm_context_options o = NDM_CONTEXT_OPTIONS_INIT;
    ndm_context *context = NULL;
    char rank[32];

    o.mpi_comm = &all;
    o.timeout_s = 60;
    o.facts = fact;
    o.n_facts = 1;
    check_all(ndm_context_create(p, &o, &context) == NDM_ERR_MISMATCH);
    snprintf(rank, sizeof rank, "rank %lld", (long long)ndm_world_size(world) - 1);
    check_all(strstr(ndm_error_message(), field) != NULL);
    check_all(strstr(ndm_error_message(), rank) != NULL);
}

static void case_27_ranks_that_differ_are_named(void **state)
{
    bool last = ndm_world_rank(world) == ndm_world_size(world) - 1;
    ndm_parallelism_config p = NDM_PARALLELISM_CONFIG_INIT, other = p;
    ndm_named_value fact = {"lr", last ? "0.002" : "0.001"}, same = {"lr", "0.001"};

    (void)state;
    other.dp_shard = last ? 1 : ndm_world_size(world);
    other.cp = last ? ndm_world_size(world) : 1;
    check_mismatch(&other, &same, "dp_shard");
    p.no_sequence_parallel = last;
    check_mismatch(&p, &same, "no_sequence_parallel");
    p.no_sequence_parallel = false;
    check_mismatch(&p, &fact, "lr");
}

static void case_30_all_ranks_on_one_axis(void **state)
{
    task t = task_default();

    (void)state;
    t.steps = 2;
    for (int axis = 0; axis < NDM_AXIS_COUNT; axis++) {
        int64_t mesh[NDM_AXIS_COUNT] = {1, 1, 1, 1};
        mesh[axis] = ndm_world_size(world);
        t = task_on(t, mesh[0], mesh[1], mesh[2], mesh[3]);
        check_like_one_rank(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_09_replicated_weights_sum_over_tp),
        cmocka_unit_test(case_17_kv_heads_replicate),
        cmocka_unit_test(case_17_kv_heads_that_do_not_fit_are_refused),
        cmocka_unit_test(rows_in_parts_change_nothing),
        cmocka_unit_test(case_18_odd_vocabulary_and_ffn_are_padded),
        cmocka_unit_test(case_19_label_smoothing_over_vocabulary_slices),
        cmocka_unit_test(case_20_the_padding_row_learns_nothing),
        cmocka_unit_test(case_21_packed_documents_stay_apart),
        cmocka_unit_test(case_23_sequences_that_do_not_divide_are_padded),
        cmocka_unit_test(case_24_sliding_windows_are_honoured),
        cmocka_unit_test(case_27_ranks_that_differ_are_named),
        cmocka_unit_test(case_30_all_ranks_on_one_axis),
    };

    return harness_run("split", tests);
}
