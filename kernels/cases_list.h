/* SPDX-License-Identifier: Apache-2.0 */
/* The generators of cases, one an op: cases_matrix.c, cases_layers.c, cases_loss.c. */
#ifndef NDM_KERNELS_CASES_LIST_H
#define NDM_KERNELS_CASES_LIST_H

#include <stddef.h>
#include <stdio.h>

#include "kernels/cases.h"

#define NDM_CASE_GENERATOR(name, doc) bool ndm_case_get_##name(int64_t i, ndm_case *c);
NDM_KERNEL_LIST(NDM_CASE_GENERATOR)
#undef NDM_CASE_GENERATOR

/* Sizes around vector widths and blocks, and far from them. */
enum { CASE_SIZES = 18 };
static const int64_t case_sizes[CASE_SIZES] = {1,  2,  3,  7,  15, 16,  17,  31,  32,
                                               33, 63, 64, 65, 96, 100, 127, 128, 129};

/* One of n values of an option, taken off the number of the case. */
static inline int64_t case_option(int64_t *i, int64_t n)
{
    int64_t value = *i % n;
    *i /= n;
    return value;
}

/* Size i of the list and another that runs through all of them at another pace. */
static inline int64_t case_size(int64_t i, int64_t pace)
{
    return case_sizes[(i * pace + pace / 2) % CASE_SIZES];
}

/* Pointers of arguments as offsets: IN and OUT add a buffer and return it. `op` names the argument
 * struct. */
#define IN(op, field, dtype, rows, width, stride) \
    ndm_case_add(c, #field, offsetof(ndm_##op##_args, field), dtype, rows, width, stride)
#define OUT(op, field, dtype, rows, width, stride) \
    case_output(IN(op, field, dtype, rows, width, stride))
#define ALIAS(buffer, op, field) ndm_case_alias(buffer, offsetof(ndm_##op##_args, field))
#define LABEL(...) (void)snprintf(c->label, sizeof c->label, __VA_ARGS__)

static inline ndm_case_buffer *case_output(ndm_case_buffer *b)
{
    b->output = true;
    return b;
}

/* Whole numbers in [low, high) for int32, numbers for others. */
static inline ndm_case_buffer *case_range(ndm_case_buffer *b, double low, double high)
{
    b->fill = NDM_FILL_UNIFORM;
    b->low = low;
    b->high = high;
    return b;
}

static inline ndm_case_buffer *case_scale(ndm_case_buffer *b, double scale)
{
    b->scale = scale;
    return b;
}

static inline const char *case_weight_name(ndm_dtype dtype)
{
    return dtype == NDM_F32 ? "fp32" : dtype == NDM_BF16 ? "bf16" : "fp16";
}

#endif
