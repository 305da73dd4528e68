/* SPDX-License-Identifier: Apache-2.0 */
/* Linears with a role against plain loops: y = [A x + a | B x + b] W^T + c, where tp cuts A, B by
 * output and W by input features, and gradients of everything. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <ndmesh/linear.h>

#include "core/rng.h"
#include "session.h"

enum { N = 12, IN = 7, HALF = 5, HIDDEN = 2 * HALF, OUT = 6, SEED = 3 };
enum { A, BIAS_A, B, BIAS_B, W, C, PARAMS };

static const char *const names[PARAMS] = {"a", "a.bias", "b", "b.bias", "w", "c"};
static const int64_t numel[PARAMS] = {HALF * IN, HALF, HALF *IN, HALF, OUT *HIDDEN, OUT};

static double drawn(const char *name, int64_t i)
{
    return 0.5f * ndm_rng_normal(SEED, ndm_rng_stream(name), (uint64_t)i);
}

/* Parameter p as [out, in], whichever way it is stored. */
static double value(int p, bool transposed, int64_t o, int64_t i)
{
    int64_t out = p == W ? OUT : HALF, in = p == W ? HIDDEN : IN;

    return drawn(names[p], transposed ? i * out + o : o * in + i);
}

/* ---- what is expected ------------------------------------------------------------------------ */

typedef struct expected {
    double hidden[N][HIDDEN], y[N][OUT], d_hidden[N][HIDDEN], dx[N][IN];
    double grad[PARAMS][OUT * HIDDEN]; /* as they are stored */
} expected;

static double x_of(int64_t r, int64_t i)
{
    return drawn("x", r * IN + i);
}

static double dy_of(int64_t r, int64_t o)
{
    return drawn("dy", r * OUT + o);
}

static void expect_forward(bool transposed, expected *e)
{
    for (int64_t r = 0; r < N; r++) {
        for (int64_t h = 0; h < HIDDEN; h++) {
            e->hidden[r][h] = drawn(names[h < HALF ? BIAS_A : BIAS_B], h % HALF);
            for (int64_t i = 0; i < IN; i++)
                e->hidden[r][h] += value(h < HALF ? A : B, transposed, h % HALF, i) * x_of(r, i);
        }
        for (int64_t o = 0; o < OUT; o++) {
            e->y[r][o] = drawn(names[C], o);
            for (int64_t h = 0; h < HIDDEN; h++)
                e->y[r][o] += value(W, transposed, o, h) * e->hidden[r][h];
        }
    }
}

static void expect_row(bool transposed, int64_t r, expected *e)
{
    for (int64_t h = 0; h < HIDDEN; h++)
        for (int64_t o = 0; o < OUT; o++) {
            e->d_hidden[r][h] += value(W, transposed, o, h) * dy_of(r, o);
            e->grad[W][transposed ? h * OUT + o : o * HIDDEN + h] += dy_of(r, o) * e->hidden[r][h];
        }
    for (int64_t o = 0; o < OUT; o++)
        e->grad[C][o] += dy_of(r, o);
}

static void expect_column(bool transposed, int64_t r, expected *e)
{
    for (int64_t h = 0; h < HIDDEN; h++) {
        int p = h < HALF ? A : B;
        int64_t o = h % HALF;
        e->grad[p + 1][o] += e->d_hidden[r][h];
        for (int64_t i = 0; i < IN; i++) {
            e->dx[r][i] += value(p, transposed, o, i) * e->d_hidden[r][h];
            e->grad[p][transposed ? i * HALF + o : o * IN + i] += e->d_hidden[r][h] * x_of(r, i);
        }
    }
}

static const expected *expect(bool transposed)
{
    static expected e;

    memset(&e, 0, sizeof e);
    expect_forward(transposed, &e);
    for (int64_t r = 0; r < N; r++) {
        expect_row(transposed, r, &e);
        expect_column(transposed, r, &e);
    }
    return &e;
}

/* ---- the same with linears ------------------------------------------------------------------- */

typedef struct net {
    session session;
    ndm_unit *unit;
    ndm_linear up, down;
    int64_t first, count, width; /* own rows, and hidden features of this rank */
    bool in_place;               /* own rows lie in the whole arrays */
    float *x, *x_all, *hidden, *y, *y_all, *d_hidden, *dx, *dx_all;
} net;

static float *floats(const net *n, int64_t count)
{
    ndm_device *d = ndm_context_device(n->session.context);
    void *memory;

    must(ndm_device_alloc(d, count * (int64_t)sizeof(float), NDM_MEMORY_ACTIVATIONS, &memory));
    return memory;
}

/* Rows [first, first + count) of a drawn array, from the host. */
static void put_rows(const net *n, const char *name, int64_t width, float *to)
{
    float *host = calloc((size_t)(n->count * width), sizeof *host);

    if (!host)
        die("no memory for rows");
    for (int64_t i = 0; i < n->count * width; i++)
        host[i] = (float)drawn(name, n->first * width + i);
    must(ndm_copy(n->session.context->compute, to, host, n->count * width * (int64_t)sizeof *host,
                  NDM_HOST_TO_DEVICE));
    must(ndm_stream_synchronize(n->session.context->compute));
    free(host);
}

