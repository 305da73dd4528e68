/* SPDX-License-Identifier: Apache-2.0 */
/* Cases of embedding, norm, rotation and activation. */
#include <math.h>

#include "kernels/cases_list.h"
#include "kernels/ref.h"

/* Type `option` of weights. With activations of 16 bit, that type or fp32. */
static ndm_dtype weight_type(const ndm_case *c, int64_t option)
{
    static const ndm_dtype types[] = {NDM_F32, NDM_BF16, NDM_F16};
    return c->activations == NDM_F32 || option == 0 ? types[option] : c->activations;
}

/* ---- embedding ------------------------------------------------------------------------------- */

enum { POSITIONS = 11 };

bool ndm_case_get_embedding(int64_t i, ndm_case *c)
{
    ndm_embedding_args *a = &c->args.embedding;
    ndm_dtype dtype = weight_type(c, case_option(&i, 3));
    bool positions = case_option(&i, 2), scaled = case_option(&i, 2);

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_embedding_args){.dtype = dtype,
                              .out_dtype = c->activations,
                              .scale = scaled ? 0.3f : 1.0f,
                              .n = case_size(i, 5),
                              .width = case_size(i, 1),
                              .first = i % 2 ? 17 : 0,
                              .rows = case_size(i, 7)};
    /* ids on both sides of the slice, negative ones as well */
    case_range(IN(embedding, ids, NDM_I32, 1, a->n, a->n), (double)a->first - 5,
               (double)(a->first + a->rows + 5));
    IN(embedding, table, dtype, a->rows, a->width, a->width);
    if (positions) {
        IN(embedding, position_table, dtype, POSITIONS, a->width, a->width);
        case_range(IN(embedding, positions, NDM_I32, 1, a->n, a->n), 0, POSITIONS);
    }
    OUT(embedding, out, c->activations, a->n, a->width, a->width);
    LABEL("embedding n %lld C %lld rows %lld..+%lld %s positions %d scale %g", (long long)a->n,
          (long long)a->width, (long long)a->first, (long long)a->rows, case_weight_name(dtype),
          positions, (double)a->scale);
    return true;
}

bool ndm_case_get_embedding_backward(int64_t i, ndm_case *c)
{
    ndm_embedding_backward_args *a = &c->args.embedding_backward;
    bool positions = case_option(&i, 2), scaled = case_option(&i, 2), part = case_option(&i, 2);

    if (i >= CASE_SIZES + 1)
        return false;
    /* the last shape is wide */
    *a = (ndm_embedding_backward_args){.dout_dtype = c->activations,
                                       .scale = scaled ? 0.3f : 1.0f,
                                       .n = case_size(i, 5),
                                       .width = i < CASE_SIZES ? case_size(i, 1) : 2104,
                                       .first = i % 2 ? 17 : 0,
                                       .rows = case_size(i, 7),
                                       .position_rows = POSITIONS};
    case_range(IN(embedding_backward, ids, NDM_I32, 1, a->n, a->n), (double)a->first - 5,
               (double)(a->first + a->rows + 5));
    IN(embedding_backward, dout, c->activations, a->n, a->width, a->width);
    if (part) { /* from within a row to within another, or the same one */
        a->part_first = a->rows * a->width / 3;
        a->part_count = (a->rows * a->width + 1) / 2;
        OUT(embedding_backward, dtable, NDM_F32, 1, a->part_count, a->part_count);
    } else {
        OUT(embedding_backward, dtable, NDM_F32, a->rows, a->width, a->width);
    }
    if (positions) {
        case_range(IN(embedding_backward, positions, NDM_I32, 1, a->n, a->n), 0, POSITIONS);
        OUT(embedding_backward, dposition_table, NDM_F32, POSITIONS, a->width, a->width);
    }
    LABEL("embedding_backward n %lld C %lld rows %lld..+%lld part %d positions %d scale %g",
          (long long)a->n, (long long)a->width, (long long)a->first, (long long)a->rows, part,
          positions, (double)a->scale);
    return true;
}

/* ---- norm ------------------------------------------------------------------------------------ */

