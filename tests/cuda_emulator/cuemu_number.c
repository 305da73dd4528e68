/* SPDX-License-Identifier: Apache-2.0 */
/* Element types through float: bf16, fp16 and fp8 rounded to nearest even, fp8 saturating. */
#include "cuemu_shared.h"

#include <math.h>
#include <string.h>

typedef struct {
    int mantissa, bias;
    unsigned last;       /* code of the largest finite value */
    unsigned above, nan; /* what larger ones become, and what is no number */
    bool infinite;       /* the code after the last is infinity */
} small_float;

static const small_float half = {10, 15, 0x7bff, 0x7c00, 0x7fff, true};
static const small_float e4m3 = {3, 7, 0x7e, 0x7e, 0x7f, false};
static const small_float e5m2 = {2, 15, 0x7b, 0x7b, 0x7f, true};

static float small_get(unsigned bits, int width, const small_float *f)
{
    unsigned sign = bits >> (width - 1), body = bits & ((1u << (width - 1)) - 1);
    int exponent = (int)(body >> f->mantissa);
    unsigned fraction = body & ((1u << f->mantissa) - 1);
    float value;
    if (body > f->last)
        value = f->infinite && body == f->last + 1 ? INFINITY : NAN;
    else if (!exponent)
        value = ldexpf((float)fraction, 1 - f->bias - f->mantissa);
    else
        value = ldexpf((float)(fraction | 1u << f->mantissa), exponent - f->bias - f->mantissa);
    return sign ? -value : value;
}

static unsigned small_put(float value, int width, const small_float *f)
{
    unsigned sign = signbit(value) ? 1u << (width - 1) : 0;
    float size = fabsf(value);
    if (isnan(value))
        return f->nan;
    if (isinf(size))
        return sign | f->above;
    int exponent = size > 0 ? ilogbf(size) : 1 - f->bias;
    if (exponent < 1 - f->bias)
        exponent = 1 - f->bias;
    /* The step that rounding adds may carry into the exponent. */
    float steps = rintf(ldexpf(size, f->mantissa - exponent));
    unsigned body = ((unsigned)(exponent + f->bias - 1) << f->mantissa) + (unsigned)steps;
    return sign | (body > f->last ? f->above : body);
}

size_t cuemu_type_bytes(cuemu_type type)
{
    static const size_t bytes[] = {4, 2, 2, 1, 1, 8, 1, 1, 4, 4, 8, 8};
    return bytes[type];
}

static float bf16_get(uint16_t half_word)
{
    uint32_t word = (uint32_t)half_word << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

static uint16_t bf16_put(float value)
{
    uint32_t word;
    memcpy(&word, &value, sizeof word);
    if (isnan(value))
        return 0x7fff;
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

float cuemu_number_get(const void *from, size_t i, cuemu_type type)
{
    switch (type) {
    case CUEMU_BF16:
        return bf16_get(((const uint16_t *)from)[i]);
    case CUEMU_F16:
        return small_get(((const uint16_t *)from)[i], 16, &half);
    case CUEMU_E4M3:
        return small_get(((const uint8_t *)from)[i], 8, &e4m3);
    case CUEMU_E5M2:
        return small_get(((const uint8_t *)from)[i], 8, &e5m2);
    default:
        return ((const float *)from)[i];
    }
}

void cuemu_number_put(void *to, size_t i, cuemu_type type, float value)
{
    switch (type) {
    case CUEMU_BF16:
        ((uint16_t *)to)[i] = bf16_put(value);
        break;
    case CUEMU_F16:
        ((uint16_t *)to)[i] = (uint16_t)small_put(value, 16, &half);
        break;
    case CUEMU_E4M3:
        ((uint8_t *)to)[i] = (uint8_t)small_put(value, 8, &e4m3);
        break;
    case CUEMU_E5M2:
        ((uint8_t *)to)[i] = (uint8_t)small_put(value, 8, &e5m2);
        break;
    default:
        ((float *)to)[i] = value;
    }
}
