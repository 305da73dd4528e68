/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of rotary positions: Su et al., "RoFormer", 2021; Llama 3's scaling as in transformers'
 * modeling_rope_utils. */
#include <math.h>
#include <stdlib.h>

#include "model/model.h"

static double llama3_frequency(const ndm_model_config *c, double frequency)
{
    double wavelength = 2.0 * M_PI / frequency, original = (double)c->rope_original_positions;
    double ramp = (original / wavelength - c->rope_low_freq_factor) /
                  (c->rope_high_freq_factor - c->rope_low_freq_factor);

    if (wavelength < original / c->rope_high_freq_factor)
        return frequency;
    if (wavelength > original / c->rope_low_freq_factor)
        return frequency / c->rope_factor;
    return (1.0 - ramp) * frequency / c->rope_factor + ramp * frequency;
}

static double frequency_of(const ndm_model_config *c, int64_t pair)
{
    double frequency = pow(c->rope_theta, -2.0 * (double)pair / (double)c->head_dim);

    switch (c->rope) {
    case NDM_ROPE_LINEAR:
        return frequency / c->rope_factor;
    case NDM_ROPE_LLAMA3:
        return llama3_frequency(c, frequency);
    default:
        return frequency;
    }
}

static void fill(const ndm_model_config *c, int64_t positions, float *cosines, float *sines)
{
    int64_t half = c->head_dim / 2;

    for (int64_t i = 0; i < half; i++) {
        double frequency = frequency_of(c, i);
        for (int64_t p = 0; p < positions; p++) {
            cosines[p * half + i] = (float)cos((double)p * frequency);
            sines[p * half + i] = (float)sin((double)p * frequency);
        }
    }
}

ndm_status ndm_rope_tables(ndm_model *model, int64_t positions)
{
    int64_t n = positions * (model->config.head_dim / 2), bytes = n * (int64_t)sizeof(float);
    ndm_stream *stream = model->context->compute;
    ndm_status status;

    if (ndm_world_is_simulated(model->context->world))
        return NDM_OK; /* nobody reads them there */
    float *host = malloc(2 * (size_t)bytes);
    if (!host)
        NDM_FAIL(NDM_ERR_MEMORY, "no memory for rotary tables of %lld positions",
                 (long long)positions);
    fill(&model->config, positions, host, host + n);
    NDM_TRY_OR(status, ndm_copy(stream, model->rope_cos, host, bytes, NDM_HOST_TO_DEVICE), done);
    NDM_TRY_OR(status, ndm_copy(stream, model->rope_sin, host + n, bytes, NDM_HOST_TO_DEVICE),
               done);
    status = ndm_stream_synchronize(stream);
done:
    free(host);
    return status;
}
