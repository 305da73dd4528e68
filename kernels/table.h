/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of this folder share: the tables of kernels.def and what a device is bound to. */
#ifndef NDM_KERNELS_TABLE_H
#define NDM_KERNELS_TABLE_H

#include "kernels/kernels.h"

#define NDM_KERNEL_TABLE(identifier) extern const ndm_kernel_table ndm_kernels_##identifier;
#include "kernels/kernels.def"
#undef NDM_KERNEL_TABLE

/* device->kernels points to the first member. Made by ndm_kernels_bind(), freed with free(). */
typedef struct ndm_kernel_binding {
    ndm_kernel_table table;
    const char *chosen[NDM_OP_COUNT]; /* name of the table that each body is from; NULL = none */
} ndm_kernel_binding;

/* Body of the reference: what a faster kernel calls for a case it leaves out. */
static inline ndm_status ndm_kernels_call_ref(ndm_op op, const void *args)
{
    return ((ndm_host_body)ndm_kernels_ref.body[op])(args);
}

/* Puts a step's numbers in their places; false if it is not taken. */
static inline bool ndm_adamw_take_step(ndm_adamw_args *a)
{
    if (!a->step)
        return true;
    a->lr = a->step->lr;
    a->bias1 = a->step->bias1;
    a->bias2 = a->step->bias2;
    a->grad_scale = a->step->grad_scale;
    return a->grad_scale == a->grad_scale;
}

/* What a token's loss is multiplied by in the gradient. */
static inline float ndm_ce_scale(const ndm_ce_apply_args *a)
{
    if (!a->tokens)
        return a->grad_scale;
    return *a->tokens > 0 ? (float)((double)a->grad_scale / (double)*a->tokens) : 0.0f;
}

#endif
