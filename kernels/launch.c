/* SPDX-License-Identifier: Apache-2.0 */
/* The way of every call from its op to the stream, and the checks of arguments that ops share. */
#include "kernels/launch.h"

#include "core/dtype.h"

#define FITS(name, doc)                                              \
    _Static_assert(sizeof(ndm_##name##_args) <= NDM_LAUNCH_ARGS_MAX, \
                   #name " arguments fit a launch");
NDM_KERNEL_LIST(FITS)
#undef FITS

ndm_status ndm_kernels_launch(ndm_stream *stream, ndm_op op, const void *args, size_t args_bytes)
{
    const ndm_device *device = stream->device;

    if (!device->kernels)
        NDM_FAIL(NDM_ERR_STATE, "kernel %s: no kernels are bound to device %s", ndm_op_name(op),
                 device->ops->name);
    ndm_launch call = {.name = ndm_op_name(op),
                       .body = device->kernels->body[op],
                       .args = args,
                       .args_bytes = args_bytes,
                       .op = (int)op};
    return ndm_stream_launch(stream, &call);
}

ndm_status ndm_check_pointer(const char *op, const char *field, const void *pointer)
{
    if (!pointer)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is NULL", op, field);
    return NDM_OK;
}

ndm_status ndm_check_count(const char *op, const char *field, int64_t value, int64_t least)
{
    if (value < least)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %lld, below %lld", op, field, (long long)value,
                 (long long)least);
    return NDM_OK;
}

/* Fills in a stride of 0. */
ndm_status ndm_check_stride(const char *op, const char *field, int64_t *stride, int64_t width)
{
    if (*stride == 0)
        *stride = width;
    if (*stride < width)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %lld, rows are %lld wide", op, field,
                 (long long)*stride, (long long)width);
    return NDM_OK;
}

ndm_status ndm_check_weight(const char *op, const char *field, ndm_dtype dtype)
{
    if (dtype != NDM_F32 && dtype != NDM_BF16 && dtype != NDM_F16)
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %s; fp32, bf16 and fp16 are known", op, field,
                 ndm_dtype_name(dtype));
    return NDM_OK;
}

ndm_status ndm_check_eight(const char *op, const char *field, ndm_dtype dtype)
{
    if (!ndm_dtype_is_f8(dtype))
        NDM_FAIL(NDM_ERR_USAGE, "kernel %s: %s is %s; fp8_e4m3 and fp8_e5m2 are known", op, field,
                 ndm_dtype_name(dtype));
    return NDM_OK;
}
