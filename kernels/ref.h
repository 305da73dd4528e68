/* SPDX-License-Identifier: Apache-2.0 */
/* The reference kernels: plain loops, sums in double, any dtype. They say what an op is; faster
 * ones are compared with them. */
#ifndef NDM_KERNELS_REF_H
#define NDM_KERNELS_REF_H

#include "core/dtype.h"
#include "kernels/table.h"

#define NDM_REF_PROTOTYPE(name, doc) ndm_status ndm_ref_##name(const void *args);
NDM_KERNEL_LIST(NDM_REF_PROTOTYPE)
#undef NDM_REF_PROTOTYPE

/* Element i of an array of fp32, bf16, fp16 or an 8-bit type. */
static inline float ref_load(const void *array, ndm_dtype dtype, int64_t i)
{
    if (dtype == NDM_F32)
        return ((const float *)array)[i];
    if (ndm_dtype_is_f8(dtype))
        return ndm_f8_to_f32(((const uint8_t *)array)[i], dtype);
    uint16_t h = ((const uint16_t *)array)[i];
    return dtype == NDM_BF16 ? ndm_bf16_to_f32(h) : ndm_f16_to_f32(h);
}

static inline void ref_store(void *array, ndm_dtype dtype, int64_t i, float value)
{
    if (dtype == NDM_F32)
        ((float *)array)[i] = value;
    else
        ((uint16_t *)array)[i] = dtype == NDM_BF16 ? ndm_f32_to_bf16(value) : ndm_f32_to_f16(value);
}

/* A row of an array of fp32, bf16 or fp16, from element `first` on. Reads round nothing; a write
 * rounds once. */
typedef struct ref_row {
    void *array;
    ndm_dtype dtype;
    int64_t first;
} ref_row;

static inline ref_row ref_row_of(const void *array, ndm_dtype dtype, int64_t first)
{
    return (ref_row){(void *)(uintptr_t)array, dtype, first};
}

static inline float ref_get(ref_row row, int64_t i)
{
    return ref_load(row.array, row.dtype, row.first + i);
}

static inline void ref_put(ref_row row, int64_t i, double value)
{
    ref_store(row.array, row.dtype, row.first + i, (float)value);
}

#endif