static void make_unit(net *n, bool transposed, int64_t hidden_parts)
{
    ndm_param_spec specs[PARAMS] = {0};

    for (int p = 0; p < PARAMS; p++) {
        bool bias = p == BIAS_A || p == BIAS_B || p == C;
        int64_t out = p >= W ? OUT : HALF, in = p == W ? HIDDEN : IN;
        specs[p] = (ndm_param_spec){
            .name = names[p],
            .ndim = bias ? 1 : 2,
            .shape = {transposed && !bias ? in : out, transposed && !bias ? out : in},
            .role = p >= W ? NDM_ROLE_ROW : NDM_ROLE_COLUMN,
            .transposed = transposed && !bias,
            .parts = p == W ? hidden_parts : 0,
            .init_std = 0.5f};
    }
    ok_all(
        ndm_unit_create(n->session.context, "net", specs, PARAMS, &n->session.task.fsdp, &n->unit));
    ok_all(ndm_unit_init(n->unit, SEED));
}

static void make_arrays(net *n)
{
    n->width = ndm_linear_out(&n->up);
    n->hidden = floats(n, N * n->width);
    n->d_hidden = floats(n, N * n->width);
    n->x_all = floats(n, N * IN);
    n->dx_all = floats(n, N * IN);
    n->y_all = floats(n, N * OUT);
    n->x = n->in_place ? n->x_all + n->first * IN : floats(n, n->count * IN);
    n->dx = n->in_place ? n->dx_all + n->first * IN : floats(n, n->count * IN);
    n->y = n->in_place ? n->y_all + n->first * OUT : floats(n, n->count * OUT);
}

static void open_net(const task *t, bool transposed, bool in_place, net *n)
{
    const MPI_Comm all = MPI_COMM_WORLD;

    *n = (net){.in_place = in_place};
    ok_all(session_open(t, &all, &n->session));
    make_unit(n, transposed, 2);
    n->up = (ndm_linear){.unit = n->unit, .n = 2, .weight = {A, B}, .bias = {BIAS_A, BIAS_B}};
    n->down = (ndm_linear)NDM_LINEAR_INIT(n->unit, W, C);
    ok_all(ndm_linear_rows(n->session.context, N, &n->first, &n->count));
    make_arrays(n);
    put_rows(n, "x", IN, n->x);
}

static void close_net(net *n)
{
    ndm_device *d = ndm_context_device(n->session.context);
    float *const arrays[] = {n->hidden, n->d_hidden, n->x_all, n->dx_all, n->y_all};
    float *const own[] = {n->x, n->dx, n->y};

    for (int i = 0; i < 5; i++)
        ndm_device_free(d, arrays[i]);
    for (int i = 0; !n->in_place && i < 3; i++)
        ndm_device_free(d, own[i]);
    ndm_unit_destroy(n->unit);
    session_close(&n->session);
}

/* What a column linear multiplied: the gathered rows, or x itself where all rows are own. */
static const float *whole_x(const net *n)
{
    return n->count < N ? n->x_all : n->x;
}

static void run_net(net *n)
{
    ndm_stream *stream = n->session.context->compute;

    ok_all(ndm_unit_unshard(n->unit, stream));
    ok_all(ndm_linear_forward(&n->up, N, n->x, n->x_all, n->hidden));
    ok_all(ndm_linear_forward(&n->down, N, n->hidden, n->y_all, n->y));
}

static void run_back(net *n)
{
    ndm_stream *stream = n->session.context->compute;

    put_rows(n, "dy", OUT, n->y);
    ok_all(ndm_unit_grads_begin(n->unit, stream));
    ok_all(ndm_linear_backward(&n->down, N, n->hidden, n->y, n->y_all, n->d_hidden));
    ok_all(ndm_linear_backward(&n->up, N, whole_x(n), n->d_hidden, n->dx_all, n->dx));
    ok_all(ndm_unit_reshard(n->unit, stream));
    ok_all(ndm_unit_reduce_grads(n->unit, stream));
}

/* ---- comparison ------------------------------------------------------------------------------ */

static bool near(double got, double want)
{
    return fabs(got - want) <= 1e-4 * (1.0 + fabs(want));
}

static bool rows_are(const net *n, const float *rows, int64_t width, const double *want)
{
    float host[N * IN];
    bool same = true;

    must(ndm_copy(n->session.context->compute, host, rows, n->count * width * (int64_t)sizeof *host,
                  NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(n->session.context->compute));
    for (int64_t i = 0; i < n->count * width; i++)
        same = same && near(host[i], want[n->first * width + i]);
    return same;
}

typedef struct grads {
    const expected *want;
    double scale; /* ranks that all did the same rows */
    bool same;
} grads;

static ndm_status check_range(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                              float *values)
{
    grads *g = user;

    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; strcmp(spec->name, names[p]) == 0 && i < count; i++)
            g->same = g->same && first + count <= numel[p] &&
                      near(values[i] / g->scale, g->want->grad[p][first + i]);
    return NDM_OK;
}

