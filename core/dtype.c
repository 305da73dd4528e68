/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: names, sizes and conversions, all rounding once to nearest even. */
#include <core/dtype.h>

#include <assert.h>
#include <strings.h>

typedef struct dtype_facts {
    size_t bytes;
    const char *name;        /* ours */
    const char *safetensors; /* in the header of a safetensors file */
    const char *torch;
    const char *other; /* one more accepted spelling */
} dtype_facts;

static const dtype_facts facts[NDM_DTYPE_COUNT] = {
    [NDM_F32] = {4, "fp32", "F32", "float32", "float"},
    [NDM_BF16] = {2, "bf16", "BF16", "bfloat16", "bfloat"},
    [NDM_F16] = {2, "fp16", "F16", "float16", "half"},
    [NDM_F64] = {8, "fp64", "F64", "float64", "double"},
    [NDM_I32] = {4, "int32", "I32", "int32", "int"},
    [NDM_I64] = {8, "int64", "I64", "int64", "long"},
    [NDM_U8] = {1, "uint8", "U8", "uint8", "byte"},
    [NDM_U16] = {2, "uint16", "U16", "uint16", "ushort"},
    [NDM_F8E4M3] = {1, "fp8_e4m3", "F8_E4M3", "float8_e4m3fn", "e4m3"},
    [NDM_F8E5M2] = {1, "fp8_e5m2", "F8_E5M2", "float8_e5m2", "e5m2"},
};

size_t ndm_dtype_bytes(ndm_dtype dtype)
{
    assert((unsigned)dtype < NDM_DTYPE_COUNT);
    return facts[dtype].bytes;
}

const char *ndm_dtype_name(ndm_dtype dtype)
{
    return (unsigned)dtype < NDM_DTYPE_COUNT ? facts[dtype].name : "unknown";
}

const char *ndm_dtype_safetensors(ndm_dtype dtype)
{
    return (unsigned)dtype < NDM_DTYPE_COUNT ? facts[dtype].safetensors : "unknown";
}

static bool is_named(const dtype_facts *f, const char *name)
{
    return strcasecmp(name, f->name) == 0 || strcasecmp(name, f->safetensors) == 0 ||
           strcasecmp(name, f->torch) == 0 || strcasecmp(name, f->other) == 0;
}

ndm_status ndm_dtype_parse(const char *name, ndm_dtype *dtype)
{
    const char *bare = strncmp(name, "torch.", 6) == 0 ? name + 6 : name;
    for (int i = 0; i < NDM_DTYPE_COUNT; i++) {
        if (is_named(&facts[i], bare)) {
            *dtype = (ndm_dtype)i;
            return NDM_OK;
        }
    }
    NDM_FAIL(NDM_ERR_USAGE,
             "unknown element type '%s'; one of fp32, bf16, fp16, fp64, int32, int64, uint8, "
             "uint16, fp8_e4m3, fp8_e5m2",
             name);
}

static float f32_of_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static uint32_t bits_of_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

float ndm_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t rest = h & 0x7fffu;
    if (rest >= 0x7c00u) /* infinity, NaN: widen the payload */
        return f32_of_bits(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    if (rest >= 0x0400u) /* normal: exponent bias 15 to 127 */
        return f32_of_bits(sign | ((rest << 13) + 0x38000000u));
    float magnitude = (float)rest * 0x1p-24f; /* zero and subnormals are exact in fp32 */
    return f32_of_bits(sign | bits_of_f32(magnitude));
}

uint16_t ndm_f32_to_f16(float f)
{
    uint32_t bits = bits_of_f32(f);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((rest >> 13) & 0x3ffu));
    if (rest >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (rest >= 0x38800000u) { /* 2^-14 and above: normal */
        rest += 0xfffu + ((rest >> 13) & 1u);
        return (uint16_t)(sign | ((rest - 0x38000000u) >> 13));
    }
    /* Adding 0.5 leaves the result's multiple of 2^-24 in the low bits, rounded by the FPU. */
    float shifted = f32_of_bits(rest) + 0.5f;
    return (uint16_t)(sign | (bits_of_f32(shifted) - 0x3f000000u));
}