enum norm_place { NORM_APART, NORM_IN_PLACE, NORM_RESIDUAL, NORM_RESIDUAL_IN_PLACE, NORM_PLACES };

static void norm_buffers(ndm_case *c, const ndm_norm_args *a, int64_t place, bool bias)
{
    ndm_case_buffer *x = IN(norm, x, c->activations, a->n, a->width, a->x_stride);

    if (place == NORM_IN_PLACE)
        ALIAS(case_output(x), norm, y);
    else
        OUT(norm, y, c->activations, a->n, a->width, a->y_stride);
    if (place >= NORM_RESIDUAL)
        IN(norm, residual, c->activations, a->n, a->width, a->width);
    if (place == NORM_RESIDUAL)
        OUT(norm, sum, c->activations, a->n, a->width, a->width);
    if (place == NORM_RESIDUAL_IN_PLACE)
        ALIAS(case_output(x), norm, sum);
    IN(norm, weight, a->dtype, 1, a->width, a->width);
    if (bias)
        IN(norm, bias, a->dtype, 1, a->width, a->width);
    if (a->layer_norm)
        OUT(norm, mean, NDM_F32, 1, a->n, a->n);
    OUT(norm, rstd, NDM_F32, 1, a->n, a->n);
}

bool ndm_case_get_norm(int64_t i, ndm_case *c)
{
    ndm_norm_args *a = &c->args.norm;
    int64_t pad = i % 4 * 3, place = case_option(&i, NORM_PLACES), kind = case_option(&i, 3);
    ndm_dtype dtype = weight_type(c, case_option(&i, 3));

    if (i >= CASE_SIZES + 2)
        return false;
    /* kinds: RMSNorm, LayerNorm, LayerNorm with a bias; the last two shapes are wide */
    *a = (ndm_norm_args){.layer_norm = kind > 0,
                         .x_dtype = c->activations,
                         .dtype = dtype,
                         .eps = 1e-5f,
                         .weight_offset = i % 2 ? 1.0f : 0.0f,
                         .n = case_size(i, 5),
                         .width = i < CASE_SIZES ? case_size(i, 1) : 1000 + 37 * i};
    a->x_stride = a->width + (place >= NORM_RESIDUAL ? 0 : pad);
    a->y_stride = place == NORM_IN_PLACE ? a->x_stride : a->width + 2 * pad;
    norm_buffers(c, a, place, kind == 2);
    LABEL("norm %s n %lld width %lld x_stride %lld y_stride %lld %s place %lld offset %g",
          kind ? "layer" : "rms", (long long)a->n, (long long)a->width, (long long)a->x_stride,
          (long long)a->y_stride, case_weight_name(dtype), (long long)place,
          (double)a->weight_offset);
    return true;
}

/* mean and rstd of x, as a forward leaves them. */
static ndm_status prepare_norm_backward(ndm_case *c)
{
    const ndm_norm_backward_args *a = &c->args.norm_backward;

    for (int64_t i = 0; i < a->n; i++) {
        ref_row x = ref_row_of(a->x, a->x_dtype, i * a->x_stride);
        double sum = 0.0, square = 0.0;
        for (int64_t j = 0; j < a->width; j++) {
            sum += ref_get(x, j);
            square += (double)ref_get(x, j) * ref_get(x, j);
        }
        double mean = a->layer_norm ? sum / (double)a->width : 0.0;
        double variance = square / (double)a->width - mean * mean;
        if (a->layer_norm)
            ((float *)a->mean)[i] = (float)mean;
        ((float *)a->rstd)[i] = (float)(1.0 / sqrt(fmax(variance, 0.0) + 0.1));
    }
    return NDM_OK;
}

enum norm_gradient { GRADIENT_APART, GRADIENT_IN_PLACE, GRADIENT_ACCUMULATED, GRADIENT_PLACES };
enum again_place { NOT_AGAIN, AGAIN_APART, AGAIN_IN_PLACE, AGAIN_PLACES }; /* of y: over dy */