static ndm_status check_zeros(void *user, const ndm_param_spec *spec, int64_t first, int64_t count,
                              float *values)
{
    bool *zeros = user;

    (void)spec, (void)first;
    for (int64_t i = 0; i < count; i++)
        *zeros = *zeros && values[i] == 0.0f;
    return NDM_OK;
}

/* Once products have made gradients, nobody clears these for them: a window without products must
 * not show what the last one left. */
static void check_window_without_products(net *n)
{
    ndm_stream *stream = n->session.context->compute;
    bool zeros = true;
    float left;

    ok_all(ndm_unit_grads_begin(n->unit, stream));
    must(ndm_copy(stream, &left, ndm_unit_grad(n->unit, W), (int64_t)sizeof left,
                  NDM_DEVICE_TO_HOST));
    must(ndm_stream_synchronize(stream));
    check_all(left == 0.0f);
    ok_all(ndm_unit_reduce_grads(n->unit, stream));
    ok_all(ndm_unit_write(n->unit, NDM_UNIT_GRADS, check_zeros, &zeros));
    check_all(zeros);
}

static void check_net(const task *t, bool transposed, bool in_place)
{
    const expected *want = expect(transposed);
    net n;

    open_net(t, transposed, in_place, &n);
    run_net(&n);
    check_all(rows_are(&n, n.y, OUT, &want->y[0][0]));
    run_back(&n);
    check_all(rows_are(&n, n.dx, IN, &want->dx[0][0]));
    grads g = {want, (double)(t->mesh[NDM_DP_REPLICATE] * t->mesh[NDM_DP_SHARD]), true};
    for (int window = 0; window < 2; window++) { /* the second does not add to the first */
        if (window > 0) {
            run_net(&n);
            run_back(&n);
        }
        ok_all(ndm_unit_write(n.unit, NDM_UNIT_GRADS, check_range, &g));
        check_all(g.same);
    }
    check_window_without_products(&n);
    close_net(&n);
}

static void check_all_ways(task t)
{
    for (int sp = 0; sp <= 1; sp++)
        for (int transposed = 0; transposed <= 1; transposed++) {
            t.no_sequence_parallel = !sp;
            check_net(&t, transposed, transposed == sp);
        }
}

/* Biases of both roles are among what is compared: counted once. */
static void case_09_linears_with_biases_equal_plain_loops(void **state)
{
    int64_t n = ndm_world_size(world);
    task t = task_default();

    (void)state;
    t.shape.heads = t.shape.kv_heads = 12; /* the session's own model, which is not used */
    check_all_ways(task_on(t, 1, 1, 1, n));
    if (n == 4) {
        check_all_ways(task_on(t, 1, 2, 1, 2));
        check_all_ways(task_on(t, 2, 1, 1, 2));
    }
}

/* ---- misuse ---------------------------------------------------------------------------------- */

static void misuse_is_refused(void **state)
{
    ndm_stream *stream;
    task t = task_on(task_default(), 1, 1, 1, ndm_world_size(world));
    int64_t first, count;
    net n;

    (void)state;
    t.shape.heads = t.shape.kv_heads = 12;
    open_net(&t, false, true, &n);
    stream = n.session.context->compute;
    check_all(ndm_linear_forward(&n.up, N, n.x, n.x_all, n.hidden) == NDM_ERR_STATE);
    ok_all(ndm_unit_unshard(n.unit, stream));
    check_all(ndm_linear_backward(&n.up, N, n.x_all, n.hidden, n.dx_all, n.dx) == NDM_ERR_STATE);
    ndm_linear mixed = {.unit = n.unit, .n = 2, .weight = {A, W}, .bias = {-1, -1}},
               none = NDM_LINEAR_INIT(n.unit, PARAMS, -1), flat = NDM_LINEAR_INIT(n.unit, C, -1),
               wrong = NDM_LINEAR_INIT(n.unit, A, C);
    check_all(ndm_linear_forward(&mixed, N, n.x, n.x_all, n.hidden) == NDM_ERR_USAGE);
    check_all(ndm_linear_forward(&none, N, n.x, n.x_all, n.hidden) == NDM_ERR_USAGE);
    check_all(ndm_linear_forward(&flat, N, n.x, n.x_all, n.hidden) == NDM_ERR_USAGE);
    check_all(ndm_linear_forward(&wrong, N, n.x, n.x_all, n.hidden) == NDM_ERR_USAGE);
    check_all(ndm_linear_forward(&n.up, N, NULL, n.x_all, n.hidden) == NDM_ERR_USAGE);
    if (ndm_world_size(world) > 1) {
        check_all(ndm_linear_forward(&n.up, N, n.x, NULL, n.hidden) == NDM_ERR_USAGE);
        check_all(ndm_linear_rows(n.session.context, N + 1, &first, &count) == NDM_ERR_CONFIG);
    }
    ok_all(ndm_unit_reshard(n.unit, stream));
    close_net(&n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(case_09_linears_with_biases_equal_plain_loops),
        cmocka_unit_test(misuse_is_refused),
    };

    return harness_run("linear", tests);
}
