/* SPDX-License-Identifier: Apache-2.0 */
/* Every table of kernels that this machine can run, against the reference: each op it has, over the
 * cases of the op. The same bits again on a second run and for one and two threads; guards around
 * buffers and between rows stay as they are. */
#include "again.h"

#include <math.h>
#include <omp.h>
#include <string.h>

#include "core/dtype.h"
#include "device/device.h"
#include "kernels/cases.h"
#include "kernels/table.h"

enum { WORLDS_MAX = 32, MISALIGNMENTS = 4, COMPLAINTS_MAX = 5 };

static world reference;
static world subjects[WORLDS_MAX];
static int subject_count;

/* Of all tables, or of the one that NDM_TEST_TABLE names: that one must then be there. */
static int open_worlds(void **state)
{
    const char *only = getenv("NDM_TEST_TABLE");

    (void)state;
    if (!world_init(&reference, &ndm_kernels_ref))
        return -1;
    for (const ndm_kernel_table *const *table = ndm_kernel_table_list(); *table; table++) {
        if (only && strcmp((*table)->name, only) != 0)
            continue;
        if (world_init(&subjects[subject_count], *table))
            subject_count++;
        else
            print_message("[   NOTE   ] %s is not tested: %s\n", (*table)->name,
                          ndm_error_message());
    }
    return only && subject_count == 0 ? -1 : 0;
}

static int close_worlds(void **state)
{
    (void)state;
    world_finish(&reference);
    for (int i = 0; i < subject_count; i++)
        world_finish(&subjects[i]);
    return 0;
}

/* A run on one thread and one on two, compared with `first` to the bit. */
static ndm_status check_same_bits(const ndm_case *c, const world *w, const ndm_case_data *before,
                                  const ndm_case_data *first)
{
    int threads = omp_get_max_threads();
    ndm_status status = NDM_OK;

    for (int n = 1; n <= 2 && status == NDM_OK; n++) {
        ndm_case_data again = {0};
        omp_set_num_threads(n);
        status = ndm_case_run(c, before, w->stream, &again);
        if (status == NDM_OK && !ndm_case_same_bits(c, first, &again))
            status = ndm_error_set(NDM_ERR_CHECK, __FILE__, __LINE__,
                                   "%s: other bits on another run with %d threads", c->label, n);
        ndm_case_data_finish(&again);
    }
    omp_set_num_threads(threads);
    return status;
}

static ndm_status check_subject(const ndm_case *c, const world *w, const ndm_case_data *before,
                                const ndm_case_data *expected, double *error)
{
    ndm_case_data first = {0};

    NDM_TRY(ndm_case_run(c, before, w->stream, &first));
    ndm_status status = ndm_case_compare(c, before, expected, &first, error);
    if (status == NDM_OK)
        status = check_same_bits(c, w, before, &first);
    ndm_case_data_finish(&first);
    return status;
}

/* Returns how many tables failed. */
static int check_case(const ndm_case *c, int64_t misalign)
{
    ndm_case_data before, expected;
    int failures = 0;

    assert_ok(ndm_case_data_init(c, test_seed(), misalign, &before));
    assert_ok(ndm_case_run(c, &before, reference.stream, &expected));
    for (int i = 0; i < subject_count; i++) {
        double error = 0.0;
        if (!subjects[i].table->body[c->op])
            continue;
        if (check_subject(c, &subjects[i], &before, &expected, &error) == NDM_OK)
            continue;
        failures++;
        print_error("%s: %s (misaligned by %lld, seed %llu)\n", subjects[i].table->name,
                    ndm_error_message(), (long long)misalign, (unsigned long long)test_seed());
    }
    ndm_case_data_finish(&before);
    ndm_case_data_finish(&expected);
    return failures;
}

static void check_op(ndm_op op)
{
    int failures = 0;
    int64_t cases = 0;
    ndm_case c;

    for (; ndm_case_get(op, cases, &c) && failures < COMPLAINTS_MAX; cases++)
        failures += check_case(&c, cases % MISALIGNMENTS);
    assert_true(cases > 0);
    assert_int_equal(failures, 0);
}