static void norm_backward_buffers(ndm_case *c, const ndm_norm_backward_args *a, int64_t place,
                                  int64_t again, bool bias)
{
    double scale = sqrt((double)a->n);
    ndm_case_buffer *dy = IN(norm_backward, dy, c->activations, a->n, a->width, a->dy_stride);

    if (place == GRADIENT_IN_PLACE)
        ALIAS(case_output(dy), norm_backward, dx);
    else
        OUT(norm_backward, dx, c->activations, a->n, a->width, a->dx_stride);
    if (again == AGAIN_IN_PLACE)
        ALIAS(case_output(dy), norm_backward, y);
    else if (again == AGAIN_APART)
        OUT(norm_backward, y, c->activations, a->n, a->width, a->y_stride);
    IN(norm_backward, x, c->activations, a->n, a->width, a->x_stride);
    if (a->layer_norm)
        IN(norm_backward, mean, NDM_F32, 1, a->n, a->n);
    IN(norm_backward, rstd, NDM_F32, 1, a->n, a->n);
    IN(norm_backward, weight, a->dtype, 1, a->width, a->width);
    OUT(norm_backward, dweight, NDM_F32, 1, a->width, a->width)->scale = scale;
    if (!bias)
        return;
    IN(norm_backward, bias, a->dtype, 1, a->width, a->width);
    OUT(norm_backward, dbias, NDM_F32, 1, a->width, a->width)->scale = scale;
}

enum { ROWS_MANY = 2100 }; /* more than the parts that sums over rows come in have room for */

/* Where y goes follows from the shape: every place meets every other option in some shapes. */
static int64_t place_again(int64_t i, int64_t gradient)
{
    int64_t again = i % AGAIN_PLACES;

    return gradient == GRADIENT_IN_PLACE && again == AGAIN_IN_PLACE ? AGAIN_APART : again;
}

bool ndm_case_get_norm_backward(int64_t i, ndm_case *c)
{
    ndm_norm_backward_args *a = &c->args.norm_backward;
    int64_t pad = i % 4 * 3, place = case_option(&i, GRADIENT_PLACES), kind = case_option(&i, 3);
    ndm_dtype dtype = weight_type(c, case_option(&i, 3));

    if (i >= CASE_SIZES + 3)
        return false;
    bool many = i == CASE_SIZES + 2 && place == GRADIENT_APART && dtype == NDM_F32;
    *a = (ndm_norm_backward_args){.layer_norm = kind > 0,
                                  .x_dtype = c->activations,
                                  .accumulate = place == GRADIENT_ACCUMULATED,
                                  .dtype = dtype,
                                  .weight_offset = i % 2 ? 1.0f : 0.0f,
                                  .n = many ? (int64_t)ROWS_MANY : case_size(i, 5),
                                  .width = i < CASE_SIZES       ? case_size(i, 1)
                                           : i < CASE_SIZES + 2 ? 1000 + 37 * i
                                                                : 24};
    a->x_stride = a->width + pad;
    a->dy_stride = a->width + 2 * pad;
    a->dx_stride = place == GRADIENT_IN_PLACE ? a->dy_stride : a->width + 3 * pad;
    int64_t again = place_again(i, place);
    a->y_stride = again == AGAIN_IN_PLACE ? a->dy_stride : a->width + pad / 3;
    norm_backward_buffers(c, a, place, again, kind == 2);
    int64_t scratch = ndm_norm_workspace_bytes(a->width) / (int64_t)sizeof(float);
    OUT(norm_backward, workspace, NDM_F32, 1, scratch, scratch)->scratch = true;
    c->prepare = prepare_norm_backward;
    LABEL("norm_backward %s n %lld width %lld pad %lld %s place %lld again %lld offset %g",
          kind ? "layer" : "rms", (long long)a->n, (long long)a->width, (long long)pad,
          case_weight_name(dtype), (long long)place, (long long)again, (double)a->weight_offset);
    return true;
}

/* ---- rotation -------------------------------------------------------------------------------- */

