/* SPDX-License-Identifier: Apache-2.0 */
/* The front end: what it refuses and with which words, what it leaves alone, and which table an op
 * runs from. */
#include "world.h"

#include <string.h>

#include "device/device.h"
#include "kernels/table.h"

static world w;

static int open_world(void **state)
{
    (void)state;
    return world_init(&w, &ndm_kernels_ref) ? 0 : -1;
}

static int close_world(void **state)
{
    (void)state;
    world_finish(&w);
    return 0;
}

static void refused(ndm_status status, ndm_status expected, const char *words)
{
    assert_int_equal(status, expected);
    if (!strstr(ndm_error_message(), words))
        fail_msg("'%s' does not say '%s'", ndm_error_message(), words);
}

#define assert_refused(op, words, ...)                             \
    do {                                                           \
        ndm_##op##_args args_ = {__VA_ARGS__};                     \
        refused(ndm_##op(w.stream, &args_), NDM_ERR_USAGE, words); \
    } while (0)

#define assert_nothing_to_do(op, ...)          \
    do {                                       \
        ndm_##op##_args args_ = {__VA_ARGS__}; \
        assert_ok(ndm_##op(w.stream, &args_)); \
    } while (0)

static float x[64];
static const int32_t ids[8];

static void bad_shapes_are_refused_with_their_numbers(void **state)
{
    (void)state;
    assert_refused(gemm, "m is -1, below 0", .m = -1);
    assert_refused(gemm, "lda is 2, rows are 3 wide", .m = 2, .n = 2, .k = 3, .a = x, .b = x,
                   .c = x, .lda = 2);
    assert_refused(gemm, "ldb is 2, rows are 3 wide", .m = 2, .n = 2, .k = 3, .a = x, .b = x,
                   .c = x, .ldb = 2, .trans_b = true);
    assert_refused(gemm, "a_dtype is int32", .m = 1, .n = 1, .k = 1, .a = x, .b = x, .c = x,
                   .a_dtype = NDM_I32);
    assert_refused(embedding, "first is -3", .n = 1, .width = 1, .first = -3);
    assert_refused(norm, "x_stride is 5 and width 4", .n = 1, .width = 4, .x = x, .y = x, .rstd = x,
                   .weight = x, .residual = x, .sum = x, .x_stride = 5);
    assert_refused(norm_backward, "dx is dy", .n = 1, .width = 4, .x = x, .dy = x, .dx = x,
                   .rstd = x, .weight = x, .dweight = x, .workspace = x, .accumulate = true);
    assert_refused(norm_backward, "y is dx", .n = 1, .width = 4, .x = x, .dy = x + 4, .dx = x + 4,
                   .y = x + 4, .rstd = x, .weight = x, .dweight = x, .workspace = x);
    assert_refused(rope, "head_dim 3 is odd", .n = 1, .heads = 1, .head_dim = 3, .sign = 1.0f);
    assert_refused(rope, "sign 0.5", .n = 1, .heads = 1, .head_dim = 2, .sign = 0.5f);
    assert_refused(attention, "kv_heads 2 does not divide heads 3", .batch = 1, .tq = 1, .tk = 1,
                   .heads = 3, .kv_heads = 2, .head_dim = 2);
    assert_refused(attention, "tq is 2 and tk 3", .batch = 1, .tq = 2, .tk = 3, .heads = 1,
                   .kv_heads = 1, .head_dim = 2, .causal = true);
    assert_refused(attention, "both or neither", .batch = 1, .tq = 2, .tk = 2, .heads = 1,
                   .kv_heads = 1, .head_dim = 2, .causal = true, .q_index = ids);
    assert_refused(act, "activation 9", .activation = (ndm_activation)9);
    assert_refused(act, "x_stride is 7, rows are 8 wide", .gated = true, .n = 1, .width = 4, .x = x,
                   .y = x, .x_stride = 7);
    assert_refused(act_backward, "y is x", .n = 1, .width = 4, .x = x, .dy = x, .dx = x, .y = x);
    assert_refused(ce_stats, "valid_width 5 is not in 0..4", .n = 1, .width = 4, .valid_width = 5);
    assert_refused(ce_apply, "label_smoothing 1.5", .n = 1, .width = 4, .valid_width = 4,
                   .vocabulary = 4, .label_smoothing = 1.5f);
    assert_refused(ce_merge, "parts is 0", .n = 1);
    assert_refused(adamw, "bias1 0", .n = 1, .w = x, .m = x, .v = x, .g = x);
    assert_refused(cast, "src_dtype is int64", .n = 1, .src_dtype = NDM_I64);
    assert_refused(copy2d, "dst_stride_bytes is 3", .m = 1, .row_bytes = 4, .src = x, .dst = x,
                   .dst_stride_bytes = 3);
    assert_refused(init, "first is -1", .n = 1, .first = -1);
}

static void null_pointers_are_refused_by_name(void **state)
{
    (void)state;
    assert_refused(gemm, "c is NULL", .m = 1, .n = 1, .k = 1);
    assert_refused(gemm, "gemm: b is NULL", .m = 1, .n = 1, .k = 1, .a = x, .c = x);
    assert_refused(embedding, "positions is NULL", .n = 1, .width = 1, .ids = ids, .out = x,
                   .position_table = x);
    assert_refused(embedding_backward, "dtable is NULL", .n = 1, .width = 1, .rows = 1, .ids = ids,
                   .dout = x);
    assert_refused(norm, "mean is NULL", .n = 1, .width = 1, .x = x, .y = x, .weight = x, .rstd = x,
                   .layer_norm = true);
    assert_refused(norm, "sum is NULL", .n = 1, .width = 1, .x = x, .y = x, .weight = x, .rstd = x,
                   .residual = x);
    assert_refused(norm_backward, "workspace is NULL", .n = 1, .width = 1, .x = x, .dy = x, .dx = x,
                   .rstd = x, .weight = x, .dweight = x);
    assert_refused(rope, "cos is NULL", .n = 1, .heads = 1, .head_dim = 2, .sign = 1.0f, .x = x,
                   .positions = ids);
    assert_refused(attention, "lse is NULL", .batch = 1, .tq = 1, .tk = 1, .heads = 1,
                   .kv_heads = 1, .head_dim = 1, .q = x, .k = x, .v = x, .out = x);
    assert_refused(attention_merge, "part is NULL", .batch = 1, .t = 1, .heads = 1, .head_dim = 1,
                   .out = x, .lse = x);
    assert_refused(act_backward, "dy is NULL", .n = 1, .width = 1, .x = x);
    assert_refused(ce_stats, "targets is NULL", .n = 1, .width = 1, .logits = x);
    assert_refused(ce_apply, "loss_sum is NULL", .n = 1, .width = 1, .vocabulary = 1,
                   .targets = ids, .stats = x, .count_loss = true);
    assert_refused(adamw, "g is NULL", .n = 1, .w = x, .m = x, .v = x);
    assert_refused(sumsq, "out is NULL", .n = 1, .x = x);
    assert_refused(cast, "dst is NULL", .n = 1, .src = x);
    assert_refused(scale, "x is NULL", .n = 1);
    assert_refused(add, "y is NULL", .n = 1, .x = x);
    assert_refused(colsum, "out is NULL", .m = 1, .n = 1, .x = x);
    assert_refused(init, "out is NULL", .n = 1);
}

static void attention_backward_asks_for_its_gradients(void **state)
{
    ndm_attention_args forward = {.batch = 1,
                                  .tq = 1,
                                  .tk = 1,
                                  .heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 1,
                                  .q = x,
                                  .k = x,
                                  .v = x,
                                  .out = x,
                                  .lse = x};

    (void)state;
    assert_refused(attention_backward, "dk is NULL", .forward = forward, .dout = x, .delta = x,
                   .dq = x);
    assert_refused(attention_backward, "delta is NULL", .forward = forward, .dout = x);
}

/* A block of keys that no query of this rank meets still has gradients: zeros. */
static void attention_backward_without_queries_clears_dk(void **state)
{
    float dk[2] = {1, 1}, dv[2] = {1, 1};
    ndm_attention_backward_args args = {
        .forward = {.batch = 1, .tk = 1, .heads = 1, .kv_heads = 1, .head_dim = 2},
        .dk = dk,
        .dv = dv};

    (void)state;
    assert_ok(ndm_attention_backward(w.stream, &args));
    for (int i = 0; i < 2; i++)
        assert_true(dk[i] == 0.0f && dv[i] == 0.0f);
}

static void empty_calls_need_no_memory(void **state)
{
    (void)state;
    assert_nothing_to_do(gemm, .m = 0, .n = 3, .k = 3);
    assert_nothing_to_do(embedding, .n = 0, .width = 4);
    assert_nothing_to_do(embedding_backward, .n = 0, .width = 4);
    assert_nothing_to_do(norm, .n = 0, .width = 4);
    assert_nothing_to_do(norm_backward, .n = 0, .width = 4);
    assert_nothing_to_do(rope, .n = 0, .heads = 1, .head_dim = 2, .sign = 1.0f);
    assert_nothing_to_do(attention, .batch = 1, .tq = 0, .tk = 4);
    assert_nothing_to_do(attention_merge, .batch = 0, .heads = 1, .head_dim = 1);
    assert_nothing_to_do(act, .n = 0);
    assert_nothing_to_do(act_backward, .n = 0);
    assert_nothing_to_do(ce_stats, .n = 0);
    assert_nothing_to_do(ce_merge, .n = 0, .parts = 1);
    assert_nothing_to_do(ce_apply, .n = 0, .vocabulary = 1);
    assert_nothing_to_do(adamw, .n = 0);
    assert_nothing_to_do(sumsq, .n = 0);
    assert_nothing_to_do(cast, .n = 0);
    assert_nothing_to_do(scale, .n = 0);
    assert_nothing_to_do(add, .n = 0);
    assert_nothing_to_do(colsum, .m = 0, .n = 3);
    assert_nothing_to_do(copy2d, .m = 0, .row_bytes = 3);
    assert_nothing_to_do(init, .n = 0);
}

/* A stride of 0 is that of packed rows. */
static void strides_of_zero_are_packed(void **state)
{
    const float a[6] = {1, 2, 3, 4, 5, 6};
    float sum[3] = {0};
    ndm_colsum_args args = {.x = a, .out = sum, .m = 2, .n = 3};

    (void)state;
    assert_ok(ndm_colsum(w.stream, &args));
    assert_near(sum[0], 5.0, 0.0);
    assert_near(sum[1], 7.0, 0.0);
    assert_near(sum[2], 9.0, 0.0);
}

/* ---- the registry ---------------------------------------------------------------------------- */

static void the_reference_has_every_op(void **state)
{
    (void)state;
    for (int op = 0; op < NDM_OP_COUNT; op++) {
        assert_non_null(ndm_kernels_ref.body[op]);
        assert_string_equal(ndm_kernels_chosen(w.device, (ndm_op)op), "ref");
    }
    assert_string_equal(ndm_op_name(NDM_OP_gemm), "gemm");
    assert_string_equal(ndm_op_name(NDM_OP_init), "init");
    assert_string_equal(ndm_op_name(NDM_OP_COUNT), "unknown");
}

static void names_of_tables_differ(void **state)
{
    const ndm_kernel_table *const *tables = ndm_kernel_table_list();

    (void)state;
    for (int i = 0; tables[i]; i++)
        for (int j = 0; j < i; j++)
            assert_string_not_equal(tables[i]->name, tables[j]->name);
}

/* Best table of an op by hand: the highest priority among those that run here. */
static const char *best(ndm_op op)
{
    const ndm_kernel_table *found = &ndm_kernels_ref;
    char why[256] = "";

    for (const ndm_kernel_table *const *t = ndm_kernel_table_list(); *t; t++)
        if (strcmp((*t)->device, "cpu") == 0 && (*t)->body[op] &&
            (*t)->priority > found->priority && (!(*t)->probe || (*t)->probe(why, sizeof why)))
            found = *t;
    return found->name;
}

static void auto_takes_the_best_table_of_each_op(void **state)
{
    const char *const choices[] = {NULL, "", "auto"};

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_ok(ndm_kernels_bind(w.device, choices[i]));
        for (int op = 0; op < NDM_OP_COUNT; op++)
            assert_string_equal(ndm_kernels_chosen(w.device, (ndm_op)op), best((ndm_op)op));
    }
    assert_ok(ndm_kernels_bind(w.device, "ref,auto"));
    assert_string_equal(ndm_kernels_chosen(w.device, NDM_OP_gemm), "ref");
    assert_ok(ndm_kernels_bind(w.device, "ref"));
}

static void a_table_without_an_op_leaves_it_to_the_next(void **state)
{
    char why[256] = "";

    (void)state;
    for (const ndm_kernel_table *const *t = ndm_kernel_table_list(); *t; t++) {
        if (strcmp((*t)->device, "cpu") != 0 || ((*t)->probe && !(*t)->probe(why, sizeof why)))
            continue;
        assert_ok(ndm_kernels_bind(w.device, (*t)->name));
        for (int op = 0; op < NDM_OP_COUNT; op++)
            assert_string_equal(ndm_kernels_chosen(w.device, (ndm_op)op),
                                (*t)->body[op] ? (*t)->name : "ref");
    }
    assert_ok(ndm_kernels_bind(w.device, "ref"));
}

static void unknown_tables_are_refused_with_those_there_are(void **state)
{
    (void)state;
    refused(ndm_kernels_bind(w.device, "fats"), NDM_ERR_USAGE, "no table 'fats'");
    refused(ndm_kernels_bind(w.device, "ref,fats"), NDM_ERR_USAGE, ", ref");
    /* a refused choice leaves the old one */
    assert_string_equal(ndm_kernels_chosen(w.device, NDM_OP_gemm), "ref");
}

static void a_launch_needs_bound_kernels(void **state)
{
    ndm_scale_args args = {.x = x, .factor = 2.0f, .n = 1};

    (void)state;
    ndm_kernels_unbind(w.device);
    refused(ndm_scale(w.stream, &args), NDM_ERR_STATE, "no kernels are bound");
    assert_string_equal(ndm_kernels_chosen(w.device, NDM_OP_scale), "none");
    assert_ok(ndm_kernels_bind(w.device, "ref"));
    assert_ok(ndm_scale(w.stream, &args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_shapes_are_refused_with_their_numbers),
        cmocka_unit_test(null_pointers_are_refused_by_name),
        cmocka_unit_test(attention_backward_asks_for_its_gradients),
        cmocka_unit_test(attention_backward_without_queries_clears_dk),
        cmocka_unit_test(empty_calls_need_no_memory),
        cmocka_unit_test(strides_of_zero_are_packed),
        cmocka_unit_test(the_reference_has_every_op),
        cmocka_unit_test(names_of_tables_differ),
        cmocka_unit_test(auto_takes_the_best_table_of_each_op),
        cmocka_unit_test(a_table_without_an_op_leaves_it_to_the_next),
        cmocka_unit_test(unknown_tables_are_refused_with_those_there_are),
        cmocka_unit_test(a_launch_needs_bound_kernels),
    };

    return cmocka_run_group_tests(tests, open_world, close_world);
}
