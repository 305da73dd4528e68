/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of the benchmarks on known input: filters, rules, tables, and the check of messages. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <math.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/bench_cases.h"
#include "cli/bench_others.h"
#include "cli/bench_pattern.h"
#include "cli/bench_peak.h"
#include "cli/bench_profile.h"
#include "cli/bench_table.h"
#include "cli/sweep.h"
#include "cli/sweep_filter.h"
#include "core/clock.h"
#include "core/dtype.h"

/* ---- filters -----------------------------------------------------------------------------------
 */

static const ndm_filter_name names[] = {{"tp", 2}, {"dp_shard", 4}, {"cp", 1}};

static void filters_hold(void **state)
{
    static const struct {
        const char *text;
        bool holds;
    } cases[] = {
        {"tp<=2", true},
        {"tp < 2", false},
        {"tp>1&&dp_shard>4", false},
        {"tp>1 || dp_shard>4", true},
        {"tp==2 and not cp==2", true},
        {"!(tp==2)", false},
        {"tp*dp_shard == 8", true},
        {"2+3*2 == 8", true},
        {"(2+3)*2 == 10", true},
        {"7-2-1 == 4", true},
        {"dp_shard/tp%2 = 0", true},
        {"-tp == 0-2", true},
        {"tp", true},
        {"tp-2", false},
        {"tp!=2", false},
        {"1 or 0 and 0", true},
        {"tp >= 2 and cp >= 1 and dp_shard >= 5", false},
    };

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bool holds = !cases[i].holds;
        ndm_status status = ndm_filter_holds(cases[i].text, names, 3, &holds);
        if (status != NDM_OK || holds != cases[i].holds)
            fail_msg("'%s': %s, holds %d", cases[i].text, ndm_status_name(status), holds);
    }
}

static void bad_filters_are_refused(void **state)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "a name or a number"},
        {"tp<=", "a name or a number"},
        {"tp<=2)", "the end"},
        {"(tp<=2", "')'"},
        {"tp 2", "the end"},
        {"dp_shrad > 1", "did you mean dp_shard"},
        {"tp/0", "not 0"},
        {"99999999999999999999", "smaller number"},
        {"9223372036854775807*9", "smaller product"},
        {"tp & 2", "the end"},
    };
    char deep[400];
    bool holds;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(ndm_filter_holds(cases[i].text, names, 3, &holds), NDM_ERR_USAGE);
        if (strstr(ndm_error_message(), cases[i].says) == NULL)
            fail_msg("'%s' says '%s', not '%s'", cases[i].text, ndm_error_message(), cases[i].says);
    }
    memset(deep, '(', sizeof deep);
    deep[sizeof deep - 1] = '\0';
    assert_int_equal(ndm_filter_holds(deep, names, 3, &holds), NDM_ERR_USAGE);
}

/* ---- rules -------------------------------------------------------------------------------------
 */

static void rules_forget_numbers_and_advice(void **state)
{
    char text[NDM_SWEEP_MESSAGE];

    (void)state;
    assert_string_equal(
        ndm_sweep_rule_of("rank 12: mesh: tp 16 does not divide heads 8; try 1, 2, 4, 8", text),
        "mesh: tp # does not divide heads #");
    assert_string_equal(ndm_sweep_rule_of("model: fp32 of zero 3 (2 more rules fail: batch)", text),
                        "model: fp32 of zero #");
    assert_string_equal(ndm_sweep_rule_of("ranks differ", text), "ranks differ");
}

/* ---- tables ------------------------------------------------------------------------------------
 */

static void tables_are_quoted_and_rounded(void **state)
{
    static const ndm_column columns[] = {{"name", "name", NDM_COLUMN_TEXT, 4, 0, false},
                                         {"n", "n", NDM_COLUMN_INT, 3, 0, false},
                                         {"x", "x", NDM_COLUMN_NUMBER, 6, 3, false},
                                         {"y", "", NDM_COLUMN_NUMBER, 0, 0, true}};
    ndm_table t;
    ndm_buffer csv = {0}, md = {0};

    (void)state;
    ndm_table_init(&t, columns, 4);
    ndm_table_text(&t, "a,\"b\"|c");
    ndm_table_int(&t, 1234567);
    ndm_table_number(&t, 0.01234);
    ndm_table_number(&t, 0.5);
    ndm_table_text(&t, NULL);
    ndm_table_int(&t, 0);
    ndm_table_number(&t, NAN);
    ndm_table_number(&t, 123456.0);
    assert_int_equal(ndm_table_status(&t), NDM_OK);
    assert_int_equal(ndm_table_rows(&t), 2);
    ndm_table_write_csv(&t, &csv);
    assert_string_equal(csv.data,
                        "name,n,x,y\n\"a,\"\"b\"\"|c\",1234567,0.01234,0.5\n,0,,123456\n");
    ndm_table_write_markdown(&t, &md);
    assert_string_equal(md.data, "| name | n | x |\n|---|--:|--:|\n"
                                 "| a,\"b\"\\|c | 1234567 | 0.0123 |\n| - | 0 | - |\n");
    ndm_buffer_finish(&csv);
    ndm_buffer_finish(&md);
    ndm_table_finish(&t);
}