bool ndm_case_get_rope(int64_t i, ndm_case *c)
{
    ndm_rope_args *a = &c->args.rope;
    float sign = case_option(&i, 2) ? -1.0f : 1.0f;
    int64_t heads = 1 + case_option(&i, 4), pad = case_option(&i, 2) * 7;

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_rope_args){.x_dtype = c->activations,
                         .n = case_size(i, 5),
                         .heads = heads,
                         .head_dim = 2 * case_size(i, 1),
                         .sign = sign};
    a->stride = heads * a->head_dim + pad;
    OUT(rope, x, c->activations, a->n, heads * a->head_dim, a->stride);
    case_range(IN(rope, positions, NDM_I32, 1, a->n, a->n), 0, POSITIONS);
    case_range(IN(rope, cos, NDM_F32, POSITIONS, a->head_dim / 2, a->head_dim / 2), -1, 1);
    case_range(IN(rope, sin, NDM_F32, POSITIONS, a->head_dim / 2, a->head_dim / 2), -1, 1);
    LABEL("rope n %lld H %lld D %lld stride %lld sign %g", (long long)a->n, (long long)heads,
          (long long)a->head_dim, (long long)a->stride, (double)sign);
    return true;
}

/* ---- activation ------------------------------------------------------------------------------ */

static const char *const activation_names[] = {"silu", "gelu_tanh", "gelu_erf"};

bool ndm_case_get_act(int64_t i, ndm_case *c)
{
    ndm_act_args *a = &c->args.act;
    int64_t pad = i % 3 * 5;
    ndm_activation activation = (ndm_activation)case_option(&i, 3);
    bool gated = case_option(&i, 2), in_place = case_option(&i, 2), large = case_option(&i, 2);

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_act_args){.activation = activation,
                        .gated = gated,
                        .x_dtype = c->activations,
                        .n = case_size(i, 5),
                        .width = case_size(i, 1)};
    int64_t x_width = gated ? 2 * a->width : a->width;
    a->x_stride = x_width + pad;
    a->y_stride = in_place ? a->x_stride : a->width + 2 * pad;
    ndm_case_buffer *x = IN(act, x, c->activations, a->n, x_width, a->x_stride);
    x->high = large ? 40.0 : 2.0;
    if (in_place)
        ALIAS(case_output(x), act, y);
    else
        OUT(act, y, c->activations, a->n, a->width, a->y_stride);
    LABEL("act %s gated %d n %lld F %lld pad %lld in_place %d large %d",
          activation_names[activation], gated, (long long)a->n, (long long)a->width, (long long)pad,
          in_place, large);
    return true;
}

bool ndm_case_get_act_backward(int64_t i, ndm_case *c)
{
    ndm_act_backward_args *a = &c->args.act_backward;
    int64_t pad = i % 3 * 5;
    ndm_activation activation = (ndm_activation)case_option(&i, 3);
    bool gated = case_option(&i, 2), in_place = case_option(&i, 2), large = case_option(&i, 2),
         again = case_option(&i, 2);

    if (i >= CASE_SIZES)
        return false;
    *a = (ndm_act_backward_args){.activation = activation,
                                 .gated = gated,
                                 .x_dtype = c->activations,
                                 .n = case_size(i, 5),
                                 .width = case_size(i, 1)};
    int64_t x_width = gated ? 2 * a->width : a->width;
    a->x_stride = x_width + pad;
    a->dy_stride = a->width + 2 * pad;
    a->dx_stride = in_place ? a->x_stride : x_width + pad / 5;
    bool over_dy = again && i % 2; /* y */
    a->y_stride = over_dy ? a->dy_stride : a->width + pad / 5;
    ndm_case_buffer *x = IN(act_backward, x, c->activations, a->n, x_width, a->x_stride);
    x->high = large ? 40.0 : 2.0;
    if (in_place)
        ALIAS(case_output(x), act_backward, dx);
    else
        OUT(act_backward, dx, c->activations, a->n, x_width, a->dx_stride);
    ndm_case_buffer *dy = IN(act_backward, dy, c->activations, a->n, a->width, a->dy_stride);
    if (over_dy)
        ALIAS(case_output(dy), act_backward, y);
    else if (again)
        OUT(act_backward, y, c->activations, a->n, a->width, a->y_stride);
    LABEL("act_backward %s gated %d n %lld F %lld pad %lld in_place %d large %d again %d",
          activation_names[activation], gated, (long long)a->n, (long long)a->width, (long long)pad,
          in_place, large, again);
    return true;
}
