/* SPDX-License-Identifier: Apache-2.0 */
/* Activations on CUDA: SiLU and both forms of GELU, plain or gated. A thread has eight elements of
 * a row, both halves of a gated one, and reads them all before it writes: in place works. */
#include "kernels/cuda/element.cuh"
#include "kernels/cuda/launch.cuh"

enum { ACT_BLOCK = 256 };

/* act(x), and its derivative. */
template <ndm_activation ACTIVATION>
static __device__ __forceinline__ float activate(float x, float *slope)
{
    const float sqrt_2_over_pi = 0.79788456080286535588f, cubic = 0.044715f;

    if (ACTIVATION == NDM_SILU) {
        float sigmoid = 1.0f / (1.0f + expf(-x));
        *slope = sigmoid * (1.0f + x * (1.0f - sigmoid));
        return x * sigmoid;
    }
    if (ACTIVATION == NDM_GELU_TANH) {
        float t = tanhf(sqrt_2_over_pi * (x + cubic * x * x * x));
        float inner = sqrt_2_over_pi * (1.0f + 3.0f * cubic * x * x);
        *slope = 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * inner;
        return 0.5f * x * (1.0f + t);
    }
    float cdf = 0.5f * erfcf(-x * 0.70710678118654752440f);
    *slope = cdf + x * 0.5f * sqrt_2_over_pi * expf(-0.5f * x * x);
    return x * cdf;
}

template <class T, ndm_activation ACTIVATION>
__global__ void __launch_bounds__(ACT_BLOCK) act_wide(ndm_act_args a, bool vector)
{
    int64_t row, j;
    float x[WIDE], up[WIDE], slope;

    if (!place_of_thread(a.n, a.width, &row, &j))
        return;
    const T *from = (const T *)a.x + row * a.x_stride + j;
    int count = at_most(a.width - j, WIDE);
    const T *other = a.gated ? from + a.width : from; /* a load that may be idle, but no branch */
    whole_or_part(count, vector, [&](int n, bool aligned) {
        load_wide(from, n, aligned, x);
        load_wide(other, n, aligned, up);
    });
#pragma unroll
    for (int i = 0; i < WIDE; i++)
        x[i] = activate<ACTIVATION>(x[i], &slope) * (a.gated ? up[i] : 1.0f);
    store_wide((T *)a.y + row * a.y_stride + j, count, vector, x);
}

/* Gated, y = act(g) u: dg = dy u act'(g), du = dy act(g). */
template <class T, ndm_activation ACTIVATION>
__global__ void __launch_bounds__(ACT_BLOCK) act_backward_wide(ndm_act_backward_args a, bool vector)
{
    int64_t row, j;
    float x[WIDE], up[WIDE], dy[WIDE];

    if (!place_of_thread(a.n, a.width, &row, &j))
        return;
    const T *from = (const T *)a.x + row * a.x_stride + j;
    T *dx = (T *)a.dx + row * a.dx_stride + j;
    int count = at_most(a.width - j, WIDE);
    const T *other = a.gated ? from + a.width : from;
    whole_or_part(count, vector, [&](int n, bool aligned) {
        load_wide(from, n, aligned, x);
        load_wide(other, n, aligned, up);
        load_wide((const T *)a.dy + row * a.dy_stride + j, n, aligned, dy);
    });
#pragma unroll
    for (int i = 0; i < WIDE; i++) {
        up[i] = a.gated ? up[i] : 1.0f;
        float slope, value = activate<ACTIVATION>(x[i], &slope);
        x[i] = dy[i] * up[i] * slope;
        dy[i] *= value;
        up[i] *= value;
    }
    store_wide(dx, count, vector, x);
    if (a.gated)
        store_wide(dx + a.width, count, vector, dy);
    if (a.y)
        store_wide((T *)a.y + row * a.y_stride + j, count, vector, up);
}

static bool halves_aligned(bool gated, int64_t width)
{
    return !gated || width % WIDE == 0;
}

ndm_status ndm_cuda_act(ndm_stream *stream, const void *args)
{
    const ndm_act_args *a = (const ndm_act_args *)args;
    bool vector = ndm_cuda_aligned(a->x, a->x_stride) && ndm_cuda_aligned(a->y, a->y_stride) &&
                  halves_aligned(a->gated, a->width);
    dim3 grid(ndm_cuda_blocks(a->n * ((a->width + WIDE - 1) / WIDE), ACT_BLOCK));

    return ndm_cuda_typed("act", "x_dtype", a->x_dtype, [&](auto type) {
        using T = decltype(type);
        return ndm_cuda_launch(stream, "act",
                               a->activation == NDM_SILU        ? act_wide<T, NDM_SILU>
                               : a->activation == NDM_GELU_TANH ? act_wide<T, NDM_GELU_TANH>
                                                                : act_wide<T, NDM_GELU_ERF>,
                               grid, ACT_BLOCK, 0, *a, vector);
    });
}

ndm_status ndm_cuda_act_backward(ndm_stream *stream, const void *args)
{
    const ndm_act_backward_args *a = (const ndm_act_backward_args *)args;
    bool vector = ndm_cuda_aligned(a->x, a->x_stride) && ndm_cuda_aligned(a->dy, a->dy_stride) &&
                  ndm_cuda_aligned(a->dx, a->dx_stride) &&
                  ndm_cuda_aligned(a->y, a->y ? a->y_stride : 0) &&
                  halves_aligned(a->gated, a->width);
    dim3 grid(ndm_cuda_blocks(a->n * ((a->width + WIDE - 1) / WIDE), ACT_BLOCK));

    return ndm_cuda_typed("act_backward", "x_dtype", a->x_dtype, [&](auto type) {
        using T = decltype(type);
        return ndm_cuda_launch(stream, "act_backward",
                               a->activation == NDM_SILU ? act_backward_wide<T, NDM_SILU>
                               : a->activation == NDM_GELU_TANH
                                   ? act_backward_wide<T, NDM_GELU_TANH>
                                   : act_backward_wide<T, NDM_GELU_ERF>,
                               grid, ACT_BLOCK, 0, *a, vector);
    });
}
