/* SPDX-License-Identifier: Apache-2.0 */
/* What the front ends of the ops (launch_*.c) share: the checks of arguments, and the launch. Each
 * message names the op, the field and the number. */
#ifndef NDM_KERNELS_LAUNCH_H
#define NDM_KERNELS_LAUNCH_H

#include "kernels/kernels.h"

NDM_MUST_USE ndm_status ndm_kernels_launch(ndm_stream *stream, ndm_op op, const void *args,
                                           size_t args_bytes);
NDM_MUST_USE ndm_status ndm_check_pointer(const char *op, const char *field, const void *pointer);
NDM_MUST_USE ndm_status ndm_check_count(const char *op, const char *field, int64_t value,
                                        int64_t least);
NDM_MUST_USE ndm_status ndm_check_stride(const char *op, const char *field, int64_t *stride,
                                         int64_t width); /* 0 becomes width */
NDM_MUST_USE ndm_status ndm_check_weight(const char *op, const char *field,
                                         ndm_dtype dtype); /* fp32, bf16, fp16 */
NDM_MUST_USE ndm_status ndm_check_eight(const char *op, const char *field,
                                        ndm_dtype dtype); /* 8-bit */

/* These read better at the call: the op and the field are named once. `a` is the launch's own
 * copy of the arguments. */
#define POINTER(op, field) NDM_TRY(ndm_check_pointer(op, #field, a.field))
#define COUNT(op, field, least) NDM_TRY(ndm_check_count(op, #field, a.field, least))
#define STRIDE(op, field, width) NDM_TRY(ndm_check_stride(op, #field, &a.field, width))
#define WEIGHT(op, field) NDM_TRY(ndm_check_weight(op, #field, a.field))
#define EIGHT(op, field) NDM_TRY(ndm_check_eight(op, #field, a.field))
#define LAUNCH(name) ndm_kernels_launch(stream, NDM_OP_##name, &a, sizeof a)

#endif
