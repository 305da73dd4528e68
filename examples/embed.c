/* SPDX-License-Identifier: Apache-2.0 */
/* A trainer that owns its model, its forward and its backward, and uses ndmesh for the rest:
 * sharded units, gathers, reductions, norm, clip and AdamW. The model is y = W2 relu(W1 x + b1) +
 * b2, fitted to a function of two numbers.
 *
 *     ./embed                             one rank
 *     mpiexec.mpich -n 4 ./embed          FSDP over 4: the same losses
 *     mpiexec.mpich -n 4 ./embed 2        2 replicas x 2 shards: the same losses */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <ndmesh/ndmesh.h>

enum { IN = 2, HIDDEN = 33, SAMPLES = 24, STEPS = 20 };
enum { W1, B1, W2, B2, PARAMS };

/* Everything a sample needs on its way. */
typedef struct sample {
    float x[IN], want, hidden[HIDDEN], y;
} sample;

static const ndm_param_spec specs[PARAMS] = {
    [W1] = {.name = "w1", .ndim = 2, .shape = {HIDDEN, IN}, .init_std = 1.0f},
    [B1] = {.name = "b1", .ndim = 1, .shape = {HIDDEN}, .init_std = 0.5f},
    [W2] = {.name = "w2", .ndim = 2, .shape = {1, HIDDEN}, .init_std = 0.2f},
    [B2] = {.name = "b2", .ndim = 1, .shape = {1}},
};

static sample make_sample(int64_t i)
{
    float a = (float)(i % 6) / 3.0f - 1.0f, b = (float)(i / 6) / 2.0f - 1.0f;
    return (sample){.x = {a, b}, .want = a * b};
}

/* This is our kernel: on the cpu device it may read the unit's memory. */
static void forward(const ndm_unit *unit, sample *s)
{
    const float *w1 = ndm_unit_weight(unit, W1); /* [HIDDEN, IN] */
    const float *b1 = ndm_unit_weight(unit, B1); /* [HIDDEN] */
    const float *w2 = ndm_unit_weight(unit, W2); /* [1, HIDDEN] */
    const float *b2 = ndm_unit_weight(unit, B2); /* [1] */

    s->y = b2[0];
    for (int h = 0; h < HIDDEN; h++) {
        s->hidden[h] = fmaxf(0.0f, w1[h * IN] * s->x[0] + w1[h * IN + 1] * s->x[1] + b1[h]);
        s->y += w2[h] * s->hidden[h];
    }
}

/* dy: gradient of the loss by y. */
static void backward(const ndm_unit *unit, const sample *s, float dy)
{
    const float *w2 = ndm_unit_weight(unit, W2);
    float *dw1 = ndm_unit_grad(unit, W1), *db1 = ndm_unit_grad(unit, B1);
    float *dw2 = ndm_unit_grad(unit, W2), *db2 = ndm_unit_grad(unit, B2);

    db2[0] += dy;
    for (int h = 0; h < HIDDEN; h++) {
        float dh = s->hidden[h] > 0.0f ? dy * w2[h] : 0.0f;
        dw2[h] += dy * s->hidden[h];
        db1[h] += dh;
        dw1[h * IN] += dh * s->x[0];
        dw1[h * IN + 1] += dh * s->x[1];
    }
}

static ndm_status step(ndm_context *context, ndm_unit *unit, ndm_optimizer *optimizer, double *loss,
                       double *norm)
{
    ndm_group dp = ndm_mesh_group(ndm_context_mesh(context), NDM_AXES_DP,
                                  ndm_context_rank(context));
    ndm_stream *stream = ndm_context_stream(context);
    ndm_step_options options = NDM_STEP_OPTIONS_INIT;

    options.lr = 0.02, options.eps = 1e-3;
    *loss = 0.0;
    NDM_TRY(ndm_unit_unshard(unit, stream));
    NDM_TRY(ndm_unit_grads_begin(unit, stream));
    for (int64_t i = dp.index; i < SAMPLES; i += dp.size) { /* our share of the batch */
        sample s = make_sample(i);
        forward(unit, &s);
        *loss += (s.y - s.want) * (s.y - s.want) / SAMPLES;
        backward(unit, &s, 2.0f * (s.y - s.want) / SAMPLES);
    }
    NDM_TRY(ndm_unit_reshard(unit, stream));
    NDM_TRY(ndm_unit_reduce_grads(unit, stream));
    return ndm_optimizer_step(optimizer, &options, loss, 1,
                              norm); /* sums the loss over ranks as well */
}

static ndm_status train(ndm_context *context)
{
    ndm_unit *unit = NULL;
    ndm_optimizer *optimizer = NULL;
    double loss, norm;
    ndm_status status;

    NDM_TRY_OR(status, ndm_unit_create(context, "mlp", specs, PARAMS, NULL, &unit), done);
    NDM_TRY_OR(status, ndm_unit_init(unit, 7), done);
    NDM_TRY_OR(status, ndm_optimizer_create(context, &unit, 1, &optimizer), done);
    for (int i = 0; i < STEPS; i++) {
        NDM_TRY_OR(status, step(context, unit, optimizer, &loss, &norm), done);
        if (ndm_context_rank(context) == 0)
            printf("step %d  loss %.7f  grad_norm %.7f\n", i + 1, loss, norm);
    }
done:
    ndm_optimizer_destroy(optimizer);
    ndm_unit_destroy(unit);
    return status;
}

int main(int argc, char **argv)
{
    ndm_parallelism_config mesh = NDM_PARALLELISM_CONFIG_INIT;
    ndm_context *context;

    mesh.dp_replicate = argc > 1 ? atoi(argv[1]) : 1;
    ndm_status status = ndm_context_create(&mesh, NULL, &context);
    if (status == NDM_OK) {
        status = train(context);
        status == NDM_OK ? ndm_context_destroy(context) : ndm_context_abandon(context);
    }
    if (status != NDM_OK)
        fprintf(stderr, "embed: %s\n", ndm_error_message());
    return ndm_status_exit_code(status);
}