#define OP_TEST(name, doc)                  \
    static void name##_agrees(void **state) \
    {                                       \
        (void)state;                        \
        check_op(NDM_OP_##name);            \
    }
NDM_KERNEL_LIST(OP_TEST)
#undef OP_TEST

/* ---- made again ------------------------------------------------------------------------------ */

static void norms_are_made_again_to_the_bit(void **state)
{
    (void)state;
    for (int i = 0; i < subject_count; i++)
        check_norm_again(&subjects[i]);
}

static void activations_are_made_again_to_the_bit(void **state)
{
    (void)state;
    for (int i = 0; i < subject_count; i++)
        check_act_again(&subjects[i]);
}

/* ---- types of activations -------------------------------------------------------------------- */

/* The largest difference of outputs, relative to the reference's or to 1. */
static double largest_difference(const ndm_case *a, const ndm_case_data *x, const ndm_case *b,
                                 const ndm_case_data *y)
{
    double worst = 0.0;

    for (int i = 0; i < a->buffers; i++)
        for (int64_t at = 0; at < a->buffer[i].rows * a->buffer[i].width; at++) {
            int64_t row = at / a->buffer[i].width, col = at % a->buffer[i].width;
            double v = ndm_case_value(a, x, i, row, col), w = ndm_case_value(b, y, i, row, col);
            bool alike = v == w || (isnan(v) && isnan(w)) || !a->buffer[i].output ||
                         a->buffer[i].scratch;
            double d = alike ? 0.0 : fabs(v - w) / (fabs(w) + b->buffer[i].scale);
            worst = d <= worst ? worst : d; /* a NaN stays */
        }
    return worst;
}

/* The reference of `narrow` and that of the same numbers in fp32. */
static double difference_to_fp32(const ndm_case *narrow, const ndm_case *wide)
{
    ndm_case_data in, out, wide_in, wide_out;

    assert_ok(ndm_case_data_init(narrow, test_seed(), 0, &in));
    assert_ok(ndm_case_data_init(wide, test_seed(), 0, &wide_in));
    for (int i = 0; i < wide->buffers; i++)
        for (int64_t at = 0; at < wide->buffer[i].rows * wide->buffer[i].width; at++) {
            int64_t row = at / wide->buffer[i].width, col = at % wide->buffer[i].width;
            ndm_case_set_value(wide, &wide_in, i, row, col,
                               ndm_case_value(narrow, &in, i, row, col));
        }
    assert_ok(ndm_case_run(narrow, &in, reference.stream, &out));
    assert_ok(ndm_case_run(wide, &wide_in, reference.stream, &wide_out));
    double difference = largest_difference(narrow, &out, wide, &wide_out);
    ndm_case_data_finish(&in);
    ndm_case_data_finish(&out);
    ndm_case_data_finish(&wide_in);
    ndm_case_data_finish(&wide_out);
    return difference;
}

/* A sum that is rounded before its norm is taken has another norm: rows of two close numbers show
 * it. */
static bool rounds_within(const ndm_case *c)
{
    for (int i = 0; i < c->buffers; i++)
        if (strcmp(c->buffer[i].name, "residual") == 0)
            return true;
    return false;
}

/* Every third case is in bf16, one of the two before it in the list's pairs of fp32 ones. */
static void bf16_activations_are_rounded_fp32(void **state)
{
    enum { CASES = 300 };
    int64_t compared = 0;
    ndm_case narrow, wide;

    (void)state;
    for (int op = 0; op < NDM_OP_COUNT; op++)
        for (int64_t i = 2; i < CASES && ndm_case_get((ndm_op)op, i, &narrow); i += 3) {
            if (narrow.activations == NDM_F32 || rounds_within(&narrow))
                continue;
            for (int64_t j = i - 2; j < i; j++) {
                assert_true(ndm_case_get((ndm_op)op, j, &wide));
                if (strncmp(wide.label, narrow.label, strlen(narrow.label) - strlen(" in bf16")))
                    continue;
                double d = difference_to_fp32(&narrow, &wide);
                if (!(d <= 0x1p-6))
                    fail_msg("%s: off by %.2g from fp32", narrow.label, d);
                compared++;
            }
        }
    assert_true(compared > 500);
}

/* ---- the comparison itself can fail ---------------------------------------------------------- */

static void comparison_sees(void **state, void (*spoil)(const ndm_case *c, ndm_case_data *data),
                            const char *word)
{
    ndm_case c;
    ndm_case_data before, expected, after;

    (void)state;
    assert_true(ndm_case_get(NDM_OP_colsum, 1 + 3 * 6, &c)); /* 15 columns, padded rows */
    assert_ok(ndm_case_data_init(&c, test_seed(), 0, &before));
    assert_ok(ndm_case_run(&c, &before, reference.stream, &expected));
    assert_ok(ndm_case_data_copy(&c, &expected, &after));
    assert_ok(ndm_case_compare(&c, &before, &expected, &after, NULL));
    spoil(&c, &after);
    assert_int_equal(ndm_case_compare(&c, &before, &expected, &after, NULL), NDM_ERR_CHECK);
    assert_non_null(strstr(ndm_error_message(), word));
    assert_false(ndm_case_same_bits(&c, &expected, &after));
    ndm_case_data_finish(&before);
    ndm_case_data_finish(&expected);
    ndm_case_data_finish(&after);
}

static void *data_of(ndm_case_data *data, int buffer)
{
    return data->image[buffer] + 64;
}

static void spoil_value(const ndm_case *c, ndm_case_data *data)
{
    (void)c;
    ((float *)data_of(data, 1))[2] += 1e-3f;
}

static void spoil_nan(const ndm_case *c, ndm_case_data *data)
{
    (void)c;
    ((float *)data_of(data, 1))[2] = NAN;
}

static void spoil_end(const ndm_case *c, ndm_case_data *data)
{
    ((float *)data_of(data, 1))[c->buffer[1].width] = 0.0f;
}

static void spoil_padding(const ndm_case *c, ndm_case_data *data)
{
    ((float *)data_of(data, 0))[c->buffer[0].width] = 0.0f;
}

static void spoil_input(const ndm_case *c, ndm_case_data *data)
{
    (void)c;
    ((float *)data_of(data, 0))[0] += 1.0f;
}

static void comparison_sees_a_wrong_value(void **state)
{
    comparison_sees(state, spoil_value, "out[0][2] is");
}

static void comparison_sees_a_nan(void **state)
{
    comparison_sees(state, spoil_nan, "out[0][2] is");
}

static void comparison_sees_a_write_past_the_end(void **state)
{
    comparison_sees(state, spoil_end, "of out was written");
}

static void comparison_sees_a_write_between_rows(void **state)
{
    comparison_sees(state, spoil_padding, "of x was written");
}

static void comparison_sees_a_write_to_an_input(void **state)
{
    comparison_sees(state, spoil_input, "it is an input");
}

/* ---- long sums of 16-bit numbers ------------------------------------------------------------ */

enum { LONG = 4096, SIDE = 16 };

/* 256 + 1 in the first half and -256 in the second: parts that are kept in bf16 lose the 1. */
static void fill_long(uint16_t *a, uint16_t *b)
{
    for (int i = 0; i < LONG * SIDE; i++) {
        a[i] = ndm_f32_to_bf16(1.0f);
        b[i] = 0;
    }
    for (int i = 0; i < SIDE; i++) { /* b is [SIDE, LONG] */
        b[i * LONG] = ndm_f32_to_bf16(256.0f);
        b[i * LONG + 1] = ndm_f32_to_bf16(1.0f);
        b[i * LONG + LONG - 1] = ndm_f32_to_bf16(-256.0f);
    }
}

static void *upload(const world *w, const void *from, int64_t bytes)
{
    void *there;

    assert_ok(ndm_device_alloc(w->device, bytes, NDM_MEMORY_WORKSPACE, &there));
    assert_ok(ndm_copy(w->stream, there, from, bytes, NDM_HOST_TO_DEVICE));
    return there;
}

static void check_long_sums(const world *w, bool with_bias)
{
    static uint16_t a[LONG * SIDE], b[LONG * SIDE], c[SIDE * SIDE], bias[SIDE];

    fill_long(a, b);
    memset(c, 0xff, sizeof c);
    void *da = upload(w, a, sizeof a), *db = upload(w, b, sizeof b), *dc = upload(w, c, sizeof c),
         *dbias = upload(w, bias, sizeof bias);
    ndm_gemm_args args = {.trans_b = true,
                          .m = SIDE,
                          .n = SIDE,
                          .k = LONG,
                          .alpha = 1.0f,
                          .a = da,
                          .b = db,
                          .bias = with_bias ? dbias : NULL,
                          .c = dc,
                          .lda = LONG,
                          .ldb = LONG,
                          .ldc = SIDE,
                          .a_dtype = NDM_BF16,
                          .b_dtype = NDM_BF16,
                          .c_dtype = NDM_BF16};
    assert_ok(ndm_gemm(w->stream, &args));
    assert_ok(ndm_copy(w->stream, c, dc, sizeof c, NDM_DEVICE_TO_HOST));
    assert_ok(ndm_stream_synchronize(w->stream));
    for (int i = 0; i < SIDE * SIDE; i++)
        assert_near(ndm_bf16_to_f32(c[i]), 1.0, 0.0);
    ndm_device_free(w->device, da);
    ndm_device_free(w->device, db);
    ndm_device_free(w->device, dc);
    ndm_device_free(w->device, dbias);
}

static void long_sums_are_rounded_once(void **state)
{
    (void)state;
    for (int i = 0; i < subject_count; i++)
        for (int bias = 0; subjects[i].device->ops->computes_bf16 && bias < 2; bias++)
            check_long_sums(&subjects[i], bias);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(comparison_sees_a_wrong_value),
                                       cmocka_unit_test(comparison_sees_a_nan),
                                       cmocka_unit_test(comparison_sees_a_write_past_the_end),
                                       cmocka_unit_test(comparison_sees_a_write_between_rows),
                                       cmocka_unit_test(comparison_sees_a_write_to_an_input),
                                       cmocka_unit_test(bf16_activations_are_rounded_fp32),
                                       cmocka_unit_test(long_sums_are_rounded_once),
                                       cmocka_unit_test(norms_are_made_again_to_the_bit),
                                       cmocka_unit_test(activations_are_made_again_to_the_bit),
#define OP_ENTRY(name, doc) cmocka_unit_test(name##_agrees),
                                       NDM_KERNEL_LIST(OP_ENTRY)
#undef OP_ENTRY
    };

    if (argc > 1)
        cmocka_set_test_filter(argv[1]);
    return cmocka_run_group_tests(tests, open_worlds, close_worlds);
}