static void quantiles(void **state)
{
    double values[] = {5, 1, 4, 2, 3}, one[] = {7};

    (void)state;
    assert_true(ndm_peak_median(values, 5) == 3);
    assert_true(ndm_peak_median(values, 4) == 2.5);
    assert_true(ndm_peak_quantile(values, 5, 1.0) == 5);
    assert_true(fabs(ndm_peak_quantile(values, 5, 0.95) - 4.8) < 1e-12);
    assert_true(ndm_peak_median(one, 1) == 7);
    assert_true(isnan(ndm_peak_median(one, 0)));
}

/* ---- messages ----------------------------------------------------------------------------------
 */

enum { MEMBERS = 3, COUNT = 700 };

typedef struct messages {
    float send[MEMBERS][MEMBERS * COUNT], recv[MEMBERS * COUNT];
} messages;

/* What member `index` receives, made the slow way from what all have sent. */
static void collect(const ndm_pattern *p, messages *m)
{
    for (int64_t i = 0; i < ndm_pattern_recv_count(p); i++) {
        int64_t block = i / COUNT, at = i % COUNT, own = p->index * COUNT + at;
        switch (p->kind) {
        case NDM_ALL_GATHER:
            m->recv[i] = m->send[block][at];
            break;
        case NDM_ALL_TO_ALL:
            m->recv[i] = m->send[block][own];
            break;
        case NDM_REDUCE_SCATTER:
            m->recv[i] = m->send[0][own] + m->send[1][own] + m->send[2][own];
            break;
        case NDM_ALL_REDUCE:
            m->recv[i] = m->send[0][at] + m->send[1][at] + m->send[2][at];
            break;
        case NDM_BROADCAST:
            m->recv[i] = m->send[0][at];
            break;
        default:
            m->recv[i] = m->send[(p->index + MEMBERS - 1) % MEMBERS][at];
        }
    }
}

static void wrong_elements_are_counted(void **state)
{
    static messages m;

    (void)state;
    for (int kind = 0; kind < NDM_BARRIER; kind++)
        for (int64_t index = 0; index < MEMBERS; index++) {
            ndm_pattern p = {(ndm_collective)kind, NDM_SUM, NDM_F32, MEMBERS, 0, COUNT, 5};
            for (p.index = 0; p.index < MEMBERS; p.index++)
                ndm_pattern_fill(&p, m.send[p.index]);
            p.index = index;
            collect(&p, &m);
            assert_int_equal(ndm_pattern_count_wrong(&p, m.recv), 0);
            m.recv[COUNT - 1] += 1.0f;
            assert_int_equal(ndm_pattern_count_wrong(&p, m.recv), 1);
            memmove(m.recv, m.recv + 1, (COUNT - 1) * sizeof m.recv[0]); /* off by one place */
            assert_true(ndm_pattern_count_wrong(&p, m.recv) > COUNT / 2);
        }
}

static void reductions_of_narrow_types_are_known(void **state)
{
    ndm_pattern p = {NDM_ALL_REDUCE, NDM_MAX, NDM_BF16, MEMBERS, 1, COUNT, 9};
    static uint16_t send[MEMBERS][COUNT], recv[COUNT];

    (void)state;
    for (p.index = 0; p.index < MEMBERS; p.index++)
        ndm_pattern_fill(&p, send[p.index]);
    for (int i = 0; i < COUNT; i++) /* positive bf16 compare as their bits do */
        for (int m = 0; m < MEMBERS; m++)
            recv[i] = send[m][i] > recv[i] ? send[m][i] : recv[i];
    assert_int_equal(ndm_pattern_count_wrong(&p, recv), 0);
    recv[0] ^= 1;
    assert_int_equal(ndm_pattern_count_wrong(&p, recv), 1);
}

/* ---- cases --------------------------------------------------------------------------------------
 */

