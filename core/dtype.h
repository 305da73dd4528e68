/* SPDX-License-Identifier: Apache-2.0 */
/* Element types: sizes, names, and conversions of bf16 and fp16 with round-to-nearest-even. */
#ifndef NDM_CORE_DTYPE_H
#define NDM_CORE_DTYPE_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/module.h"
#include <ndmesh/status.h>
#include <ndmesh/types.h>

NDM_MODULE_API size_t ndm_dtype_bytes(ndm_dtype dtype);
const char *ndm_dtype_name(ndm_dtype dtype); /* "fp32", "bf16", "fp16", "fp64", "int32", ... */
const char *ndm_dtype_safetensors(ndm_dtype dtype); /* "F32", "BF16", ... */
NDM_MUST_USE ndm_status
ndm_dtype_parse(const char *name, ndm_dtype *dtype); /* either spelling, and torch's "float32" */

/* Where element i of an array lies. */
static inline void *ndm_dtype_at(const void *array, ndm_dtype dtype, int64_t i)
{
    return (char *)(uintptr_t)array + i * (int64_t)ndm_dtype_bytes(dtype);
}

static inline float ndm_bf16_to_f32(uint16_t h)
{
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* NaN stays NaN (quiet); everything else rounds to nearest, ties to even, overflowing to infinity.
 */
static inline uint16_t ndm_f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float ndm_f16_to_f32(uint16_t h);
uint16_t ndm_f32_to_f16(float f);

static inline bool ndm_dtype_is_f8(ndm_dtype dtype)
{
    return dtype == NDM_F8E4M3 || dtype == NDM_F8E5M2;
}

/* dtype is an 8-bit one. Rounds to nearest, ties to even; what is larger than the largest finite
 * number becomes that one, infinities as well; NaN becomes 0x7f. */
float ndm_f8_to_f32(uint8_t byte, ndm_dtype dtype);
uint8_t ndm_f32_to_f8(float x, ndm_dtype dtype);
float ndm_f8_most(ndm_dtype dtype); /* the largest finite number: 448, 57344 */

/* Converts n elements; src and dst do not overlap. fp32, bf16, fp16, fp64 and the 8-bit types in
 * any pair. Host memory. */
void ndm_convert(const void *src, ndm_dtype src_dtype, void *dst, ndm_dtype dst_dtype, int64_t n);

#endif
