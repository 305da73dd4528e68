/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor parallelism for a model of one's own: y = W2 relu(W1 x + b1) + b2, W1 cut by its output
 * features ("column"), W2 by its input features ("row"). The code names roles and never asks which
 * rank it is; tp need not divide the 33 hidden features.
 *
 *     ./tp_mlp                            one rank
 *     mpiexec.mpich -n 4 ./tp_mlp         tp over 4: the same losses
 *     mpiexec.mpich -n 4 ./tp_mlp 2       tp 2, samples and states sharded over 2: the same losses
 *     mpiexec.mpich -n 4 ./tp_mlp 4 0     without sequence parallelism: the same losses */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <ndmesh/ndmesh.h>

enum { IN = 2, HIDDEN = 33, OUT = 3, SAMPLES = 24, STEPS = 20 };
enum { W1, B1, W2, B2, PARAMS };

static const ndm_param_spec specs[PARAMS] = {
    [W1] =
        {.name = "w1", .ndim = 2, .shape = {HIDDEN, IN}, .role = NDM_ROLE_COLUMN, .init_std = 1.0f},
    [B1] = {.name = "b1", .ndim = 1, .shape = {HIDDEN}, .role = NDM_ROLE_COLUMN, .init_std = 0.5f},
    [W2] =
        {.name = "w2", .ndim = 2, .shape = {OUT, HIDDEN}, .role = NDM_ROLE_ROW, .init_std = 0.2f},
    [B2] = {.name = "b2", .ndim = 1, .shape = {OUT}, .role = NDM_ROLE_ROW, .init_std = 0.1f},
};

/* N: samples of this dp rank. L of them from `first` on are its own outside the two layers. F:
 * hidden features of this rank. All arrays are device memory. */
typedef struct mlp {
    ndm_context *context;
    ndm_unit *unit;
    ndm_linear up, down;
    int64_t rows, first, count, features; /* N, and L; F */
    int64_t copies;                       /* ranks of tp that own the same rows */
    float *x;                             /* [N, IN] */
    float *hidden, *d_hidden;             /* [N, F] */
    float *y;                             /* [N, OUT], then its gradient */
} mlp;

static ndm_status array(mlp *m, int64_t numel, float **out)
{
    void *memory;

    NDM_TRY(ndm_device_alloc(ndm_context_device(m->context), numel * (int64_t)sizeof(float),
                             NDM_MEMORY_ACTIVATIONS, &memory));
    *out = memory;
    return NDM_OK;
}

static ndm_status open_mlp(ndm_context *context, mlp *m)
{
    const ndm_mesh *mesh = ndm_context_mesh(context);

    *m = (mlp){.context = context,
               .rows = SAMPLES / ndm_mesh_size(mesh, NDM_AXES_DP),
               .copies = ndm_mesh_size(mesh, NDM_AXIS_TP)};
    NDM_TRY(ndm_unit_create(context, "mlp", specs, PARAMS, NULL, &m->unit));
    NDM_TRY(ndm_unit_init(m->unit, 7));
    m->up = (ndm_linear)NDM_LINEAR_INIT(m->unit, W1, B1);
    m->down = (ndm_linear)NDM_LINEAR_INIT(m->unit, W2, B2);
    m->features = ndm_linear_out(&m->up);
    NDM_TRY(ndm_linear_rows(context, m->rows, &m->first, &m->count));
    m->copies = m->copies * m->count / m->rows;
    NDM_TRY(array(m, m->rows * IN, &m->x));
    NDM_TRY(array(m, m->rows * m->features, &m->hidden));
    NDM_TRY(array(m, m->rows * m->features, &m->d_hidden));
    return array(m, m->rows * OUT, &m->y);
}

static void close_mlp(mlp *m)
{
    ndm_device *device = ndm_context_device(m->context);

    ndm_device_free(device, m->x);
    ndm_device_free(device, m->hidden);
    ndm_device_free(device, m->d_hidden);
    ndm_device_free(device, m->y);
    ndm_unit_destroy(m->unit);
}

/* ---- our kernels: on the cpu device they may touch memory once the stream has passed -------- */

/* The inputs of our own rows; the others come from the ranks that own them. */
static void fill(mlp *m, int64_t sample0)
{
    for (int64_t r = m->first; r < m->first + m->count; r++) {
        int64_t i = sample0 + r;
        m->x[r * IN] = (float)(i % 6) / 3.0f - 1.0f;
        m->x[r * IN + 1] = (float)(i / 6) / 2.0f - 1.0f;
    }
}