/* fp64 to fp32 rounded to odd: a later rounding to 16 bits then equals one rounding of the fp64. */
static float f64_to_f32_odd(double d)
{
    float f = (float)d;
    double back = (double)f;
    if (back == d || isnan(d))
        return f;
    uint32_t bits = bits_of_f32(f);
    if (fabs(back) > fabs(d))
        bits--;
    return f32_of_bits(bits | 1u);
}

typedef void (*convert_fn)(const void *src, void *dst, int64_t n);

#define DEFINE_CONVERT(name, source, target, expression)    \
    static void name(const void *src, void *dst, int64_t n) \
    {                                                       \
        const source *restrict s = src;                     \
        target *restrict d = dst;                           \
        for (int64_t i = 0; i < n; i++) {                   \
            source x = s[i];                                \
            d[i] = expression;                              \
        }                                                   \
    }

DEFINE_CONVERT(f32_bf16, float, uint16_t, ndm_f32_to_bf16(x))
DEFINE_CONVERT(f32_f16, float, uint16_t, ndm_f32_to_f16(x))
DEFINE_CONVERT(f32_f64, float, double, (double)x)
DEFINE_CONVERT(bf16_f32, uint16_t, float, ndm_bf16_to_f32(x))
DEFINE_CONVERT(bf16_f16, uint16_t, uint16_t, ndm_f32_to_f16(ndm_bf16_to_f32(x)))
DEFINE_CONVERT(bf16_f64, uint16_t, double, (double)ndm_bf16_to_f32(x))
DEFINE_CONVERT(f16_f32, uint16_t, float, ndm_f16_to_f32(x))
DEFINE_CONVERT(f16_bf16, uint16_t, uint16_t, ndm_f32_to_bf16(ndm_f16_to_f32(x)))
DEFINE_CONVERT(f16_f64, uint16_t, double, (double)ndm_f16_to_f32(x))
DEFINE_CONVERT(f64_f32, double, float, (float)x)
DEFINE_CONVERT(f64_bf16, double, uint16_t, ndm_f32_to_bf16(f64_to_f32_odd(x)))
DEFINE_CONVERT(f64_f16, double, uint16_t, ndm_f32_to_f16(f64_to_f32_odd(x)))

static const convert_fn converters[4][4] = {
    [NDM_F32] = {[NDM_BF16] = f32_bf16, [NDM_F16] = f32_f16, [NDM_F64] = f32_f64},
    [NDM_BF16] = {[NDM_F32] = bf16_f32, [NDM_F16] = bf16_f16, [NDM_F64] = bf16_f64},
    [NDM_F16] = {[NDM_F32] = f16_f32, [NDM_BF16] = f16_bf16, [NDM_F64] = f16_f64},
    [NDM_F64] = {[NDM_F32] = f64_f32, [NDM_BF16] = f64_bf16, [NDM_F16] = f64_f16},
};

/* Through fp32, one at a time: rounded to odd, it leaves the rounding to 8 bits to come. */
static void convert_f8(const void *src, ndm_dtype src_dtype, void *dst, ndm_dtype dst_dtype,
                       int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float x;
        if (ndm_dtype_is_f8(src_dtype))
            x = ndm_f8_to_f32(((const uint8_t *)src)[i], src_dtype);
        else if (src_dtype == NDM_F64)
            x = f64_to_f32_odd(((const double *)src)[i]);
        else
            ndm_convert(ndm_dtype_at(src, src_dtype, i), src_dtype, &x, NDM_F32, 1);
        if (ndm_dtype_is_f8(dst_dtype))
            ((uint8_t *)dst)[i] = ndm_f32_to_f8(x, dst_dtype);
        else
            ndm_convert(&x, NDM_F32, ndm_dtype_at(dst, dst_dtype, i), dst_dtype, 1);
    }
}

void ndm_convert(const void *src, ndm_dtype src_dtype, void *dst, ndm_dtype dst_dtype, int64_t n)
{
    if (n <= 0)
        return;
    if (src_dtype == dst_dtype) {
        memcpy(dst, src, (size_t)n * ndm_dtype_bytes(src_dtype));
        return;
    }
    if (ndm_dtype_is_f8(src_dtype) || ndm_dtype_is_f8(dst_dtype)) {
        convert_f8(src, src_dtype, dst, dst_dtype, n);
        return;
    }
    assert((unsigned)src_dtype <= NDM_F64 && (unsigned)dst_dtype <= NDM_F64);
    converters[src_dtype][dst_dtype](src, dst, n);
}