/* Pairs that shrank would be denormal, and slow, after some hundred turns. */
static void turned_pairs_keep_their_length(void **state)
{
    const ndm_bench_shape shape = {8, 32, 2, 2, 16, 48, 64};
    ndm_case c;
    ndm_case_data data;
    int64_t i = 0, angles;

    (void)state;
    while (ndm_bench_case_get(&shape, i, &c) && c.op != NDM_OP_rope)
        i++;
    assert_int_equal(c.op, NDM_OP_rope);
    assert_int_equal(ndm_case_data_init(&c, 1, 0, &data), NDM_OK);
    angles = c.buffer[2].rows * c.buffer[2].width;
    assert_true(strcmp(c.buffer[2].name, "cos") == 0 && angles == 64);
    for (int64_t a = 0; a < angles; a++)
        assert_true(
            fabs(hypot(ndm_case_value(&c, &data, 2, 0, a), ndm_case_value(&c, &data, 3, 0, a)) -
                 1.0) < 1e-6);
    ndm_case_data_finish(&data);
}

/* ---- others -------------------------------------------------------------------------------------
 */

/* A child is another program until it has been waited for. */
static void what_others_take_is_seen(void **state)
{
    const int64_t WORK_NS = 200000000;
    ndm_bench_others others;
    int done[2];
    char byte;

    (void)state;
    assert_int_equal(pipe(done), 0);
    ndm_bench_others_start(&others);
    pid_t child = fork();
    if (child == 0) {
        for (int64_t start = ndm_clock_thread_ns(); ndm_clock_thread_ns() - start < WORK_NS;)
            ;
        _exit(write(done[1], "x", 1) == 1 ? 0 : 1);
    }
    assert_true(child > 0);
    assert_int_equal(read(done[0], &byte, 1), 1);
    assert_true(ndm_bench_others_share(&others) > 0.0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(done[0]);
    close(done[1]);
}

/* ---- the line of a profile's products
 * ------------------------------------------------------------ */

enum { POINTS = 27 };

static void draw_points(const double *line, ndm_sim_gemm *points)
{
    for (int i = 0; i < POINTS; i++) {
        double m = 32 << i % 3 * 2, n = 32 << i / 3 % 3 * 2, k = 32 << i / 9 * 2;
        points[i] = (ndm_sim_gemm){m, n, k,
                                   1.0 / (line[0] + line[1] / m + line[2] / n + line[3] / k)};
    }
}

static void a_line_is_found_again(void **state)
{
    const double line[] = {1.05, 35.0, 30.0, 12.0};
    ndm_sim_gemm points[POINTS];
    double found[NDM_SIM_LINE_TERMS];

    (void)state;
    draw_points(line, points);
    ndm_profile_fit(points, POINTS, found);
    for (int i = 0; i < NDM_SIM_LINE_TERMS; i++)
        assert_true(fabs(found[i] / line[i] - 1.0) < 1e-9);
}

/* Larger products never look slower by it, and one shape alone is met. */
static void no_term_of_a_line_is_below_zero(void **state)
{
    const double falling[] = {1.2, 40.0, 30.0, -5.0};
    ndm_sim_gemm points[POINTS];
    double found[NDM_SIM_LINE_TERMS];

    (void)state;
    draw_points(falling, points);
    ndm_profile_fit(points, POINTS, found);
    assert_true(found[3] == 0.0 && found[0] > 0.0 && found[1] > 0.0 && found[2] > 0.0);
    for (int i = 0; i < POINTS; i++) {
        const ndm_sim_gemm *p = &points[i];
        double time = found[0] + found[1] / p->m + found[2] / p->n;
        assert_true(fabs(time * p->share - 1.0) < 0.2);
    }
    ndm_profile_fit(points, 1, found);
    assert_true(
        fabs((found[0] + found[1] / points->m + found[2] / points->n + found[3] / points->k) *
                 points->share -
             1.0) < 1e-9);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(filters_hold),
        cmocka_unit_test(bad_filters_are_refused),
        cmocka_unit_test(rules_forget_numbers_and_advice),
        cmocka_unit_test(tables_are_quoted_and_rounded),
        cmocka_unit_test(quantiles),
        cmocka_unit_test(wrong_elements_are_counted),
        cmocka_unit_test(reductions_of_narrow_types_are_known),
        cmocka_unit_test(what_others_take_is_seen),
        cmocka_unit_test(turned_pairs_keep_their_length),
        cmocka_unit_test(a_line_is_found_again),
        cmocka_unit_test(no_term_of_a_line_is_below_zero),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
