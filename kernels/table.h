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

#endif