static void relu(mlp *m)
{
    for (int64_t i = 0; i < m->rows * m->features; i++)
        m->hidden[i] = fmaxf(0.0f, m->hidden[i]);
}

static void relu_backward(mlp *m)
{
    for (int64_t i = 0; i < m->rows * m->features; i++)
        m->d_hidden[i] = m->hidden[i] > 0.0f ? m->d_hidden[i] : 0.0f;
}

/* Mean squared error of our own rows against (ab, a + b, a); y becomes its gradient. */
static double loss_and_grad(mlp *m)
{
    double loss = 0.0;

    for (int64_t r = m->first; r < m->first + m->count; r++) {
        float a = m->x[r * IN], b = m->x[r * IN + 1], want[OUT] = {a * b, a + b, a};
        for (int o = 0; o < OUT; o++) {
            float error = m->y[r * OUT + o] - want[o];
            loss += error * error / SAMPLES;
            m->y[r * OUT + o] = 2.0f * error / SAMPLES;
        }
    }
    return loss / (double)m->copies;
}

/* ---- a step ---------------------------------------------------------------------------------- */

static ndm_status forward(mlp *m)
{
    ndm_stream *stream = ndm_context_stream(m->context);

    NDM_TRY(ndm_linear_forward(&m->up, m->rows, m->x + m->first * IN, m->x, m->hidden));
    NDM_TRY(ndm_stream_synchronize(stream));
    relu(m);
    NDM_TRY(ndm_linear_forward(&m->down, m->rows, m->hidden, m->y, m->y + m->first * OUT));
    return ndm_stream_synchronize(stream);
}

static ndm_status backward(mlp *m)
{
    ndm_stream *stream = ndm_context_stream(m->context);

    NDM_TRY(ndm_unit_grads_begin(m->unit, stream));
    NDM_TRY(ndm_linear_backward(&m->down, m->rows, m->hidden, m->y + m->first * OUT, m->y,
                                m->d_hidden));
    NDM_TRY(ndm_stream_synchronize(stream));
    relu_backward(m);
    return ndm_linear_backward(&m->up, m->rows, m->x, m->d_hidden, NULL, NULL);
}

static ndm_status step(mlp *m, ndm_optimizer *optimizer, double *loss, double *norm)
{
    ndm_group dp = ndm_mesh_group(ndm_context_mesh(m->context), NDM_AXES_DP,
                                  ndm_context_rank(m->context));
    ndm_stream *stream = ndm_context_stream(m->context);
    ndm_step_options options = NDM_STEP_OPTIONS_INIT;

    options.lr = 0.02, options.eps = 1e-3;
    fill(m, dp.index * m->rows);
    NDM_TRY(ndm_unit_unshard(m->unit, stream));
    NDM_TRY(forward(m));
    *loss = loss_and_grad(m);
    NDM_TRY(backward(m));
    NDM_TRY(ndm_unit_reshard(m->unit, stream));
    NDM_TRY(ndm_unit_reduce_grads(m->unit, stream));
    return ndm_optimizer_step(optimizer, &options, loss, 1, norm);
}

static ndm_status train(ndm_context *context)
{
    ndm_optimizer *optimizer = NULL;
    double loss, norm;
    ndm_status status;
    mlp m;

    NDM_TRY_OR(status, open_mlp(context, &m), done);
    NDM_TRY_OR(status, ndm_optimizer_create(context, &m.unit, 1, &optimizer), done);
    for (int i = 0; i < STEPS; i++) {
        NDM_TRY_OR(status, step(&m, optimizer, &loss, &norm), done);
        if (ndm_context_rank(context) == 0)
            printf("step %d  loss %.6f  grad_norm %.5f\n", i + 1, loss, norm);
    }
done:
    ndm_optimizer_destroy(optimizer);
    close_mlp(&m);
    return status;
}

int main(int argc, char **argv)
{
    ndm_parallelism_config mesh = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context *context;

    mesh.tp = argc > 1 ? atoi(argv[1]) : NDM_AUTO;
    mesh.dp_shard = argc > 1 ? NDM_AUTO : 1;
    mesh.no_sequence_parallel = argc > 2 && atoi(argv[2]) == 0;
    ndm_status status = ndm_context_create(&mesh, NULL, &context);
    if (status == NDM_OK) {
        status = train(context);
        status == NDM_OK ? ndm_context_destroy(context) : ndm_context_abandon(context);
    }
    if (status != NDM_OK)
        fprintf(stderr, "tp_mlp: %s\n", ndm_error_message());
    return ndm_status_exit_code(status);
}
