/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of 8 bits (Micikevicius et al., "FP8 Formats for Deep Learning", 2022): e4m3 has no
 * infinity and one NaN of each sign, e5m2 follows IEEE 754. */
#include <core/dtype.h>

#include <assert.h>

typedef struct f8_format {
    int mantissa_bits, bias;
    float most;     /* largest finite number */
    uint8_t beyond; /* lowest positive pattern that is not finite */
} f8_format;

static const f8_format e4m3 = {3, 7, 448.0f, 0x7f}, e5m2 = {2, 15, 57344.0f, 0x7c};

static const f8_format *format_of(ndm_dtype dtype)
{
    assert(ndm_dtype_is_f8(dtype));
    return dtype == NDM_F8E4M3 ? &e4m3 : &e5m2;
}

float ndm_f8_most(ndm_dtype dtype)
{
    return format_of(dtype)->most;
}

/* e5m2 is the upper half of fp16. */
float ndm_f8_to_f32(uint8_t byte, ndm_dtype dtype)
{
    uint32_t rest = byte & 0x7fu, bits = (rest << 20) + (120u << 23); /* bias 7 to 127 */
    float size;

    if (dtype == NDM_F8E5M2)
        return ndm_f16_to_f32((uint16_t)(byte << 8));
    if (rest == 0x7f)
        return NAN;
    memcpy(&size, &bits, sizeof size);
    if (rest < 8)
        size = (float)rest * 0x1p-9f;
    return byte & 0x80 ? -size : size;
}

/* Scaled so that the last bit of the result counts 1, the number is rounded by the FPU. */
uint8_t ndm_f32_to_f8(float x, ndm_dtype dtype)
{
    const f8_format *f = format_of(dtype);
    int sign = signbit(x) ? 0x80 : 0, exponent, implied = 1 << f->mantissa_bits;
    float size = fabsf(x);

    if (isnan(x))
        return 0x7f;
    if (size >= f->most)
        return (uint8_t)(sign | (f->beyond - 1));
    (void)frexpf(size, &exponent); /* size = 0.5 .. 1 times 2^exponent */
    if (size == 0.0f || exponent - 1 < 1 - f->bias)
        exponent = 2 - f->bias; /* below the normal numbers all have one last bit */
    int count = (int)nearbyintf(ldexpf(size, f->mantissa_bits + 1 - exponent));
    int base = (exponent - 1 + f->bias) * implied;
    int pattern = base + count - implied; /* count reaches 2 * implied: the next exponent */
    return (uint8_t)(sign | (pattern < f->beyond ? pattern : f->beyond - 1));
}
